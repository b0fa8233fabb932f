"""An index whose checksums fit and which lacks entries, as a careless copy could make one.

Goal: nothing that is stored is passed over, by no way of asking; nothing is written anew without it; and nothing is
marked as lost. Method: closed logs whose index files are written again without some of their entries, footer and all.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from broker.storage.inspect.scrub import scrub
from broker.storage.log import PartitionLog
from broker.storage.rewrite.coalescing import CoalescingSettings, KnownSegments, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.segments.index import footer_of, sealed_entries
from broker.storage.writing.state import LogState
from tests.support.compacting import keyed_batch
from tests.support.logs import FOLDER, commit, create_log, open_log, read_records, verified_records
from tests.support.simdisk import SimDisk

BATCHES = 4
"""Batches of each segment, of two records each."""
SEGMENTS = 3
LACKING = [lack for count in (1, 2, BATCHES) for lack in combinations(range(BATCHES), count)]


def closed_log() -> SimDisk:
    disk = SimDisk()
    log = create_log(disk)
    for number in range(SEGMENTS * BATCHES):
        if number % BATCHES == 0:
            log.roll_if_due(1 << 60)
        records = [(b"key %d" % number, b"%d" % number), (None, b"b")]
        log.append([keyed_batch(records, timestamp_us=1_000 * number)], leader_epoch=1, now_us=0)
        commit(log)
    log.roll_if_due(1 << 60)
    log.close()
    return disk


def forge(disk: SimDisk, segment: int, lack: tuple[int, ...]) -> None:
    """Take entries out of the index file of a segment."""
    path = f"{FOLDER}/{segment * BATCHES * 2:020d}.index"
    entries = sealed_entries(disk.read_file(path))
    assert entries is not None
    assert len(entries) == BATCHES
    kept = np.delete(entries, lack)
    disk.replace_file(path, kept.tobytes() + footer_of(kept))


@pytest.fixture(params=LACKING, ids=lambda lack: "-".join(map(str, lack)))
def forged(request: pytest.FixtureRequest) -> PartitionLog:
    disk = closed_log()
    forge(disk, 1, request.param)
    log = open_log(disk)
    assert log.state.recovery.clean
    return log


EXPECTED = [record for n in range(SEGMENTS * BATCHES) for record in ((2 * n, b"%d" % n), (2 * n + 1, b"b"))]


def found(log: PartitionLog) -> list[tuple[int, bytes]]:
    return [(offset, value) for offset, _, value in verified_records(log)]


def test_every_record_is_read_from_wherever_one_begins(forged: PartitionLog) -> None:
    for offset in range(len(EXPECTED) - 1, -1, -1):
        assert [(at, value) for at, _, value in read_records(forged, offset)] == EXPECTED[offset:]
    assert forged.state.lost_ranges == ()


def test_every_record_is_read_in_one_plan_and_verified(forged: PartitionLog) -> None:
    assert found(forged) == EXPECTED
    assert forged.state.lost_ranges == ()


def test_a_time_is_found_beside_them(forged: PartitionLog) -> None:
    """The age of what is read next: never of something that lies before its batch."""
    end = forged.state.log_end_offset
    found = [forged.reader.timestamp_at(offset) for offset in range(end)]
    known = [timestamp for timestamp in found if timestamp is not None]
    assert known == sorted(known)
    assert len(known) == end
    assert forged.reader.timestamp_at(end) is None


def test_bytes_between_counts_them(forged: PartitionLog) -> None:
    with open_log(closed_log()).reader.read(0) as plan:
        one = plan.bytes // (SEGMENTS * BATCHES)
    for start in range(0, len(EXPECTED), 2):
        assert forged.reader.bytes_between(start, start + 2) == one


def test_the_scrub_checks_them_and_writes_the_index_again(forged: PartitionLog) -> None:
    batches, offset = 0, 0
    while (piece := scrub(forged, offset, bytes_max=2_000)) is not None:
        batches, offset = batches + piece.batches, piece.next_offset
    assert batches == SEGMENTS * BATCHES
    assert forged.state.lost_ranges == ()
    assert forged.state.disk.read_file(f"{FOLDER}/{2 * BATCHES:020d}.index") == closed_log().read_file(
        f"{FOLDER}/{2 * BATCHES:020d}.index"
    )


def test_compaction_keeps_them(forged: PartitionLog) -> None:
    log = forged
    log.append([keyed_batch([(b"key 0", b"newer")])], leader_epoch=1, now_us=0)
    commit(log)
    log.roll_if_due(1 << 60)
    for _ in range(2):  # the first finds that it has to look again
        compact(log, CompactionSettings(min_cleanable_dirty_percent=0), map_bytes=1 << 16, now_us=1 << 50)
    assert found(log) == [*EXPECTED[1:], (len(EXPECTED), b"newer")]
    assert log.state.lost_ranges == ()


def test_coalescing_keeps_them(forged: PartitionLog) -> None:
    settings = CoalescingSettings(min_age_ms=0, segment_bytes=1 << 20)
    memory: KnownSegments = {}
    for _ in range(20):
        coalesce(forged, settings, memory, now_us=1 << 60)
    assert len(forged.state.view().segments) < SEGMENTS, "they were joined"
    assert found(forged) == EXPECTED
    assert forged.state.lost_ranges == ()


def test_beside_a_batch_that_is_lost_the_others_are_read() -> None:
    """The rule: a lost batch explains only its own hole in the index."""
    for lost in range(BATCHES):
        for lack in range(BATCHES):
            disk = closed_log()
            log = open_log(disk)
            entry = log.state.view().index(log.state.view().segments[1]).entries[lost]
            disk.flip(f"{FOLDER}/{2 * BATCHES:020d}.arrows", 8 * (int(entry["position"]) + 900))
            offset = 2 * (BATCHES + lost)
            scrub(log, offset, bytes_max=1)
            assert log.state.lost_ranges == ((offset, offset + 2),)
            log.checkpoint()
            log.close()
            if lack < BATCHES - 1:
                forge_lossy(disk, lack)
            again = open_log(disk)
            assert found(again) == [record for record in EXPECTED if record[0] not in (offset, offset + 1)]
            assert again.state.lost_ranges == ((offset, offset + 2),)


def forge_lossy(disk: SimDisk, lack: int) -> None:
    path = f"{FOLDER}/{2 * BATCHES:020d}.index"
    entries = sealed_entries(disk.read_file(path))
    assert entries is not None
    assert len(entries) == BATCHES - 1
    kept = np.delete(entries, lack)
    disk.replace_file(path, kept.tobytes() + footer_of(kept))


def test_an_index_that_is_whole_is_looked_at_once_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(closed_log())
    monkeypatch.setattr(LogState, "repair", None)
    assert found(log) == EXPECTED
    assert all(log.state.view().index(segment).is_complete for segment in log.state.view().segments)
