"""What a NATS server has sent to whom, and what became of it there.

PAUSED  what it had sent to a leader, of a partition that took records then, is taken: the leader does not say that the
        stream is paused, and has nothing of it left when the pause is answered. What comes behind an answered pause is
        never stored, also not when the stream is resumed. What is lost with its connection does not count
DEAF    who has captured for long what he leads is subscribed to it
ONCE    no connection has two subscriptions that bring the same message, and a process stores what has no id once
KNOWN   nothing is stored that nobody has published
R6      at the end nothing waits at a leader that captures it
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast
from zlib import crc32

from broker.api.errors import LiftlogError, StreamPaused
from broker.metadata.info import StreamInfo
from broker.node.partitions.partition import Partition

LONG_MS: Final = 2_000
"""So long after a stop a broker has done what waited."""

if TYPE_CHECKING:
    from tests.sim.driven.nats import Link, Server
    from tests.sim.driven.running import Process


@dataclass(frozen=True, slots=True)
class Bound:
    """The leader that a message is for, as it was when it was sent: in this epoch, with so many partitions, and after
    so many ends of its capture.
    """

    partition: Partition
    epoch: int
    count: int
    ends: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A message on its way. `bound`: None: nothing is promised of it. is_late: its stream was paused, and that was
    answered.
    """

    link: Link
    value: bytes
    bound: Bound | None
    is_late: bool


class Delivered:
    """See the module. A message goes by the subject of its reply, or without one by its value.

    Attributes:
        published: All that publishers have sent.
    """

    def __init__(self, server: Server) -> None:
        self.published: set[bytes] = set()
        self._server = server
        self._cluster = server.cluster
        self._open: dict[int, dict[bytes, Sent]] = {}  # by the number of the process
        self._stored: dict[int, set[bytes]] = {}  # without an id

    # -- the server

    def sent(self, link: Link, subject: str, value: bytes, reply: bytes) -> None:
        """It has sent something to somebody."""
        info = self._cluster.metadata.catalog.streams.get(subject.partition(".")[0])
        changes, bound, is_late = self._cluster.changes, None, False
        assert changes is not None
        if info is not None:
            bound = None if info.paused else self._bound(link.process, info, subject)
            held = changes.held.get(info.incarnation)
            is_late = held is not None and held.paused
        if not reply:
            self._server.world.saw("sent without an id")
        self._open.setdefault(link.process.number, {})[reply or value] = Sent(link, value, bound, is_late)

    def is_not_sent(self, link: Link, subject: str) -> None:
        """DEAF. Somebody whose connection has lasted for long is not subscribed to something."""
        info = self._cluster.metadata.catalog.streams.get(subject.partition(".")[0])
        broker, now_ms = link.process.broker, self._server.world.now_ms
        is_awake = now_ms - broker.paused_until_ms > LONG_MS and not broker.is_stopping
        if (
            info is not None
            and is_awake
            and broker.has_session
            and self._bound(link.process, info, subject) is not None
        ):
            self._cluster.checker.fail(f"DEAF: {broker.name} captures {subject} by its own word, and is not subscribed")

    def over(self, link: Link) -> None:
        """A connection is lost, and what was on its way."""
        found = self._open.get(link.process.number, {})
        for key in [key for key, sent in found.items() if sent.link is link]:
            del found[key]

    # -- the broker

    def took(self, process: Process, keys: Iterable[bytes]) -> None:
        """Its log has accepted these."""
        found, who = self._open.get(process.number, {}), process.broker.name
        for key in keys:
            sent = found.pop(key, None)
            value = self._server.values.get(key, key)
            if sent is not None and sent.bound is not None and self._is_paused(sent.bound.partition):
                self._server.world.saw("taken in for a pause")
            if value not in self.published:
                self._cluster.checker.fail(f"KNOWN: {who} stores {value[:40]!r}, which nobody has published")
            if sent is not None and sent.is_late:
                self._cluster.checker.fail(
                    f"PAUSED: {who} stores {value[:40]!r}, which came while the stream was paused"
                )
            if key is value:
                stored = self._stored.setdefault(process.number, set())
                if value in stored:
                    self._cluster.checker.fail(f"ONCE: {who} stores {value[:40]!r} twice")
                stored.add(value)

    def refused(self, process: Process, keys: Iterable[bytes], error: LiftlogError) -> None:
        """Its log has refused these."""
        found, who = self._open.get(process.number, {}), process.broker.name
        for key in keys:
            sent = found.pop(key, None)
            if sent is not None and isinstance(error, StreamPaused) and self._still(process, sent):
                self._cluster.checker.fail(f"PAUSED: {who} refuses {sent.value[:40]!r}, which was sent before: {error}")

    def answered(self, process: Process, replies: Iterable[bytes]) -> None:
        """It tells the publishers of these what became of them."""
        found = self._open.get(process.number, {})
        for reply in replies:
            found.pop(reply, None)

    # -- rules

    def is_paused(self, info: StreamInfo) -> None:
        """PAUSED. It was answered."""
        if left := self._left(info.incarnation):
            self._cluster.checker.fail(f"PAUSED: {left}")

    def why(self) -> str:
        """Who has not taken what; empty: everybody has."""
        return self._left(None)

    def _left(self, incarnation: str | None) -> str:
        """Of one stream, or of all."""
        for broker in self._cluster.brokers.values():
            for sent in self._open.get(broker.process, {}).values():
                bound = sent.bound
                is_meant = bound is not None and incarnation in (None, bound.partition.incarnation)
                if is_meant and self._still(cast("Process", broker.work), sent):  # type: ignore[attr-defined]
                    return f"{broker.name} has not taken {sent.value[:40]!r}, which was sent"
        return ""

    def _bound(self, process: Process, info: StreamInfo, subject: str) -> Bound | None:
        driver, intake = process.broker.driver, process.broker.intake
        assert intake is not None
        for number in range(info.settings.partitions):
            partition = driver.partition((info.incarnation, number))
            if partition is None or not (partition.leads and partition.serves) or partition.info.paused:
                continue
            count = partition.info.settings.partitions
            if crc32(subject.encode()) % count == number and intake.captured.get(partition) == count:
                return Bound(partition, partition.leader_epoch, count, intake.ends[partition])
        return None

    def _is_paused(self, partition: Partition) -> bool:
        """By the catalog."""
        info = self._cluster.metadata.catalog.streams.get(partition.stream)
        return info is not None and info.incarnation == partition.incarnation and info.paused

    @staticmethod
    def _still(process: Process, sent: Sent) -> bool:
        """Whether the leader is the one that it was for, and captures what it did."""
        bound, intake = sent.bound, process.broker.intake
        if bound is None or intake is None or sent.link.is_over or process.is_gone:
            return False
        partition = bound.partition
        return (
            partition.leads
            and partition.leader_epoch == bound.epoch
            and partition.info.settings.partitions == bound.count
            and intake.ends[partition] == bound.ends
        )
