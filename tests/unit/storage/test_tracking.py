"""A log and the last records of its subjects.

Goal: what a publisher was told of a subject never goes back, over restarts, rolls, compaction, retention and trouble;
a log that is never asked pays nothing; nobody waits for the table. Method: the real log on the fake disk.
"""

from __future__ import annotations

import errno
import threading

import pyarrow as pa
import pytest

from broker.api.errors import DiskFull, StorageFailed
from broker.api.schema import HEADERS_TYPE, SCHEMA
from broker.storage import tracking
from broker.storage.log import PartitionLog
from broker.storage.memory.state_files import SUBJECTS, list_states, load_state, state_name
from broker.storage.memory.subjects import read_head
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogSettings
from tests.support.logs import FOLDER, commit, create_log, open_log, row_batch
from tests.support.published import expecting, publish, with_id
from tests.support.simdisk import SimDisk

SETTINGS = LogSettings(segment_bytes=6_000)


def keyed(subject: str, key: bytes, value: bytes = b"") -> RowBatch:
    columns = [
        pa.array([0], pa.timestamp("us", "UTC")),
        pa.array([subject]),
        pa.array([key]),
        pa.array([value]),
        pa.nulls(1, HEADERS_TYPE),
        pa.nulls(1, pa.string()),
    ]
    return RowBatch(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names[1:]))


def ask(log: PartitionLog, subject: str = "s") -> int | None:
    """The last sequence on a subject, without storing anything; None: it is not known now."""
    [answer] = publish(log, [(b"", expecting(1 << 40))], 0, subjects=[subject])
    error = answer["error"]
    if error["err_code"] == 10163:
        return None
    assert error["err_code"] == 10071
    return int(error["description"].split()[3])


def put(log: PartitionLog, subject: str, expected: int) -> int:
    """Compare and set. Returns the error's code; 0: stored."""
    [answer] = publish(log, [(b"", expecting(expected))], 0, subjects=[subject])
    return int(answer["error"]["err_code"]) if "error" in answer else 0


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk) -> PartitionLog:
    return create_log(disk, settings=SETTINGS)


def test_a_log_that_is_never_asked_has_no_state_and_no_table(disk: SimDisk, log: PartitionLog) -> None:
    for i in range(30):
        publish(log, [(b"x" * 400, ())], i, subjects=[f"s.{i}"])
    commit(log)
    assert log.state.segment_count > 1
    assert list_states(disk, FOLDER) == []
    log.append([row_batch([b"x"])], leader_epoch=0, now_us=0)
    publish(log, [(b"", with_id("a"))], 0)
    assert log.remembered.known().subjects is None
    assert not log.tracking.lacks_some


def test_the_first_who_asks_is_told_what_is_in_the_log(log: PartitionLog) -> None:
    publish(log, [(b"", ())] * 3, 0, subjects=["a", "b", "a"])
    log.append([row_batch([b"x"])], leader_epoch=0, now_us=0)
    assert [ask(log, subject) for subject in ("a", "b", "c")] == [3, 2, 0]
    assert (put(log, "a", 3), put(log, "a", 3), put(log, "c", 0)) == (0, 10071, 0)
    assert (ask(log, "a"), ask(log, "c")) == (5, 6)


@pytest.mark.parametrize("how", ["close", "kill", "roll and kill", "failed fsync", "power"])
def test_what_was_told_is_known_again(disk: SimDisk, log: PartitionLog, how: str) -> None:
    assert put(log, "a", 0) == 0
    for i in range(40):
        publish(log, [(b"x" * 300, ())], 0, subjects=[f"s.{i % 3}"])
    assert put(log, "b", 0) == 0
    commit(log)
    assert log.state.segment_count > 1
    if how == "close":
        log.close()
    elif how == "roll and kill":
        assert log.roll_if_due(1 << 62)
        publish(log, [(b"", ())], 0, subjects=["a"])
    if how == "failed fsync":
        disk.fail("sync", errno.EIO, path=".arrows")
        publish(log, [(b"", ())], 0, subjects=["a"])
        with pytest.raises(StorageFailed):
            log.syncer.sync()
        disk.heal()
        log.recover(0)
    elif how == "power":
        assert put(log, "a", 1) == 0
        log = open_log(disk.after_crash("lost"), boot_id="boot-2", settings=SETTINGS)
    else:
        log = open_log(disk.after_kill(), settings=SETTINGS)
    assert ask(log, "a") == (43 if how in ("roll and kill", "failed fsync") else 1)
    assert [ask(log, f"s.{i}") for i in range(3)] == [41, 39, 40]
    assert (put(log, "b", 42), put(log, "b", 42)) == (0, 10071)


def test_a_large_log_is_read_beside_the_appends_and_nobody_waits(
    disk: SimDisk, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "BUILT_AT_ONCE_BYTES", 2_500)
    monkeypatch.setattr(tracking, "PIECE_BYTES", 1_500)
    for i in range(20):
        publish(log, [(b"", ())], 0, subjects=[f"s.{i % 4}"])
    assert ask(log, "s.0") is None
    told = publish(log, [(b"", ()), (b"", expecting(0)), (b"", with_id("x"))], 0, subjects=["s.0", "s.0", "new"])
    assert ["error" in answer for answer in told] == [False, True, False]
    assert log.tracking.lacks_some
    pieces = 0
    while log.tracking.build():
        pieces += 1
        publish(log, [(b"", ())], 0, subjects=["beside"])
    assert pieces > 3
    assert not log.tracking.lacks_some
    assert (ask(log, "s.0"), ask(log, "s.3"), ask(log, "new")) == (21, 20, 22)
    assert ask(log, "beside") == log.state.log_end_offset


def test_the_state_goes_on_while_the_table_is_built(
    disk: SimDisk, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A roll in between keeps what the older file says, and does not pretend to more."""
    assert put(log, "a", 0) == 0
    commit(log)
    assert log.roll_if_due(1 << 62)
    publish(log, [(b"", ())], 0, subjects=["b"])
    commit(log)
    log = open_log(disk.after_kill(), settings=SETTINGS)
    monkeypatch.setattr(tracking, "BUILT_AT_ONCE_BYTES", -1)
    assert ask(log, "b") is None
    assert log.roll_if_due(1 << 62)
    assert log.state.log_end_offset == 2
    assert log.remembered.rewritable_end() == 1
    monkeypatch.undo()
    while log.tracking.build():
        pass
    log.checkpoint()
    assert log.remembered.rewritable_end() == 2
    assert read_head((load_state(log.state.disk, FOLDER, 2) or {})[SUBJECTS]).next_offset == 2, "and the file says so"
    log = open_log(log.state.disk.after_kill(), settings=SETTINGS)  # type: ignore[attr-defined]
    assert (ask(log, "a"), ask(log, "b")) == (1, 2)


def test_a_record_that_was_compacted_away_is_still_the_last_of_its_subject(disk: SimDisk, log: PartitionLog) -> None:
    """Else who has read the one before it would pass, over one that he never saw."""
    log.append([keyed("a", b"k0")], leader_epoch=0, now_us=0)
    log.append([keyed("a", b"k1")], leader_epoch=0, now_us=0)
    assert ask(log, "a") == 2
    log.append([keyed("b", b"k1")], leader_epoch=0, now_us=0)
    commit(log)
    assert log.roll_if_due(1 << 62)
    publish(log, [(b"", ())], 0, subjects=["c"])
    commit(log)
    settings = CompactionSettings(min_cleanable_dirty_percent=0, delete_retention_ms=0)
    report = compact(log, settings, map_bytes=1 << 12, now_us=1 << 60)
    assert report is not None
    assert report.records_gone == 1
    for _ in range(2):
        assert ask(log, "a") == 2
        assert put(log, "a", 1) == 10071
        log = open_log(log.state.disk.after_kill(), settings=SETTINGS)  # type: ignore[attr-defined]
    assert put(log, "a", 2) == 0


def test_nothing_is_compacted_that_only_the_log_would_tell(disk: SimDisk, log: PartitionLog) -> None:
    """U2: the state files of the rolls could not be written."""
    log.append([keyed("a", b"k0")], leader_epoch=0, now_us=0)
    assert ask(log, "a") == 1
    disk.fail("write", errno.ENOSPC, path="state-", times=100)
    for key, subject in ((b"k1", "a"), (b"k1", "b")):
        log.append([keyed(subject, key)], leader_epoch=0, now_us=0)
        commit(log)
        assert log.roll_if_due(1 << 62)
    disk.heal()
    settings = CompactionSettings(min_cleanable_dirty_percent=0, delete_retention_ms=0)
    report = compact(log, settings, map_bytes=1 << 12, now_us=1 << 60)
    assert report is None or report.records_gone == 0
    log = open_log(disk.after_kill(), settings=SETTINGS)
    assert ask(log, "a") == 2


def test_retention_ends_what_a_subject_had(disk: SimDisk, log: PartitionLog) -> None:
    publish(log, [(b"", ())] * 4, 0, subjects=["a", "b", "c", "b"])
    assert ask(log, "a") == 1
    commit(log)
    assert log.trim(2) == 2
    for _ in range(2):
        assert [ask(log, subject) for subject in "abc"] == [0, 4, 3]
        log = open_log(disk.after_kill(), settings=SETTINGS)
        disk = log.state.disk  # type: ignore[assignment]
    assert (put(log, "a", 1), put(log, "a", 0)) == (10071, 0)


def test_a_write_that_failed_is_the_last_of_nothing(disk: SimDisk, log: PartitionLog) -> None:
    assert put(log, "a", 0) == 0
    disk.fail("write", errno.ENOSPC, path=".arrows", short=100)
    with pytest.raises(DiskFull):
        put(log, "a", 1)
    disk.heal()
    assert (ask(log, "a"), put(log, "a", 1), ask(log, "a")) == (1, 0, 2)


def test_on_a_full_disk_nobody_is_told_what_might_be_forgotten(disk: SimDisk, log: PartitionLog) -> None:
    """The first state file: without it a restart would not know that compaction must wait."""
    disk.fail("write", errno.ENOSPC, path="state-", times=100)
    with pytest.raises(DiskFull):
        put(log, "a", 0)
    assert log.state.log_end_offset == 0
    disk.heal()
    assert put(log, "a", 0) == 0


def test_a_log_with_producers_or_ids_begins_to_track_in_a_file_of_the_same_offset(disk: SimDisk) -> None:
    log = create_log(disk, settings=LogSettings(segment_bytes=6_000, dedup_window_ms=50))
    publish(log, [(b"", with_id("a"))], 0, subjects=["a"])
    assert list_states(disk, FOLDER) == [0]
    assert ask(log, "a") is None  # a first file must say what is durable, and an append does not wait for an fsync
    assert log.tracking.lacks_some
    assert not log.tracking.build()
    assert ask(log, "a") == 1
    assert list_states(disk, FOLDER) == [1, 0], "T5"
    log = create_log(disk := SimDisk(), settings=LogSettings(segment_bytes=6_000, dedup_window_ms=50))
    [answer] = publish(log, [(b"", with_id("a") + expecting(0))], 0, subjects=["a"])
    assert answer["seq"] == 1
    assert SUBJECTS in (load_state(disk, FOLDER, 0) or {})
    [answer] = publish(log, [(b"", with_id("a") + expecting(0))], 0, subjects=["a"])
    assert answer["duplicate"]


def test_a_damaged_state_file_is_passed_over_and_the_log_is_read(disk: SimDisk, log: PartitionLog) -> None:
    assert put(log, "a", 0) == 0
    commit(log)
    log.close()
    (offset,) = list_states(disk, FOLDER)
    disk.flip(f"{FOLDER}/{state_name(offset)}", 777)
    log = open_log(disk, settings=SETTINGS)
    assert (put(log, "a", 0), put(log, "a", 1)) == (10071, 0)


def test_a_state_beyond_what_is_left_of_the_log_does_not_count_for_its_successors(disk: SimDisk) -> None:
    """U3. Bits that rot above the checkpoint may take records that had been fsynced: T2 is broken by the disk."""
    log = create_log(disk)
    log.checkpoint()
    assert put(log, "a", 0) == 0
    publish(log, [(b"", ())], 0, subjects=["b"])
    assert put(log, "a", 1) == 0
    log.syncer.sync()
    log.remembered.keep(at_close=True)
    assert list_states(disk, FOLDER) == [3, 0], "T5"
    path = f"{FOLDER}/{0:020d}.arrows"
    disk.flip(path, 8 * (len(disk.names[path].content) - 20))
    log = open_log(disk.after_crash("kept"), boot_id="boot-2")
    assert log.state.log_end_offset == 2
    assert [ask(log, "a"), ask(log, "b")] == [1, 2]


def test_subjects_beyond_the_bound_are_refused_until_there_is_room(disk: SimDisk) -> None:
    log = create_log(disk, settings=LogSettings(subjects_max=2))
    assert [put(log, subject, 0) for subject in "abc"] == [0, 0, 10023]
    publish(log, [(b"", ())], 0, subjects=["c"])
    commit(log)
    log.close()
    log = open_log(disk, settings=LogSettings(subjects_max=2))
    assert [put(log, "a", 1), put(log, "b", 2), put(log, "c", 3), put(log, "d", 0)] == [0, 0, 10023, 10023]
    log.remembered.update_settings(LogSettings(subjects_max=3))
    assert [put(log, "c", 3), put(log, "d", 0)] == [10023, 10023]  # they may have come meanwhile
    publish(log, [(b"", ())], 0, subjects=["c"])
    assert put(log, "c", 6) == 0
    log.remembered.update_settings(LogSettings(subjects_max=0))
    assert put(log, "c", 7) == 10003


def test_writers_that_race_over_http_and_nats_lose_no_update(log: PartitionLog) -> None:
    """Each thread counts a subject up by compare and set, beside appends that compare nothing."""
    counts, tries = dict.fromkeys("abc", 0), 30
    start, lock = threading.Barrier(4), threading.Lock()

    def count() -> None:
        start.wait()
        for i in range(tries):
            subject = "abc"[i % 3]
            known = 0
            while put(log, subject, known):
                found = ask(log, subject)
                assert found is not None
                known = found
            with lock:
                counts[subject] += 1

    def append_over_http() -> None:
        start.wait()
        for _ in range(100):
            log.append([keyed("http", b"k")], leader_epoch=0, now_us=0)

    threads = [threading.Thread(target=count) for _ in range(3)] + [threading.Thread(target=append_over_http)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == dict.fromkeys("abc", tries)
    assert log.state.log_end_offset == 3 * tries + 100
