"""One partition on this broker, which leads it or may: the driver of its core (`broker.replication.leader`).

    append ──► log ──Appended──► core ──Sync──► this thread, a row or the pool ──Synced──► core ──► Commit, Wake, Answer
    catalog ──lead, depose, isr_answered──► core ──AskIsr, StepOut, Send, Trim──► to_others
    clock ──────────────────────tick──────► core

The core decides when a record is committed and who is told what; this appends and has the log fsynced, and tells the
core of both. The log is the replica's (replica.py). One lock is held over an append and its event, and over a recovery
and its event. Effects that the core wants are done when it is free again (effects.py). What is taken at all is judged
by `Acceptance` (acceptance.py); who may be told of success: `acks.P8`.

P1  A callback is told of success only when the core says so (its L2 and L3).
P2  Where nobody else keeps it, a log whose write or fsync has failed is recovered before the next append; recovery may
    drop what was not durable.
P4  A caller that appends may offer to sync as well (`here`): to wake another thread and be woken by it takes half as
    long as a quick fsync. It is the pool's while the pool is at it, after an fsync that took longer than `QUICK_S`, and
    always where other brokers keep it, too: they are told of it first, and fsync it at the same time.
P5  Partitions that are synced in a row keep nobody waiting (row_sync.py).
P6  An append that was judged under a leader epoch, or searched for, is done under that one or not at all. (Else a
    leader that searched, was deposed and leads again appends what another leader has appended meanwhile.)
P7  Once it goes by a pause, or is read-only, nothing is appended that was judged before: not by who waits for the lock.
P10  A log that has failed, and that others have, is not recovered in place: what it had is not known. The leadership
    ends, and the replica steps out (`replication.leader.L6`).
P12  The one who hears that the leadership is over says so at once (`retire`): its end may have to wait for a thread.
P13  `tick` tells its core the time, now and then. Where nobody else keeps it, and it is synced by intervals, so does
    the thread for that (`interval_syncs`): an interval may be shorter. It is one clock, and who comes late tells no
    earlier time.
P14  A new leader tells nobody where the log ends before the high watermark has reached the start of its epoch.
P18  The clock that tells it the time goes through all partitions of this broker: it waits `TICK_WAIT_S` for an append
    that is at the disk, and comes again. Few appends are under way at any time, so they cost the others little.
P20  Parts of it know it by weak references, so that it is gone, with its log, when the last who uses it lets go: no
    search for cycles counts what its tables take.
P21  An append that names a fence is judged by that of the partition, under the lock. So once it goes by a fence, all
    that was appended under those before stands below the log end. A repeat is a repeat all the same. So are records
    from NATS that name one, each for itself (`settling.G1`).
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Final

from broker.api.errors import LiftlogError, NotLeader, StorageFailed, WriterFenced
from broker.api.plain_rows import PlainBatch
from broker.api.stream import StreamSettings
from broker.common.metrics import FSYNC_SECONDS
from broker.common.weak_methods import WeakCall
from broker.metadata.catalog import StreamInfo
from broker.metadata.partition import PartitionState
from broker.node.partitions.acceptance import Acceptance
from broker.node.partitions.acks import OWN, Completions, OnDurable, Ticket
from broker.node.partitions.damage import Damage
from broker.node.partitions.effects import Effects
from broker.node.partitions.queued_appends import QueuedAppends, perhaps_done
from broker.node.partitions.replica import Replica
from broker.node.partitions.row_sync import NO_ROW, RowState, RowSync
from broker.node.partitions.sync import Outcome, SyncExecutor, SyncRow
from broker.replication.events import (
    Acks,
    Altered,
    Appended,
    Closed,
    Deposed,
    Effect,
    Event,
    IsrAnswered,
    Led,
    Recovered,
    StartMoved,
    Sync,
    Synced,
    SyncFailed,
    Tick,
    TrimAsked,
)
from broker.replication.leader import LEADING, Leader
from broker.storage.inspect.scrub import PIECE_BYTES, Piece
from broker.storage.log import AppendResult, Encodable, StoredGroup
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogSettings

__all__ = ["Outcome", "Partition"]

log = logging.getLogger(__name__)

QUICK_S = 0.002
"""See P4."""
TICK_WAIT_S: Final = 0.02
"""See P18. A lock that appends take in turns is free within that, now and then."""
NOWHERE = -1
"""No record gets this offset."""


class Partition:
    """See the module. Thread-safe.

    Args:
        replica: This broker's log of the partition.
        me: The id of this broker.
        has_session: Whether it has one now, by its own count.
        to_others: Does what needs the catalog or other replicas.
        has_others: Other brokers may keep it, too.

    Attributes:
        fence: The number of the newest one that it goes by (P21).
        damage: What its log has lost.
    """

    elsewhere: Callable[[str], LiftlogError] | None = None
    """As `PartitionHandle.elsewhere`: records are handed out here while it is led here."""

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
        self.stream = replica.stream
        self.partition = replica.partition
        self.incarnation = replica.incarnation
        self.replica = replica
        self.log = replica.log
        self.damage = Damage(replica)
        self.fsync_each_batch = info.settings.fsync == "batch"
        self.fsync_interval_ms = info.settings.fsync_interval_ms
        self.fence = info.fence_of(self.partition)
        self._state = replica.state
        self._pool = pool
        self._lock = threading.RLock()
        self._core = Leader(me)
        self._tickets = Completions(self._core, replica, has_session)
        self._stopping = self._tickets.stopping
        self._acceptance = Acceptance(info, replica, self._core, self._tickets, has_others=has_others)
        self._effects = Effects(replica, submit=WeakCall(self._submit), tell=self._tickets.tell, to_others=to_others)
        self._serves_by = self._heard_of = self._told_of = info  # clients; the catalog; the core
        self._sync_queued = False  # in the pool, or at it here
        self._row: RowSync | None = None  # made when it is first synced in a row
        self._queued = QueuedAppends(replica, WeakCall(self.append_now), appender)
        self._core.step(self._altered())
        replica.may_let_go = partial(_serves, weakref.ref(self))  # P20

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"

    # -- what it goes by ---------------------------------------------------------------------------------------

    @property
    def removed(self) -> bool:
        """The stream was deleted."""
        return self.replica.removed

    @property
    def info(self) -> StreamInfo:
        """The settings and the state of the stream that appends go by."""
        return self._acceptance.info

    @property
    def settings(self) -> StreamSettings:
        """The stream's."""
        return self._acceptance.info.settings

    @property
    def goes_by(self) -> StreamInfo:
        """As `PartitionHandle.goes_by`; messages are taken in by it, too."""
        return self._serves_by

    @property
    def is_changing(self) -> bool:
        """As `PartitionHandle.is_changing`; also where it is about to be altered, be it to what it is."""
        ours, others = self.info, self._serves_by
        is_new = (ours.settings, ours.paused, ours.read_only) != (others.settings, others.paused, others.read_only)
        return is_new or self._heard_of is not ours

    def hear(self, info: StreamInfo) -> None:
        """The catalog has these settings and this state now, and `alter` is to come. It may be altered on the way to
        what was current before: a stream may be paused, go on, and be paused once more."""
        self._heard_of = info

    def alter(self, info: StreamInfo) -> None:
        """Take over altered settings and state. Behind it nothing is appended that they refuse (P7)."""
        with self._lock:
            self._acceptance.alter(info)
            self.fence = info.fence_of(self.partition)
        self.fsync_each_batch = info.settings.fsync == "batch"
        self.fsync_interval_ms = info.settings.fsync_interval_ms
        self.log.remembered.update_settings(LogSettings.of(info.settings, self.log.state.settings))
        self.replica.note_change()  # the cleaner looks at what moved; the core hears of it at its next event

    def _altered(self) -> Altered:
        settings = self.info.settings
        return Altered(
            min_insync_replicas=1,
            fsync_each_batch=settings.fsync == "batch",
            fsync_interval_ms=settings.fsync_interval_ms,
        )

    def _news(self) -> tuple[Effect, ...]:
        """With the lock held: tell the core of settings that it does not know yet."""
        if self._told_of is (info := self.info):
            return ()
        self._told_of = info
        return self._core.step(self._altered())

    # -- leadership --------------------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """Under which it is led, or was led last; -1: it never was."""
        return self._core.epoch

    @property
    def generation(self) -> int:
        """Another one after each recovery of the log: what was appended before, and not durable, may be lost."""
        return self._core.generation

    @property
    def leads(self) -> bool:
        """Whether it is led here. It may be over by the time that somebody reads this."""
        return self._core.role is LEADING

    @property
    def has_followers(self) -> bool:
        """It is led, and other brokers keep it too: to be durable here is not to be committed."""
        return self._core.in_sync is not None

    @property
    def serves(self) -> bool:
        """Whether clients may be answered now: told of ends, and of what was stored."""
        return self.leads and self._tickets.may_answer()

    @property
    def end(self) -> int | None:
        """The high watermark, as clients may be told it; None: a new leader may know of less than former ones have
        told (P14)."""
        end = self._state.high_watermark
        return end if self._core.may_tell_end(end) and self.serves else None

    def lead(self, leader_epoch: int, state: PartitionState | None = None) -> None:
        """Lead it from now on. All who wait since an earlier epoch are told that this is over.

        Args:
            state: The others that keep it, by the catalog; None: nobody.
        Raises:
            NotLeader: the log knows a later epoch.
            DiskFull, StorageFailed: an incomplete group could not be cut; it is not led.
        """
        me = self._core.me
        state = state or PartitionState(replicas=(me,), isr=(me,))
        with self._lock:
            self.log.lead(leader_epoch)
            high_watermark, group_ends = self._state.open_groups()
            log_end = self._state.log_end_offset
            effects = self._core.step(
                Led(
                    epoch=leader_epoch,
                    replicas=state.replicas,
                    isr=state.isr,
                    min_insync_replicas=state.min_insync_replicas,
                    partition_epoch=state.partition_epoch,
                    high_watermark=high_watermark,
                    durable_end=self._state.durable_end,
                    log_end=log_end,
                    group_ends=group_ends if group_ends and group_ends[-1] == log_end else (),
                    log_start=self.log.checkpoints.kept_start_offset,
                )
            )
        self._effects.do(effects)
        self._tickets.release()

    def serve(self, leader_epoch: int, info: StreamInfo | None = None) -> None:
        """Answer clients in this leadership from now on (`acceptance.P11`). A late call for an earlier one is nothing.

        Args:
            info: What messages are taken in by; None: as before.
        """
        self._serves_by = info or self._serves_by
        self._tickets.served_epoch = max(self._tickets.served_epoch, leader_epoch)
        self._tickets.release()

    def retire(self, least_epoch: int) -> None:
        """Answer nobody as the leader of an earlier epoch. Waits for nothing (P12)."""
        self._tickets.least_epoch = max(self._tickets.least_epoch, least_epoch)

    def depose(self) -> None:
        """Another broker leads, or none. All who wait are told that it is over."""
        self.step(Deposed())
        self._tickets.release()
        self.replica.note_change()

    def hands_over(self) -> bool:
        """Take nothing more in this leadership (`acceptance.P19`). Returns whether who is in sync has all that was
        taken: not while an append is at the disk, which it does not wait for."""
        core = self._core
        in_sync = core.in_sync
        if not self.leads or in_sync is None or len(in_sync.members) < 2:
            return True
        self._acceptance.handed_epoch = core.epoch
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._state.high_watermark >= self._state.log_end_offset
        finally:
            self._lock.release()

    def is_led_at(self, address: str | None) -> None:
        """The HTTP address of the broker that leads it, as far as is known: who appends here is sent there."""
        self._acceptance.leader_at = address

    def note_removed(self) -> None:
        """Take no more, and wake who waits for records: there will be none, the stream was deleted."""
        self.replica.note_removed()  # before the log is closed, so that no append sees that without the reason
        self.step(Closed())
        self._tickets.release()

    # -- events ---------------------------------------------------------------------------------------------------

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

    # -- what others ask ------------------------------------------------------------------------------------------

    def leadership(self) -> tuple[int, int, tuple[str, ...]]:
        """The epoch that is led, -1 for none; how far it is committed; who is in sync."""
        core = self._core
        with self._lock:
            epoch = core.epoch if core.role is LEADING else -1
            return epoch, core.high_watermark, core.in_sync.members if core.in_sync is not None else (core.me,)

    def lags(self) -> dict[str, int]:
        """As `PartitionHandle.lags`; empty: it is not led here, or nobody follows."""
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

    def follower_ends(self) -> dict[str, int]:
        """The durable end that each follower has told, by its broker; -1: it has told none in this leadership."""
        core = self._core
        with self._lock:
            followers = core.in_sync.followers if core.in_sync is not None else {}
            return {broker: one.durable_end for broker, one in followers.items()}

    async def wait_for(self, offset: int, timeout_s: float) -> None:
        """On the data plane's loop: return when the high watermark is past `offset`, time is up, the stream gone or
        the partition not led here any more."""
        await self.replica.wait(
            lambda: self.removed or self._state.high_watermark > offset or not self.serves, timeout_s
        )

    def scrub(self, offset: int, *, bytes_max: int = PIECE_BYTES) -> Piece | None:
        """As `Replica.scrub`."""
        return self.replica.scrub(offset, bytes_max=bytes_max)

    # -- appends --------------------------------------------------------------------------------------------------

    def append(
        self,
        batches: Sequence[Encodable],
        *,
        acks: str = "all",
        leader_epoch: int | None = None,
        expected_offset: int | None = None,
        fence: int | None = None,
    ) -> Future[AppendResult]:
        """As `QueuedAppends.append`."""
        return self._queued.append(
            batches, acks=acks, leader_epoch=leader_epoch, expected_offset=expected_offset, fence=fence
        )

    def append_now(
        self,
        batches: Sequence[Encodable] | StoredGroup,
        on_durable: OnDurable,
        *,
        acks: Acks = Acks.ALL,
        also: Sequence[tuple[OnDurable, Acks]] = (),
        decided: bool = False,
        here: bool = False,
        row: SyncRow | None = None,
        leader_epoch: int | None = None,
        sorted_by: int = 0,
        expected_offset: int | None = None,
        fence: int | None = None,
    ) -> AppendResult:
        """Append in the calling thread, as one commit group. It is stored when `on_durable` says so.

        Args:
            on_durable: Called once, from another thread or before this returns, with what was appended and the high
                watermark or the error (P1).
            acks: The moment that `on_durable` waits for.
            also: Others who are called likewise, and before it, each at the moment that is named with him.
            decided: The group of a sink's decision (`acceptance.P3`).
            here: It may be synced before this returns (P4).
            row: It is synced with that, which the caller submits, as nobody awaits it (P5).
            leader_epoch: Under which it was judged that this is to be appended (P6); None: nothing was judged.
            sorted_by: So many partitions there were when these records were given to this one (`acceptance.P15`);
                0: it does not matter.
            expected_offset: As `PartitionLog.append` takes it; not of a `StoredGroup`.
            fence: The number of the fence that the writer holds; None: it holds none, and is let in (P21).
        Raises:
            NotLeader: the partition has another leader epoch by now; nothing was appended.
            NotReady: there are more partitions by now, or another broker leads soon; or this one has no session, or
                does not serve yet (`acks.P8`, `acceptance.P11`). Nothing was appended.
            NotEnoughReplicas: `acceptance.P9`.
            DiskFull, StorageFailed: nothing was appended.
            ReadOnly, StreamPaused: the stream takes none.
            WriterFenced: P21; nothing was appended.
            UnknownStream: it was deleted.
        """
        replica, core, acceptance = self.replica, self._core, self._acceptance
        if core.role is LEADING and not replica.removed:
            acceptance.check_ready()
        if acceptance.is_closed or replica.removed:
            acceptance.check_open(decided=decided)
        if replica.room is not None:
            replica.room.check(_size(batches))
        if core.role is not LEADING:
            acceptance.refuse(leader_epoch)  # at once: who begins to lead holds the lock, and reads
        now_us = replica.elapsed_us()
        before: tuple[Effect, ...] = ()
        failure: LiftlogError | None = None
        durable_end = -1
        try:
            with self._lock:
                epoch = core.epoch
                if core.role is not LEADING or (leader_epoch is not None and leader_epoch != epoch):
                    acceptance.refuse(leader_epoch)
                if acceptance.is_closed:  # P7
                    acceptance.check_open(decided=decided)
                acceptance.judge_again(sorted_by)
                if self._told_of is not acceptance.info:
                    before = self._news()
                if self._state.failure is not None and not replica.removed:
                    before += self._recover(now_us)
                is_fenced = fence is not None and fence != self.fence
                if isinstance(batches, StoredGroup):
                    assert fence is expected_offset is None, "it was decided"
                    result = self.log.append_group(batches, leader_epoch=epoch, now_us=now_us)
                else:
                    result = self.log.append(
                        batches,
                        leader_epoch=epoch,
                        now_us=now_us,
                        wall_us=replica.wall_us(),
                        expected_offset=NOWHERE if is_fenced else expected_offset,
                        fence=self.fence,
                    )
                    if is_fenced and not result.has_records:
                        raise WriterFenced(f"{self}: fence {fence} is not the one that it has; nothing was appended")
                first, end, _, is_repeat = result
                if (
                    here
                    and not self.has_followers
                    and replica.sync_took_s <= QUICK_S
                    and self.fsync_each_batch
                    and not (core.is_syncing or self._sync_queued)
                ):
                    synced = replica.sync()
                    if isinstance(synced, int):
                        durable_end = synced
                    else:
                        failure = synced
                group_ends = () if is_repeat else (end,)
                awaited = [
                    (Ticket(tell, result, epoch, level, sorted_by > 0 and level is not OWN), level)
                    for tell, level in (*also, (on_durable, acks))
                ]
                effects = core.step(Appended(first, end, group_ends, tuple(awaited), durable_end))
                for ticket, _ in awaited:
                    if ticket.is_sorted:
                        self._stopping.began()
                if failure is not None:
                    told = core.step(SyncFailed(core.generation, failure))
                    effects = (*(effect for effect in effects if type(effect) is not Sync), *told)
                elif not effects and row is None and self._row is not None and self._row.state is not NO_ROW:  # P5
                    self._row.state = NO_ROW
                    effects = (Sync(core.generation),)
        except (LiftlogError, OSError):
            self._effects.do(before)
            replica.refused()
            self.look_at_failure()
            acceptance.check_open(decided=decided)  # deleted meanwhile: then that is the reason
            raise
        except BaseException:
            self._effects.do((*before, *self._caught_up()))
            raise
        if before:
            self._effects.do(before)
        try:
            replica.appended(result)
        except Exception:  # what it counts and begins is ours alone: it is stored, and somebody waits for his answer
            log.exception("partition.appended_bug partition=%s", self)
        if not effects:
            return result
        if row is not None and type(effects[0]) is Sync:
            in_row = self._row = self._row or RowSync(replica, self._lock)
            in_row.state = RowState.WAITS
            row.add(partial(in_row.sync, self._synced), partial(in_row.synced, self._tell))
        else:
            self._effects.do(effects)
        if durable_end >= 0:
            FSYNC_SECONDS.observe(replica.sync_took_s)
        elif failure is not None:
            self._log_failure(failure)
        return result

    def check_open(self, *, decided: bool = False) -> None:
        """As `Acceptance.check_open`."""
        self._acceptance.check_open(decided=decided)

    # -- a stop, another number of partitions (acceptance.P17) -----------------------------------------------------

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
                tell = partial(self._committed, number)
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
        """Whether it has stopped in this leadership as of that moment (`acceptance.P17`)."""
        return self._stopping.has_stopped(as_of, leader_epoch)

    # -- the disk -------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        with self._lock:
            queued, self._sync_queued = self._sync_queued, True
        if not queued:
            self._pool.submit(self)

    def commit_all(self) -> int:
        """Recover the log if it failed, and make all that it holds durable and visible. Returns the high watermark.

        Raises:
            UnknownStream: the stream was deleted.
            StorageFailed, DiskFull: what the log holds beyond its high watermark is not known.
        """
        self.check_open(decided=True)
        if self.log.state.failure is not None:
            with self._lock:
                effects = self._recover(self.replica.elapsed_us())
            self._effects.do(effects)
        event = self._synced()
        self._tell(event)
        if isinstance(event, SyncFailed):
            self.check_open(decided=True)  # deleted meanwhile, and the log closed: then that is the reason
            raise event.error
        self.replica.note_change()
        return self.log.state.high_watermark

    @property
    def minds_time(self) -> bool:
        """Whether `sync_if_due` has something to do, now and then: also once after `fsync = interval` was altered."""
        core = self._core  # asked of all, each second: without a call
        is_asked = not self.fsync_each_batch or self._told_of is not self._acceptance.info
        return is_asked and core.role is LEADING and core.in_sync is None

    @staticmethod
    def who_mind_time(partitions: Iterable[Partition]) -> list[Partition]:
        """Those of them that mind time. Nearly all of ten thousand do not: they are looked at without a call for each,
        as it is each second."""
        maybe = [each for each in partitions if not each.fsync_each_batch or each._told_of is not each._acceptance.info]
        return [each for each in maybe if each.minds_time]

    def sync_if_due(self, now_s: float) -> int:
        """With `fsync = interval`: have it synced if that is due. Returns the interval in milliseconds. Where there is
        nothing to do it costs next to nothing.

        A log that has failed is recovered: readers have seen its records, and the next append may be far.
        """
        state = self._state
        if (
            state.durable_end == state.log_end_offset
            and state.failure is None
            and self._told_of is self._acceptance.info
        ):
            return self.fsync_interval_ms
        effects: tuple[Effect, ...] = ()
        with self._lock:
            if self.log.state.failure is not None and not self.removed:
                try:
                    effects = self._recover(self.replica.elapsed_us())
                except LiftlogError as error:
                    self._log_failure(error)
                    return self.fsync_interval_ms
            effects = (*effects, *self._news(), *self._time(int(now_s * 1000)))
        self._effects.do(effects)
        return self.fsync_interval_ms

    def _time(self, now_ms: int) -> tuple[Effect, ...]:
        """With the lock held: tell the core the time, or a later one that it was told (P13)."""
        return self._core.step(Tick(now_ms=max(now_ms, self._core.now_ms)))

    def run_sync(self) -> bool:
        """One group commit: sync, do what comes of it; return whether more is to be synced already. Never raises."""
        event = self._synced()
        with self._lock:
            self._sync_queued = False  # whatever becomes of the step: else it is never synced again
            effects = self._core.step(event)
            self._sync_queued = is_more = bool(effects) and type(effects[-1]) is Sync
        if isinstance(event, SyncFailed):
            self._log_failure(event.error)
        self._effects.do(effects, syncs=False)
        FSYNC_SECONDS.observe(self.replica.sync_took_s)
        return is_more

    def _synced(self) -> Synced | SyncFailed:
        """Sync the log. The generation is read before: too early is a sync too many, too late a false ack."""
        generation = self._core.generation
        synced = self.replica.sync()
        return Synced(generation, synced) if isinstance(synced, int) else SyncFailed(generation, synced)

    def _tell(self, event: Synced | SyncFailed) -> None:
        with self._lock:
            effects = self._core.step(event)
        if isinstance(event, SyncFailed):
            self._log_failure(event.error)
        self._effects.do(effects)

    def _log_failure(self, error: LiftlogError) -> None:
        if not self.removed:
            log.error("partition.sync_failed partition=%s error=%s", self, error)

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
        """With the lock held (P2, P10)."""
        if not self.leads:
            raise NotLeader(f"{self}: this broker does not lead it")
        if self.has_followers:
            assert self._state.failure is not None
            return self._failed(self._state.failure)
        self.log.recover(now_us)
        end = self._state.log_end_offset
        log.warning("partition.recovered partition=%s log_end_offset=%d", self, end)
        return self._core.step(Recovered(durable_end=self._state.durable_end, log_end=end))

    def _caught_up(self) -> tuple[Effect, ...]:
        """After a fault of ours between the log and the core: what the core was not told may be lost to who waits."""
        with self._lock:
            end = self._state.log_end_offset
            if not self.leads or end == self._core.log_end:
                return ()
            if self.has_followers:
                return self._failed(StorageFailed(f"{self}: what was appended did not reach its core"))
            if self._state.failure is not None:
                return ()
            return self._core.step(Recovered(durable_end=self._state.durable_end, log_end=end))

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


def _size(batches: Sequence[Encodable] | StoredGroup) -> int:
    """Bytes of what is large: of a sink's group, and of a body. What comes over NATS is bounded by its batches."""
    if isinstance(batches, StoredGroup):
        return batches.byte_count
    return sum(batch.byte_count_max for batch in batches if isinstance(batch, RowBatch | PlainBatch))


def _serves(partition: weakref.ref[Partition]) -> bool:
    found = partition()
    return found is not None and found.serves
