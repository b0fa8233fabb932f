"""Which broker is asked, and what its answer means.

Candidates for a request, in order: the leader of the partition, if an answer has named one; then the configured
brokers and the others of the cluster, which each answer names, in a circle that begins with the one that worked last.
A broker that cannot be reached is skipped and asked last from then on, for whatever partition; `421 not_leader` names
the one to ask instead. An answer without success becomes an error of the tree, with the broker's address among its
fields.

A call that is not idempotent is repeated here only if the try certainly had no effect. The caller keeps pauses and
deadlines.

B1  An error has the field `sent` if this request, or one before it in the same call, may have been carried out: also
    the refusal of a broker that was asked after another one, or after a connection that broke.
B2  A broker that could not be reached costs one try in `DOWN_S`, not one for each call and partition: one call finds
    out whether it is back, and all others go elsewhere meanwhile. Where there is nobody else, it is asked.
B3  One that stands still, or is behind a cut cable, costs a call some 1.5 s, and the next try waits twice as long each
    time, up to `SILENT_MOST_S`; but one that another broker names as the leader waits no longer than by B2. It is asked
    with all patience once nobody else has answered: a broker that is slow is not taken for gone.
B4  Silence makes nobody repeat what may have been done: a call that is not idempotent is awaited as long as it may
    take. A call that changes something is not handed to a broker that stands still, and might carry it out when it
    wakes: one that has not answered for `HEARD_S` is asked first whether it lives.
B5  Brokers name each other without a scheme. Whoever was given https addresses speaks TLS to all of them: no answer
    leads a client away from it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.api import http
from broker.api.errors import InvalidRequest, LiftlogError, NotLeader, Unauthenticated, Unavailable, from_problem
from broker.api.plain import parse_json
from broker.client.http.address import Address, Addresses, parse_address, parse_addresses
from broker.client.http.forks import renew_after_fork
from broker.client.http.outages import Outages, Say
from broker.client.http.pool import READING, Exchange, Pool, Request, unavailable
from broker.client.http.profiles import files_for
from broker.client.http.silence import lives
from broker.client.http.tls import TlsFiles, client_context
from broker.client.http.token import TokenFile

REDIRECTS_MAX: Final = 3
PROBLEM_BYTES_MAX: Final = 1 << 20
OTHERS_MAX: Final = 64
"""So many brokers are remembered beyond those that were given."""
DOWN_S: Final = 2.0
"""See B2. Sessions of brokers last as long: by then somebody else leads what it led."""
SILENT_MOST_S: Final = 30.0
HEARD_S: Final = 2.0

PartitionKey = tuple[str, int]


@dataclass(slots=True)
class Down:
    """A broker that could not be reached: when it was tried last, how long nobody has to try it, and why."""

    tried_s: float
    pause_s: float
    why: str = ""

    def is_over(self, *, named: bool = False) -> bool:
        """Whether it is asked as any other. `named`: as a leader, by another broker (B3)."""
        return time.monotonic() >= self.tried_s + (DOWN_S if named else self.pause_s)


def _pool(is_tls: bool, files: TlsFiles) -> Pool:
    token = None if files.token is None else TokenFile(files.token, over_tls=files.token_over_tls)
    return Pool(tls=client_context(files) if is_tls else None, token=token)


class Brokers:
    """The brokers of a cluster and who leads what, as far as answers told. Thread-safe.

    Args:
        addresses: At least one; parsed by `parse_addresses`.
        pool: Connections to use; None: an own one.
        tls: Files for https addresses; None: those of the environment or its profile. Read now, and ignored with
            `pool`.
        say: Takes a line of text when nobody answers and when somebody does again; None: the log does.
    """

    def __init__(
        self, addresses: Addresses, *, pool: Pool | None = None, tls: TlsFiles | None = None, say: Say | None = None
    ) -> None:
        self.addresses = parse_addresses(addresses)
        self.is_tls = self.addresses[0].is_tls
        self.pool = pool or _pool(self.is_tls, tls or files_for())
        self.outages = Outages(say)
        self._first = 0
        self._leaders: dict[PartitionKey, Address] = {}
        self._others: tuple[Address, ...] = ()
        self._told_of = ""  # the header that named them
        self._down: dict[Address, Down] = {}  # B2, B3
        self._heard_s: dict[Address, float] = {}  # when it has answered last
        self._lock = threading.Lock()
        renew_after_fork(self)

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses))

    def note_leader(self, key: PartitionKey, address: str | Address | None) -> None:
        """Ask this broker first about the partition. None, or no address, forgets what was known."""
        leader = self.named(address) if isinstance(address, str) else address
        with self._lock:
            if leader is None:
                self._leaders.pop(key, None)
            else:
                self._leaders[key] = leader

    def candidates(self, key: PartitionKey | None = None) -> list[Address]:
        """The brokers to ask, the best first."""
        with self._lock:
            order = self._circle()
            leader = self._leaders.get(key) if key is not None else None
            down = {address for address, state in self._down.items() if not state.is_over()}
        return sorted(dict.fromkeys(order if leader is None else (leader, *order)), key=down.__contains__)

    def exchange(self, request: Request, *, key: PartitionKey | None = None) -> Exchange:
        """Ask until one broker answers with success. The caller closes the exchange.

        Args:
            key: The partition whose leader is asked first.
        Raises:
            Unavailable: none can be reached; or one broke off a call that is not idempotent (`sent` is true).
            LiftlogError: what the broker's problem body says (B1).
        """
        queue = self.candidates(key)
        asked: list[Address] = []
        failures: list[Unavailable] = []
        silent: list[Address] = []
        may_be_done = False
        in_haste = len(queue) > 1
        is_answered = False
        while queue or (silent and not is_answered):
            if not queue:  # B3: they are asked again
                queue, silent, in_haste = silent, [], False
            address = queue.pop(0)
            asked.append(address)
            self._note_try(address)
            try:
                if in_haste and request.method not in READING and not self._is_known(address):
                    raise unavailable(
                        address, TimeoutError("it stands still: it was asked whether it lives"), sent=False
                    )
                exchange = self.pool.exchange(address, request, in_haste=in_haste and request.is_idempotent)
            except Unavailable as error:
                self._note_failure(address, key, error=None if request.is_over else error)
                if in_haste and error.timed_out:
                    silent.append(address)
                may_be_done = error.fields["sent"] = may_be_done or error.sent
                if (may_be_done and not request.is_idempotent) or request.is_over:
                    raise
                failures.append(error)
                continue
            self._note_answer(exchange)
            is_answered = True
            if 200 <= exchange.status < 300:
                return exchange
            problem = self._problem(exchange)
            may_be_done = may_be_done or exchange.is_repeat or bool(problem.fields.get("sent"))
            if may_be_done:
                problem.fields["sent"] = True
            if not isinstance(problem, NotLeader) or (may_be_done and not request.is_idempotent):
                if problem.status >= 500:
                    self._note_failure(address, key)
                raise problem
            leader = self._leader_of(problem)
            if leader is None or leader in asked[-1:] or len(asked) > len(self.addresses) + REDIRECTS_MAX:
                self._note_failure(address, key)
                raise problem
            if (state := self._down_now(leader)) is not None:  # B2: the election is not over, or it is on its way back
                raise NotLeader(f"{problem.message}; it was asked a moment ago: {state.why}", **problem.fields)
            if key is not None:
                self.note_leader(key, leader)
            queue.insert(0, leader)
        raise nobody(failures)

    def exchange_with(self, address: Address, request: Request) -> Exchange:
        """Ask one broker, in haste, and nobody else. The caller has somebody else to ask, and closes the exchange.

        Raises:
            Unavailable: it does not answer, or did not a short while ago.
            LiftlogError: what its problem body says.
        """
        if self._down_now(address) is not None:
            raise unavailable(address, "it did not answer a moment ago", sent=False)
        self._note_try(address)
        try:
            exchange = self.pool.exchange(address, request, in_haste=True)
        except Unavailable as error:
            self._note_failure(address, None, error=None if request.is_interrupted else error)
            raise
        self._note_answer(exchange)
        if 200 <= exchange.status < 300:
            return exchange
        raise self._problem(exchange)

    def _problem(self, exchange: Exchange) -> LiftlogError:
        """As `read_problem`. A broker does not say why it does not know a client; what it was shown is said here."""
        found = read_problem(exchange)
        if not isinstance(found, Unauthenticated):
            return found
        why = "The broker's log says why (http.unauthenticated)"
        return Unauthenticated(f"{exchange.address} does not take {self.pool.shown}. {why}", **found.fields)

    def named(self, address: str) -> Address | None:
        """The broker that another one names (B5), None if it is none."""
        try:
            return replace(parse_address(address), is_tls=self.is_tls)
        except InvalidRequest:
            return None

    def after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread may have held it

    def _leader_of(self, error: NotLeader) -> Address | None:
        """The one of a `not_leader` answer: its `leader` field, an address or `{"http": address}`."""
        leader = error.fields.get("leader")
        if isinstance(leader, Mapping):
            leader = leader.get("http")
        return self.named(leader) if isinstance(leader, str) else None

    def _down_now(self, leader: Address) -> Down | None:
        with self._lock:
            state = self._down.get(leader)
            return None if state is None or state.is_over(named=True) else state

    def _is_known(self, address: Address) -> bool:
        """B4: whether it lives, as far as anybody can tell before it is handed something."""
        with self._lock:
            heard_s = self._heard_s.get(address)
        return (heard_s is not None and time.monotonic() - heard_s < HEARD_S) or lives(address)

    def _circle(self) -> tuple[Address, ...]:
        """All that are known, the one to ask first in front. With the lock."""
        known = (*self.addresses, *self._others)
        at = self._first % len(known)
        return known[at:] + known[:at]

    def _note_try(self, address: Address) -> None:
        """B2: until this call knows, others go elsewhere."""
        with self._lock:
            if (state := self._down.get(address)) is not None:
                state.tried_s = time.monotonic()

    def _note_answer(self, exchange: Exchange) -> None:
        told = exchange.headers.get(http.BROKERS, "")
        self._heard_s[exchange.address] = time.monotonic()
        if self._down or told != self._told_of:
            with self._lock:
                self._down.pop(exchange.address, None)
                if told and told != self._told_of:  # what is no broker's answer says nothing of them
                    found = [self.named(each) for each in told.split(",", OTHERS_MAX)[:OTHERS_MAX]]
                    self._others = tuple(each for each in found if each is not None and each not in self.addresses)
                    self._told_of = told

    def _note_failure(self, address: Address, key: PartitionKey | None, *, error: Unavailable | None = None) -> None:
        with self._lock:
            self._heard_s.pop(address, None)
            if error is not None:
                before = self._down.get(address)
                is_dear = before is not None and error.timed_out  # B3
                pause_s = min(2 * before.pause_s, SILENT_MOST_S) if before is not None and is_dear else DOWN_S
                self._down[address] = Down(time.monotonic(), pause_s, error.message)
            if key is not None and self._leaders.get(key) == address:
                del self._leaders[key]
            if self._circle()[0] == address:
                self._first += 1


def nobody(failures: list[Unavailable]) -> LiftlogError:
    """The error that stands for every broker's: InvalidRequest if TLS fails with each of them, else Unavailable."""
    assert failures, "there is at least one candidate"
    text = "no broker answers: " + "; ".join(map(str, failures)) if len(failures) > 1 else failures[0].message
    address, sent = ",".join(str(failure.address) for failure in failures), any(failure.sent for failure in failures)
    if not sent and all(failure.fields.get("tls") for failure in failures):
        return InvalidRequest(text, address=address, tls=True)
    return Unavailable(text, address=address, sent=sent) if len(failures) > 1 else failures[0]


def read_problem(exchange: Exchange) -> LiftlogError:
    """The error that an unsuccessful answer stands for. Reads the body and closes the exchange."""
    try:
        body = exchange.read_all(PROBLEM_BYTES_MAX)
    except Unavailable as error:
        return error
    finally:
        exchange.close()
    where = str(exchange.address)
    problem: Any = None
    with contextlib.suppress(ValueError):
        problem = parse_json(body)
    if isinstance(problem, dict) and isinstance(problem.get("reason"), str):
        found = from_problem(problem)
        found.fields.setdefault("address", where)
        return found
    # The one who answers may have passed the request on to a broker: `sent`.
    excerpt = body[:200].decode(errors="replace").strip()
    text = f"{where}: HTTP status {exchange.status}, not from a liftlog broker" + (f": {excerpt}" if excerpt else "")
    if exchange.status in (408, 429) or exchange.status >= 500:  # a proxy in between
        told = exchange.headers.get("Retry-After", "")
        after = {"retry_after_s": int(told)} if told.isascii() and told.isdigit() and len(told) < 7 else {}
        return Unavailable(text, address=where, sent=True, timed_out=False, **after)
    return InvalidRequest(text, address=where, http_status=exchange.status, sent=True)
