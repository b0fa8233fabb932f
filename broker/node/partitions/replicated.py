"""One partition that several brokers keep, where this one leads it or may: what its driver does besides (leader.py).

    catalog ──lead, depose, isr_answered──► core ──AskIsr, StepOut, Send, Trim──► to_others
    clock ──────────────────────tick──────► core

Who may be told of success: `acks.P8`.

P9  While fewer are in sync than must be, an append is refused at once: its ack would come when a follower comes back.
    Records that were appended before wait for that. A member whose disk has no room does not count (`insync.I7`).
P10  A log that has failed is not recovered in place: what it had is not known, and others have it. The leadership
    ends, and the replica steps out (`replication.leader.L6`).
P11  A leader answers clients once it takes in messages: `serve` says so for each leadership.
P12  The one who hears that the leadership is over says so at once (`retire`): its end may have to wait for a thread.
P13  `tick` tells its core the time, now and then. Where nobody else keeps it, and it is synced by intervals, so does
    the thread for that (`interval_syncs`): an interval may be shorter. It is one clock, and who comes late tells no
    earlier time.
P14  A new leader tells nobody where the log ends before the high watermark has reached the start of its epoch.
P15  Records that were sorted by another number of partitions than holds are refused, and none is taken by a partition
    that does not count yet. So the records of one leader epoch were sorted by one number (`growth.G2`).
P16  Ranges that an operator gives up are remembered until the process ends: the answer may be lost, and asked again.
P17  While its stream is about to count by another number it takes nothing that was sorted by a number. It has stopped
    when all that it took before is committed and was answered, so that nobody is told that it is not known.
P18  The clock that tells it the time goes through all partitions of this broker: it waits `TICK_WAIT_S` for an append
    that is at the disk, and comes again. Few appends are under way at any time, so they cost the others little.
P19  Before it hands over because its broker stops it takes nothing more, so that whoever leads next soon has all that
    was acknowledged, also under `leader`. An append that was judged before is judged again, and one that is at the disk
    is waited for. Where nobody else is in sync it goes on: there is nobody to hand over to.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Final

from broker.api.errors import LiftlogError, NotEnoughReplicas, NotLeader, NotReady, StorageFailed
from broker.metadata.catalog import StreamInfo
from broker.metadata.partition import PartitionState
from broker.node.partitions.acks import OWN, Completions, Ticket, gone
from broker.node.partitions.leader import Partition
from broker.node.partitions.queued_appends import perhaps_done
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import Outcome, SyncExecutor
from broker.replication.events import (
    Acks,
    Appended,
    Deposed,
    Effect,
    Event,
    IsrAnswered,
    StartMoved,
    SyncFailed,
    TrimAsked,
)
from broker.replication.leader import LEADING, Leader
from broker.storage.log import AppendResult
from broker.storage.recovery import Ranges, merge_ranges
from broker.storage.rewrite.giving_up import give_up
from broker.storage.rewrite.mending import bytes_to_write, mend

TICK_WAIT_S: Final = 0.02
"""See P18. A lock that appends take in turns is free within that, now and then."""


class ReplicatedPartition(Partition):
    """See the module. Thread-safe.

    Args:
        me: The id of this broker.
        has_session: Whether it has one now, by its own count.
        to_others: Does what needs the catalog or other replicas.

    Attributes:
        leader_at: The HTTP address of the broker that leads it, as far as is known.
        given_up: Ranges that an operator has given up here (P16).
        asks_others: Tells of those who were asked for what is lost here (`node.mending`).
        mended_count: So many offsets that were damaged here were copied from other replicas.
        was_mended: Since somebody last looked, the log has lost nothing any more.
    """

    __slots__ = (
        "_giving_up",
        "_handed_epoch",
        "_heard_of",
        "_serves_by",
        "_stopping",
        "_tickets",
        "asks_others",
        "given_up",
        "has_others",
        "leader_at",
        "mended_count",
        "was_mended",
    )

    def __init__(
        self,
        info: StreamInfo,
        replica: Replica,
        *,
        me: str,
        has_session: Callable[[], bool],
        to_others: Callable[[Effect], None],
        pool: SyncExecutor,
        appender: Executor,
        has_others: bool = True,
    ) -> None:
        self.has_others = has_others
        core = Leader(me)
        self._tickets = tickets = Completions(core, replica, has_session)
        super().__init__(info, replica, pool=pool, appender=appender, core=core, tell=tickets.tell, to_others=to_others)
        replica.may_let_go = functools.partial(_serves, weakref.ref(self))  # `leader.P20`
        self.leader_at: str | None = None
        self._serves_by = self._heard_of = info
        self._handed_epoch = -1  # P19
        self._stopping = tickets.stopping
        self.given_up: Ranges = ()
        self.mended_count = 0
        self.asks_others: Callable[[], Mapping[str, bool]] | None = None
        self.was_mended = False
        self._giving_up = threading.Lock()

    # -- the catalog -----------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether it is led here. It may be over by the time that somebody reads this."""
        return self._core.role is LEADING

    @property
    def has_followers(self) -> bool:  # type: ignore[override]
        """As `Partition.has_followers`."""
        return self._core.in_sync is not None

    def lead(self, leader_epoch: int, state: PartitionState | None = None) -> None:
        """As `Partition.lead`."""
        super().lead(leader_epoch, state)
        self._tickets.release()

    @property
    def goes_by(self) -> StreamInfo:
        """As `Partition.goes_by`; messages are taken in by it, too."""
        return self._serves_by

    @property
    def is_changing(self) -> bool:
        """As `Partition.is_changing`; also where it is about to be altered, be it to what it is."""
        ours, others = self._info, self._serves_by
        is_new = (ours.settings, ours.paused, ours.read_only) != (others.settings, others.paused, others.read_only)
        return is_new or self._heard_of is not ours

    def hear(self, info: StreamInfo) -> None:
        """The catalog has these settings and this state now, and `alter` is to come. It may be altered on the way to
        what was current before: a stream may be paused, go on, and be paused once more."""
        self._heard_of = info

    def serve(self, leader_epoch: int, info: StreamInfo | None = None) -> None:
        """Answer clients in this leadership from now on (P11). A late call for an earlier one does nothing.

        Args:
            info: What messages are taken in by; None: as before.
        """
        self._serves_by = info or self._serves_by
        self._tickets.served_epoch = max(self._tickets.served_epoch, leader_epoch)
        self._tickets.release()

    def retire(self, least_epoch: int) -> None:
        """Answer nobody as the leader of an earlier epoch. Waits for nothing (P12)."""
        self._tickets.least_epoch = max(self._tickets.least_epoch, least_epoch)

    @property
    def serves(self) -> bool:
        """Whether clients may be answered now: told of ends, and of what was stored."""
        return self.leads and self._tickets.may_answer()

    @property
    def end(self) -> int | None:
        """As `Partition.end`: a new leader may know of less than former ones have told (P14)."""
        end = self._state.high_watermark
        return end if self._core.may_tell_end(end) and self.serves else None

    def depose(self) -> None:
        """Another broker leads, or none. All who wait are told that it is over."""
        self.step(Deposed())
        self._tickets.release()
        self.replica.note_change()

    def hands_over(self) -> bool:
        """Take nothing more in this leadership (P19). Returns whether who is in sync has all that was taken: not while
        an append is at the disk, which it does not wait for."""
        core = self._core
        in_sync = core.in_sync
        if not self.leads or in_sync is None or len(in_sync.members) < 2:
            return True
        self._handed_epoch = core.epoch
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._state.high_watermark >= self._state.log_end_offset
        finally:
            self._lock.release()

    def isr_answered(self, state: PartitionState, request: int | None = None) -> None:
        """Hear who is in sync by the catalog, which says so by itself, or as an answer to `AskIsr`."""
        self.step(
            IsrAnswered(
                epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch,
                isr=state.isr,
                min_insync_replicas=state.min_insync_replicas,
                request=request,
            )
        )

    def tick(self, now_ms: int) -> None:
        """Time passes, by a clock that never goes back (P13, P18)."""
        if self._lock.acquire(timeout=TICK_WAIT_S):
            try:
                effects = (*self._news(), *self._time(now_ms))
                if (
                    start := self.log.checkpoints.kept_start_offset
                ) > self._core.trims.log_start:  # retention has moved it
                    effects += self._core.step(StartMoved(start))
                effects += self._judged()
            finally:
                self._lock.release()
            self._effects.do(effects)
        self._tickets.release()

    def step(self, event: Event) -> None:
        """Tell the core, and do what comes of it."""
        with self._lock:
            effects = self._core.step(event)
        self._effects.do(effects)

    def step_by(self, look: Callable[[], Event]) -> None:
        """As `step`, with what the log says (`leader`, duty 6). It is looked up without the lock (`state.L10`), and
        again if the leadership or what the log has taken back is another one by then."""
        is_told = False
        while not is_told:
            as_of = self._core.epoch, self._core.generation, self._state.cuts
            event = look()
            with self._lock:
                is_told = as_of == (self._core.epoch, self._core.generation, self._state.cuts)
                effects = self._core.step(event) if is_told else ()
        self._effects.do(effects)

    def leadership(self) -> tuple[int, int, tuple[str, ...]]:
        """The epoch that is led, -1 for none; how far it is committed; who is in sync."""
        core = self._core
        with self._lock:
            epoch = core.epoch if core.role is LEADING else -1
            return epoch, core.high_watermark, core.in_sync.members if core.in_sync is not None else (core.me,)

    def lags(self) -> dict[str, int]:
        """As `PartitionHandle.lags`; empty, too: it is not led here."""
        core = self._core
        with self._lock:
            if core.role is not LEADING or core.in_sync is None:
                return {}
            followers = core.in_sync.followers.items()
            return {broker: core.log_end - max(0, one.durable_end) for broker, one in followers}

    def marks(self) -> tuple[int, int]:
        """For a pass of compaction of this log: as `Leader.tombstones_below` and `Leader.compact_to`. Where nobody else
        is assigned its own mark is the least of all."""
        core, own = self._core, self.log.state.compacted_to
        with self._lock:
            if core.role is LEADING and core.in_sync is None:
                return own, 0
            return core.tombstones_below(own), core.compact_to()

    def state_from(self, log_start: int) -> int:
        """As `Leader.state_from`."""
        return self._core.state_from(log_start)

    def note_removed(self) -> None:
        """As `Partition.note_removed`."""
        super().note_removed()
        self._tickets.release()

    def recover_alone(self) -> None:
        """Recover a log that has failed, where no followers could lead: on a full disk no append does it.

        Raises:
            StorageFailed, DiskFull: the disk refuses.
        """
        if self._state.failure is not None and self.leads and not self.has_followers:
            self.commit_all()

    def trim(self, before: int) -> Future[None]:
        """Let go of what lies below an offset, but of nothing that sinks have staged. Done once no replica that may
        lead begins below it (`trims.T2`). Its error says that this may come to be so: `sent`.

        Raises:
            StorageFailed: what is staged is not known. Nothing was asked for.
        """
        floor, done = self.replica.floor(), Future[None]()
        start = min(before, self._state.high_watermark, *(() if floor is None else (floor,)))
        done.set_running_or_notify_cancel()  # who waits no longer cannot take it back

        def told(_: AppendResult, outcome: Outcome) -> None:
            if isinstance(outcome, LiftlogError):
                done.set_exception(perhaps_done(outcome))
            else:
                done.set_result(None)

        trimmed = AppendResult(start, start, 0, False)
        self.step(TrimAsked(start, Ticket(told, trimmed, self._core.epoch, OWN)))
        return done

    def give_up(self, ranges: Ranges, *, leader_epoch: int, aside: str, borders: Sequence[int] = ()) -> None:
        """As `storage.rewrite.giving_up.give_up`. Waits for the disk."""
        with self._giving_up:
            give_up(self.log, ranges, leader_epoch=leader_epoch, aside=aside, borders=borders)
            self.given_up = merge_ranges([*self.given_up, *ranges])
            self.was_mended = not self.log.state.lost_ranges
        self.replica.note_change()

    def asked_for_lost(self) -> Mapping[str, bool]:
        """The brokers that were asked for all that is lost here, and whether they are damaged there, too."""
        return self.asks_others() if self.asks_others is not None else {}

    def mend(self, lost: tuple[int, int], data: bytes, superseded: tuple[int, int]) -> tuple[int, int]:
        """As `storage.rewrite.mending.mend`. Waits for the disk."""
        if self.replica.room is not None:
            self.replica.room.check(bytes_to_write(self.log, lost, data))
        with self._giving_up:
            mended = mend(self.log, lost, data, superseded=superseded)
            self.mended_count += mended[1] - mended[0]
            self.was_mended = not self.log.state.lost_ranges
        self.replica.note_change()
        return mended

    def follower_ends(self) -> dict[str, int]:
        """The durable end that each follower has told, by its broker; -1: it has told none in this leadership."""
        core = self._core
        with self._lock:
            followers = core.in_sync.followers if core.in_sync is not None else {}
            return {broker: one.durable_end for broker, one in followers.items()}

    # -- appends ---------------------------------------------------------------------------------------------

    def _check_ready(self) -> None:
        if self.removed:
            raise gone(self.replica)
        if not self._tickets.has_session():
            raise NotReady(f"{self}: this broker has no session with the controller, and may not lead any more")
        if self._core.epoch < self._tickets.least_epoch:
            raise NotLeader(f"{self}: leader epoch {self._core.epoch} is over", **self._whereabouts())
        self._check_taking()
        if self.partition >= (count := self._info.settings.partitions):
            raise NotReady(
                f"{self}: it is being added, and until every leader knows of it there are {count} partitions"
            )
        in_sync, least = self._core.in_sync, self._core.min_insync_replicas
        if in_sync is None or (len(in_sync.members) >= least and not in_sync.without_room):
            return
        members, full = list(in_sync.members), list(in_sync.without_room)
        if len(set(members) - set(full)) < least:
            why = f"; no room on the disks of {full}" if full else ""
            raise NotEnoughReplicas(
                f"{self}: in sync are {members}, min_insync_replicas={least}{why}",
                in_sync=members,
                no_room=full,
                limit=least,
            )

    def _check_taking(self) -> None:
        """P11, P19."""
        if self.has_others and self._tickets.served_epoch != self._core.epoch:
            raise NotReady(f"{self}: this broker has just begun to lead, and does not take in messages yet")
        if self._handed_epoch == self._core.epoch:
            raise NotReady(f"{self}: this broker stops, and another one leads in a moment")

    def _judge_again(self, sorted_by: int) -> None:
        """P15, P17, P19."""
        if self.has_others:
            super()._judge_again(sorted_by)
        if sorted_by and self._stopping.as_of is not None:
            raise NotReady(f"{self}: its stream gets more partitions, and takes nothing until every leader knows")
        self._check_taking()

    def _began_to_wait(self) -> None:
        self._stopping.began()

    def _refuse(self, leader_epoch: int | None) -> None:
        try:
            super()._refuse(leader_epoch)
        except NotLeader as error:
            if not self.leads:
                error.fields |= self._whereabouts()
            raise

    def _whereabouts(self) -> dict[str, str]:
        return {} if self.leader_at is None else {"leader": self.leader_at}

    # -- another number of partitions (P17) -------------------------------------------------------------------

    @property
    def may_commit(self) -> bool:
        """Whether what is appended now can be committed, and told. Not while an append is at the disk (P18)."""
        if not self._lock.acquire(timeout=TICK_WAIT_S):
            return False
        try:
            core = self._core
            is_enough = core.in_sync is None or len(core.in_sync.members) >= core.min_insync_replicas
            return core.role is LEADING and is_enough and self._state.failure is None and self._tickets.may_answer()
        finally:
            self._lock.release()

    def stop_taking(self, as_of: int, on_stopped: Callable[[], None]) -> None:
        """Take nothing more that was sorted by a number of partitions. `on_stopped`: see `has_stopped`."""
        effects: tuple[Effect, ...] = ()
        with self._lock:
            core = self._core
            epoch, end = core.epoch, core.log_end
            if (number := self._stopping.stop(as_of, epoch, on_stopped)) and core.role is LEADING:
                tell = functools.partial(self._committed, number)
                ticket = Ticket(tell, AppendResult(end, end, 0, False), epoch, Acks.ALL)
                effects = core.step(Appended(end, end, (), ((ticket, Acks.ALL),), -1))
        self._effects.do(effects)

    def _committed(self, number: int, result: AppendResult, outcome: Outcome) -> None:
        if isinstance(outcome, int):
            self._stopping.committed(number)

    def go_on_taking(self) -> None:
        """There is no such stop, or none any more."""
        if self._stopping.as_of is not None:
            self._stopping.go_on()

    def has_stopped(self, as_of: int, leader_epoch: int) -> bool:
        """Whether it has stopped in this leadership as of that moment (P17)."""
        return self._stopping.has_stopped(as_of, leader_epoch)

    # -- the disk (P10) --------------------------------------------------------------------------------------

    def look_at_failure(self) -> None:
        """If something has failed the log, lead no more, and step out (P10)."""
        if self._state.failure is not None:
            with self._lock:
                effects = self._judged()
            self._effects.do(effects)

    def _judged(self) -> tuple[Effect, ...]:
        """With the lock held."""
        failure = self._state.failure
        if failure is None or self.removed or not (self.has_followers and self.leads):
            return ()
        return self._failed(failure)

    def _failed(self, error: LiftlogError) -> tuple[Effect, ...]:
        """With the lock held."""
        return self._core.step(SyncFailed(self._core.generation, error))

    def _recover(self, now_us: int) -> tuple[Effect, ...]:
        if not self.leads:
            raise NotLeader(f"{self}: this broker does not lead it")
        if not self.has_followers:
            return super()._recover(now_us)
        assert self._state.failure is not None
        return self._failed(self._state.failure)

    def _caught_up(self) -> tuple[Effect, ...]:
        if not self.has_followers:
            return super()._caught_up()
        with self._lock:
            if not self.leads or self._state.log_end_offset == self._core.log_end:
                return ()
            return self._failed(StorageFailed(f"{self}: what was appended did not reach its core"))

    async def wait_for(self, offset: int, timeout_s: float) -> None:
        """As `Partition.wait_for`; also when it is not led here any more."""
        await self.replica.wait(
            lambda: self.removed or self._state.high_watermark > offset or not self.serves, timeout_s
        )

    # -- time (P13) ------------------------------------------------------------------------------------------

    @property
    def minds_time(self) -> bool:
        """As `Partition.minds_time`."""
        core = self._core  # asked of all, each second: without a call
        is_asked = not self.fsync_each_batch or self._told_of is not self._info
        return is_asked and core.role is LEADING and core.in_sync is None


def _serves(partition: weakref.ref[ReplicatedPartition]) -> bool:
    found = partition()
    return found is not None and found.serves
