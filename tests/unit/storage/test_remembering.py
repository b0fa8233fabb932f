"""A log and its producers.

Goal: nothing is appended twice, nothing is taken for a repeat that is none, over restarts, rolls, retention and
trouble; and a log without producers pays nothing. Method: the real log on the fake disk.
"""

from __future__ import annotations

import errno
import threading

import pytest

from broker.api.errors import DiskFull, LiftlogError, OutOfSequence, Overloaded, StorageFailed, UnknownProducer
from broker.storage.log import AppendResult, PartitionLog
from broker.storage.memory.state_files import list_states, state_name
from broker.storage.segments.checkpoint import LogSettings
from tests.support.logs import FOLDER, commit, create_log, open_log, row_batch, stamped, verified_records
from tests.support.simdisk import SimDisk


def append(log: PartitionLog, sequence: int, *, producer_id: int = 1, epoch: int = 0, now_us: int = 0) -> AppendResult:
    """One group of two batches, three records."""
    batches = [stamped([b"a", b"b"], producer_id, epoch, sequence), stamped([b"c"], producer_id, epoch, sequence)]
    return log.append(batches, leader_epoch=0, now_us=now_us)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk) -> PartitionLog:
    return create_log(disk)


def test_a_repeat_is_answered_with_the_offsets_of_then_and_not_written(log: PartitionLog) -> None:
    first = append(log, 0)
    assert (first.first_offset, first.next_offset, first.duplicate) == (0, 3, False)
    again = append(log, 0)
    assert (again.first_offset, again.next_offset, again.bytes, again.duplicate) == (0, 3, 0, True)
    assert log.state.log_end_offset == 3
    with pytest.raises(OutOfSequence):
        append(log, 2)
    with pytest.raises(UnknownProducer):
        append(log, 1, producer_id=2)
    assert log.state.log_end_offset == 3


@pytest.mark.parametrize("how", ["close", "kill", "roll and kill", "recover"])
def test_what_producers_did_is_known_again(disk: SimDisk, log: PartitionLog, how: str) -> None:
    for sequence in range(7):
        append(log, sequence)
    append(log, 0, producer_id=2, epoch=4)
    commit(log)
    if how == "close":
        log.close()
    elif how == "roll and kill":
        assert log.roll_if_due(1 << 62)
        append(log, 7)
    if how == "recover":
        disk.fail("sync", errno.EIO, path=".arrows")
        append(log, 7)
        with pytest.raises(StorageFailed):
            log.syncer.sync()
        log.recover(0)
    else:
        disk = disk.after_kill()
        log = open_log(disk)
    end = log.state.log_end_offset
    assert append(log, 6).first_offset == 18
    assert append(log, 0, producer_id=2, epoch=4).first_offset == 21
    assert append(log, 7).duplicate == (how in ("recover", "roll and kill"))
    assert log.state.log_end_offset - end in (0, 3)


def test_retention_and_trim_take_records_and_not_what_producers_did(disk: SimDisk, log: PartitionLog) -> None:
    for sequence in range(20):
        append(log, sequence)
        commit(log)
        log.roll_if_due(1 << 62)
    assert log.trim(log.state.high_watermark) == 60
    for restart in (False, True):
        if restart:
            log = open_log(disk.after_kill())
        assert verified_records(log) == []
        assert append(log, 19).duplicate
        with pytest.raises(OutOfSequence):
            append(log, 21)
    assert append(log, 20).first_offset == 60


def test_records_that_are_trimmed_within_the_tail_still_tell(disk: SimDisk, log: PartitionLog) -> None:
    append(log, 0)
    commit(log)
    assert log.trim(3) == 3
    log = open_log(disk.after_kill())
    assert append(log, 0).duplicate


def test_segments_stay_while_their_producers_cannot_be_kept(disk: SimDisk, log: PartitionLog) -> None:
    """T3: the state file of the roll could not be written, so nothing may go before one is."""
    append(log, 0)
    commit(log)
    disk.fail("write", errno.ENOSPC, path="state-", times=100)
    assert log.roll_if_due(1 << 62)
    with pytest.raises(DiskFull):
        log.trim(3)
    assert log.state.log_start_offset == 0
    disk.heal()
    assert log.trim(3) == 3
    assert append(open_log(disk.after_kill()), 0).duplicate


def test_a_trimmed_segment_stays_over_a_restart_while_only_it_tells(disk: SimDisk, log: PartitionLog) -> None:
    """Trimmed first, then rolled without a state file: at the next open it would be the first to go."""
    append(log, 0)
    commit(log)
    log.trim(3)
    disk.fail("write", errno.ENOSPC, path="state-", times=100)
    assert log.roll_if_due(1 << 62)
    disk.heal()
    log.append([row_batch([b"x"])], leader_epoch=0, now_us=0)
    log = open_log(disk.after_kill())
    assert log.state.log_start_offset == 3
    assert append(log, 0).duplicate
    commit(log)
    assert log.trim(4) == 4
    assert log.state.segment_count == 1


def test_a_first_stamp_on_a_full_disk_appends_nothing(disk: SimDisk, log: PartitionLog) -> None:
    disk.fail("write", errno.ENOSPC, path="state-")
    with pytest.raises(DiskFull):
        append(log, 0)
    assert log.state.log_end_offset == 0
    assert not append(log, 0).duplicate


def test_a_write_that_failed_is_no_append(disk: SimDisk, log: PartitionLog) -> None:
    append(log, 0)
    disk.fail("write", errno.ENOSPC, path=".arrows", short=100)
    with pytest.raises(DiskFull):
        append(log, 1)
    assert not append(log, 1).duplicate
    assert append(log, 1).first_offset == 3


def test_a_damaged_state_file_is_passed_over_and_the_log_is_read(disk: SimDisk, log: PartitionLog) -> None:
    for sequence in range(8):
        append(log, sequence)
    commit(log)
    log.close()
    (offset,) = list_states(disk, FOLDER)
    assert offset == 24
    disk.flip(f"{FOLDER}/{state_name(offset)}", 77)
    log = open_log(disk)
    assert append(log, 7).first_offset == 21
    assert any("damaged" in note for note in log.state.recovery.notes)


def test_a_log_without_producers_has_no_state_and_reads_nothing(disk: SimDisk, log: PartitionLog) -> None:
    for _ in range(40):
        log.append([row_batch([b"x" * 400])], leader_epoch=0, now_us=0)
    commit(log)
    assert log.state.segment_count > 1
    log.trim(20)
    log.close()
    disk.calls.clear()
    log = open_log(disk)
    assert set(disk.calls) <= {"exists", "read_file", "listdir", "size"}
    assert list_states(disk, FOLDER) == []
    disk.calls.clear()
    assert append(log, 0).first_offset == 40
    assert list_states(disk, FOLDER) == [40]
    assert disk.calls.get("pread", 0) <= 1  # the tail's index wakes up; no batch is read


def test_after_a_clean_close_no_batch_is_read_to_know_the_producers(disk: SimDisk, log: PartitionLog) -> None:
    for sequence in range(30):
        append(log, sequence)
    commit(log)
    log.close()
    log = open_log(disk)
    disk.calls.clear()
    assert append(log, 29).duplicate
    assert "pread" not in disk.calls


def test_an_idle_producer_is_forgotten_with_an_error(disk: SimDisk) -> None:
    log = create_log(disk, settings=LogSettings(producer_id_expiry_ms=1))
    append(log, 0, now_us=0)
    assert append(log, 0, now_us=999).duplicate
    with pytest.raises(UnknownProducer):
        append(log, 1, now_us=1_999)
    assert log.state.log_end_offset == 3


def test_a_further_producer_is_refused_at_the_limit_also_when_it_is_lowered(disk: SimDisk) -> None:
    log = create_log(disk, settings=LogSettings(producer_ids_max=2))
    log.append([stamped([b"a"], 1, 0, 0)], leader_epoch=1, now_us=0)
    log.remembered.update_settings(LogSettings(producer_ids_max=1))
    with pytest.raises(Overloaded) as caught:
        log.append([stamped([b"b"], 2, 0, 0)], leader_epoch=1, now_us=0)
    assert (caught.value.key, caught.value.limit) == ("producers.ids_max", 1)
    assert log.append([stamped([b"b"], 1, 0, 1)], leader_epoch=1, now_us=0).first_offset == 1


def test_groups_that_a_power_cut_took_are_forgotten(disk: SimDisk, log: PartitionLog) -> None:
    append(log, 0)
    commit(log)
    append(log, 1)
    log = open_log(disk.after_crash("lost"), boot_id="boot-2")
    assert log.state.log_end_offset == 3
    assert append(log, 1).first_offset == 3
    assert append(log, 0).duplicate


def test_a_state_beyond_what_is_left_of_the_log_does_not_count_for_its_successors(disk: SimDisk) -> None:
    """Bits that rot above the checkpoint may take records that had been fsynced: T2 is broken by the disk."""
    log = create_log(disk)
    log.checkpoint()
    for sequence in range(3):
        append(log, sequence)
    log.syncer.sync()
    log.remembered.keep(at_close=True)
    assert list_states(disk, FOLDER) == [9, 0], "T5"
    path = f"{FOLDER}/{0:020d}.arrows"
    disk.flip(path, 8 * (len(disk.names[path].content) - 20))
    found = disk.after_crash("kept")
    log = open_log(found, boot_id="boot-2")
    assert log.state.log_end_offset == 6
    assert append(log, 2).first_offset == 6
    assert append(log, 1).duplicate


def test_requests_that_race_append_once(log: PartitionLog) -> None:
    append(log, 0)
    results: list[AppendResult | LiftlogError] = []
    start = threading.Barrier(8)

    def run() -> None:
        start.wait()
        for sequence in range(1, 21):
            while True:
                try:
                    results.append(append(log, sequence))
                    break
                except OutOfSequence as error:
                    if error.expected > sequence:  # the others are further than the window
                        break

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.state.log_end_offset == 63
    fresh = [result for result in results if isinstance(result, AppendResult) and not result.duplicate]
    assert sorted(result.first_offset for result in fresh) == list(range(3, 63, 3))
