"""An endpoint is one row of a table that the server routes by and the OpenAPI document is made of.

    @ENDPOINTS.add(method, path, operation, {status: Content}, permission=needs(...), act=NO_ACT,
                   query=(Parameter, ...), request=Content, errors=(...))
    async def handler(serving, request, query): ...

Validation happens here, before the handler runs, so all endpoints refuse alike: an unknown or doubled
query parameter, and a value beyond its limits, is an error that names parameter, value and limit.

E1  The document says of a parameter what `parse` enforces: both come from one `Parameter`.
E2  A handler runs in a turn of its caller (`callers.C3`), in a reservation of memory for its body (`body.B1`), and
    under the deadline of `timeout_ms`, until its answer begins (`begin_answer`). It does not run before its caller is
    let in (`access.A1`).
E3  An endpoint says what its caller needs: one that does not, or that names what it does not have, does not load.
E4  It says whether it is an administrative act, too. Such a one is answered once it is recorded (`audit.U2`). Whoever
    is refused, by whatever endpoint, is recorded.
E5  A request leaves nothing behind that only a search for cycles finds. What its context knows, and knows its task, is
    taken out again: with thousands of requests a second the searches stopped all threads, for longer than a session.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

from aiohttp import web

from broker.api.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LiftlogError,
    LimitReached,
    Unauthenticated,
    Unauthorized,
    partly,
)
from broker.api.misfit import SHOWN_MAX, Misfit, unknown
from broker.api.permissions import Permission, Where
from broker.api.validation import Rule, build, shape_of
from broker.serving.contract.acts import Act, acting_now
from broker.serving.contract.backend import Backend, Watcher
from broker.serving.contract.deadline import answer_due
from broker.serving.contract.done import Change, change_now
from broker.serving.contract.schemas import ref
from broker.serving.http import callers
from broker.serving.http.access import ACCESS, Asking, Gate, Needed, access_now
from broker.serving.http.audit import Audit
from broker.serving.http.body import (
    JSON_BYTES_MAX,
    JSON_MEDIA,
    BodyBudget,
    read_json_text,
    refuse_content,
    reservation_now,
)
from broker.serving.http.callers import Callers
from broker.serving.http.gone import asking_now
from broker.serving.http.json_text import ITEMS_MAX, parse
from broker.serving.http.meters import Meters
from broker.serving.http.new_names import NewNames
from broker.serving.http.origin import OPEN_PATHS as SAYING_NOTHING
from broker.serving.http.peers import Peers

if TYPE_CHECKING:
    from broker.serving.endpoints.heads import PolledHeads

TIMEOUT_MS_DEFAULT: Final = 120_000
TIMEOUT_MS_MAX: Final = 600_000
WAIT_MS_MAX: Final = 300_000
OFFSET_MAX: Final = (1 << 63) - 1
OPEN_PATHS: Final = SAYING_NOTHING | {"/v1/auth/whoami"}
"""The paths that need no permission: what says nothing, or to a caller what it has said itself."""
CHECKED_INLINE_BYTES: Final = 32 << 10
INLINE_BYTES_MAX: Final = 32 << 10
IN_TURN_BYTES_MAX: Final = 256 << 10
"""JSON bodies up to this are checked on the loop."""

# aiohttp runs each request in a task, so in a context, of its own.
operation_now: Final[ContextVar[str]] = ContextVar("operation", default="none")
"""The operation of this request, for counting and logging."""
_deadline: Final[ContextVar[asyncio.Timeout]] = ContextVar("deadline")

T = TypeVar("T")

Query = Mapping[str, Any]
JSON = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One query parameter.

    Attributes:
        schema: Its JSON schema, default included.
        parse: Text to value; raises ValueError with what must hold ("must be ...").
        default: When it is absent.
    """

    name: str
    description: str
    schema: JSON
    parse: Callable[[str], Any]
    default: Any = None


def parameter(name: str, description: str, hint: Any, default: Any = None) -> Parameter:
    """One whose value is declared by a type."""
    shape = shape_of(hint)

    def parse(text: str) -> Any:
        try:
            return shape.take(shape.read(text))
        except Misfit as misfit:
            raise ValueError(misfit.what) from None

    schema = shape.schema({}) | ({} if default is None else {"default": default})
    return Parameter(name=name, description=description, schema=schema, parse=parse, default=default)


def integer(name: str, description: str, *, least: int, greatest: int, default: int | None = None) -> Parameter:
    """A whole number within limits."""
    return parameter(name, description, Annotated[int, Rule(limit=(least, greatest))], default)


def choice(name: str, description: str, choices: tuple[str, ...], default: str | None = None) -> Parameter:
    """One of several words."""
    return parameter(name, description, Annotated[str, Rule(limit=choices)], default)


def boolean(name: str, description: str) -> Parameter:
    """`true` or `false`; false when absent."""
    return parameter(name, description, bool, default=False)


def text(name: str, description: str, *, length_max: int = 128) -> Parameter:
    """Any text up to a length in characters."""
    return parameter(name, description, Annotated[str, Rule(limit=(1, length_max))])


@dataclass(frozen=True, slots=True)
class AtTime:
    """The position of the first record that is not older."""

    timestamp_us: int


def position(name: str, description: str, *, default: str) -> Parameter:
    """A number, `earliest`, `latest` or `time:<ISO 8601 or milliseconds since 1970>`: int, str or AtTime."""
    what = "must be a number, earliest, latest or time:<ISO 8601 or milliseconds since 1970 UTC>"

    def parse(value: str) -> int | str | AtTime:
        if value in ("earliest", "latest"):
            return value
        if value.startswith("time:"):
            return AtTime(_time_us(value.removeprefix("time:")))
        if not (value.isascii() and value.isdigit()) or len(value) > 19 or int(value) > OFFSET_MAX:
            raise ValueError(what)
        return int(value)

    schema: JSON = {
        "type": "string",
        "pattern": "^([0-9]{1,19}|earliest|latest|time:.+)$",
        "default": default,
        "examples": ["0", "latest", "time:2013-01-01T05:00:00Z", "time:1357016400000"],
    }
    return Parameter(name=name, description=description, schema=schema, parse=parse, default=default)


def moment(name: str, description: str) -> Parameter:
    """A time, as microseconds since 1970 UTC."""

    def parse(value: str) -> int:
        try:
            return _time_us(value)
        except ValueError:
            raise ValueError("must be an ISO 8601 time or milliseconds since 1970 UTC (write + as %2B)") from None

    return Parameter(
        name=name, description=description, schema={"type": "string", "minLength": 1}, parse=parse, default=None
    )


def _time_us(value: str) -> int:
    """ISO 8601 (without zone: UTC) or milliseconds since 1970 as microseconds since 1970 UTC."""
    try:
        if value.removeprefix("-").isdigit() and value.isascii() and len(value) <= 15:
            return int(value) * 1000
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise ValueError(
            "must hold an ISO 8601 time or milliseconds since 1970 UTC after time: (write + as %2B)"
        ) from None


TIMEOUT: Final = integer(
    "timeout_ms",
    f"Give up with `deadline_exceeded` if the answer has not begun by then. Default: "
    f"{TIMEOUT_MS_DEFAULT} ms (and `max_wait_ms`). A long poll ends before that, without an error.",
    least=1,
    greatest=TIMEOUT_MS_MAX,
)
MAX_WAIT: Final = integer(
    "max_wait_ms",
    "Long poll: how long to wait when there is nothing new. An empty answer then is normal.",
    least=0,
    greatest=WAIT_MS_MAX,
    default=0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A request or answer body: media type -> JSON schema (None: bytes of that type)."""

    description: str
    media: Mapping[str, JSON | None] = field(default_factory=dict)
    headers: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Serving:
    """The things that every handler gets. One per application.

    Attributes:
        body_bytes_max: Limit of a request body of records; twice that, decoded.
        now_us: The clock: microseconds since 1970 UTC.
        budget: Memory for bodies of records.
        json_budget: Memory for JSON bodies: those of records cannot keep an operator out.
        lines_budget: Memory for answers of JSON lines.
        worker: Threads for what may wait for the disk or takes long: looking up offsets, decoding what clients
            sent, encoding for people.
        decoder: One thread, for records that take it about a millisecond (`decoded`).
        heads: Ends of partitions that other brokers lead, for those who watch.
        peers: Other brokers, asked for what this one does not know.
        gate: Who may do what.
        callers: How much each may have under way.
        names: How many each may make.
        audit: Who did what.
        draining: Set at shutdown (`drain`): long polls end.
    """

    backend: Backend
    body_bytes_max: int
    now_us: Callable[[], int]
    worker: Executor
    decoder: Executor
    meters: Meters
    budget: BodyBudget
    json_budget: BodyBudget
    lines_budget: BodyBudget
    peers: Peers
    heads: PolledHeads
    gate: Gate
    callers: Callers
    names: NewNames
    audit: Audit
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    _watchers: set[Watcher] = field(default_factory=set)

    def drain(self) -> None:
        """End long polls, and begin none."""
        self.draining.set()
        for watcher in self._watchers:
            watcher.told()

    @contextmanager
    def watching(self) -> Iterator[Watcher]:
        """As `Backend.watching`; woken by `drain`, too. So who waits needs no task for that."""
        with self.backend.watching() as watcher:
            self._watchers.add(watcher)
            try:
                yield watcher
            finally:
                self._watchers.discard(watcher)

    async def in_worker(self, function: Callable[..., T], *args: Any, undo: Callable[[T], None] | None = None) -> T:
        """Run `function` in a worker thread.

        Cancelled, also more than once, it still waits for the thread, which may use what the caller is about to close.

        Args:
            undo: Gets the result that nobody takes any more.
        """
        return await _in(self.worker, function, *args, undo=undo)

    async def decoded(self, byte_count: int, function: Callable[..., T], *args: Any) -> T:
        """Run `function`, which decodes so many bytes of records, where it holds up others least.

        A few bytes on the loop, if nothing else of their caller is under way: who asks for little is answered at once.
        Those of a usual batch in one thread, which is the same for all requests: the work is some dozens of short calls
        into Arrow, each of which lets go of the interpreter. Threads that do such work at the same time take it from
        each other at each of them, which costs more than the work. Many bytes in any of the worker threads: nobody else
        should wait for them.
        """
        if byte_count <= INLINE_BYTES_MAX and callers.is_alone():
            return function(*args)
        return await _in(self.decoder if byte_count <= IN_TURN_BYTES_MAX else self.worker, function, *args)

    async def asked(
        self, request: web.Request, cls: type[T], bytes_max: int = JSON_BYTES_MAX, items_max: int = ITEMS_MAX
    ) -> T:
        """The request that the JSON body stands for.

        Raises:
            InvalidRequest: it is no such request; the field `field` says where. And as `json_object`.
        """
        return await self._from_json(request, bytes_max, items_max, lambda value: request_of(cls, value))

    async def asked_in(self, text: memoryview, cls: type[T]) -> T:
        """As `asked`, of a part of a body that is read already."""
        return await self._made_of(text, ITEMS_MAX, lambda value: request_of(cls, value))

    async def json_object(self, request: web.Request, bytes_max: int) -> JSON:
        """The body as a JSON object. Raises as `json_text.parse` and `read_body`."""
        return await self._from_json(request, bytes_max, ITEMS_MAX, lambda value: value)

    async def _from_json(self, request: web.Request, bytes_max: int, items_max: int, make: Callable[[JSON], T]) -> T:
        """What `make` makes of the JSON body; of a long one in a worker thread."""
        return await self._made_of(await read_json_text(request, bytes_max), items_max, make)

    async def _made_of(self, text: bytes | bytearray | memoryview, items_max: int, make: Callable[[JSON], T]) -> T:
        reservation, acting = reservation_now.get(), acting_now.get()

        def made(value: Any) -> T:
            if acting is not None:
                acting.asked(value)
            return make(value)

        if len(text) <= CHECKED_INLINE_BYTES:
            return made(parse(text, reservation, items_max))
        return await self.in_worker(lambda: made(parse(text, reservation, items_max)))

    async def json_answer(
        self, make: Callable[..., Any], *args: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        """Answer with what `make` returns, made and encoded in a worker thread: it may be large."""
        body = await self.in_worker(lambda: json.dumps(make(*args)).encode())
        return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def request_of(cls: type[T], value: Any) -> T:
    """The request that a JSON value stands for. Raises InvalidRequest."""
    try:
        return build(cls, value)
    except Misfit as misfit:
        raise refused(misfit) from None


def refused(misfit: Misfit) -> InvalidRequest:
    """The error for a value of a request body: where it is, the value, and what must hold."""
    whole = "the request body"
    facts = {"field": misfit.where or whole, "value": misfit.shown, "limit": misfit.limit, "nearest": misfit.nearest}
    return InvalidRequest(misfit.text(whole), **{name: fact for name, fact in facts.items() if fact})


async def _in(threads: Executor, function: Callable[..., T], *args: Any, undo: Callable[[T], None] | None = None) -> T:
    """As `Serving.in_worker`, in a thread of these."""
    future = asyncio.get_running_loop().run_in_executor(threads, function, *args)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(lambda done: _dropped(done, undo))
        while not future.done():
            with suppress(asyncio.CancelledError):  # its client goes when its time is up already
                await asyncio.wait([future])
        raise


def _dropped(future: asyncio.Future[T], undo: Callable[[T], None] | None) -> None:
    if not future.cancelled() and future.exception() is None and undo is not None:
        undo(future.result())


Handler = Callable[[Serving, web.Request, Query], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One operation.

    Attributes:
        permission: What its caller needs (E3).
        act: The administrative act that it is; None, `NO_ACT`: it is none (E4).
        errors: Those beyond what any operation may answer.
    """

    method: str
    path: str
    operation: str
    summary: str
    handler: Handler
    permission: Permission
    act: Act | None
    query: tuple[Parameter, ...] = ()
    request: Content | None = None
    answers: Mapping[int, Content]
    errors: tuple[type[LiftlogError], ...] = ()

    def __post_init__(self) -> None:
        assert isinstance(self.permission, tuple), f"{self.operation}: E3"
        assert self.act is None or (isinstance(self.act, Act) and self.method != "GET"), f"{self.operation}: E4"
        assert (self.permission == ()) == (self.path in OPEN_PATHS), f"{self.operation}: E3"
        for need in self.permission:
            names = {
                Where.PATH: re.findall(r"{(\w+)}", self.path),
                Where.QUERY: [each.name for each in self.query],
            }.get(need.where)
            assert names is None or need.name in names, f"{self.operation}: E3, there is no {need.of}"
            assert need.where is not Where.BODY or self.request is not None, f"{self.operation}: E3, it takes no body"

    def bind(self, serving: Serving) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The aiohttp handler: validate, then run under the deadline (E2)."""
        needed, parameters = Needed.of(self.path, self.permission), (*self.query, TIMEOUT)
        budget = serving.budget if self.request and JSON_MEDIA not in self.request.media else serving.json_budget

        async def handle(request: web.Request) -> web.StreamResponse:
            operation_now.set(self.operation)
            asked = asking_now.set(request)
            access = await known(request)
            turn = serving.callers.begin(access.caller, request)
            try:
                if turn is None:
                    turn = await serving.callers.wait()
                    access = await known(request)
                answer = await handled(request, access)
                turn.hold(request)
                turn = None
                return answer
            except LimitReached:
                if turn is not None:
                    await asyncio.sleep(callers.REFUSED_S)
                raise
            finally:
                asking_now.reset(asked)  # E5
                if turn is not None:
                    turn.end()

        async def known(request: web.Request) -> Asking:
            access = await serving.gate.begin(request, needed)
            access_now.set(access)
            request[ACCESS] = access
            return access

        async def handled(request: web.Request, access: Asking) -> web.StreamResponse:
            await access.need_path(needed, request.match_info)
            query = parse_query(request, parameters)
            await access.need_query(needed, query)
            access.let_in()
            if (acting := acting_now.get()) is not None:
                acting.begins()
            timeout_ms = query["timeout_ms"] or TIMEOUT_MS_DEFAULT + query.get("max_wait_ms", 0)
            answer_due.set(time.monotonic() + timeout_ms / 1000)
            change = Change()
            change_now.set(change)
            deadline = asyncio.timeout(timeout_ms / 1000)
            due = _deadline.set(deadline)
            access.limited(deadline)
            serving.gate.watch_over(access)
            try:
                has_reserve = access.caller.is_own_peer or serving.gate.is_admin(access.caller.principal)
                with budget.reserved(has_reserve=has_reserve) as reservation:
                    reservation_now.set(reservation)
                    async with deadline:
                        if self.request is None:
                            await refuse_content(request)
                        if stream := request.match_info.get("stream"):
                            await serving.backend.look_for(stream)
                        answer = await self.handler(serving, request, query)
                        access.check_asked(needed)
                        return answer
            except TimeoutError:
                if access.refusal is not None:
                    with partly(change.has_begun):
                        raise access.refusal from None
                if not deadline.expired():
                    raise
                raise DeadlineExceeded(
                    f"{self.operation}: no answer within {timeout_ms} ms", timeout_ms=timeout_ms
                ) from None
            except LiftlogError:
                with partly(change.is_done):
                    raise
            finally:
                _deadline.reset(due)  # E5
                serving.gate.let_go(access)

        async def recorded(request: web.Request) -> web.StreamResponse:
            try:
                if self.act is None:
                    return await handle(request)
                return await serving.audit.acted(request, self.operation, self.act, handle)
            except (Unauthenticated, Unauthorized) as error:
                serving.audit.refused(request, self.operation, error)
                raise

        return recorded


class Endpoints(list[Endpoint]):
    """The endpoints of one module, each added by its handler."""

    def add(
        self,
        method: str,
        path: str,
        operation: str,
        answers: Mapping[int, Content],
        *,
        permission: Permission,
        act: Act | None,
        query: tuple[Parameter, ...] = (),
        request: Content | None = None,
        errors: tuple[type[LiftlogError], ...] = (),
    ) -> Callable[[Handler], Handler]:
        """Let a handler serve this operation. Its docstring is the summary."""

        def take(handler: Handler) -> Handler:
            self.append(
                Endpoint(
                    method=method,
                    path=path,
                    operation=operation,
                    summary=" ".join((handler.__doc__ or "").split()),
                    handler=handler,
                    permission=permission,
                    act=act,
                    query=query,
                    request=request,
                    answers=answers,
                    errors=errors,
                )
            )
            return handler

        return take


def body(description: str, name: str) -> Content:
    """A JSON body of the shape with this name."""
    return Content(description=description, media={JSON_MEDIA: ref(name)})


def answer(description: str, name: str, status: int = 200) -> dict[int, Content]:
    """One answer, whose JSON body has the shape with this name."""
    return {status: body(description, name)}


def begin_answer() -> None:
    """The answer begins: from here on the deadline no longer counts (E2)."""
    _deadline.get().reschedule(None)


def wait_seconds(query: Query) -> float:
    """How long a long poll may wait: `max_wait_ms`, and clearly less than `timeout_ms`."""
    limit_ms = query["timeout_ms"]
    wait_ms = float(query["max_wait_ms"])
    return (wait_ms if limit_ms is None else min(wait_ms, 0.9 * limit_ms)) / 1000


def parse_query(request: web.Request, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """The query as values, defaults filled in.

    Raises:
        InvalidRequest: unknown, doubled, or beyond its limits; names the parameter and what is allowed. Or the query is
            no UTF-8: what stands there is another text once it is decoded.
    """
    raw = request.rel_url.raw_query_string
    if "%" in raw:
        try:
            unquote_to_bytes(raw).decode()
        except UnicodeDecodeError:
            raise InvalidRequest("the query is not UTF-8 once it is decoded", value=raw[:SHOWN_MAX]) from None
    known = {parameter.name: parameter for parameter in parameters}
    values = {parameter.name: parameter.default for parameter in parameters}
    seen = set()
    for name, value in request.query.items():
        if name not in known:
            misfit = unknown(name, value, sorted(known))
            raise InvalidRequest(
                f"unknown query parameter {misfit.where!r}; {misfit.hint}",
                parameter=misfit.where,
                nearest=misfit.nearest,
                limit=sorted(known),
            )
        if name in seen:
            raise InvalidRequest(f"query parameter {name!r} is given twice", parameter=name)
        seen.add(name)
        try:
            values[name] = known[name].parse(value)
        except ValueError as error:
            raise InvalidRequest(
                f"query parameter {name}={value[:SHOWN_MAX]!r}: {error}",
                parameter=name,
                value=value[:SHOWN_MAX],
                limit=known[name].schema,
            ) from None
    return values


def partition_number(request: web.Request) -> int:
    """The `{partition}` of the path.

    Raises:
        InvalidRequest: not a number.
    """
    value = request.match_info["partition"]
    if not (value.isascii() and value.isdigit()) or len(value) > 9:
        raise InvalidRequest(
            f"partition {value[:SHOWN_MAX]!r}: must be a number from 0",
            parameter="partition",
            value=value[:SHOWN_MAX],
        )
    return int(value)
