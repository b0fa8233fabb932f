"""The driver's questions to the brokers: heads, positions, publishing. Executors ask for heads alone.

Three calls, each one bulk request whatever the number of partitions:

    watch     GET  /v1/watch              what there is to read; waits until it changes
    resolve   POST /v1/offsets/resolve    positions: earliest, latest, an offset, the end of an epoch
    commit    POST /v1/consumers/{c}/offsets

Q1  `heads_now` and `resolve` are repeated until their deadline: a broker that is killed and comes back
    within it is a pause. `watch` and `commit` are asked once; their callers are threads that go on.
Q2  A broker that does not know where a partition ends says so. A plan from heads asks for `whole` ones: a read without
    that partition would be taken for all there is, and a query would meet it later as one that was added.
Q3  If an answer contradicts what the caller knows (`known`), the broker is asked again for as long as it may be behind
    (asking_again.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from broker.api import answers
from broker.api.answers import PartitionLag
from broker.api.errors import LiftlogError, NotReady, Retryable, UnknownPartition, UnknownStream
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls, path, understand
from broker.client.http.interrupt import Interrupt
from broker.client.http.patience import Patience
from broker.client.positions import Position as ClientPosition
from spark_liftlog.place import brokers_at
from spark_liftlog.reading.advance import Head, Heads
from spark_liftlog.reading.asking_again import AGAIN_S, AskingAgain
from spark_liftlog.reading.offsets import Key, ReadPosition

if TYPE_CHECKING:
    from broker.client.client import Client

FIRST_DEADLINE_S: Final = 30.0
"""Patience with brokers that never answered: more likely a wrong address than a restart."""
DEADLINE_S: Final = 120.0
"""Patience with brokers that did answer before."""
TIMEOUT_S: Final = 10.0
ANY: Final = ""
"""In the place of an incarnation: the caller compares it himself, with newer heads if need be."""

At: TypeAlias = str | Mapping[str, int]
"""`earliest`, `latest`, `{"offset": n}`, `{"timestamp_us": t}` (the first record that is not older) or `{"epoch": e}`
(where the records of epochs up to e end)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A position that was resolved.

    Attributes:
        position: Offset, and epoch of the record before it (-1: none, or not known any more).
        incarnation: The stream's; empty if it is not there.
        head: The partition then; its epoch and leader are not told here.
        bytes_ahead: About how many bytes lie from the offset to the high watermark.
        error: Why the position could not be resolved; `position` is then the head's log start.
        is_beyond: No record is that late; `position` is then the head's high watermark.
    """

    position: ReadPosition
    incarnation: str
    head: Head
    bytes_ahead: int
    error: LiftlogError | None
    is_beyond: bool = False


class Cluster:
    """The brokers of a query's source. Opens nothing until it is asked.

    Args:
        brokers: HTTP addresses, separated by commas; or connections that are there.
    """

    def __init__(self, brokers: str | Brokers) -> None:
        self._brokers = brokers_at(brokers) if isinstance(brokers, str) else brokers
        self._has_answered = False

    def watch(
        self, streams: Sequence[str], *, since: int | None, max_wait_ms: int, interrupt: Interrupt | None = None
    ) -> tuple[int, Heads]:
        """Ask once what there is to read.

        Args:
            since: Version of the last answer; the broker waits for another. None: answer at once.
        Returns:
            The version, and the heads of those streams that exist.
        """
        query = {"since": since, "max_wait_ms": max_wait_ms, "streams": ",".join(streams)}
        return self._watch(query, 0, interrupt)

    def heads_now(self, streams: Sequence[str]) -> tuple[int, Heads]:
        """As `watch`, answered at once and asked until somebody does. Raises Retryable if nobody does."""
        return self._watch({"streams": ",".join(streams)}, self._deadline_s, None)

    def _watch(self, query: dict[str, Any], deadline_s: float, interrupt: Interrupt | None) -> tuple[int, Heads]:
        calls = Calls(self._brokers, timeout_s=TIMEOUT_S, deadline_s=deadline_s)
        wait_s = query.get("max_wait_ms", 0) / 1000
        value = calls.json("GET", path("watch"), query=query, wait_s=wait_s, interrupt=interrupt)
        found = understand(answers.Watch, value, where=str(self._brokers))
        self._has_answered = True
        partitions = {
            (name, number): Head(at.log_start_offset, at.high_watermark, at.leader_epoch, at.leader.http)
            for name, stream in found.streams.items()
            for number, at in stream.partitions.items()
        }
        incarnations = {name: stream.incarnation for name, stream in found.streams.items()}
        unknown = frozenset((name, number) for name, stream in found.streams.items() for number in stream.unknown)
        return found.version, Heads(incarnations=incarnations, partitions=partitions, unknown=unknown)

    def whole(self, heads: Heads, again: Callable[[], Heads], *, of: Callable[[Key], bool] = lambda key: True) -> Heads:
        """Heads that tell of all partitions: one that nobody leads at present is waited for (Q2).

        Args:
            heads: The newest at hand.
            again: Newer ones.
            of: Which partitions matter.
        Raises:
            LiftlogError: why a partition cannot be read, where that does not pass; Retryable if it has not passed in
                time.
        """
        deadline = time.monotonic() + DEADLINE_S
        while missing := sorted(key for key in heads.unknown if of(key)):
            (found,) = self.resolve([(missing[0], "latest")])
            if found.error is not None and not isinstance(found.error, UnknownStream | UnknownPartition):
                raise found.error
            if time.monotonic() > deadline:
                stream, partition = missing[0]
                raise NotReady(f"stream {stream!r} is there, but no broker says where partition {partition} ends")
            time.sleep(AGAIN_S)
            heads = again()
        return heads

    def asking_again(self) -> AskingAgain:
        """For one contradiction (Q3)."""
        return AskingAgain(self._brokers)

    def resolve(self, positions: Sequence[tuple[Key, At]], *, known: Mapping[str, str] | None = None) -> list[Resolved]:
        """Resolve positions in one call, in their order; those that cannot be told now are asked again for a while.

        Args:
            known: Streams that are there, as far as the caller knows, and their incarnations (Q3), or ANY.
        Raises:
            Retryable: nobody answered in time; Unavailable in general.
        """
        found = self._resolve(positions)
        patience = Patience(self._deadline_s, what="resolving positions", outages=self._brokers.outages)
        asking = self.asking_again()
        while True:
            again = [n for n, one in enumerate(found) if isinstance(one.error, Retryable)]
            if again:
                error = found[again[0]].error
                assert error is not None, "chosen so"
                patience.pause(error)
            else:
                again = [n for n, one in enumerate(found) if _contradicts(one, positions[n][0][0], known or {})]
                if not again or not asking.again():
                    return found
            for number, one in zip(again, self._resolve([positions[n] for n in again]), strict=True):
                found[number] = one

    def _resolve(self, positions: Sequence[tuple[Key, At]]) -> list[Resolved]:
        asked = [ClientPosition(stream, partition, at) for (stream, partition), at in positions]
        found = [_resolved(answer) for answer in self._client(self._deadline_s).resolve(asked)]
        assert len(found) == len(asked), "one answer for each position"
        return found

    def commit(
        self,
        consumer: str,
        positions: Mapping[Key, ReadPosition],
        incarnations: Mapping[str, str],
        metadata: str = "",
    ) -> None:
        """Publish a consumer's positions, once, each with this text."""
        offsets = [
            {
                "stream": stream,
                "partition": partition,
                "offset": at.offset,
                "leader_epoch": at.leader_epoch,
                "incarnation": incarnations[stream],
                "metadata": metadata,
            }
            for (stream, partition), at in sorted(positions.items())
        ]
        self._client(0).commit(consumer, offsets)

    def committed(self, consumer: str, *, is_patient: bool = True) -> list[PartitionLag]:
        """The progress that a consumer has published; asked once, or until the deadline. Raises UnknownConsumer."""
        return list(self._client(self._deadline_s if is_patient else 0).consumer(consumer).partitions)

    def close(self) -> None:
        """Close idle connections. Idempotent."""
        self._brokers.pool.close()

    @property
    def _deadline_s(self) -> float:
        return DEADLINE_S if self._has_answered else FIRST_DEADLINE_S

    def _client(self, deadline_s: float) -> Client:
        from broker.client.client import Client

        return Client(self._brokers, timeout_s=TIMEOUT_S, deadline_s=deadline_s)


def _contradicts(found: Resolved, stream: str, known: Mapping[str, str]) -> bool:
    if stream not in known:
        return False
    if found.error is not None and not found.incarnation:
        return isinstance(found.error, UnknownStream | UnknownPartition)
    return known[stream] not in (ANY, found.incarnation)


def _resolved(found: answers.Resolved) -> Resolved:
    start, is_beyond = found.log_start_offset or 0, found.offset is None and found.error is None
    offset = found.offset
    if offset is None:
        offset = (found.high_watermark or 0) if is_beyond else start
    return Resolved(
        position=ReadPosition(offset, found.leader_epoch),
        incarnation=found.incarnation or "",
        head=Head(start, found.high_watermark or 0, -1),
        bytes_ahead=found.bytes_ahead or 0,
        error=found.error,
        is_beyond=is_beyond,
    )
