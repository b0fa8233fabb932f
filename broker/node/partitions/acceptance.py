"""What a partition takes, and why it does not take the rest: judged by the thread that appends.

    append ──check_ready, check_open──► lock ──judge_again──► log

P3  A partition that refuses records, because its stream is paused, read-only or deleted, refuses them for everybody,
    with an error of its own for each append. Reads go on, but for a deleted one. A group that was decided before
    (`decided`, of a sink) was accepted then, and is still appended to a paused or read-only stream.
P9  While fewer are in sync than must be, an append is refused at once: its ack would come when a follower comes back.
    Records that were appended before wait for that. A member whose disk has no room does not count (`insync.I7`).
P11  Where others keep it, a leader answers clients once it takes in messages: `Partition.serve` says so for each
    leadership.
P15  Records that were sorted by another number of partitions than holds are refused, and none is taken by a partition
    that does not count yet. So the records of one leader epoch were sorted by one number (`growth.G2`).
P17  While its stream is about to count by another number it takes nothing that was sorted by a number. It has stopped
    when all that it took before is committed and was answered, so that nobody is told that it is not known.
P19  Before it hands over because its broker stops it takes nothing more, so that whoever leads next soon has all that
    was acknowledged, also under `leader`. An append that was judged before is judged again, and one that is at the disk
    is waited for. Where nobody else is in sync it goes on: there is nobody to hand over to.
"""

from __future__ import annotations

from broker.api.errors import NotEnoughReplicas, NotLeader, NotReady, ReadOnly, StreamPaused
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.acks import Completions, gone
from broker.node.partitions.replica import Replica
from broker.replication.leader import LEADING, Leader


class Acceptance:
    """See the module.

    Args:
        has_others: Other brokers may keep the partition, too.

    Attributes:
        info: The settings and the state of the stream that it goes by.
        is_closed: The stream takes no records by them.
        handed_epoch: The leadership in which nothing more is taken (P19); -1: none.
        leader_at: The HTTP address of the broker that leads the partition, as far as is known.
    """

    __slots__ = ("_core", "_has_others", "_replica", "_tickets", "handed_epoch", "info", "is_closed", "leader_at")

    def __init__(
        self, info: StreamInfo, replica: Replica, core: Leader, tickets: Completions, *, has_others: bool
    ) -> None:
        self.info = info
        self.is_closed = info.paused or info.read_only
        self.handed_epoch = -1
        self.leader_at: str | None = None
        self._replica = replica
        self._core = core
        self._tickets = tickets
        self._has_others = has_others

    def alter(self, info: StreamInfo) -> None:
        """Go by these. With the partition's lock held, so that nothing is appended that was judged by others."""
        self.info = info
        self.is_closed = info.paused or info.read_only

    def check_open(self, *, decided: bool = False) -> None:
        """Raise why the stream takes no record, if so (P3)."""
        replica, info = self._replica, self.info
        if replica.removed:
            raise gone(replica)
        if decided:
            return
        if info.paused:
            raise StreamPaused(f"stream {replica.stream!r} is paused", stream=replica.stream)
        if info.read_only:
            raise ReadOnly(f"stream {replica.stream!r} is read-only", stream=replica.stream)

    def check_ready(self) -> None:
        """Without the lock: raise what needs no log to be refused."""
        replica, core = self._replica, self._core
        if replica.removed:
            raise gone(replica)
        if not self._tickets.has_session():
            raise NotReady(f"{replica}: this broker has no session with the controller, and may not lead any more")
        if core.epoch < self._tickets.least_epoch:
            raise NotLeader(f"{replica}: leader epoch {core.epoch} is over", **self._whereabouts())
        self._check_taking()
        if replica.partition >= (count := self.info.settings.partitions):
            raise NotReady(
                f"{replica}: it is being added, and until every leader knows of it there are {count} partitions"
            )
        in_sync, least = core.in_sync, core.min_insync_replicas
        if in_sync is None or (len(in_sync.members) >= least and not in_sync.without_room):
            return
        members, full = list(in_sync.members), list(in_sync.without_room)
        if len(set(members) - set(full)) < least:
            why = f"; no room on the disks of {full}" if full else ""
            raise NotEnoughReplicas(
                f"{replica}: in sync are {members}, min_insync_replicas={least}{why}",
                in_sync=members,
                no_room=full,
                limit=least,
            )

    def judge_again(self, sorted_by: int) -> None:
        """With the lock held, before anything is written: what was judged without it may be so no more."""
        if self._has_others and sorted_by and sorted_by != self.info.settings.partitions:
            raise NotReady(
                f"{self._replica}: sorted by {sorted_by} partitions, and there is another number of them now"
            )
        if sorted_by and self._tickets.stopping.as_of is not None:
            raise NotReady(
                f"{self._replica}: its stream gets more partitions, and takes nothing until every leader knows"
            )
        self._check_taking()

    def refuse(self, leader_epoch: int | None) -> None:
        """Raise why nothing may be appended by who does not lead, or not in this epoch (`partition.P6`)."""
        replica, core = self._replica, self._core
        if replica.removed:
            raise gone(replica)
        if core.role is not LEADING:
            raise NotLeader(f"{replica}: this broker does not lead it", **self._whereabouts())
        raise NotLeader(f"{replica}: decided in leader epoch {leader_epoch}, the leader epoch is now {core.epoch}")

    def _check_taking(self) -> None:
        """P11, P19."""
        if self._has_others and self._tickets.served_epoch != self._core.epoch:
            raise NotReady(f"{self._replica}: this broker has just begun to lead, and does not take in messages yet")
        if self.handed_epoch == self._core.epoch:
            raise NotReady(f"{self._replica}: this broker stops, and another one leads in a moment")

    def _whereabouts(self) -> dict[str, str]:
        return {} if self.leader_at is None else {"leader": self.leader_at}
