"""Goal: nobody who writes to the disk of a broker that was killed makes its recovery cut, remove, commit or pass over
records of an encrypted log, but by taking bytes away as a crash does.

Method: logs on a disk of the test that is killed; in their files headers, batches, indexes, joins and clean marks are
forged with every CRC made to fit, as somebody without the key can; the log is opened, and opened again with the files
put back.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from broker.api.batch import BatchHeader, encode_batch
from broker.api.errors import BadBatch, StorageFailed
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.storage.encrypted.message import TAG_BYTES
from broker.storage.inspect.inspection import inspect_partition
from broker.storage.inspect.repair import repair
from broker.storage.log import PartitionLog
from broker.storage.rewrite.joining import announce
from broker.storage.segments.checkpoint import Checkpoint, LogSettings, TailPoint
from broker.storage.segments.index import ENTRY, Entries, counted_entries, footer_of
from broker.storage.segments.scan import scan
from tests.support.encrypted_logs import KEYRING, encrypted, forged
from tests.support.logs import BOOT_ID, FOLDER, commit, create_log, open_log, row_batch, verified_records
from tests.support.rows import random_rows
from tests.support.simdisk import SimDisk

SETTINGS = encrypted(LogSettings(segment_bytes=1 << 20))
LAST = f"{FOLDER}/{0:020d}"


def filled(disk: SimDisk, count: int = 6, settings: LogSettings = SETTINGS) -> PartitionLog:
    log = create_log(disk, settings=settings)
    for number in range(count):
        log.append([row_batch([b"%d.%d" % (number, i) for i in range(3)])], leader_epoch=1, now_us=number)
        commit(log)
    return log


def killed(count: int = 6) -> SimDisk:
    """A log of some batches of three records, none of them checkpointed."""
    disk = SimDisk()
    filled(disk, count)
    return disk.after_kill()


def write(disk: SimDisk, path: str, at: int, data: bytes) -> None:
    for content in (disk.names[path].content, disk.names[path].durable):
        content[at : at + len(data)] = data


def kept(disk: SimDisk) -> dict[str, bytes]:
    return {path: bytes(inode.content) for path, inode in disk.names.items()}


def put_back(disk: SimDisk, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        disk.replace_file(path, content)


def batches_of(disk: SimDisk, path: str = f"{LAST}.arrows") -> list[tuple[int, int]]:
    """Position and length of each batch."""
    file = disk.open(path, readonly=True)
    found = scan(file, start=len(SCHEMA_BYTES), first_offset=0, where=path).batches
    file.close()
    return list(zip(found["position"].tolist(), found["length"].tolist(), strict=True))


def forge(disk: SimDisk, number: int, field: str, value: int, path: str = f"{LAST}.arrows") -> int:
    """Write another value into the header of a batch, with a CRC that fits. Returns its position."""
    position, length = batches_of(disk, path)[number]
    batch = bytes(disk.names[path].content[position : position + length])
    write(disk, path, position, forged(batch, field, value))
    return position


def refused(disk: SimDisk, says: str = "put the file back") -> None:
    """It is not opened, nothing of it is cut, and with its files as they were nothing of it is lost."""
    segments = {path: content for path, content in kept(disk).items() if path.endswith(".arrows")}
    with pytest.raises(BadBatch, match=says):
        open_log(disk, settings=SETTINGS, boot_id="another")
    assert {path: kept(disk).get(path) for path in segments} == segments


FORGED = [
    (-1, "first_offset", 16),
    (-1, "first_offset", 14),
    (-1, "last_offset", 40),
    (-1, "group_count", 2),
    (-1, "group_index", 1),
    (-1, "high_watermark", 10_000),
    (-1, "leader_epoch", 7),
    (2, "first_offset", 7),
    (2, "first_offset", 0),
    (2, "last_offset", 16),
    (2, "high_watermark", 1 << 40),
    (-1, "max_timestamp_us", 1 << 60),
]


@pytest.mark.parametrize(("number", "field", "value"), FORGED)
@pytest.mark.parametrize("is_sole", [True, False])
def test_by_a_header_that_was_changed_nothing_is_cut(number: int, field: str, value: int, is_sole: bool) -> None:
    disk = killed()
    before = kept(disk)
    forge(disk, number, field, value)
    settings = replace(SETTINGS, is_sole_replica=is_sole)
    segments = {path: content for path, content in kept(disk).items() if path.endswith(".arrows")}
    with pytest.raises(BadBatch, match="put the file back"):
        open_log(disk, settings=settings, boot_id="another")
    assert {path: kept(disk)[path] for path in segments} == segments
    put_back(disk, before)
    log = open_log(disk, settings=settings, boot_id="another")
    assert log.state.log_end_offset == 18
    assert log.state.lost_ranges == ()


def test_a_batch_that_others_wrote_is_not_taken_for_ours() -> None:
    """In clear, as in a log that is not encrypted; and one with the key of another log."""
    disk = killed()
    position, length = batches_of(disk)[-1]
    before = kept(disk)
    rows = random_rows(random.Random(1), 3, first_offset=18)
    plain = bytes(encode_batch(rows, BatchHeader(first_offset=18, last_offset=20, leader_epoch=1)))
    write(disk, f"{LAST}.arrows", position + length, plain)
    refused(disk, "not encrypted")
    put_back(disk, before)
    other = SimDisk()
    filled(other, 7)
    at, size = batches_of(other)[-1]
    write(disk, f"{LAST}.arrows", position + length, bytes(other.names[f"{LAST}.arrows"].content[at : at + size]))
    refused(disk, "not what was encrypted here")
    put_back(disk, before)
    assert open_log(disk, settings=SETTINGS, boot_id="another").state.log_end_offset == 18


def test_what_a_crash_leaves_is_cut_as_in_any_log() -> None:
    for cut in (1, 300, 900):
        disk = killed()
        position, length = batches_of(disk)[-1]
        write(disk, f"{LAST}.arrows", position + cut, bytes(length - cut))
        log = open_log(disk, settings=SETTINGS, boot_id="another")
        assert (log.state.log_end_offset, log.state.recovery.cut_offset) == (15, 15)


def test_one_that_was_changed_may_be_given_up_by_hand() -> None:
    """docs/guides/security.md: zeros over its first bytes make it damage."""
    disk = killed()
    position = forge(disk, 2, "last_offset", 16)
    write(disk, f"{LAST}.arrows", position, bytes(8))
    log = open_log(disk, settings=SETTINGS, boot_id="another")
    commit(log)
    assert (log.state.lost_ranges, log.state.log_end_offset) == (((6, 9),), 18)
    assert [offset for offset, _, _ in verified_records(log)] == [*range(6), *range(9, 18)]


def test_no_segment_is_removed_by_a_join_that_others_announce() -> None:
    disk = SimDisk()
    filled(disk, 30, encrypted(LogSettings(segment_bytes=6_000)))
    disk = disk.after_kill()
    paths = sorted(path for path in disk.names if path.endswith(".arrows"))
    assert len(paths) > 3
    forge(disk, -1, "last_offset", 89, paths[0])
    announce(disk, FOLDER, 0, 90)
    refused(disk)


def test_what_is_in_a_sealed_segment_is_not_cut_for_a_batch_that_claims_its_offsets() -> None:
    disk = SimDisk()
    filled(disk, 30, encrypted(LogSettings(segment_bytes=6_000)))
    disk = disk.after_kill()
    first, second = sorted(path for path in disk.names if path.endswith(".arrows"))[:2]
    end = int(second[len(FOLDER) + 1 :].split(".")[0])
    forge(disk, 0, "last_offset", end - 1, first)
    refused(disk)


def test_an_older_clean_mark_that_is_made_to_fit_passes_over_nothing() -> None:
    disk = SimDisk()
    filled(disk, 2).close()
    found = Checkpoint.decode(disk.read_file(f"{FOLDER}/checkpoint"), where="")
    assert found is not None
    log = open_log(disk, settings=SETTINGS)
    for number in range(4):
        log.append([row_batch([b"%d.%d" % (number, i) for i in range(3)])], leader_epoch=1, now_us=number)
        commit(log)
    disk = disk.after_kill()
    assert found.tail is not None
    point = replace(found.tail, bytes=disk.size(f"{LAST}.arrows"))
    disk.replace_file(f"{FOLDER}/checkpoint", replace(found, tail=point, clean_boot_id=BOOT_ID).encode())
    log = open_log(disk, settings=SETTINGS)
    assert log.state.log_end_offset == 18
    assert not log.state.recovery.clean


def test_an_older_clean_mark_over_a_sealed_segment_passes_over_nothing() -> None:
    disk = SimDisk()
    log = filled(disk)
    log.roll_if_due(1 << 60)
    log.close()
    found = Checkpoint.decode(disk.read_file(f"{FOLDER}/checkpoint"), where="")
    assert found is not None
    assert found.tail is None
    assert open_log(disk.after_kill(), settings=SETTINGS).state.recovery.clean
    disk.replace_file(f"{FOLDER}/checkpoint", replace(found, recovery_point=6, high_watermark=6).encode())
    log = open_log(disk, settings=SETTINGS)
    assert log.state.log_end_offset == 18


def test_an_index_that_leads_behind_batches_passes_over_nothing() -> None:
    """The checkpoint has its CRC, and both can be written by whoever writes files."""
    disk = SimDisk()
    log = filled(disk)
    log.checkpoints.keep()
    for number in range(4):
        log.append([row_batch([b"%d.%d" % (number, i) for i in range(3)])], leader_epoch=1, now_us=number)
        commit(log)
    disk = disk.after_kill()
    found = Checkpoint.decode(disk.read_file(f"{FOLDER}/checkpoint"), where="")
    assert found is not None
    assert found.tail is not None
    entries = _entries_of(disk, found.tail)
    entries["position"][-1], entries["length"][-1] = batches_of(disk)[-1]
    disk.replace_file(f"{FOLDER}/{0:020d}.index", entries.tobytes())
    crc = int(footer_of(entries)[12:16][::-1].hex(), 16)
    disk.replace_file(f"{FOLDER}/checkpoint", replace(found, tail=replace(found.tail, entry_crc=crc)).encode())
    log = open_log(disk, settings=SETTINGS, boot_id="another")
    assert log.state.lost_ranges == ()
    assert log.state.log_end_offset == 30


def _entries_of(disk: SimDisk, point: TailPoint) -> Entries:
    found = counted_entries(disk.read_file(f"{FOLDER}/{0:020d}.index"), point.entry_count, point.entry_crc)
    assert found is not None
    assert found.dtype == ENTRY
    return found.copy()


def test_a_log_that_has_failed_is_not_recovered_by_what_others_wrote_meanwhile() -> None:
    disk = SimDisk()
    log = filled(disk)
    before = kept(disk)
    log.state.fail(StorageFailed("an fsync"))
    forge(disk, -1, "group_count", 2)
    with pytest.raises(BadBatch, match="put the file back"):
        log.recover(0)
    with pytest.raises(StorageFailed):
        log.append([row_batch([b"x"])], leader_epoch=1, now_us=0)
    write(disk, f"{LAST}.arrows", 0, before[f"{LAST}.arrows"])
    log.recover(0)
    assert len(verified_records(log)) == 18


def test_verify_tells_of_it_and_repair_leaves_it_alone() -> None:
    for number, field, value in FORGED:
        disk = killed()
        position = forge(disk, number, field, value)
        before = kept(disk)
        found = inspect_partition(disk, FOLDER, keyring=KEYRING).of_kind("tampered")
        assert [(each.path, each.position) for each in found] == [(f"{LAST}.arrows", position)]
        assert repair(disk, FOLDER, now_us=0, keyring=KEYRING).refused
        assert kept(disk) == before


def test_messages_are_opened_in_memory_that_is_used_again() -> None:
    from broker.storage.encrypted.own import OwnBatches

    disk = SimDisk()
    log = filled(disk)
    vault = log.state.vault
    assert vault is not None
    own, content = OwnBatches(vault), bytes(disk.names[f"{LAST}.arrows"].content)
    for position, length in batches_of(disk):
        stored = content[position : position + length]
        assert bytes(own.open(memoryview(stored), "")) == bytes(vault.open_message(stored))
    assert len(own._block) == length + TAG_BYTES
    assert content.endswith(END_OF_STREAM) is False
