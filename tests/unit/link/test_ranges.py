"""Goal: whatever is damaged on whichever replica, what is whole on one of them is whole on all in the end.

Method: three logs of one history on fake disks, each joined in its own way; bits flip at random, but for
one replica of each batch; whoever is damaged asks the others in turn, with small answers. No sockets.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from broker.api.batch import verify_batch
from broker.link.ranges import held
from broker.replication.messages import AskRange
from broker.storage.aside import was_compacted
from broker.storage.inspect.scrub import scrub
from broker.storage.log import PartitionLog
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.mending import lower_mark, mend
from tests.support.compacting import check_compacted, keyed_batch, keyed_records, newest_of
from tests.support.effort import EFFORT, first_short
from tests.support.logs import FOLDER, SETTINGS, commit, create_log, open_log, row_batch, stamped, verified_records
from tests.support.simdisk import SimDisk

REPLICATED = replace(SETTINGS, is_sole_replica=False)
HISTORIES = 12 * EFFORT


def history(rng: random.Random) -> list[tuple[int, int, int]]:
    """Batches: leader epoch, records, and the number of the producer's batch or 0. Every seventh ends a segment."""
    epoch, made = 1, []
    for number in range(rng.randrange(20, 50)):
        epoch += rng.random() < 0.1
        made.append((epoch, rng.randrange(1, 5), number if rng.random() < 0.2 else 0))
    return made


def replica(batches: list[tuple[int, int, int]], rng: random.Random) -> PartitionLog:
    log = create_log(SimDisk(), settings=REPLICATED)
    rolls = rng.randrange(3, 9)
    for number, (epoch, count, sequence) in enumerate(batches):
        if log.epochs.led != epoch:
            log.lead(epoch)
        values = [b"%d/%d" % (number, row) * 10 for row in range(count)]
        batch = stamped(values, 7, 0, sequence) if sequence else row_batch(values)
        log.appender.append([batch], leader_epoch=epoch, now_us=number)
        commit(log)
        if number % rolls == rolls - 1:
            log.roll_if_due(1 << 60)
    if rng.random() < 0.5:
        shape = CoalescingSettings(min_batch_bytes=rng.choice((500, 5_000)), segment_bytes=1 << rng.randrange(11, 20))
        for _ in range(rng.randrange(1, 8)):
            coalesce(log, shape, {}, now_us=1 << 60)
    log.checkpoint()
    return log


def damage(log: PartitionLog, spared: set[int], rng: random.Random) -> None:
    """Flip bits in batches that hold none of these offsets."""
    view, disk = log.state.view(), log.state.disk
    assert isinstance(disk, SimDisk)
    for segment in view.segments:
        index = view.index(segment)
        for entry in index.entries:
            header = verify_batch(disk.read_file(segment.path)[entry["position"] : index_end(entry)])
            if spared.isdisjoint(range(header.first_offset, header.next_offset)) and rng.random() < 0.6:
                bit = rng.randrange(int(entry["length"]) * 8)
                disk.flip(segment.path, int(entry["position"]) * 8 + bit)


def index_end(entry: object) -> int:
    return int(entry["position"]) + int(entry["length"])  # type: ignore[index]


def found(log: PartitionLog) -> None:
    offset = log.state.log_start_offset
    while (piece := scrub(log, offset)) is not None:
        offset = piece.next_offset


def ask(log: PartitionLog, other: PartitionLog, rng: random.Random) -> bool:
    """One question for the first range that is lost. Returns whether it brought something."""
    lost = log.state.lost_ranges[0]
    takes_aside = not was_compacted(log)
    if not takes_aside:
        lower_mark(log, lost[0])
    question = AskRange(
        follower="a",
        incarnation=(1, 0),
        epoch=1,
        request=1,
        start=lost[0],
        end=lost[1],
        compacted_to=log.state.compacted_to,
        takes_aside=takes_aside,
    )
    part = held(other, question, bytes_max=rng.choice((1_000, 5_000, 1 << 20)))
    assert bool(part.data) == (part.start < part.end)
    if part.data:
        assert mend(log, lost, part.data, superseded=other.state.superseded) == (part.start, part.end)
    return bool(part.data)


def mend_all(logs: list[PartitionLog], rng: random.Random) -> None:
    idle = 0
    while any(log.state.lost_ranges for log in logs):
        log = rng.choice([each for each in logs if each.state.lost_ranges])
        brought = ask(log, rng.choice([each for each in logs if each is not log]), rng)
        idle = 0 if brought else idle + 1
        assert idle < 200, [each.state.lost_ranges for each in logs]


@pytest.mark.parametrize("seed", first_short(range(HISTORIES), count=4))
def test_each_record_that_is_whole_somewhere_is_whole_everywhere(seed: int) -> None:
    rng = random.Random(seed)
    batches = history(rng)
    logs = [replica(batches, rng) for _ in range(3)]
    records = verified_records(logs[0])
    assert verified_records(logs[1]) == verified_records(logs[2]) == records
    owner = {offset: rng.randrange(3) for offset in range(logs[0].state.log_end_offset)}
    for number, log in enumerate(logs):
        damage(log, {offset for offset, of in owner.items() if of == number}, rng)
    for log in logs:
        found(log)
    assert any(log.state.lost_ranges for log in logs), "bits flip in more than half of what is not spared"
    mend_all(logs, rng)
    for log in logs:
        found(log)
        assert log.state.lost_ranges == ()
        assert verified_records(log) == records
        assert isinstance(log.state.disk, SimDisk)
        for path in [path for path in log.state.disk.names if path.endswith(".index")]:
            log.state.disk.unlink(path)
        again = open_log(log.state.disk.after_crash("kept"), folder=FOLDER, settings=REPLICATED)
        again.state.advance_high_watermark(again.state.log_end_offset)
        found(again)
        assert verified_records(again) == records


class Compacted:
    """Three logs of one history with keys, of which each is compacted at its own pace; marks are heard of at once."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.logs = [create_log(SimDisk(), settings=replace(REPLICATED, is_compacted=True)) for _ in range(3)]
        self.now_us = 0
        self.live: dict[bytes, bytes | None] = {}
        for log in self.logs:
            log.lead(1)

    def append(self) -> None:
        rng = self.rng
        batch = [(b"k%d" % rng.randrange(6), rng.choice((None, b"v%d" % self.now_us))) for _ in range(3)]
        self.live.update(batch)
        rolls = rng.random() < 0.5
        for log in self.logs:
            log.append([keyed_batch(batch)], leader_epoch=1, now_us=self.now_us)
            commit(log)
            if rolls:
                log.roll_if_due(1 << 60)

    def compact(self) -> None:
        settings = CompactionSettings(min_cleanable_dirty_percent=0, delete_retention_ms=0)
        log = self.rng.choice(self.logs)
        below = min(each.state.compacted_to for each in self.logs)
        compact(log, settings, map_bytes=1 << 14, now_us=self.now_us, tombstones_below=below)

    def damage(self) -> None:
        """One batch of one replica, while the others are whole: what it lacks is on both of them."""
        if any(log.state.lost_ranges for log in self.logs) or not self.live:
            return
        log, rng = self.rng.choice(self.logs), self.rng
        for _ in range(rng.randrange(1, 4)):
            view = log.state.view()
            index = view.index(segment := rng.choice(view.segments))
            if len(index):
                entry = rng.choice(list(index.entries))
                log.state.disk.flip(segment.path, int(entry["position"]) * 8 + rng.randrange(int(entry["length"]) * 8))  # type: ignore[attr-defined]
        found(log)

    def mend(self) -> None:
        for log in self.logs:
            if log.state.lost_ranges:
                ask(log, self.rng.choice([each for each in self.logs if each is not log]), self.rng)

    def play(self, steps: int) -> None:
        acts = (self.append, self.compact, self.compact, self.damage, self.mend, self.mend)
        for _ in range(steps):
            self.now_us += 1_000
            self.rng.choice(acts)()
        mend_all(self.logs, self.rng)


@pytest.mark.parametrize("seed", first_short(range(HISTORIES), count=4))
def test_no_key_goes_and_none_comes_back_where_others_have_compacted_more_or_less(seed: int) -> None:
    story = Compacted(seed)
    for _ in range(6):
        story.play(25)
        for log in story.logs:
            check_compacted(log)
            newest = {key: value for key, (_, value) in newest_of(keyed_records(log)).items() if value is not None}
            assert newest == {key: value for key, value in story.live.items() if value is not None}
            below = [key for at, (key, _) in keyed_records(log).items() if at < log.state.compacted_to]
            assert len(below) == len(set(below)), "no key stands twice below the mark"
