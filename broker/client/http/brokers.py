"""Which broker is asked, and what its answer means.

Candidates for a request, in order: the leader of the partition, if an answer has named one; then the
configured brokers, the one that worked last first. A broker that cannot be reached is skipped and
asked last from then on; `421 not_leader` names the one to ask instead. An answer without success becomes an
error of the tree, with the broker's address among its fields.

A call that is not idempotent is repeated here only if the try certainly had no effect. The caller keeps pauses and
deadlines.

B1  An error has the field `sent` if this request, or one before it in the same call, may have been carried out: also
    the refusal of a broker that was asked after another one, or after a connection that broke.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any, Final

from broker.api.errors import InvalidRequest, LiftlogError, NotLeader, Unavailable, from_problem
from broker.api.plain import parse_json
from broker.client.http.address import Address, Addresses, parse_address, parse_addresses
from broker.client.http.forks import renew_after_fork
from broker.client.http.outages import Outages, Say
from broker.client.http.pool import Exchange, Pool, Request

REDIRECTS_MAX: Final = 3
PROBLEM_BYTES_MAX: Final = 1 << 20

PartitionKey = tuple[str, int]


class Brokers:
    """The brokers of a cluster and who leads what, as far as answers told. Thread-safe.

    Args:
        addresses: At least one; parsed by `parse_addresses`.
        pool: Connections to use; None: an own one.
        say: Takes a line of text when nobody answers and when somebody does again; None: the log does.
    """

    def __init__(self, addresses: Addresses, *, pool: Pool | None = None, say: Say | None = None) -> None:
        self.addresses = parse_addresses(addresses)
        self.pool = pool or Pool()
        self.outages = Outages(say)
        self._first = 0
        self._leaders: dict[PartitionKey, Address] = {}
        self._lock = threading.Lock()
        renew_after_fork(self)

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses))

    def note_leader(self, key: PartitionKey, address: str | Address | None) -> None:
        """Ask this broker first about the partition. None, or no address, forgets what was known."""
        leader = _readable(address) if isinstance(address, str) else address
        with self._lock:
            if leader is None:
                self._leaders.pop(key, None)
            else:
                self._leaders[key] = leader

    def candidates(self, key: PartitionKey | None = None) -> list[Address]:
        """The brokers to ask, the best first."""
        with self._lock:
            order = self.addresses[self._first :] + self.addresses[: self._first]
            leader = self._leaders.get(key) if key is not None else None
        return list(order if leader is None else dict.fromkeys((leader, *order)))

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
        may_be_done = False
        while queue:
            address = queue.pop(0)
            asked.append(address)
            try:
                exchange = self.pool.exchange(address, request)
            except Unavailable as error:
                self._note_failure(address, key)
                may_be_done = error.fields["sent"] = may_be_done or error.sent
                if (may_be_done and not request.is_idempotent) or request.is_interrupted:
                    raise
                failures.append(error)
                continue
            if 200 <= exchange.status < 300:
                return exchange
            may_be_done = may_be_done or exchange.is_repeat
            problem = read_problem(exchange)
            if may_be_done:
                problem.fields["sent"] = True
            if not isinstance(problem, NotLeader):
                if problem.status >= 500:
                    self._note_failure(address, key)
                raise problem
            leader = leader_of(problem)
            if leader is None or leader in asked[-1:] or len(asked) > len(self.addresses) + REDIRECTS_MAX:
                self._note_failure(address, key)
                raise problem
            if key is not None:
                self.note_leader(key, leader)
            queue.insert(0, leader)
        raise nobody(failures)

    def after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread may have held it

    def _note_failure(self, address: Address, key: PartitionKey | None) -> None:
        with self._lock:
            if key is not None and self._leaders.get(key) == address:
                del self._leaders[key]
            if self.addresses[self._first] == address:
                self._first = (self._first + 1) % len(self.addresses)


def nobody(failures: list[Unavailable]) -> Unavailable:
    """The error that stands for every broker's."""
    assert failures, "there is at least one candidate"
    if len(failures) == 1:
        return failures[0]
    return Unavailable(
        "no broker answers: " + "; ".join(map(str, failures)),
        address=",".join(str(failure.address) for failure in failures),
        sent=any(failure.sent for failure in failures),
    )


def leader_of(error: NotLeader) -> Address | None:
    """The broker that a `not_leader` answer names: its `leader` field, an address or `{"http": address}`."""
    leader = error.fields.get("leader")
    if isinstance(leader, Mapping):
        leader = leader.get("http")
    return _readable(leader) if isinstance(leader, str) else None


def _readable(address: str) -> Address | None:
    """The address that another broker told, None if it is none."""
    try:
        return parse_address(address)
    except InvalidRequest:
        return None


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
    # Whoever this is may have passed the request on to a broker: `sent`.
    excerpt = body[:200].decode(errors="replace").strip()
    text = f"{where}: HTTP status {exchange.status}, not from a liftlog broker" + (f": {excerpt}" if excerpt else "")
    if exchange.status in (408, 429) or exchange.status >= 500:  # a proxy in between
        return Unavailable(text, address=where, sent=True, timed_out=False)
    return InvalidRequest(text, address=where, http_status=exchange.status, sent=True)
