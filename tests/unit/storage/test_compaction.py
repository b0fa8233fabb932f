"""Compaction, one fact at a time. Against a model, with crashes: tests/properties/storage/test_compaction.py."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from broker.api.batch import decode_batch, read_header
from broker.api.errors import DiskFull, StorageFailed
from broker.api.stream import StreamSettings
from broker.storage.log import PartitionLog
from broker.storage.rewrite.clean_state import CLEAN_STATE_FILE, CleanState, load_clean_state, save_clean_state
from broker.storage.rewrite.compaction import CompactionReport, CompactionSettings, compact
from broker.storage.rewrite.keymap import ENTRY_BYTES, KeyMap, hash_keys
from broker.storage.segments.checkpoint import LogSettings
from tests.support.compacting import Keyed, check_compacted, keyed_batch, keyed_records, newest_of
from tests.support.logs import FOLDER, commit, create_log, open_log, plan_bytes, sent_records
from tests.support.simdisk import SimDisk

SETTINGS = CompactionSettings(min_cleanable_dirty_percent=0, delete_retention_ms=1)
HOUR_US = 3_600_000_000


def roll(log: PartitionLog) -> None:
    assert log.roll_if_due(1 << 60)


def filled(batches: Sequence[Sequence[Keyed]], *, disk: SimDisk | None = None) -> PartitionLog:
    """A log with one segment per batch, all committed and sealed."""
    log = create_log(disk or SimDisk())
    for records in batches:
        log.append([keyed_batch(records)], leader_epoch=1, now_us=0)
        commit(log)
        roll(log)
    return log


def run(
    log: PartitionLog, *, now_us: int = 0, map_bytes: int = 1 << 16, settings: CompactionSettings = SETTINGS
) -> CompactionReport | None:
    report = compact(log, settings, map_bytes=map_bytes, now_us=now_us)
    check_compacted(log)
    return report


# --- the map ------------------------------------------------------------------------------------------------------


def test_equal_keys_hash_alike_wherever_they_stand() -> None:
    keys = [b"", b"a", b"b", b"a\0", b"x" * 256, b"x" * 257, b"x" * 257, b"a", None]
    hashes = hash_keys(pa.array([b"before", *keys], pa.binary()).slice(1))
    seen: dict[bytes | None, tuple[int, ...]] = {}
    for key, row in zip(keys[:-1], hashes.tolist(), strict=False):
        assert seen.setdefault(key, tuple(row)) == tuple(row)
    assert len(set(seen.values())) == len(seen)


def test_a_key_hashes_alike_among_keys_of_other_lengths() -> None:
    keys = [bytes([n % 251]) * n for n in range(300)]
    together = hash_keys(pa.array(keys, pa.binary()))
    alone = [hash_keys(pa.array([key], pa.binary())).tolist()[0] for key in keys]
    equally_long = [hash_keys(pa.array([b"\xff" * len(key), key], pa.binary())).tolist()[1] for key in keys]
    assert together.tolist() == alone == equally_long
    assert len({tuple(row) for row in alone}) == len(keys)


def test_a_map_takes_no_more_keys_than_its_bytes_allow_and_says_where_it_was_full() -> None:
    held = KeyMap(ENTRY_BYTES * 400)
    assert held._table.nbytes <= ENTRY_BYTES * 400
    keys = pa.array([b"%d" % i for i in range(1_000)], pa.binary())
    hashes, offsets = hash_keys(keys), np.arange(1_000)
    taken = held.put(hashes, offsets)
    assert taken == held.count == held.capacity == 300
    assert held.newest(hashes).tolist() == [*range(taken), *[-1] * (1_000 - taken)]


def test_a_map_holds_the_newest_of_many_records_of_few_keys() -> None:
    held = KeyMap(1_000)
    keys = [b"%d" % (i % 7) for i in range(500)]
    assert held.put(hash_keys(pa.array(keys, pa.binary())), np.arange(500)) == 500
    assert held.count == 7
    assert held.newest(hash_keys(pa.array(keys[-7:], pa.binary()))).tolist() == list(range(493, 500))


# --- what stays ---------------------------------------------------------------------------------------------------


def test_the_newest_of_each_key_and_all_without_a_key_stay_at_their_offsets() -> None:
    log = filled([[(b"a", b"1"), (b"b", b"1"), (None, b"x")], [(b"a", b"2"), (None, None)], [(b"a", b"3")]])
    report = run(log)
    assert report is not None
    assert report.is_done
    assert report.records_gone == 2
    assert keyed_records(log) == {1: (b"b", b"1"), 2: (None, b"x"), 4: (None, None), 5: (b"a", b"3")}


def test_the_active_segment_and_what_is_not_committed_are_not_touched() -> None:
    log = filled([[(b"a", b"1")]])
    log.append([keyed_batch([(b"a", b"2")])], leader_epoch=1, now_us=0)
    roll(log)  # sealed, and not committed
    assert log.state.high_watermark == 1
    run(log)
    log.state.advance_high_watermark(2)
    assert keyed_records(log) == {0: (b"a", b"1"), 1: (b"a", b"2")}
    log.append([keyed_batch([(b"a", b"3")])], leader_epoch=1, now_us=0)
    commit(log)
    run(log)
    assert keyed_records(log) == {1: (b"a", b"2"), 2: (b"a", b"3")}


def test_a_batch_that_loses_nothing_keeps_its_bytes_and_one_that_loses_some_its_header() -> None:
    log = filled([[(b"a", b"1"), (b"b", b"1")], [(b"c", b"1")], [(b"a", b"2")]])
    before = [bytes(message) for message in log.reader.batches(0)]
    run(log)
    after = [bytes(message) for message in log.reader.batches(0)]
    assert after[1:] == before[1:]
    old, new = read_header(before[0]), read_header(after[0])
    assert [getattr(old, name) for name in ("first_offset", "last_offset", "leader_epoch", "max_timestamp_us")] == [
        getattr(new, name) for name in ("first_offset", "last_offset", "leader_epoch", "max_timestamp_us")
    ]
    assert decode_batch(after[0]).column("key").to_pylist() == [b"b"]


def test_neighbours_that_lose_all_become_one_empty_batch_but_for_those_of_a_producer() -> None:
    log = create_log(SimDisk(), settings=LogSettings(segment_bytes=1 << 20))
    for number in range(4):
        log.append([keyed_batch([(b"a", b"%d" % number)])], leader_epoch=1, now_us=0)
    log.append([keyed_batch([(b"a", b"p")], producer_id=7, sequence=0)], leader_epoch=1, now_us=0)
    log.append([keyed_batch([(b"a", b"q")])], leader_epoch=2, now_us=0)
    log.append([keyed_batch([(b"a", b"last")])], leader_epoch=2, now_us=0)
    commit(log)
    roll(log)
    run(log)
    headers = [read_header(message) for message in log.reader.batches(0)]
    assert [(h.first_offset, h.last_offset, h.leader_epoch, h.producer_id) for h in headers] == [
        (0, 3, 1, 0),
        (4, 4, 1, 7),
        (5, 5, 2, 0),
        (6, 6, 2, 0),
    ]
    assert keyed_records(log) == {6: (b"a", b"last")}


def test_the_batches_of_a_commit_group_stay_in_their_places() -> None:
    log = create_log(SimDisk())
    log.append([keyed_batch([(b"a", b"1")]), keyed_batch([(b"a", b"2")])], leader_epoch=1, now_us=0)
    log.append([keyed_batch([(b"a", b"3")])], leader_epoch=1, now_us=0)
    commit(log)
    roll(log)
    run(log)
    headers = [read_header(message) for message in log.reader.batches(0)]
    assert [(h.first_offset, h.group_index, h.group_count) for h in headers] == [(0, 0, 2), (1, 1, 2), (2, 0, 1)]


# --- tombstones ---------------------------------------------------------------------------------------------------


def test_a_tombstone_removes_its_key_at_once_and_goes_itself_when_it_was_clean_for_long_enough() -> None:
    settings = CompactionSettings(min_cleanable_dirty_percent=0, delete_retention_ms=3_600_000)
    log = filled([[(b"a", b"1"), (b"b", b"1")], [(b"a", None)]])
    run(log, now_us=5 * HOUR_US, settings=settings)
    assert keyed_records(log) == {1: (b"b", b"1"), 2: (b"a", None)}
    assert run(log, now_us=6 * HOUR_US - 1, settings=settings) is None
    report = run(log, now_us=6 * HOUR_US, settings=settings)
    assert report is not None
    assert report.records_gone == 1
    assert keyed_records(log) == {1: (b"b", b"1")}
    assert run(log, now_us=99 * HOUR_US, settings=settings) is None


def test_a_tombstone_never_goes_before_the_older_values_of_its_key() -> None:
    """A map of one key: each pass covers one key, so that the tombstone is clean long before the log is."""
    log = filled([[(b"k%d" % i, b"1") for i in range(8)], [(b"k%d" % i, None) for i in range(8)]])
    now_us = 0
    while (report := run(log, now_us=now_us, map_bytes=0)) is not None:
        now_us += HOUR_US
        alive = {key for key, (_, value) in newest_of(keyed_records(log)).items() if value is not None}
        gone = {b"k%d" % i for i in range(8)} - {key for key, _ in keyed_records(log).values()}
        assert not alive & gone
        for key in (b"k%d" % i for i in range(8)):
            assert newest_of(keyed_records(log)).get(key, (0, None))[1] is None
        assert now_us < 99 * HOUR_US, report
    assert keyed_records(log) == {}


def test_a_deleted_key_does_not_come_back_on_a_replica_that_lags() -> None:
    """It has the value and not the tombstone yet. Where the leader had let that go, the copy would never get it."""
    among = LogSettings(is_sole_replica=False)
    leader, lagging = (create_log(SimDisk(), settings=among) for _ in range(2))
    lagging.follow(1)
    leader.lead(1)
    for records in ([(b"k", b"1")], [(b"k", None)], [(b"other", b"2")]):
        leader.append([keyed_batch(records)], leader_epoch=1, now_us=0)
        commit(leader)
        roll(leader)
        if lagging.state.log_end_offset == 0:
            copy(leader, lagging)
    assert run(leader) is not None
    assert run(leader, now_us=9 * HOUR_US) is None  # no mark of the other: nothing to do, however late it is
    assert keyed_records(leader) == {1: (b"k", None), 2: (b"other", b"2")}
    copy(leader, lagging)
    assert newest_of(keyed_records(lagging))[b"k"] == (1, None)
    roll(lagging)
    assert run(lagging) is not None
    mark = load_clean_state(lagging.state.disk, FOLDER).cleaned_to
    assert mark == 3
    for least, left in ((1, 2), (mark, 1)):
        compact(leader, SETTINGS, map_bytes=1 << 16, now_us=9 * HOUR_US, tombstones_below=least)
        assert len(keyed_records(leader)) == left
    assert compact(leader, SETTINGS, map_bytes=1 << 16, now_us=10 * HOUR_US, tombstones_below=1) is None
    check_compacted(leader)


def test_a_tombstone_that_waits_says_so_and_a_lazy_replica_does_a_pass_for_it() -> None:
    """However little is dirty there; and no second one for the same."""
    log, lazy = (among_others([[(b"k", b"1")], [(b"k", None)], [(b"other", b"2")]]) for _ in range(2))
    never = CompactionSettings(min_cleanable_dirty_percent=101, delete_retention_ms=1)
    assert run(log) is not None
    assert (log.state.compacted_to, log.state.waits_to) == (3, 0)  # it has not had its time yet
    assert run(log, now_us=9 * HOUR_US) is None
    assert (log.state.compacted_to, log.state.waits_to) == (3, 3)
    for wanted in (0, log.state.waits_to):
        report = compact(lazy, never, map_bytes=1 << 16, now_us=9 * HOUR_US, compact_to=wanted)
        assert (report is not None) == (wanted > 0)
    assert lazy.state.compacted_to == 3
    assert compact(lazy, never, map_bytes=1 << 16, now_us=9 * HOUR_US, compact_to=log.state.waits_to) is None
    compact(log, SETTINGS, map_bytes=1 << 16, now_us=9 * HOUR_US, tombstones_below=lazy.state.compacted_to)
    assert keyed_records(log) == {2: (b"other", b"2")}
    assert log.state.waits_to == 0


def test_the_mark_is_what_the_last_whole_pass_reached_also_after_an_open() -> None:
    log = among_others([[(b"k%d" % i, b"1")] for i in range(6)])
    with pytest.raises(ZeroDivisionError):
        compact(log, SETTINGS, map_bytes=1 << 16, now_us=0, throttle=lambda size: 1 // 0)  # type: ignore[arg-type, return-value]
    assert log.state.compacted_to == 0
    report = compact(log, SETTINGS, map_bytes=0, now_us=0)  # of one key
    assert report is not None
    assert not report.is_done
    assert log.state.compacted_to == 1
    again = open_log(log.state.disk.after_kill(), settings=AMONG_OTHERS)  # type: ignore[attr-defined]
    assert again.state.compacted_to == 1


def test_an_open_that_finds_a_shorter_log_lowers_the_mark_on_disk() -> None:
    """Records above it are others by the time that the log is as long again."""
    disk = SimDisk()
    log = among_others([[(b"k%d" % i, b"1")] for i in range(4)], disk=disk)
    save_clean_state(disk, FOLDER, CleanState(cleaned_to=9, horizons=((2, 1), (9, 2)), tombstones_to=8))
    lowered = CleanState(cleaned_to=4, horizons=((2, 1), (4, 2)), tombstones_to=4)
    for _ in range(2):
        log = open_log(disk.after_kill(), settings=AMONG_OTHERS)
        assert log.state.log_end_offset == log.state.compacted_to == 4
        assert load_clean_state(log.state.disk, FOLDER) == lowered


@pytest.mark.parametrize(
    ("call", "error", "refused"),
    [
        ("read_file", errno.EIO, StorageFailed),
        ("write", errno.ENOSPC, DiskFull),
        ("rename", errno.EIO, StorageFailed),
        ("sync_dir", errno.EIO, StorageFailed),
    ],
)
def test_an_open_that_cannot_lower_the_mark_fails_and_may_be_tried_again(
    call: str, error: int, refused: type[Exception]
) -> None:
    """With the old mark it would tell the other replicas of records that it does not have."""
    disk = SimDisk()
    log = among_others([[(b"k%d" % i, b"1")] for i in range(4)], disk=disk)
    save_clean_state(disk, FOLDER, CleanState(cleaned_to=9))
    disk = log.state.disk.after_kill()  # type: ignore[attr-defined]
    path = f"{FOLDER}/{CLEAN_STATE_FILE}" if call != "sync_dir" else FOLDER
    disk.fail(call, error, path=path, times=100)
    with pytest.raises(refused):
        open_log(disk, settings=AMONG_OTHERS)
    for then in (disk.after_kill(), disk.after_crash("lost"), disk.after_crash("reordered")):
        again = open_log(then, settings=AMONG_OTHERS)
        assert again.state.log_end_offset == again.state.compacted_to == 4
        assert load_clean_state(then, FOLDER) == CleanState(cleaned_to=4)
        commit(again)
        assert [key for key, _ in keyed_records(again).values()] == [b"k%d" % i for i in range(4)]


AMONG_OTHERS = LogSettings(is_sole_replica=False)


def among_others(batches: Sequence[Sequence[Keyed]], *, disk: SimDisk | None = None) -> PartitionLog:
    """As `filled`, of one of several replicas."""
    log = create_log(disk or SimDisk(), settings=AMONG_OTHERS)
    log.lead(1)
    for records in batches:
        log.append([keyed_batch(records)], leader_epoch=1, now_us=0)
        commit(log)
        roll(log)
    return log


def copy(leader: PartitionLog, log: PartitionLog) -> None:
    """Copy all that the leader has stored, byte for byte."""
    while log.state.log_end_offset < leader.state.log_end_offset:
        with leader.reader.read(log.state.log_end_offset, stored=True) as plan:
            log.append_stored(plan_bytes(plan), leader_epoch=1, now_us=0)
    commit(log)


def test_horizons_that_are_left_out_make_tombstones_stay_longer_never_shorter() -> None:
    state = CleanState()
    for number in range(1, 200):
        state = state.after(number, now_us=number * HOUR_US, tombstones_to=0, tombstone_count=1)
    assert len(state.horizons) == 64
    settings = CompactionSettings(delete_retention_ms=0)
    for now_us in range(0, 200 * HOUR_US, HOUR_US):
        assert state.tombstone_end(now_us, settings.delete_retention_ms) <= now_us // HOUR_US


# --- when ---------------------------------------------------------------------------------------------------------


def test_a_clean_log_is_left_alone() -> None:
    disk = SimDisk()
    log = filled([[(b"a", b"1")], [(b"a", b"2")]], disk=disk)
    assert run(log) is not None
    steps = disk.steps
    assert run(log) is None
    assert disk.steps == steps


def test_a_log_with_little_new_in_it_is_left_alone() -> None:
    log = filled([[(b"a%d" % i, b"x" * 100) for i in range(20)] for _ in range(8)])
    settings = CompactionSettings(min_cleanable_dirty_percent=50)
    assert run(log, settings=settings) is not None
    for _ in range(2):
        log.append([keyed_batch([(b"a1", b"y")])], leader_epoch=1, now_us=0)
        commit(log)
        roll(log)
    assert run(log, settings=CompactionSettings(min_cleanable_dirty_percent=99)) is None
    assert run(log, settings=CompactionSettings(min_cleanable_dirty_percent=1)) is not None


def test_records_younger_than_the_lag_stay() -> None:
    log = create_log(SimDisk())
    for hour in range(4):
        at = hour * HOUR_US
        log.append([keyed_batch([(b"a", b"%d" % hour)], timestamp_us=at)], leader_epoch=1, now_us=at)
        commit(log)
        roll(log)
    settings = CompactionSettings(min_cleanable_dirty_percent=0, min_compaction_lag_ms=2 * 3_600_000)
    run(log, now_us=100 * HOUR_US, settings=settings)
    assert sorted(keyed_records(log)) == [1, 2, 3], "by a clock that is wrong, too"
    run(log, now_us=3 * HOUR_US, settings=settings)
    assert sorted(keyed_records(log)) == [1, 2, 3]


def test_a_timestamp_in_the_future_holds_up_nothing_where_there_is_no_lag() -> None:
    log = create_log(SimDisk())
    for timestamp_us in (0, 1000 * HOUR_US, 0, 0):
        log.append([keyed_batch([(b"a", b"v")], timestamp_us=timestamp_us)], leader_epoch=1, now_us=0)
        commit(log)
        roll(log)
    report = run(log)
    assert report is not None
    assert report.records_gone == 3
    assert list(keyed_records(log)) == [3]


def test_a_full_map_needs_several_passes_and_each_goes_on_where_the_last_ended() -> None:
    log = filled([[(b"k%d" % i, b"%d" % number) for i in range(50)] for number in range(4)])
    newest = newest_of(keyed_records(log))
    ends = []
    while (report := run(log, map_bytes=ENTRY_BYTES * 40)) is not None:
        ends.append(report.cleaned_to)
        assert newest_of(keyed_records(log)) == newest
    assert len(ends) > 3
    assert ends == sorted(set(ends))
    assert ends[-1] == 200
    assert keyed_records(log) == {at: (key, value) for key, (at, value) in newest.items()}


# --- beside others ------------------------------------------------------------------------------------------------


def test_a_reader_with_the_old_file_open_reads_it_to_its_end() -> None:
    log = filled([[(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")]])
    with log.reader.read(0) as plan:
        run(log)
        assert [value for _, _, value in sent_records(plan)] == [b"1", b"1", b"2"]
        assert len(plan_bytes(plan)) == plan.bytes
    with log.reader.read(0) as plan:
        assert [offset for offset, _, _ in sent_records(plan)] == [1, 2]


def test_a_question_that_began_before_a_segment_was_replaced_is_asked_again() -> None:
    log = filled([[(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")]])
    view = log.state.view()
    for segment in view.segments:
        assert view.index(segment)
    run(log)
    views = [log.state.view(), view]
    log.state.view = views.pop  # type: ignore[method-assign]
    with log.reader.read(0) as plan:
        assert [offset for offset, _, _ in sent_records(plan)] == [1, 2]
    assert views == []


def test_the_log_opens_again_with_the_same_records_and_goes_on() -> None:
    disk = SimDisk()
    log = filled([[(b"a", b"1")], [(b"b", b"1")], [(b"a", b"2"), (b"b", b"2")]], disk=disk)
    run(log)
    records = keyed_records(log)
    for again in (disk.after_kill(), disk.after_crash("lost")):
        opened = open_log(again)
        commit(opened)  # as the runtime does: the sole replica has it
        assert keyed_records(opened) == records
        assert opened.state.log_end_offset == 4
        check_compacted(opened)
        opened.append([keyed_batch([(b"a", b"3")])], leader_epoch=2, now_us=0)
        commit(opened)
        roll(opened)
        assert compact(opened, SETTINGS, map_bytes=1 << 16, now_us=0) is not None
        assert keyed_records(opened) == {3: (b"b", b"2"), 4: (b"a", b"3")}


def test_an_index_that_is_missing_is_rebuilt_without_losing_what_was_compacted() -> None:
    disk = SimDisk()
    log = filled([[(b"a", b"1")], [(b"b", b"1")], [(b"a", b"2")]], disk=disk)
    run(log)
    records = keyed_records(log)
    log.close()
    for name in [name for name in disk.names if name.endswith(".index")]:
        disk.unlink(name)
    opened = open_log(disk)
    assert keyed_records(opened) == records
    check_compacted(opened)


def test_a_damaged_batch_stops_the_pass_and_a_log_with_lost_records_is_left_alone() -> None:
    disk = SimDisk()
    log = filled([[(b"a", b"1")], [(b"b", b"1")], [(b"a", b"2")]], disk=disk)
    disk.flip(f"{FOLDER}/{1:020d}.arrows", 8 * 1_500)
    first, second = (compact(log, SETTINGS, map_bytes=1 << 16, now_us=0) for _ in range(2))
    assert first is not None
    assert first.uncleanable
    assert log.state.lost_ranges == ((1, 2),)
    assert second is not None
    assert second.uncleanable
    assert keyed_records(log) == {0: (b"a", b"1"), 2: (b"a", b"2")}


def test_a_pass_that_is_stopped_leaves_nothing_behind() -> None:
    disk = SimDisk()
    log = filled([[(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")]], disk=disk)

    class Stopped(Exception):
        pass

    for after in range(4):
        left = after

        def throttle(_: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Stopped

        with pytest.raises(Stopped):
            compact(log, SETTINGS, map_bytes=1 << 16, now_us=0, throttle=throttle)
        check_compacted(log)
        assert not [name for name in disk.names if name.endswith(".tmp")]
        assert load_clean_state(disk, FOLDER) == CleanState()
    assert newest_of(keyed_records(log)) == {b"b": (1, b"1"), b"a": (2, b"2")}


def test_a_full_disk_stops_the_pass_and_appends_go_on() -> None:
    disk = SimDisk()
    log = filled([[(b"a", b"1" * 100), (b"b", b"1")], [(b"a", b"2")]], disk=disk)
    disk.bytes_max = disk.used_bytes + 700
    with pytest.raises(DiskFull):
        compact(log, SETTINGS, map_bytes=1 << 16, now_us=0)
    disk.heal()
    assert log.state.failure is None
    log.append([keyed_batch([(b"c", b"1")])], leader_epoch=1, now_us=0)
    assert run(log) is not None


def test_a_segment_that_was_let_go_meanwhile_is_not_brought_back() -> None:
    disk = SimDisk()
    log = filled([[(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")], [(b"b", b"2")]], disk=disk)
    calls = []

    def throttle(_: int) -> None:
        calls.append(1)
        if len(calls) == 4:  # the keys are in the map, the first segment is read
            log.trim(2)

    compact(log, SETTINGS, map_bytes=1 << 16, now_us=0, throttle=throttle)
    assert log.state.log_start_offset == 2
    assert [name for name in disk.names if "/00000000000000000000" in name] == []
    assert keyed_records(log) == {2: (b"a", b"2"), 3: (b"b", b"2")}


def test_settings_say_whether_a_stream_is_compacted_and_by_what_it_is_kept() -> None:
    assert CompactionSettings.of(StreamSettings()) is None
    compacted = StreamSettings(cleanup="compact", retention_ms=1, retention_bytes=1, delete_retention_ms=5)
    assert CompactionSettings.of(compacted) == CompactionSettings(delete_retention_ms=5)
    assert LogSettings.of(compacted).retention_ms is LogSettings.of(compacted).retention_bytes is None
    both = StreamSettings(cleanup="both", retention_ms=1)
    assert CompactionSettings.of(both) is not None
    assert LogSettings.of(both).retention_ms == 1
