"""The streams of the cluster, as this broker has them: what it leads is served, of the rest it says who leads it.

    catalog (applied here) ─► streams, who keeps and leads each partition
    replicas.py            ─► what is open here, led or followed

U1  A partition that this broker leads by the catalog, and does not serve yet or any more, is not ready. One that
    another broker leads is that broker's. Both are retriable, and neither says that the partition is gone.
U2  That a stream or partition is not there is said only by a broker that has a session: the catalog of another one may
    be old.
U4  A stream of the broker's own that is kept shut is not ready, and says why. Who commits an offset or opens a sink may
    try again once its folder is back and the broker was restarted; all else is served meanwhile.
U3  The catalog is read a value at a time: another thread applies commands meanwhile.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Final

from broker.api.answers import LeaderAddress
from broker.api.errors import NotLeader, NotReady, UnknownPartition, UnknownStream
from broker.api.stream import ACTIVITY_STREAM, AUDIT_STREAM, COMMITS_STREAM, OFFSETS_STREAM
from broker.groups.offsets import ConsumerOffset
from broker.groups.progress import GroupOffset
from broker.metadata.catalog import Catalog, StreamInfo
from broker.metadata.partition import PartitionState
from broker.node.chores import Chores
from broker.node.partitions.follower_read import FollowerRead
from broker.node.partitions.partition import Partition
from broker.node.replicas import Replicas
from broker.serving.contract.backend import Whereabouts
from broker.storage.log import PartitionLog
from broker.storage.rewrite.coalescing import CoalescingSettings
from broker.storage.rewrite.compaction import CompactionSettings

OWN_STREAMS: Final = frozenset({OFFSETS_STREAM, COMMITS_STREAM, AUDIT_STREAM, ACTIVITY_STREAM})
"""Those that brokers make for themselves, and write to for those who ask them."""


class PlacedStreams:
    """See the module. Thread-safe.

    Args:
        catalog: As applied here.
        has_session: Whether this broker has one now.
    """

    def __init__(
        self, me: str, catalog: Callable[[], Catalog], replicas: Replicas, *, has_session: Callable[[], bool]
    ) -> None:
        self._has_session = has_session
        self._me = me
        self._catalog = catalog
        self._replicas = replicas

    def infos(self, *, internal: bool = False) -> list[StreamInfo]:
        """All streams by name; internal ones only if asked for. Raises NotReady (U2)."""
        self.check_session()
        live = dict(self._catalog().streams)
        return [live[name] for name in sorted(live) if internal or not live[name].internal]

    def info(self, name: str) -> StreamInfo:
        """One stream. Raises UnknownStream; NotReady: whether there is one is not known here (U2)."""
        info = self._catalog().streams.get(name)
        if info is None:
            self.check_session()
            raise UnknownStream(f"no stream {name!r}", stream=name)
        return info

    def check_session(self) -> None:
        """Raise NotReady if this broker has none."""
        if not self._has_session():
            raise NotReady("this broker has no session: what it knows of the cluster may be old")

    def partition(self, stream: str, partition: int) -> Partition:
        """One that is led and served here (U1).

        Raises:
            UnknownStream, UnknownPartition: not there.
            NotLeader: another broker leads it: `leader`; or nobody does now.
            NotReady: this broker has just begun to lead, or has no session; or U4.
            LiftlogError: its log is kept shut, and no other broker may lead: why (`replicas.G18`, `replicas.G19`).
        """
        info, count = self.info(stream), self.info(stream).settings.partitions
        if not 0 <= partition < count:
            self.check_session()
            raise UnknownPartition(
                f"stream {stream!r} has no partition {partition}, it has {count}",
                stream=stream,
                partition=partition,
                partitions=count,
            )
        state = self._catalog().cluster.partitions.get((info.incarnation, partition))
        if state is None:
            raise NotReady(f"{stream}/{partition}: it is not known here who keeps it")
        if state.leader != self._me and not self._catalog().cluster.is_of_one:
            raise self._elsewhere(stream, partition, state)
        found = self._replicas.partition((info.incarnation, partition))
        placed = self._replicas.replica((info.incarnation, partition))
        if placed is not None and placed.shut is not None:
            if stream in OWN_STREAMS:  # U4
                raise NotReady(f"{stream}/{partition} is kept shut: {placed.shut}", stream=stream, partition=partition)
            raise copy.copy(placed.shut)
        if found is None or not found.serves:
            why = None if placed is None else placed.obstacle or placed.fault
            obstacle = "" if why is None else f": {why}"
            raise NotReady(
                f"{stream}/{partition}: this broker leads it in epoch {state.leader_epoch}, and does not serve it"
                f" yet, or has lost its session{obstacle}",
                leader_epoch=state.leader_epoch,
            )
        return found

    def reader(self, stream: str, partition: int) -> Partition | FollowerRead:
        """One whose records are handed out here: as `partition`, or as an in-sync follower. Raises likewise."""
        try:
            return self.partition(stream, partition)
        except NotLeader:
            found = self._followed(stream, partition)
            if found is None:
                raise
            return found

    def _followed(self, stream: str, partition: int) -> FollowerRead | None:
        """None: this broker is no in-sync follower of it whose log may be read (`follower_read.X1`)."""
        at = self.info(stream).incarnation, partition
        placed = self._replicas.replica(at)
        opened = None if placed is None else placed.partition
        if placed is None or opened is None:
            return None

        def epoch_now() -> int:
            state, agreed = self._catalog().cluster.partitions.get(at), placed.agreed_epoch
            is_followed = state is not None and state.leader not in (None, self._me) and self._me in state.isr
            is_open = placed.partition is opened and not opened.removed
            may = is_followed and is_open and self._has_session()
            return agreed if may and state is not None and agreed == state.leader_epoch else -1

        def elsewhere(why: str) -> NotLeader:
            state = self._catalog().cluster.partitions.get(at) or PartitionState(replicas=())
            error = self._elsewhere(stream, partition, state)
            return NotLeader(f"{error}; {why}", **error.fields)

        epoch = epoch_now()
        return None if epoch < 0 else FollowerRead(opened.replica, epoch, epoch_now, elsewhere)

    def near(self, stream: str, partition: int, rack: str) -> list[str]:
        """HTTP addresses of the replicas in this rack that a reader might ask instead, as `Backend.nearest` says."""
        catalog = self._catalog()
        known, state = catalog.brokers, catalog.cluster.partitions.get((self.info(stream).incarnation, partition))
        me = known.get(self._me)
        if state is None or state.leader != self._me or me is None or me.rack == rack:
            return []
        return [known[b].http for b in state.isr if b != self._me and b in known and known[b].rack == rack]

    def partitions(self, stream: str) -> list[Partition]:
        """Those that are led and served here, in order. Raises UnknownStream."""
        info = self.info(stream)
        for number in range(info.settings.partitions):
            placed = self._replicas.replica((info.incarnation, number))
            if placed is not None and placed.shut is not None:
                raise copy.copy(placed.shut)
        found = (self._replicas.partition((info.incarnation, n)) for n in range(info.settings.partitions))
        return [partition for partition in found if partition is not None and partition.serves]

    def whereabouts(self, stream: str) -> list[Whereabouts]:
        """The brokers that keep the partitions of a stream, as the catalog says. Raises UnknownStream."""
        info = self.info(stream)
        return [self._where(info, number) for number in range(info.settings.partitions)]

    def where(self, stream: str, partition: int) -> Whereabouts:
        """As `whereabouts`, of one. Raises UnknownStream, UnknownPartition."""
        info = self.info(stream)
        info.check_partition(partition)
        return self._where(info, partition)

    def _where(self, info: StreamInfo, number: int) -> Whereabouts:
        state = self._catalog().cluster.partitions.get((info.incarnation, number)) or PartitionState(replicas=())
        return Whereabouts(
            partition=number,
            leader=self._address(state.leader),
            replicas=state.replicas,
            isr=state.isr,
            leader_epoch=state.leader_epoch or -1,
            replication_factor=len(state.target or state.replicas),
            min_insync_replicas=state.min_insync_replicas,
            unclean_epoch=state.unclean_epoch,
        )

    def _address(self, broker: str | None) -> LeaderAddress | None:
        known = None if broker is None else self._catalog().brokers.get(broker)
        return None if known is None else LeaderAddress(id=known.broker_id, http=known.http)

    def _elsewhere(self, stream: str, partition: int, state: PartitionState) -> NotLeader:
        leader = self._address(state.leader)
        where = f"broker {leader.id} at {leader.http} leads it" if leader is not None else "nobody leads it now"
        named = {} if leader is None else {"leader": {"id": leader.id, "http": leader.http}}
        return NotLeader(f"{stream}/{partition}: {where}", leader_epoch=state.leader_epoch, **named)

    def led_in(self) -> list[tuple[str, int, int]]:
        """Stream, number and leader epoch of each partition, in order; -1: it never had a leader."""
        catalog = self._catalog()
        names = {info.incarnation: info.name for info in list(catalog.streams.values())}
        placed = list(catalog.cluster.partitions.items())
        return sorted((names[at[0]], at[1], state.leader_epoch or -1) for at, state in placed if at[0] in names)

    def look(self, row: ConsumerOffset | GroupOffset) -> PartitionLog | bool:
        """The log of what a consumer reads, as this broker's replica has it; as `expiry.Look`."""
        info = self._catalog().streams.get(row.stream)
        is_there = info is not None and row.incarnation in ("", info.incarnation)
        if info is None or not is_there or row.partition >= info.settings.partitions:
            return False
        found = self._replicas.partition((info.incarnation, row.partition))
        return True if found is None else found.log

    # --- for the background -----------------------------------------------------------------------------------

    def all_partitions(self) -> list[Partition]:
        """All replicas that are open here, led or not."""
        return [*self._replicas.partitions()]

    def led(self) -> list[Partition]:
        """Those that are led here."""
        return [partition for partition in self._replicas.partitions() if partition.leads]

    def chores(self) -> Iterator[Chores]:
        """The partitions whose sealed segments are written anew, and how: each replica looks after its own."""
        todo = {
            info.incarnation: (CompactionSettings.of(info.settings), CoalescingSettings.of(info.settings))
            for info in list(self._catalog().streams.values())
        }
        for replica in self._replicas.replicas():
            partition, (compaction, coalescing) = replica.partition, todo.get(replica.at[0], (None, None))
            if partition is not None and (compaction is not None or coalescing is not None):
                yield Chores(partition, compaction, coalescing, replica.marks, replica.compacted)
