"""Goal: nothing but an append reads a disk while appends wait (`state.L10`), and what is read meanwhile still holds.

Method: a disk that notes each read under the append lock. Each way to a cold file goes through it: of logs that were
just opened, whose indexes the power took. Then what may happen to a log while a segment of it is scanned happens at the
first read of that scan.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.api.batch import read_header
from broker.storage.inspect.scrub import scrub
from broker.storage.log import PartitionLog
from broker.storage.memory.state_files import list_states, state_name
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.segments.index import INDEX_CACHE
from tests.support.logs import FOLDER, check_log, commit, create_log, open_log, row_batch, stamped, verified_records
from tests.support.simdisk import Fault, SimDisk

READING = ("pread", "read_file", "listdir")
SETTINGS = LogSettings(segment_bytes=6_000, segment_age_ms=1, retention_ms=1, dedup_window_ms=1)
REPLICATED = LogSettings(segment_bytes=6_000, is_sole_replica=False, dedup_window_ms=10_000)
LATE_US = 1 << 50
Door = Callable[[PartitionLog], object]


class Watched(SimDisk):
    """Notes reads under the lock of `log`. `on_read` is called once, at the first read of a segment."""

    log: PartitionLog | None = None
    on_read: Callable[[], object] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.under_lock: list[tuple[str, str]] = []

    def meet_fault(self, call: str, path: str) -> Fault | None:
        if call in READING and self.log is not None and self.log.state.lock._is_owned():  # type: ignore[attr-defined]
            self.under_lock.append((call, path.rsplit("/", 1)[-1]))
        if call == "pread" and path.endswith(".arrows") and self.on_read is not None:
            on_read, self.on_read = self.on_read, None
            on_read()
        return super().meet_fault(call, path)


def cold(settings: LogSettings, *, indexes: bool = False) -> tuple[Watched, PartitionLog]:
    """A log of stamped records, opened anew and not asked yet; its index files are gone, unless `indexes`."""
    disk = Watched()
    log = create_log(disk, settings=settings)
    for sequence in range(40):
        log.append([stamped([b"x" * 300], 7, 0, sequence)], leader_epoch=0, now_us=0)
        if sequence % 10 == 9:
            log.state.advance_high_watermark(log.syncer.sync())
            log.checkpoint()
    commit(log)
    log.close()
    log = open_log(disk, settings=settings)
    log.lead(1)
    log.idle()
    log.remembered.forget()
    log.remembered.states.forget()
    for segment in log.state.chain.segments:
        if not indexes:
            disk.unlink(segment.index_path)
        INDEX_CACHE.drop(segment.serial)
    disk.log = log
    return disk, log


def damages(at: int) -> Door:
    """A batch is damaged; who finds that has its segment scanned."""

    def door(log: PartitionLog) -> None:
        disk = log.state.disk
        assert isinstance(disk, Watched)
        view = log.state.view()
        segment = view.segments[view.segment_of(at)]
        index = log.state.ask(lambda view: view.index(segment))
        disk.flip(segment.path, (int(index.positions[index.find(at)]) + 900) * 8)
        assert list(log.reader.batches(at, at + 1)) == []

    return door


def damages_the_state(log: PartitionLog) -> None:
    disk = log.state.disk
    assert isinstance(disk, Watched)
    [*_, offset] = list_states(disk, FOLDER)
    disk.flip(f"{FOLDER}/{state_name(offset)}", 300)
    assert log.handover.piece(offset, 0, 1 << 20) is None
    assert log.handover.piece(log.handover.offered(0, log.state.durable_end), 0, 1 << 20) is not None


def hands_over(log: PartitionLog) -> None:
    offset = log.handover.offered(0, log.state.durable_end)
    assert log.handover.piece(offset, 0, 1 << 20) is not None
    log.handover.offered(log.state.log_end_offset, log.state.log_end_offset)
    assert not log.handover.lacks
    log.handover.rewritten_to()


def keeps_due(log: PartitionLog) -> None:
    log.remembered.is_due = True
    log.checkpoint()


def asks_for_subjects(log: PartitionLog) -> None:
    disk = log.state.disk
    assert isinstance(disk, Watched)
    log.append([row_batch([b"y"])], leader_epoch=1, now_us=0)
    log.remembered.forget()
    log.remembered.is_wanted = True
    log.append([row_batch([b"y"])], leader_epoch=1, now_us=0)  # not durable: it is left to the one that builds
    disk.under_lock.clear()  # the appends' own
    while log.tracking.build():
        pass


DOORS: dict[str, Door] = {
    "read": lambda log: log.reader.read(3).close(),
    "read what is stored": lambda log: log.reader.read(39, stored=True).close(),
    "read all": lambda log: verified_records(log),
    "batch start": lambda log: log.reader.batch_start(3),
    "time": lambda log: log.reader.offset_for_time(0),
    "bytes": lambda log: log.reader.bytes_between(3, 37),
    "age": lambda log: log.reader.timestamp_at(3),
    "epochs": lambda log: (log.epochs.epoch_of(3), log.epochs.end_of(0)),
    "scrub": lambda log: scrub(log, 0),
    "damage": damages(3),
    "damage in the tail": damages(39),
    "mark of compaction": lambda log: log.state.compacted_to,
    "roll": lambda log: log.roll_if_due(LATE_US),
    "roll of the bytes": lambda log: log.appender.roll_if_due(LATE_US),
    "retention": lambda log: log.apply_retention(now_us=LATE_US),
    "trim": lambda log: log.trim(30),
    "checkpoint": lambda log: log.checkpoint(),
    "due state": keeps_due,
    "keep up": lambda log: log.remembered.keep_up(),
    "hand over": hands_over,
    "damaged state": damages_the_state,
    "limits": lambda log: log.remembered.update_settings(REPLICATED),
    "rewritable": lambda log: log.remembered.rewritable_end(),
    "stamps": lambda log: [log.remembered.needs_stamp(read_header(message)) for message in log.reader.batches(0)],
    "compaction": lambda log: compact(
        log, CompactionSettings(min_cleanable_dirty_percent=0), map_bytes=1 << 16, now_us=LATE_US
    ),
    "coalescing": lambda log: coalesce(log, CoalescingSettings(), {}, now_us=LATE_US),
    "subjects": asks_for_subjects,
}


@pytest.mark.parametrize("indexes", [True, False], ids=["cold indexes", "no indexes"])
@pytest.mark.parametrize("settings", [SETTINGS, REPLICATED], ids=["alone", "replicated"])
@pytest.mark.parametrize("door", DOORS)
def test_nothing_reads_a_disk_while_appends_wait(door: str, settings: LogSettings, indexes: bool) -> None:
    disk, log = cold(settings, indexes=indexes)
    DOORS[door](log)
    assert disk.under_lock == []


# --- what happens to a log while a segment of it is scanned -----------------------------------------------------


def awakes_the_tail(log: PartitionLog) -> None:
    log.append([row_batch([b"y" * 300])], leader_epoch=1, now_us=1)


def rolls(log: PartitionLog) -> None:
    for _ in range(30):
        log.append([row_batch([b"y" * 300])], leader_epoch=1, now_us=1)
    commit(log)


def trims(log: PartitionLog) -> None:
    rolls(log)
    log.trim(45)


def rests(log: PartitionLog) -> None:
    awakes_the_tail(log)
    commit(log)
    log.idle()


def compacts(log: PartitionLog) -> None:
    coalesce(log, CoalescingSettings(min_age_ms=0), {}, now_us=LATE_US)


def is_scanned_too(log: PartitionLog) -> None:
    verified_records(log)


def truncates(log: PartitionLog) -> None:
    log.follow(1)
    log.truncate(37)
    log.lead(2)
    for value in b"ab":
        log.append([row_batch([b"%d" % value * 300])], leader_epoch=2, now_us=1)
    commit(log)


MEANWHILE = (awakes_the_tail, rolls, trims, rests, compacts, is_scanned_too, truncates)


@pytest.mark.parametrize("at", [3, 39], ids=["sealed", "tail"])
@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_what_happens_during_a_scan_is_kept(meanwhile: Door, at: int) -> None:
    disk, log = cold(REPLICATED)
    disk.on_read = lambda: meanwhile(log)
    segment = log.state.view().segments[log.state.view().segment_of(at)]
    log.state.repair(segment)
    assert disk.on_read is None
    assert log.state.lost_ranges == ()
    end = commit(log)
    found = verified_records(log)
    assert [record[0] for record in found] == list(range(log.state.log_start_offset, end))
    log.append([row_batch([b"z"])], leader_epoch=log.epochs.led or 0, now_us=1)
    commit(log)
    check_log(log, disk)
    log.close()
    check_log(open_log(disk, settings=REPLICATED), disk)


@pytest.mark.parametrize("meanwhile", [awakes_the_tail, rolls, rests, is_scanned_too])
@pytest.mark.parametrize("at", [3, 39], ids=["sealed", "tail"])
def test_damage_that_a_scan_finds_is_noted_whatever_is_appended_meanwhile(meanwhile: Door, at: int) -> None:
    disk, log = cold(SETTINGS)
    awakes_the_tail(log)
    end = commit(log)
    disk.on_read = lambda: meanwhile(log)
    damages(at)(log)
    assert log.state.lost_ranges == ((at, at + 1),)
    after = commit(log)
    assert [record[0] for record in verified_records(log)] == [n for n in range(after) if n != at]
    assert after >= end


def test_a_file_that_is_gone_is_lost_and_what_is_appended_meanwhile_is_not() -> None:
    disk, log = cold(SETTINGS)
    first, second = log.state.view().segments[:2]
    disk.unlink(first.path)
    log.append([row_batch([b"y"])], leader_epoch=1, now_us=1)
    log.state.repair(first)
    assert log.state.lost_ranges == ((0, second.base_offset),)
    assert log.state.view().segments[0] is second


def further(log: PartitionLog, sequence: int, *, epoch: int = 1) -> bool:
    """The next group of the producer; whether it was there already."""
    return log.append([stamped([b"x"], 7, 0, sequence)], leader_epoch=epoch, now_us=0).duplicate


def test_a_record_that_is_appended_while_tables_are_read_is_known() -> None:
    disk, log = cold(SETTINGS, indexes=True)
    further(log, 40)
    log.remembered.memory = None
    disk.on_read = lambda: further(log, 41)
    log.remembered.read_ahead()
    assert disk.on_read is None
    assert further(log, 40)
    assert further(log, 41)
    assert not further(log, 42)


def test_tables_that_are_read_while_the_log_is_cut_do_not_count() -> None:
    disk, log = cold(REPLICATED, indexes=True)
    further(log, 40)
    log.remembered.memory = None
    disk.on_read = lambda: (log.follow(1), log.truncate(40), log.lead(2))
    log.remembered.read_ahead()
    assert disk.on_read is None
    assert not further(log, 40, epoch=2)
