"""From builders to appended batches, and from durable batches to answers. Lives on the intake thread's loop.

    Intake.feed ─► Builder per partition ─► flush: one append ─► fsync pool ─► acks, one blob per batch ─► socket

A flush takes all that a builder holds. While the previous batch of a partition is being synced nothing is
flushed unless a builder is full: so batches grow by themselves when the disk is the limit, and a single
message waits for nobody. A batch in which nobody awaits an ack lingers for `linger_ms` at most, until a tick that it
shares with the other partitions that linger: a timer and a thread of the pool are dear for a single message. A crowd
that gathers during a sync waits for at most `CYCLE_S`. This thread itself syncs a message that comes alone and is
awaited: a publisher that waits for acks sends no more than a window meanwhile, and others do not wait at the socket.

N1  A record is acked only when it is committed, or with `Liftlog-Ack: leader` after the fsync (with fsync=interval: the
    append) of this broker that covers it. Answers on records that were not stored wait for the former (`answers.N4`).
N2  Bytes that are appended and not yet durable are bounded (`pending_bytes_max`): over it `may_read` does not
    return, so nothing more is read. NATS buffers, and may cut us off; that is counted and reported.
N5  A builder lives as long as messages can come into it, and knows its slot (`Builder.tag`): a message that was half
    read when settings changed, or when its stream was paused or deleted, goes the way of every other, and its
    partition says what becomes of it.
N6  A failure while one slot is flushed concerns that slot: the others are flushed, and reading goes on. If the
    answers to a batch cannot be made it counts as failed, and is under way no more.
N7  A record whose ack is awaited waits for no tick, nor for the fsyncs of what a tick has flushed.
N8  A flush waits for the fsync of this broker, never for followers. Bytes that wait for those are bounded for each
    partition (uncommitted.py): one that waits for long is refused more, and holds up nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from broker.api.errors import LiftlogError, StorageFailed
from broker.common.elapsed import MACHINE, Clocks
from broker.ingest import Builder, Intake
from broker.intake.answers import Answers, blob_of
from broker.intake.flushed import Flushed, Told
from broker.intake.uncommitted import Uncommitted
from broker.metadata.catalog import StreamInfo
from broker.metadata.overlap import subject_of
from broker.node.partitions.acks import OnDurable
from broker.node.partitions.partition import Outcome, Partition
from broker.node.partitions.sync import SyncExecutor, SyncRow
from broker.replication.events import Acks
from broker.storage.log import AppendResult

log = logging.getLogger(__name__)

CYCLE_S = 0.001
CROWD_RECORDS = 16
"""When so many that await acks have gathered during a sync, the next flush starts no earlier than `CYCLE_S` after the
last one: a cycle costs some 0.3 ms of CPU whatever is in it, and a crowd does not notice the wait. A few are flushed
at once."""

BUG_INTERVAL_S = 1.0
"""So often at most a failure of our own is logged (N6); all are counted."""

TICK_SLOTS = 8
"""So many are flushed in one turn of the loop when a tick comes, in some 0.5 ms; in between the socket is read (N7)."""

ALL = Acks.ALL
OWN, LEADER = Acks.OWN, Acks.LEADER
HERE, LEADERS, DONE = Told


@dataclass(slots=True, eq=False)
class FlushSlot:
    """One partition's place between builder and log.

    Attributes:
        scheduled: The flush that is going to come.
        lingers: It is flushed at the next tick.
        in_flight: Batches being synced; while there are any, what comes gathers.
        ticked: Batches being synced that a tick has flushed. `idle` is set while there are neither.
        flushed_s: When the last flush was whose batch had to wait for the fsync pool, by the loop's clock.
        uncommitted_bytes: Durable here, waiting for followers (N8).
        sorted_by: As `Partition.append_now` takes it, of all that comes into its builder.
    """

    partition: Partition
    builder: Builder
    linger_s: float
    batch_bytes: int
    batch_records: int
    scheduled: asyncio.Handle | None = None
    lingers: bool = False
    in_flight: int = 0
    ticked: int = 0
    flushed_s: float = 0.0
    uncommitted_bytes: int = 0
    sorted_by: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_full(self) -> bool:
        """Whether the builder must be flushed whatever is in flight."""
        return self.builder.byte_count >= self.batch_bytes or self.builder.record_count >= self.batch_records


class Flusher:
    """All slots of a broker.

    Args:
        intake: The parser that fills the builders.
        make_builder: Its builder class.
        send: Writes bytes to the NATS connection, if there is one.
        loop: The intake thread's.
        pool: Syncs what a tick has flushed.
        pending_bytes_max: N2.
        clocks: Of this machine, if no others are handed in.
    """

    def __init__(
        self,
        intake: Intake,
        make_builder: type[Builder],
        send: Callable[[bytes], None],
        *,
        loop: asyncio.AbstractEventLoop,
        pool: SyncExecutor,
        pending_bytes_max: int,
        clocks: Clocks = MACHINE,
    ) -> None:
        self._intake = intake
        self._make_builder = make_builder
        self._pending_bytes_max = pending_bytes_max
        self._pending_bytes = 0
        self._ticked_bytes = 0  # of these
        self._ticks: dict[float, dict[FlushSlot, None]] = {}  # by how long they linger: who is flushed then
        self._row = SyncRow(pool)
        self._heard: deque[tuple[Flushed, Told, bytes, Outcome]] = deque()  # by other threads, for this one
        self._is_waking = False
        self._resume = asyncio.Event()
        self._resume.set()
        self._loop = loop
        self.uncommitted = Uncommitted(pending_bytes_max)
        self._bugs_shown_s = -BUG_INTERVAL_S
        self.answers = Answers(send, loop.time, clocks.wall_us)
        self._own_counts = {"pauses": 0, "flush_bugs": 0}

    @property
    def counts(self) -> dict[str, int]:
        """Counts of batches and records, and of faults and pauses of the flush."""
        return self.answers.counts | self._own_counts

    def add(self, info: StreamInfo, partition: Partition, *, sorted_by: int = 0) -> FlushSlot:
        """Make a partition's slot."""
        builder = self._make_builder(
            stream=info.name,
            partition=partition.partition,
            subject=subject_of(info.settings, partition.partition),
            expects_offsets=info.settings.concurrency_control is not None,
            **_builder_settings(info),
        )
        builder.tag = slot = FlushSlot(partition, builder, 0.0, 0, 0, sorted_by=sorted_by)
        slot.idle.set()
        self._configure(slot, info)
        return slot

    def alter(self, slot: FlushSlot, info: StreamInfo) -> None:
        """Go on under new settings; the caller routes anew. Messages that have gathered keep their fate (N5)."""
        slot.builder.alter(
            **_builder_settings(info),
        )
        self._configure(slot, info)

    def _configure(self, slot: FlushSlot, info: StreamInfo) -> None:
        slot.linger_s = info.settings.linger_ms / 1000
        slot.batch_bytes = info.settings.batch_bytes
        slot.batch_records = info.settings.batch_records

    async def remove(self, slot: FlushSlot) -> None:
        """Flush a slot, and wait until all is durable here. A half-read message is flushed when it is whole (N5)."""
        self._flush(slot, force=True)
        await slot.idle.wait()

    def flush(self, slot: FlushSlot) -> None:
        """Give its partition what has gathered."""
        self._flush(slot, force=True)

    def after_feed(self) -> None:
        """Schedule flushes of what the last chunk has filled, and send the refusals."""
        full = self._intake.full()
        dirty = self._intake.dirty()
        now: list[FlushSlot] = []
        others = len(dirty)
        for builder in dirty:
            slot: FlushSlot = builder.tag
            try:
                if full and slot.is_full:
                    self._flush(slot, force=True)
                elif slot.scheduled is None and not slot.in_flight:
                    if slot.linger_s and not builder.awaited_count:
                        others -= 1
                        if not slot.lingers:
                            self._linger(slot)
                    else:
                        now.append(slot)
            except Exception:  # N6
                self._note_bug(slot)
        for slot in now:
            try:
                self._flush(slot, alone=others == 1)
            except Exception:  # N6
                self._note_bug(slot)
        if refusals := self._intake.refusals():
            self.answers.send(refusals)

    def _linger(self, slot: FlushSlot) -> None:
        """Have it flushed with the others at the next tick, after `linger_s` at most."""
        slot.lingers = True
        others = self._ticks.get(slot.linger_s)
        if others is None:
            others = self._ticks[slot.linger_s] = {}
            self._loop.call_later(slot.linger_s, self._tick, slot.linger_s)
        others[slot] = None

    def _tick(self, linger_s: float) -> None:
        self._flush_lingering(deque(self._ticks.pop(linger_s)))

    def _flush_lingering(self, slots: deque[FlushSlot]) -> None:
        """Flush the next few, the others in further turns of the loop."""
        for slot in [slots.popleft() for _ in range(min(TICK_SLOTS, len(slots)))]:
            try:
                if slot.lingers and slot.ticked:
                    self._linger(slot)  # the disk is the limit: let the batch grow
                elif slot.lingers:  # else it was flushed meanwhile
                    self._flush(slot, row=self._row)
            except Exception:  # N6
                self._note_bug(slot)
        if slots:
            self._loop.call_soon(self._flush_lingering, slots)
        else:
            self._row.submit()

    def _flush(self, slot: FlushSlot, *, force: bool = False, alone: bool = False, row: SyncRow | None = None) -> None:
        """Append what has gathered.

        Args:
            force: Also while a batch is being synced.
            alone: No other slot has records, but for those that linger.
            row: A tick has come: it is synced with that, which is submitted later.
        """
        slot.lingers = False
        if slot.scheduled is not None:
            slot.scheduled.cancel()
            slot.scheduled = None
        if slot.in_flight and not force:
            return  # `_synced_here` flushes what has gathered
        if not slot.builder.record_count:
            return
        pending = slot.builder.take()
        batch = Flushed(slot, pending, row, threading.get_ident(), pending.ack_bytes)
        waits = self._pending_bytes > self._ticked_bytes or slot.ticked
        awaited = pending.awaited_count  # of all, or of few: then who sends them waits for acks
        also: tuple[tuple[OnDurable, Acks], ...] = ()
        acks = ALL
        if pending.leader_count:
            if awaited == pending.leader_count and not pending.condition_count:
                acks = LEADER
            else:  # the two are told apart
                also, batch.leader = ((partial(self._told, batch, LEADERS), LEADER),), False
        is_awaited = awaited == pending.record_count or (awaited > 0 and pending.record_count < CROWD_RECORDS)
        here = alone and not waits and is_awaited
        try:
            if slot.partition.has_followers:
                if awaited:
                    self.uncommitted.check(slot)
                    batch.is_apart = True
                    also = ((partial(self._told, batch, HERE), OWN), *also)
                else:
                    acks = OWN
            done = partial(self._told, batch, DONE)
            result = slot.partition.append_now(
                [pending], done, acks=acks, also=also, here=here, row=row, sorted_by=slot.sorted_by
            )
        except LiftlogError as error:
            self.answers.refuse(slot.partition, pending, error)
            return
        except Exception as error:  # it must not pass for success (N6)
            self._note_bug(slot)
            self.answers.refuse(slot.partition, pending, StorageFailed(f"{slot.partition}: {error!r}"))
            return
        batch.is_appending = False
        batch.byte_count += result.bytes
        if not batch.is_durable:
            if row is not None:
                slot.ticked += 1
                self._ticked_bytes += batch.byte_count
            else:
                slot.flushed_s = self._loop.time()
                slot.in_flight += 1
            slot.idle.clear()
            self._pending_bytes += batch.byte_count
        elif not batch.is_answered:
            self.uncommitted.add(slot, batch.byte_count)

    def _told(self, batch: Flushed, what: Told, result: AppendResult, outcome: Outcome) -> None:
        """In any thread, of who learns what became of a batch: make the answers, and have the intake thread hear it."""
        pending, blob = batch.pending, b""
        try:
            if what is not HERE and pending.awaited_count:
                leader = True if what is LEADERS else batch.leader
                blob = blob_of(pending, result, outcome, leader, now_us=self.answers.wall_us())
        except Exception as error:  # N6: nobody is answered
            outcome = StorageFailed(f"{batch.slot.partition}: the answers could not be made: {error!r}")
            raise
        finally:  # or the slot would take itself for busy for good
            self._pass_on(batch, what, blob, outcome)

    def _pass_on(self, batch: Flushed, what: Told, blob: bytes, outcome: Outcome) -> None:
        if batch.is_appending and threading.get_ident() == batch.thread:
            self._hear(batch, what, blob, outcome)  # before it counts; in a later append of this thread it does
            return
        self._heard.append((batch, what, blob, outcome))
        if self._is_waking:
            return
        self._is_waking = True
        try:
            self._loop.call_soon_threadsafe(self._take_heard)
        except RuntimeError:
            log.error("intake.ack_after_close partition=%s", batch.slot.partition)

    def _take_heard(self) -> None:
        """In the order in which it came. One wake-up of the loop serves all that came until it looks."""
        self._is_waking = False  # before it looks: who comes later wakes it anew
        while self._heard:
            batch, what, blob, outcome = self._heard.popleft()
            try:
                self._hear(batch, what, blob, outcome)
            except Exception:  # N6
                self._note_bug(batch.slot)

    def _hear(self, batch: Flushed, what: Told, blob: bytes, outcome: Outcome) -> None:
        """On the intake thread: send the answers, and count where the batch is now."""
        if what is LEADERS:
            self.answers.send(blob)
            return
        was_durable = batch.is_durable
        batch.is_durable = was_durable or what is HERE or not batch.is_apart
        try:
            if what is DONE:
                batch.is_answered = True  # it may be known here before the fsync of this broker is
                self.answers.give(batch.pending, blob, outcome)
        finally:  # or the slot would take itself for busy for good
            if not batch.is_appending and batch.is_durable:
                if was_durable:
                    self.uncommitted.remove(batch.slot, batch.byte_count)
                else:
                    if not batch.is_answered:
                        self.uncommitted.add(batch.slot, batch.byte_count)
                    self._synced_here(batch)

    def _synced_here(self, batch: Flushed) -> None:
        """A batch is not under way any more."""
        slot = batch.slot
        self._pending_bytes -= batch.byte_count
        if batch.row is not None:
            slot.ticked -= 1
            self._ticked_bytes -= batch.byte_count
        else:
            slot.in_flight -= 1
        try:
            if batch.row is None:
                self._flush_gathered(slot)
        finally:  # or nothing would be read any more
            if slot.in_flight == slot.ticked == 0:
                slot.idle.set()
            if self._pending_bytes < self._pending_bytes_max // 2:
                self._resume.set()

    def _flush_gathered(self, slot: FlushSlot) -> None:
        if slot.in_flight == 0 and slot.scheduled is None and slot.builder.record_count:
            wait_s = slot.flushed_s + CYCLE_S - self._loop.time()
            if wait_s > 0 and slot.builder.awaited_count >= CROWD_RECORDS:
                slot.scheduled = self._loop.call_later(wait_s, self._flush, slot)
            else:
                self._flush(slot)

    def _note_bug(self, slot: FlushSlot) -> None:
        self._own_counts["flush_bugs"] += 1
        now_s = self._loop.time()
        if now_s - self._bugs_shown_s >= BUG_INTERVAL_S:
            self._bugs_shown_s = now_s
            log.exception("intake.flush_bug partition=%s bugs=%d", slot.partition, self._own_counts["flush_bugs"])

    def is_held_up(self) -> bool:
        """Whether too much is on its way to the disk (N2)."""
        return self._pending_bytes >= self._pending_bytes_max

    async def may_read(self) -> None:
        """Wait while too much is on its way to the disk."""
        if self.is_held_up():
            self._resume.clear()
            self._own_counts["pauses"] += 1
            log.warning("intake.paused pending_bytes=%d", self._pending_bytes)
            await self._resume.wait()


def _builder_settings(info: StreamInfo) -> dict[str, Any]:
    """The settings of a stream that a builder has to know, when it is made and when the stream is altered."""
    settings = info.settings
    return {
        "partition_count": settings.partitions,
        "reply_acks": info.reply_acks_effective,
        "default_ack": settings.acks,
        "record_bytes_max": settings.record_bytes_max,
        "batch_bytes": settings.batch_bytes,
        "batch_records": settings.batch_records,
    }
