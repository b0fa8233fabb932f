"""Goal: damage that is found beside a read or a rewrite hides no record from it, and none for good.

Method: logs on the fake disk. The scrub runs between two steps of the other, where another thread would: between its
view of the log, or its look at what is lost, and its look into an index.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.api.batch import verify_batch
from broker.storage.inspect.scrub import scrub
from broker.storage.log import PartitionLog
from broker.storage.read import LogView
from broker.storage.rewrite import coalescing, compaction
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.segments.index import IndexView
from broker.storage.segments.segment import Segment
from tests.support.compacting import keyed_batch
from tests.support.logs import commit, create_log
from tests.support.simdisk import SimDisk
from tests.unit.storage.test_scrub import flip_batch

BATCHES = 40
"""Of one record each, in the first of two segments."""
DAMAGED = 20
NOW_US = 1 << 50


def made(disk: SimDisk, *, is_sole: bool = True) -> PartitionLog:
    log = create_log(disk, settings=LogSettings(segment_bytes=1 << 20, is_sole_replica=is_sole))
    log.lead(1)
    for number in range(2 * BATCHES):
        if number == BATCHES:
            log.roll_if_due(NOW_US)
        log.append([keyed_batch([(b"%d" % (number % 7), b"v")])], leader_epoch=1, now_us=0)
    commit(log)
    log.roll_if_due(NOW_US)
    return log


def find_damage(disk: SimDisk, log: PartitionLog) -> None:
    flip_batch(disk, log, DAMAGED)
    piece = scrub(log, DAMAGED)
    assert piece is not None
    assert piece.lost == log.state.lost_ranges == ((DAMAGED, DAMAGED + 1),)


def test_a_read_whose_view_is_older_than_what_the_scrub_finds_stops_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other replicas have that record. An index that lacks its batch would have the read pass over it."""
    disk = SimDisk()
    log = made(disk, is_sole=False)
    index, is_first = LogView.index, [True]

    def found_meanwhile(view: LogView, segment: Segment) -> IndexView:
        if is_first.pop() if is_first else False:
            find_damage(disk, log)
        return index(view, segment)

    monkeypatch.setattr(LogView, "index", found_meanwhile)
    with log.reader.read(DAMAGED - 5) as plan:
        assert plan.next_offset == DAMAGED
    assert not is_first


def test_what_is_lost_meanwhile_is_not_written_anew_as_if_it_had_been_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches would be joined over it. A mending would find no gap there, and take it for mended."""
    disk = SimDisk()
    log = made(disk)
    write = coalescing._write

    def found_meanwhile(*args: Any) -> Any:
        find_damage(disk, log)
        return write(*args)

    monkeypatch.setattr(coalescing, "_write", found_meanwhile)
    report = coalesce(log, CoalescingSettings(min_age_ms=0), {}, now_us=NOW_US)
    assert report is not None
    assert report.failed == "something of it is lost"
    assert_gap_is_seen(log)


def test_a_compaction_leaves_a_segment_in_which_something_is_lost_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    log = made(disk)
    fill = compaction._Pass._fill

    def found_meanwhile(of: Any, *args: Any) -> int:
        end = fill(of, *args)
        find_damage(disk, log)
        return end

    monkeypatch.setattr(compaction._Pass, "_fill", found_meanwhile)
    settings = CompactionSettings(min_cleanable_dirty_percent=0, delete_retention_ms=0)
    report = compact(log, settings, map_bytes=1 << 14, now_us=NOW_US)
    assert report is not None
    assert report.uncleanable == "some of its records are lost"
    assert_gap_is_seen(log)


def assert_gap_is_seen(log: PartitionLog) -> None:
    borders = [(h.first_offset, h.next_offset) for h in map(verify_batch, log.reader.batches(0))]
    assert (DAMAGED - 1, DAMAGED) in borders
    assert (DAMAGED + 1, DAMAGED + 2) in borders
