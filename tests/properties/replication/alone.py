"""One replica: the core over a real log on the fake disk, in a life of appends, failed fsyncs, rolls and crashes.

The driver here does what `broker.runtime` does with threads, with the luck of a seed for a scheduler: a sync's outcome
may wait while others append, roll or recover, and appends happen in the midst of an fsync. Checked, from outside:

S1  who is told STORED can read the record then, and after every crash that his kind of fsync promises to survive
S2  what was committed is there after such a crash, the same
S3  nobody is told twice, and once all syncs have ended nobody waits
S4  one sync is under way at a time
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import broker.replication.events as events
from broker.api.batch import decode_batch
from broker.api.errors import LiftlogError
from broker.replication.events import Acks, Effect, Outcome
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.logs import FOLDER, IDENTITY, row_batch
from tests.support.simdisk import MODES, SimDisk

SETTINGS = LogSettings(segment_bytes=12_000)
STEPS = 150
YEAR_US = 365 * 86_400 * 1_000_000


@dataclass
class Told:
    """A ticket: whoever appended these values, or repeats them."""

    first: int
    values: list[bytes]
    acks: Acks
    outcome: Outcome | None = None
    is_durable: bool = False  # what he was told outlives a power cut
    is_gone: bool = False  # the log had to recover without his records


@dataclass
class Life:
    """See the module. `leader`: the module with the core."""

    leader: ModuleType
    seed: int
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.disk: Any = InterruptedDisk(seed=self.seed, runs_ahead=self.rng.random() < 0.5)
        self.tickets: list[Told] = []
        self.late: list[events.Event] = []
        self.is_asked = False
        self.is_interval = self.is_in_sync = False
        self.epoch = 0
        self.number = 0
        self.now_ms = 0
        self.committed: dict[int, bytes] = {}  # promised to readers
        self.log = PartitionLog.create(self.disk, FOLDER, IDENTITY, SETTINGS, now_us=0, boot_id="b")
        self.lead()

    def run(self) -> None:
        actions = {
            self.append: 24,
            self.repeat: 5,
            self.sync: 30,
            self.deliver: 30,
            self.fail_sync: 5,
            self.roll: 3,
            self.alter: 2,
            self.tick: 4,
            self.crash: 2,
        }
        for _ in range(STEPS):
            [act] = self.rng.choices(list(actions), list(actions.values()))
            self.note(act.__name__)
            act()
        self.come_to_rest()

    def note(self, text: str) -> None:
        self.trace.append(text)

    # -- the driver

    def lead(self) -> None:
        self.core = self.leader.Leader("a")
        self.late, self.is_asked, self.tickets = [], False, []
        self.epoch += 1
        if self.log.state.high_watermark < self.log.state.log_end_offset:
            self.log.syncer.sync()
        self.step(self.altered())
        self.step(
            events.Led(
                epoch=self.epoch,
                replicas=("a",),
                isr=("a",),
                partition_epoch=0,
                high_watermark=self.log.state.high_watermark,
                durable_end=self.log.state.durable_end,
                log_end=self.log.state.log_end_offset,
            )
        )

    def altered(self) -> events.Altered:
        return events.Altered(
            min_insync_replicas=1, fsync_each_batch=not self.is_interval, fsync_interval_ms=self.rng.choice((0, 500))
        )

    def step(self, event: events.Event) -> None:
        self.note(f"  {event}")
        for effect in self.core.step(event):
            self.note(f"    -> {effect}")
            self.do(effect)

    def do(self, effect: Effect) -> None:
        match effect:
            case events.Sync(generation):
                assert not self.is_asked, "S4"
                assert generation == self.core.generation
                self.is_asked = True
            case events.Commit(high_watermark):
                before = self.log.state.high_watermark
                self.log.state.advance_high_watermark(high_watermark)
                for offset, value in self.records(before, high_watermark):
                    assert self.committed.setdefault(offset, value) == value, "S2"
                if not self.is_interval:
                    assert self.log.state.durable_end >= high_watermark, "committed before it is durable"
            case events.Answer(ticket, outcome, _):
                assert ticket.outcome is None, "S3"
                ticket.outcome = outcome
                if outcome is Outcome.STORED:
                    self.check_stored(ticket)
            case events.StepOut() | events.AskIsr():
                raise AssertionError("there is nobody else")

    def check_stored(self, ticket: Told) -> None:
        end = ticket.first + len(ticket.values)
        assert self.is_interval or self.log.state.durable_end >= end, "S1: told before it is durable"
        assert self.log.state.log_end_offset >= end, "S1: told, and not there"
        ticket.is_durable = not self.is_interval
        if ticket.acks is Acks.ALL:
            assert self.log.state.high_watermark >= end, "S1: told before readers see it"
            assert [value for _, value in self.records(ticket.first, end)] == ticket.values, "S1"

    def records(self, first: int, end: int) -> list[tuple[int, bytes]]:
        rows = [row for message in self.log.reader.batches(first, end) for row in decode_batch(message).to_pylist()]
        return [(row["offset"], row["value"]) for row in rows if first <= row["offset"] < end]

    # -- what happens

    def append(self) -> None:
        for _ in range(self.rng.choice((1, 1, 2))):
            self.append_one()

    def append_one(self) -> None:
        if self.log.state.failure is not None:
            if self.log.state.high_watermark <= self.log.state.durable_end and self.rng.random() < 0.5:
                self.evict()
            try:
                self.log.recover(YEAR_US)
            except LiftlogError:
                return
            for ticket in self.tickets:
                ticket.is_gone |= ticket.outcome is not Outcome.STORED
            self.step(events.Recovered(durable_end=self.log.state.durable_end, log_end=self.log.state.log_end_offset))
        values = []
        for _ in range(self.rng.randint(1, 3)):
            self.number += 1
            values.append(b"%06d" % self.number * self.rng.randint(1, 40))
        batches = [row_batch(values[:1]), *([row_batch(values[1:])] if values[1:] else [])]
        try:
            result = self.log.append(batches, leader_epoch=self.epoch, now_us=YEAR_US)
        except LiftlogError:  # a roll met the failing disk
            return
        acks = self.rng.choice((Acks.ALL, Acks.LEADER, None))
        tickets = [] if acks is None else [Told(result.first_offset, values, acks)]
        self.tickets += tickets
        awaited = tuple((ticket, ticket.acks) for ticket in tickets)
        end, durable_end = result.next_offset, -1
        failure: events.SyncFailed | None = None
        if self.rng.random() < 0.3 and self.disk.meanwhile is None and not self.is_in_sync:
            try:
                durable_end = self.log.syncer.sync()  # in the same breath
            except LiftlogError as error:
                failure = events.SyncFailed(self.core.generation, str(error))
        self.step(events.Appended(result.first_offset, end, (end,), awaited, durable_end))
        if failure is not None:
            self.is_asked = False  # it is the answer
            self.late.clear()
            self.step(failure)

    def evict(self) -> None:
        """Pages that a failed fsync has left clean leave memory: what is read from then on is what the disk has."""
        for path, inode in self.disk.names.items():
            if path.endswith(".arrows") and not inode.pending:
                size = len(inode.content)
                inode.content[:] = (inode.durable + bytes(size))[:size]

    def repeat(self) -> None:
        known = [t for t in self.tickets if t.first + len(t.values) <= self.log.state.log_end_offset]
        known = [t for t in known if t.outcome in (None, Outcome.STORED) and not t.is_gone]
        if known and self.log.state.failure is None:
            first = self.rng.choice(known)
            ticket = Told(first.first, first.values, Acks.ALL)
            self.tickets.append(ticket)
            end = first.first + len(first.values)
            self.step(events.Appended(first.first, end, (), ((ticket, Acks.ALL),)))

    def sync(self) -> None:
        if not self.is_asked or self.late:
            return
        generation = self.core.generation
        newest = max(path for path in self.disk.names if path.endswith(".arrows"))
        has_room = self.disk.names[newest].written < SETTINGS.segment_bytes - 4_000
        is_busy = has_room and self.rng.random() < 0.5  # a roll would wait for this very fsync
        self.disk.meanwhile = self.append_one if is_busy else None
        self.is_in_sync = True
        try:
            self.late.append(events.Synced(generation, self.log.syncer.sync()))
        except LiftlogError as error:
            self.late.append(events.SyncFailed(generation, str(error)))
        finally:
            self.disk.meanwhile, self.is_in_sync = None, False

    def deliver(self) -> None:
        if self.late:
            self.is_asked = False
            self.step(self.late.pop())

    def fail_sync(self) -> None:
        self.disk.fail("sync", errno.EIO, path=".arrows", after=self.rng.randint(0, 2), times=self.rng.randint(1, 2))

    def roll(self) -> None:
        try:
            self.log.roll_if_due(YEAR_US + 10 * YEAR_US)
        except LiftlogError:
            self.note("  the roll failed")

    def alter(self) -> None:
        self.is_interval = self.rng.random() < 0.3
        self.step(self.altered())

    def tick(self) -> None:
        self.now_ms += self.rng.randint(0, 1000)
        self.step(events.Tick(now_ms=self.now_ms))

    def crash(self) -> None:
        mode = self.rng.choice((*MODES, "kill"))
        self.note(f"  {mode}")
        found = self.disk.after_kill() if mode == "kill" else self.disk.after_crash(mode, seed=self.seed)
        self.disk = InterruptedDisk.of(found)
        self.log = PartitionLog.open(
            self.disk, FOLDER, SETTINGS, boot_id="b" if mode == "kill" else "c", now_us=YEAR_US, expected=IDENTITY
        )
        told, end = self.tickets, self.log.state.log_end_offset
        self.lead()
        here = dict(self.records(0, end))
        for ticket in told:
            if ticket.outcome is Outcome.STORED and ticket.is_durable:
                for offset, value in enumerate(ticket.values, ticket.first):
                    assert here.get(offset) == value, f"S1: acknowledged, and gone: {offset}"
        self.committed = here

    def come_to_rest(self) -> None:
        """The disk is well again, and every sync ends: nobody may be left waiting."""
        self.disk.heal()
        for _ in range(3):
            self.append()
            while self.is_asked:
                self.sync()
                self.deliver()
        self.is_interval = False
        self.step(self.altered())
        while self.is_asked:
            self.sync()
            self.deliver()
        assert self.core.waiting_count == 0, "S3"
        assert all(ticket.outcome is not None for ticket in self.tickets), "S3: nobody told him"
        assert self.log.state.high_watermark == self.log.state.log_end_offset, "the end is never committed"
        self.crash()


class InterruptedDisk(SimDisk):
    """A `SimDisk` on which something else happens in the midst of an fsync of records."""

    meanwhile: Any = None

    @classmethod
    def of(cls, disk: SimDisk) -> InterruptedDisk:
        disk.__class__ = cls
        return disk  # type: ignore[return-value]

    def step(self, call: str, path: str) -> Any:
        if call == "sync" and ".arrows" in path and self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act()
        return super().step(call, path)
