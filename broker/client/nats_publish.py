"""Messages to a NATS subject, as any publisher would send them, with the streams' acks counted.

    publish ──► subject, reply = inbox.<n> ──► brokers store it ──► ack on inbox.<n>: {"stream", "seq", "partition"}
       ▲                                                                   │
       └──────────── at most `window` messages await an ack ◄──────────────┘

One subscription takes all acks. If several streams capture the subject, the first ack counts. The first call
loads nats-py.

    what became of a message     counted in
    stored                       acked, and offsets
    refused, or no ack in time   errors, by a reason that is the same for all of its kind, with one text as an example;
                                 of `no_ack` it is not known whether they are stored
    neither yet                  unanswered: only in the report of a publish that was interrupted

P1  A message is noted before it is handed to nats-py. A Ctrl-C in between leaves it unanswered, never uncounted.
P2  A message that nobody took (`no_responders`: while a partition has no leader) is sent again, before any new one.
    It is not stored, so this stores nothing twice. Later messages of the window may have been taken before it. After
    `ack_timeout_s` of such answers alone they are final, until something is acknowledged again.
P3  A broker that does not lead, or not yet, has no say on whether a message is stored: it may have stored it before it
    was replaced, or its successor has taken it as well. Its answer is none, and another one is awaited. The message is
    not sent again: it might be stored twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from broker.api import environment
from broker.api.errors import InvalidRequest, LiftlogError, Unavailable
from broker.api.plain import parse_json
from broker.api.stream import check_subject
from broker.client.nats_connection import NatsConnection, close, flush
from broker.client.writing.payloads import as_async, read_ahead

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

ACK_TIMEOUT_S: Final = 10.0
REASONS_MAX: Final = 100
EXAMPLE_CHARS_MAX: Final = 500
_REASON: Final = re.compile(r"(.*) \[([a-z_]{1,64})\]", re.DOTALL)
"""How our own refusals end (broker/ingest/answers.py)."""
PROGRESS_EVERY: Final = 1_000
AWAITED_BYTES_MAX: Final = 64 << 20
"""Payloads that await their ack are kept, to be sent again (P2)."""
REPEAT_S: Final = 0.1
NOBODY: Final = "no_responders"
NO_ANSWERS: Final = frozenset({"not_leader", "not_ready"})
"""See P3."""

Progress = Callable[[int, int], None]
Nobody = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """The fate of the messages.

    Attributes:
        sent: Number of messages that were handed to NATS; whether a stream has them, the other numbers say.
        bytes: Size of their payloads.
        acked: Number of messages that a stream has stored. 0 if no acks were asked for.
        duplicates: Number of acked messages that had been stored before.
        errors: Number of failures by reason. A reason is a code of `broker.api.errors` that the broker named,
            `jetstream_<err_code>` of another server, or `no_responders`, `no_ack`, `max_payload`, `bad_ack`. Reasons
            beyond 100 are `other`. It is not known whether a message of `no_ack` is stored.
        examples: The text of the first failure for each reason.
        offsets: First and last offset that acks named, by (stream, partition).
        seconds: From the first message to the last ack.
        unanswered: Messages whose ack was still awaited when the publish was interrupted: stored or not.
    """

    sent: int
    bytes: int
    acked: int
    duplicates: int
    errors: Mapping[str, int]
    examples: Mapping[str, str]
    offsets: Mapping[tuple[str, int], tuple[int, int]]
    seconds: float
    unanswered: int = 0

    @property
    def failed(self) -> int:
        """Messages without an ack, though one was asked for; and those that NATS did not take."""
        return sum(self.errors.values())


class PublishInterrupted(KeyboardInterrupt):
    """Ctrl-C while messages were published. `report` tells what became of those so far."""

    def __init__(self, report: PublishReport) -> None:
        super().__init__(report)
        self.report = report


def publish(
    nats_url: str | Iterable[str] | None,
    subject: str,
    payloads: Iterable[bytes],
    *,
    headers: Mapping[str, str] | None = None,
    window: int = 256,
    acks: bool = True,
    ack_timeout_s: float = ACK_TIMEOUT_S,
    payloads_may_block: bool = False,
    on_progress: Progress | None = None,
    on_nobody: Nobody | None = None,
    **connect_options: Any,
) -> PublishReport:
    """Publish messages to a subject and wait for their acks.

    Args:
        nats_url: One or several servers, as a list or separated by commas. None: those of the environment variable
            LIFTLOG_NATS_URL, else 127.0.0.1.
        subject: A subject without wildcards.
        payloads: Message bodies, in order.
        headers: Headers of every message, such as `Liftlog-Key`.
        window: Number of messages that may await their ack at a time; fewer if they hold over 64 MiB.
        acks: Ask for acks; False: core NATS, fire and forget.
        ack_timeout_s: A message without an ack after this time counts as an error. So do messages that nobody took
            for so long; until then they are sent again.
        payloads_may_block: Read the payloads in a thread of their own, because they come from a pipe or the like.
        on_progress: Called now and then with the numbers sent and acknowledged so far.
        on_nobody: Called when nobody takes messages, with the seconds for which they are sent again.
        connect_options: For `nats.connect`: credentials, TLS.
    Raises:
        InvalidSubject, InvalidRequest: the subject or the headers cannot be sent.
        Unavailable: no server answers, or the connection is lost for good.
        NatsRefused: the server refuses the connection or the subject.
        PublishInterrupted: Ctrl-C; it has the report so far.
    """
    servers = environment.nats_url() if nats_url is None else nats_url
    work = _Publish(subject, dict(headers) if headers else None, window, ack_timeout_s, on_nobody)

    def run() -> PublishReport:
        source = read_ahead(payloads) if payloads_may_block else as_async(payloads)
        return asyncio.run(work.publish(servers, source, connect_options, acks=acks, on_progress=on_progress))

    try:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return run()
        return _in_thread(run, work.cancel)  # a notebook: its loop runs in this thread
    except KeyboardInterrupt:
        raise PublishInterrupted(work.report()) from None


@dataclass(slots=True)
class _Publish:
    """One run: what was sent, what awaits an ack, what came back."""

    subject: str
    headers: dict[str, str] | None
    window: int
    ack_timeout_s: float
    on_nobody: Nobody | None
    client: Client = field(init=False)
    connection: NatsConnection = field(init=False)
    task: asyncio.Task[Any] | None = None
    is_cancelled: bool = False
    inbox: str = ""
    began_s: float | None = None
    sent: int = 0
    byte_count: int = 0
    acked: int = 0
    duplicates: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    awaited: dict[int, tuple[float, bytes]] = field(default_factory=dict)  # number -> when to give up; oldest first
    awaited_bytes: int = 0
    untaken: dict[int, bytes] = field(default_factory=dict)  # sent again soon (P2)
    no_answer: str = ""  # the last one (P3)
    nobody_until_s: float | None = None  # since when nobody takes messages, plus `ack_timeout_s`
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def publish(
        self,
        nats_url: str | Iterable[str],
        payloads: AsyncIterator[bytes],
        connect_options: Mapping[str, Any],
        *,
        acks: bool,
        on_progress: Progress | None,
    ) -> PublishReport:
        """Connect, publish all, disconnect."""
        self.task = asyncio.current_task()
        if self.is_cancelled:
            raise asyncio.CancelledError
        check_subject(self.subject, wildcards=False)
        if self.window < 1:
            raise InvalidRequest(f"window={self.window}: must be 1 or more")
        given = [nats_url] if isinstance(nats_url, str) else nats_url
        self.connection = NatsConnection([part.strip() for text in given for part in text.split(",")])
        self.client = await self.connection.open(connect_options)
        try:
            if acks:
                await self.listen()
            return await self.run(payloads, on_progress)
        finally:
            await close(self.client)

    def cancel(self) -> None:
        """End it from another thread, also before it has begun."""
        self.is_cancelled = True
        if self.task is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended
                self.task.get_loop().call_soon_threadsafe(self.task.cancel)

    def report(self) -> PublishReport:
        """The fate of the messages by now."""
        errors = self.errors + Counter({NOBODY: len(self.untaken)})
        return PublishReport(
            sent=self.sent,
            bytes=self.byte_count,
            acked=self.acked,
            duplicates=self.duplicates,
            errors=dict(errors),
            examples={reason: text for reason, text in self.examples.items() if errors[reason]},
            offsets=dict(self.offsets),
            seconds=0.0 if self.began_s is None else time.perf_counter() - self.began_s,
            unanswered=len(self.awaited),
        )

    async def listen(self) -> None:
        """Subscribe to the acks."""
        self.inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self.inbox}.*", cb=self._on_answer)
        await flush(self.client, self.ack_timeout_s)

    async def run(self, payloads: AsyncIterator[bytes], on_progress: Progress | None) -> PublishReport:
        self.began_s = time.perf_counter()
        async for payload in payloads:
            if len(self.awaited) >= self.window or self.awaited_bytes >= AWAITED_BYTES_MAX:
                await self._until(self.window // 2)  # not one by one: a wake-up for many acks
            if self.untaken:
                await self._repeat()
            number = self.sent
            self.sent += 1
            self.byte_count += len(payload)
            if not await self._send(number, payload):
                self.sent -= 1
                self.byte_count -= len(payload)
            if self.sent % PROGRESS_EVERY == 0:
                await asyncio.sleep(0)
                if on_progress is not None:
                    on_progress(self.sent, self.acked)
        await self._until(0)
        if self.untaken:
            await self._repeat()
        await self._flush()
        report = self.report()
        if on_progress is not None:
            on_progress(self.sent, self.acked)
        return report

    async def _send(self, number: int, payload: bytes) -> bool:
        """Hand it to NATS; False: it is too large for the server, and counted."""
        from nats import errors

        reply = f"{self.inbox}.{number}" if self.inbox else ""
        give_up_s = time.monotonic() + self.ack_timeout_s
        while True:
            if reply:
                self.awaited[number] = (give_up_s, payload)
                self.awaited_bytes += len(payload)
            try:
                await self.client.publish(self.subject, payload, reply=reply, headers=self.headers)  # P1
                return True
            except errors.MaxPayloadError:
                self._answered(number)
                self._count("max_payload", f"over the server's max_payload of {self.client.max_payload} bytes")
                return False
            except errors.OutboundBufferLimitError as error:  # not connected at the moment
                self._answered(number)
                if time.monotonic() > give_up_s:
                    raise self._lost("no connection") from error
                await asyncio.sleep(0.05)
            except errors.BadHeaderError as error:
                raise InvalidRequest(f"a header cannot be sent: {error}") from error
            except errors.Error as error:
                self._answered(number)
                raise self._lost(str(error)) from error

    async def _repeat(self) -> None:
        """Send again what nobody took (P2): the first one alone, until somebody takes it or the time is over."""
        while self.untaken:
            await self._until(0)
            self.untaken = dict(sorted(self.untaken.items()))
            await asyncio.sleep(REPEAT_S)
            one = self.nobody_until_s is not None
            for number in list(self.untaken)[: 1 if one else None]:
                await self._send(number, self.untaken.pop(number))
            await self._until(0)

    def _answered(self, number: int) -> bytes | None:
        """Take the payload that awaited this ack; None: it awaits none."""
        _, payload = self.awaited.pop(number, (0.0, None))
        if payload is not None:
            self.awaited_bytes -= len(payload)
        return payload

    def _nobody_took(self, number: int, payload: bytes) -> None:
        now_s = time.monotonic()
        self.untaken[number] = payload  # first: Ctrl-C may come out of `on_nobody`
        if self.nobody_until_s is None:
            self.nobody_until_s = now_s + self.ack_timeout_s
            if self.on_nobody is not None:
                self.on_nobody(self.ack_timeout_s)
        self.examples.setdefault(NOBODY, f"no stream captures {self.subject}")
        if now_s >= self.nobody_until_s:
            self.errors[NOBODY] += len(self.untaken)
            self.untaken.clear()

    async def _until(self, awaited_max: int) -> None:
        """Wait until at most so many acks are awaited; those that are overdue count as errors."""
        while len(self.awaited) > awaited_max:
            if self.client.is_closed:
                raise self._lost("closed")
            self.answered.clear()
            number, (give_up_s, _) = next(iter(self.awaited.items()))
            try:
                async with asyncio.timeout(max(0.0, give_up_s - time.monotonic())):
                    await self.answered.wait()
            except TimeoutError:
                if self._answered(number) is not None:
                    said = f"; a broker said: {self.no_answer}" if self.no_answer else ""
                    self._count("no_ack", f"no ack within {self.ack_timeout_s:g} s{said}")

    async def _flush(self) -> None:
        from nats import errors

        try:
            await flush(self.client, self.ack_timeout_s)
        except (errors.Error, OSError, TimeoutError) as error:
            raise self._lost(str(error) or "no answer") from error

    async def _on_answer(self, message: Msg) -> None:
        number = int(message.subject.rpartition(".")[2])
        if said := _no_answer(message.data):
            self.no_answer, self.nobody_until_s = said, None
            return
        payload = self._answered(number)
        if payload is None:
            return  # another stream's ack was first, or it was given up
        self.answered.set()
        if message.headers and message.headers.get("Status") == "503":
            self._nobody_took(number, payload)
            return
        self.nobody_until_s = None
        try:
            answer = parse_json(message.data)
            if "error" in answer:
                self._count(*_reason_of(answer["error"]))
                return
            place = (str(answer["stream"]), int(answer.get("partition", 0)))
            offset = int(answer["seq"]) - 1
        except (ValueError, KeyError, TypeError, OverflowError):
            self._count("bad_ack", f"an answer that is no ack: {message.data[:100]!r}")
            return
        self.acked += 1
        self.duplicates += bool(answer.get("duplicate"))
        first, last = self.offsets.get(place, (offset, offset))
        self.offsets[place] = (min(first, offset), max(last, offset))

    def _count(self, reason: str, text: str) -> None:
        if reason not in self.errors and len(self.errors) >= REASONS_MAX:
            reason = "other"
        self.errors[reason] += 1
        self.examples.setdefault(reason, text[:EXAMPLE_CHARS_MAX])

    def _lost(self, why: str) -> LiftlogError:
        said = self.connection.last_error
        counts = f"{self.sent} sent, {self.acked} acknowledged"
        return Unavailable(
            f"{self.connection}: {why}{f' ({said})' if said else ''}; {counts}",
            address=str(self.connection),
            messages_sent=self.sent,
            acked=self.acked,
            sent=True,
        )


def _reason_of(error: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and text of an error answer: ours ends with the reason in brackets, JetStream's own has a number."""
    text = str(error["description"])
    ours = _REASON.fullmatch(text)
    if ours:
        return ours[2], ours[1]
    code = error.get("err_code", error.get("code"))
    return f"jetstream_{code}" if isinstance(code, int) and 0 <= code < 100_000 else "refused", text


def _no_answer(data: bytes) -> str:
    """The text of an answer that is none (P3), else nothing."""
    if not data.startswith(b'{"error"'):
        return ""
    try:
        reason, text = _reason_of(parse_json(data)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
    return f"{text} [{reason}]" if reason in NO_ANSWERS else ""


def _in_thread(run: Callable[[], PublishReport], cancel: Callable[[], None]) -> PublishReport:
    """Call it in a thread. Ctrl-C comes to this one: it cancels, and goes on once the other has ended."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(run).result()
        except KeyboardInterrupt:
            cancel()
            raise
