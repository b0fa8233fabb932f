"""Drives the core of a follower over one log (`broker.replication.follower`): `wiring.FollowerDriver`.

    connection's reader ─ arrived ─► core ─► append, cut, begin anew ─► Holds ─► core ─► next question ─► connection
    turn ─ follow, rest, close ─────► core                                        │
    clock ─ tick ───────────────────► core ◄─ Synced ─ a thread of the pool ◄── Sync

U1  One lock over the core and what it wants done. Clocks do not wait for it: a log that is being cut has no time.
U2  An answer is applied when it arrives, or never: after `rest` or another `follow` it meets a core that does not mind
    it, and a log that refuses it.
U3  An fsync is the pool's (but for U7). It makes durable all that was appended before it began; meanwhile records go on
    coming.
U4  A log that refuses without having failed (a full disk, bytes that do not fit) is asked again after a while. One that
    has failed has the replica step out.
U5  Time stands still while the connection's reader is at work (`connection.N4`). While the stream lives it hardly
    passes where the leader has said last that there is nothing: it has the next question, and its heartbeat tells that
    it is there. It passes slowly where this leader has said nothing yet: it may have a thousand others to begin with,
    and to report it would give them to somebody who has as many. And slower where there are many (`connection.N8`).
U6  The log is told to agree with its leader's from the moment that the core has found it so, until the core wants it
    cut or follows another leader: before the cut is begun.
U7  The connection's reader itself fsyncs an answer that comes alone: to wake a thread and to ask twice takes longer
    than a quick fsync, and somebody waits for his ack. It comes alone if the reader had nothing to do before it for
    longer than the last fsync took. That fsync was quick, the bytes are few, and the pool has nothing of this log.
U8  A disk that is full, or has the reserve alone, is asked each `ROOM_S` whether there is room again; until then the
    leader is asked for no records (`follower.F13`).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from broker.api.batch import message_bytes
from broker.api.errors import BadBatch, DiskFull, LiftlogError, OffsetOutOfRange
from broker.common.metrics import FSYNC_SECONDS
from broker.common.waiting import Waits
from broker.link.connection import Connection
from broker.metadata.partition import Place
from broker.node.partitions.partition import Partition
from broker.node.partitions.sync import SyncExecutor
from broker.replication import events as e
from broker.replication import following as f
from broker.replication.follower import Follower, Phase
from broker.replication.messages import End, Incarnation, Records, Reply
from broker.serving.http.meters import RateLimitedLog
from broker.storage.log import AppendResult
from broker.storage.read import group_start

log = logging.getLogger(__name__)

QUICK_S: Final = 0.002
HERE_BYTES_MAX: Final = 64 << 10
"""Both: see U7."""
FRESH_SLOWER: Final = 10
"""So much slower passes time before the first answer in an epoch: the leader is reported after 10 s."""
ROOM_S: Final = 1.0
"""See U8."""
CALM_SLOWER: Final = 50
"""So much slower passes the time of a calm one: it asks again after 15 s, if the leader has not answered after 10."""


class Following:
    """See the module. Thread-safe.

    Args:
        connect: Gives the connection to a broker.
        report: The leader of this epoch does not answer: which partition, epoch, leader. Must not wait.
        step_out: As `PlacedReplica.step_out`.
        counts: The link's: `bad_batches` are those whose bytes are not what was stored.
        now_s: A clock that never goes back.
    """

    def __init__(
        self,
        at: Place,
        partition: Partition,
        *,
        me: str,
        connect: Callable[[str], Connection],
        report: Callable[[Place, int, str], None],
        step_out: Callable[[str], None],
        pool: SyncExecutor,
        counts: Counter[str],
        now_s: Callable[[], float],
        waits: Waits,
    ) -> None:
        self.at = at
        self._partition = partition
        self._counts = counts
        self._now_s = now_s
        self._waits = waits
        self._replica = partition.replica
        self._log = partition.log
        self._core = Follower(me)
        self._connect = connect
        self._report = report
        self._step_out = step_out
        self._pool = pool
        self._lock = threading.Condition(threading.RLock())
        self._connection: Connection | None = None
        self._data: bytes | memoryview = b""  # that came with the answer which the core has now
        self._is_damaged = False  # what came so
        self._sync_of = 0  # generation
        self._is_queued = self._is_syncing = self._is_closed = False
        self._whole_to = self._whole_from = 0  # a group is known to end there; of a log that ended there
        self._clock_s = 0.0  # what `_passed` has seen last
        self._time_ms = 0.0
        self._is_calm = False
        self._is_fresh = True
        self._refused_log = RateLimitedLog()
        self._lacks_room, self._room_asked_s = False, 0.0
        self.agreed_epoch = -1

    def __str__(self) -> str:
        return str(self._partition)

    # -- turns -------------------------------------------------------------------------------------------------

    def follow(self, epoch: int, leader: str, incarnation: Incarnation) -> None:
        """As `FollowerDriver.follow`."""
        connection = self._connect(leader)
        with self._lock:
            if self._is_closed:
                return
            if self._connection is not None and self._connection is not connection:
                self._connection.remove(self.at, self)
            self._connection, self._clock_s = connection, 0.0
            self._is_calm, self._is_fresh = False, True
            connection.add(self.at, self)
            self._look_for_groups()
            self._step(f.Followed(epoch=epoch, leader=leader, incarnation=incarnation, log=self._holds()))

    def rest(self) -> None:
        """As `FollowerDriver.rest`."""
        with self._lock:
            self._leave()
            self._step(f.Unfollowed())

    def close(self) -> None:
        """As `FollowerDriver.close`."""
        with self._lock:
            self._is_closed = True
            self._leave()
            self._step(f.Unfollowed())
            self._waits.until(self._lock, lambda: not self._is_syncing)

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.remove(self.at, self)

    # -- time --------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """As `FollowerDriver.tick` (U1, U5)."""
        if self._lock.acquire(blocking=False):
            try:
                self._passed()
                if self._lacks_room:
                    self._look_for_room()
                self._step(e.Tick(now_ms=int(self._time_ms)))
            finally:
                self._lock.release()

    def _look_for_room(self) -> None:
        """U8."""
        now_s = self._now_s()
        if now_s - self._room_asked_s < ROOM_S:
            return
        self._room_asked_s = now_s
        try:
            if self._replica.room is not None:
                self._replica.room.check_followed(again=True)
        except DiskFull:
            return
        self._lacks_room = False
        log.info("replica.has_room partition=%s", self)
        self._step(f.RoomFound())

    def _passed(self) -> None:
        connection = self._connection
        if connection is None:
            return
        now_s = connection.heard_to(self._now_s())
        passed_ms = max(0.0, now_s - self._clock_s) * 1_000 if self._clock_s else 0.0
        self._clock_s = max(self._clock_s, now_s)
        slower = 1.0
        if connection.is_live:
            is_calm = self._is_calm and not self._core.log.lacks_state
            slower = connection.slower * (CALM_SLOWER if is_calm else FRESH_SLOWER if self._is_fresh else 1)
        self._time_ms += passed_ms / slower

    # -- the connection ----------------------------------------------------------------------------------------

    def arrived(self, answer: Reply, data: bytes | memoryview) -> bool:
        """As `Asker.arrived` (U2)."""
        with self._lock:
            if self._is_closed or self._core.phase is Phase.IDLE:
                return True
            self._data, self._is_damaged = data, False
            core = self._core
            if (answer.epoch, answer.incarnation) == (core.epoch, core.incarnation):
                has_all = isinstance(answer, Records) and not data and answer.high_watermark <= answer.offset
                self._is_calm, self._is_fresh = has_all, False
            try:
                own = self._log.epochs.end_of(answer.found_epoch).end_offset if isinstance(answer, End) else 0
                self._step(f.Replied(answer, own))
            except LiftlogError as error:
                self._refuse(error)
            finally:
                self._data = b""
            return not self._is_damaged

    def unreachable(self, leader: str) -> None:
        """As `Asker.unreachable` (U1)."""
        if self._lock.acquire(blocking=False):
            try:
                if self._core.leader == leader:
                    self._is_calm = False
                    self._step(f.Unreachable())
            finally:
                self._lock.release()

    def begun(self) -> None:
        """As `Asker.begun`."""
        self._is_calm, self._is_fresh = False, True

    # -- what the core wants -----------------------------------------------------------------------------------

    def _step(self, event: f.Event) -> None:
        """With the lock held (U6)."""
        core = self._core
        effects = core.step(event)
        self.agreed_epoch = core.epoch if core.phase is Phase.FETCHING else -1
        for effect in effects:
            self._do(effect)

    def _do(self, effect: f.Effect) -> None:
        opened = self._log
        match effect:
            case f.Ask(_, message):
                if self._connection is not None:
                    self._connection.ask(self.at, message)
            case f.Append():
                self._on_disk(lambda: self._append(effect))
            case f.TakeState(offset, at, size):
                self._take_state(offset, at, size)
            case f.Truncate(to, is_copied_again):
                log.info("replica.truncates partition=%s from=%d to=%d", self, opened.state.log_end_offset, to)
                self._on_disk(lambda: self._cut(to, is_copied_again))
            case f.Reset(to, last_epoch):
                log.warning("replica.begins_anew partition=%s from=%d at=%d", self, opened.state.log_end_offset, to)
                self._on_disk(lambda: self._reset(to, last_epoch))
            case f.StartAt(start):
                self._on_disk(lambda: self._start_at(start))
            case f.Report():
                self._report(self.at, effect.epoch, effect.leader)
            case e.Commit(high_watermark):
                opened.state.advance_high_watermark(high_watermark)
                self._replica.note_change()
            case e.Sync(generation):
                self._sync_of = generation
                if not self._is_queued:
                    self._is_queued = True
                    self._pool.submit(self)
            case e.StepOut():
                self._step_out("fsync")

    def _on_disk(self, act: Callable[[], None]) -> None:
        """Do something to the log that is followed by what it holds (U4)."""
        try:
            act()
        except LiftlogError as error:
            if isinstance(error, DiskFull):
                self._lacks_room, self._room_asked_s = True, self._now_s()
            self._refuse(error)
            if self._log.state.failure is None:
                self._step(self._holds(is_refused=True))
            return
        self._step(self._holds())

    def _refuse(self, error: LiftlogError) -> None:
        """Something was not done; if the log has failed, that is the end of it (`follower.F7`)."""
        self._is_calm = False
        if isinstance(error, BadBatch):
            self._is_damaged = True
            self._counts["bad_batches"] += 1
        count = self._refused_log.due()
        if count:
            log.warning("replica.refuses partition=%s count=%d error=%s", self, count, error)
        if self._log.state.failure is not None and self._core.phase is not Phase.IDLE:
            self._step(e.SyncFailed(self._core.generation, error))

    def _append(self, effect: f.Append) -> None:
        data, opened = self._data, self._log
        if not data:
            return
        before, taken = opened.state.log_end_offset, 0
        try:
            for piece in self._pieces(data):
                opened.append_stored(
                    piece,
                    leader_epoch=effect.epoch,
                    now_us=self._replica.elapsed_us(),
                    is_rewritten=effect.is_rewritten and not taken,
                    superseded=(effect.superseded_to, effect.superseded_epoch),
                )
                taken += len(piece)
        finally:
            end = opened.state.log_end_offset
            if end > before:
                self._replica.appended(AppendResult(before, end, taken or len(data)))
        if self._may_sync_here(len(data)):
            synced = self._replica.sync()
            if not isinstance(synced, int):
                log.error("partition.sync_failed partition=%s error=%s", self, synced)
                raise synced
            FSYNC_SECONDS.observe(self._replica.sync_took_s)

    def _pieces(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """As much of it as there is room for (U8); then DiskFull. Where there is plenty it is one piece."""
        room, again = self._replica.room, self._lacks_room
        if room is None:
            yield data
            return
        try:
            room.check_followed(len(data), again=again)
        except DiskFull:
            pass
        else:
            yield data
            return
        view, end = memoryview(data), 0
        while end < len(view):
            begin, end = end, end + message_bytes(view[end:])
            room.check_followed(end, again=again)
            yield view[begin:end]

    def _may_sync_here(self, byte_count: int) -> bool:
        """U7."""
        connection = self._connection
        took_s = self._replica.sync_took_s
        return (
            connection is not None
            and took_s <= QUICK_S
            and byte_count <= HERE_BYTES_MAX
            and not (self._core.is_syncing or self._is_queued)
            and connection.rested_s > took_s
        )

    def _cut(self, to: int, is_copied_again: bool) -> None:
        self._whole_from = -1
        self._log.truncate(to, is_copied_again=is_copied_again)
        self._whole_to = self._log.state.log_end_offset
        self._replica.note_change()

    def _reset(self, to: int, last_epoch: int) -> None:
        self._log.reset(to, last_epoch=last_epoch)
        self._whole_to, self._whole_from = to, -1
        self._replica.note_change()

    def _start_at(self, start: int) -> None:
        with self._replica.letting_go:
            self._log.trim(start)

    def _take_state(self, offset: int, at: int, size: int) -> None:
        try:
            is_there = self._log.handover.take(offset, at, bytes(self._data), size)
        except LiftlogError as error:
            self._refuse(error)
            if self._log.state.failure is not None:
                return
            is_there = False
        self._step(f.StateTaken(not is_there))

    # -- what the log holds ------------------------------------------------------------------------------------

    def _look_for_groups(self) -> None:
        """Where the last whole group ends. (A log that was opened takes all that it found for one group.)"""
        opened = self._log
        self._whole_from = opened.state.log_end_offset
        try:
            self._whole_to = opened.state.ask(group_start)
        except (OffsetOutOfRange, LiftlogError):
            self._whole_to = opened.state.high_watermark

    def _holds(self, *, is_refused: bool = False) -> f.Holds:
        opened, state = self._log, self._replica.state
        end, high_watermark = opened.state.log_end_offset, opened.state.high_watermark
        superseded_to, superseded_epoch = opened.state.superseded
        group_ends = state.group_ends
        whole = group_ends[-1] if group_ends and group_ends[-1] != self._whole_from else self._whole_to
        return f.Holds(
            log_start=opened.checkpoints.kept_start_offset,
            log_end=end,
            durable_end=min(opened.state.durable_end, end),
            last_epoch=opened.epochs.latest,
            high_watermark=high_watermark,
            group_end=min(max(whole, high_watermark), end),
            is_refused=is_refused,
            lacks_state=opened.handover.lacks,
            compacted_to=opened.state.compacted_to,
            waits_to=opened.state.waits_to,
            lacks_room=self._lacks_room,
            superseded_to=superseded_to,
            superseded_epoch=superseded_epoch,
        )

    # -- fsync (a thread of the pool) --------------------------------------------------------------------------

    def run_sync(self) -> bool:
        """One fsync, and what comes of it. Returns whether there is more to do already (U3)."""
        with self._lock:
            if self._is_closed:
                self._is_queued = False
                return False
            generation, self._is_syncing = self._sync_of, True
        synced = self._replica.sync()
        with self._lock:
            self._is_syncing = False
            self._lock.notify_all()
            if self._is_closed:
                self._is_queued = False
                return False
            if isinstance(synced, int):
                FSYNC_SECONDS.observe(self._replica.sync_took_s)
                event: e.Synced | e.SyncFailed = e.Synced(generation, synced)
            else:
                log.error("partition.sync_failed partition=%s error=%s", self, synced)
                event = e.SyncFailed(generation, synced)
            self._sync_of = -1
            try:
                self._step(event)
            except BaseException:  # a fault of ours, and nobody knows what the core awaits: it begins anew
                self._is_queued = False
                self._step_out("fsync")
                raise
            self._is_queued = self._sync_of >= 0
            return self._is_queued

    # -- compaction --------------------------------------------------------------------------------------------

    def compacted(self) -> int:
        """As `FollowerDriver.compacted`."""
        with self._lock:
            if not self._is_closed:
                self._step(f.Compacted(self._log.state.compacted_to, self._log.state.waits_to))
            return self._core.number

    def marks(self) -> tuple[int, int]:
        """For a pass of compaction: tombstones may go below the former, all is to be compacted up to the latter."""
        return self._core.tombstones_below, self._core.compact_to
