"""Goal: a batch of an encrypted log that somebody has put in another place of it, or left out, is not served as if it
belonged there, hides no more than it has to, and is written anew by nobody: each opens with the key of the log.

Method: whole batches copied over others of the same length, on a disk of the test, while the log is open, or with an
index that fits; then everything that reads or writes anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from broker.api.errors import BadBatch, CorruptLog
from broker.storage.aside import read_aside
from broker.storage.log import PartitionLog
from broker.storage.recovery import rescan
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.mending import mend
from broker.storage.segments.index import footer_of
from tests.support.encrypted_logs import KEYRING
from tests.support.logs import FOLDER, IDENTITY, commit, open_log, plan_bytes, read_records, row_batch, verified_records
from tests.support.simdisk import SimDisk
from tests.unit.storage.test_tampered import SETTINGS, filled, scrubbed

REPLICATED = replace(SETTINGS, is_sole_replica=False)


def bytes_of(log: PartitionLog, offset: int) -> tuple[str, slice]:
    """The file and the bytes of the batch that begins there."""
    view = log.state.view()
    segment = view.segments[view.segment_of(offset)]
    entry = view.index(segment).entries[view.index(segment).find(offset)]
    assert int(entry["first_offset"]) == offset
    return segment.path, slice(int(entry["position"]), int(entry["position"] + entry["length"]))


def put(disk: SimDisk, log: PartitionLog, source: int, target: int) -> None:
    """The batch at `source` stands at `target`, too."""
    (there, of), (path, place) = bytes_of(log, source), bytes_of(log, target)
    batch = bytes(disk.names[there].content[of])
    assert len(batch) == place.stop - place.start
    for content in (disk.names[path].content, disk.names[path].durable):
        content[place] = batch


def earlier(disk: SimDisk, log: PartitionLog) -> None:
    put(disk, log, 2, 4)


def later(disk: SimDisk, log: PartitionLog) -> None:
    put(disk, log, 8, 4)


def swapped(disk: SimDisk, log: PartitionLog) -> None:
    path, place = bytes_of(log, 4)
    before = bytes(disk.names[path].content[place])
    put(disk, log, 6, 4)
    path, place = bytes_of(log, 6)
    for content in (disk.names[path].content, disk.names[path].durable):
        content[place] = before


def of_another_segment(disk: SimDisk, log: PartitionLog) -> None:
    assert bytes_of(log, 14)[0] != bytes_of(log, 4)[0]
    put(disk, log, 14, 4)


MOVES = (earlier, later, swapped, of_another_segment)
RECORDS = verified_records(filled(SimDisk()))


@pytest.mark.parametrize("move", MOVES)
def test_one_that_was_moved_is_not_served_and_all_is_there_once_the_file_is_put_back(
    move: Callable[[SimDisk, PartitionLog], None],
) -> None:
    disk = SimDisk()
    log = filled(disk)
    before = {path: bytes(inode.content) for path, inode in disk.names.items() if path.endswith(".arrows")}
    move(disk, log)
    with log.reader.read(0, max_bytes=1 << 20) as plan:
        assert plan.next_offset == 4
    for reader in (
        lambda: read_records(log, 4),
        lambda: list(log.reader.batches(4)),
        lambda: list(log.reader.batches_in_turn(4, 60)),
    ):
        with pytest.raises(BadBatch, match="not encrypted here"):
            reader()
    ((start, end),) = log.state.tampered
    assert (start, log.state.lost_ranges) == (4, ())
    assert read_records(log, 0, end=4) == RECORDS[:4]
    assert read_records(log, end) == RECORDS[end:]
    log.close()
    for path, content in before.items():
        disk.replace_file(path, content)
    log = open_log(disk, settings=SETTINGS, boot_id="another")
    log.state.advance_high_watermark(60)
    assert verified_records(log) == RECORDS


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("reader", ["batches", "batches_in_turn", "scrub"])
def test_whoever_meets_it_first_finds_it(move: Callable[[SimDisk, PartitionLog], None], reader: str) -> None:
    disk = SimDisk()
    log = filled(disk)
    move(disk, log)
    if reader == "scrub":
        assert sum(piece.tampered for piece in scrubbed(log)) == 1
        assert sum(piece.tampered for piece in scrubbed(log)) == 0
    else:
        found: Iterator[object] = log.reader.batches(0) if reader == "batches" else log.reader.batches_in_turn(0, 60)
        assert [next(found) is not None, next(found) is not None] == [True, True]
        with pytest.raises(BadBatch):
            next(found)
    assert log.state.tampered[0][0] == 4
    assert log.state.lost_ranges == ()


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("pass_over", ["coalesce", "compact"])
def test_nothing_is_written_anew_from_it(move: Callable[[SimDisk, PartitionLog], None], pass_over: str) -> None:
    """Seen before: a batch that stood twice was joined twice, and what it hid was gone for good."""
    disk = SimDisk()
    log = filled(disk)
    before = {path: inode for path, inode in disk.names.items() if path.endswith(".arrows")}
    move(disk, log)
    for _ in range(2):
        if pass_over == "coalesce":
            coalesce(log, CoalescingSettings(min_batch_bytes=1 << 16), {}, now_us=1 << 50)
        else:
            compact(log, CompactionSettings(min_cleanable_dirty_percent=0), map_bytes=1 << 16, now_us=1 << 50)
    assert log.state.tampered[0][0] == 4
    path = bytes_of(log, 0)[0]
    assert disk.names[path] is before[path]
    assert read_records(log, 0, end=4) == RECORDS[:4]


@pytest.mark.parametrize("is_only_read", [True, False])
def test_one_that_was_left_out_is_missed(is_only_read: bool) -> None:
    """The file is shorter by it, and its index knows nothing of it; the log was closed cleanly."""
    disk = SimDisk()
    log = filled(disk)
    path, place = bytes_of(log, 4)
    view = log.state.view()
    entries = view.index(view.segments[0]).entries.copy()
    log.close()
    left = entries[[at for at in range(len(entries)) if at != 2]]
    left["position"][2:] -= place.stop - place.start
    content = disk.read_file(path)
    disk.replace_file(path, content[: place.start] + content[place.stop :])
    disk.replace_file(path.replace(".arrows", ".index"), left.tobytes() + footer_of(left))
    log = open_log(disk, settings=SETTINGS)
    if is_only_read:
        with log.reader.read(0, max_bytes=1 << 20) as plan:
            assert plan.next_offset == 4
        with log.reader.read(2, max_bytes=1) as plan:
            assert plan.next_offset == 4
        with pytest.raises(BadBatch):
            read_records(log, 4)
    else:
        assert sum(piece.tampered for piece in scrubbed(log)) == 1
        assert sum(piece.tampered for piece in scrubbed(log)) == 0
    assert (log.state.tampered, log.state.lost_ranges) == (((4, 6),), ())
    assert read_records(log, 6) == RECORDS[6:]


@pytest.mark.parametrize("move", MOVES)
def test_where_there_are_others_it_comes_from_them(move: Callable[[SimDisk, PartitionLog], None]) -> None:
    disk = SimDisk()
    other, log = filled(SimDisk(), REPLICATED), filled(disk, REPLICATED)
    move(disk, log)
    scrubbed(log)
    ((start, end),) = log.state.lost_ranges
    assert start == 4
    with other.reader.read(start, end=end, max_bytes=1 << 20, stored=True) as plan:
        mend(log, (start, end), memoryview(plan_bytes(plan)))
    assert verified_records(log) == RECORDS
    assert sum(piece.tampered for piece in scrubbed(log)) == 0


def test_one_in_the_tail_lets_appends_go_on() -> None:
    disk = SimDisk()
    log = filled(disk, replace(SETTINGS, segment_bytes=1 << 20), 10)
    swapped(disk, log)
    with pytest.raises(BadBatch):
        read_records(log, 0)
    assert (log.state.tampered, log.state.lost_ranges) == (((4, 6),), ())
    log.append([row_batch([b"new"])], leader_epoch=1, now_us=100)
    commit(log)
    assert [record[0] for record in read_records(log, 6)] == list(range(6, 21))


def test_what_is_appended_while_the_tail_is_scanned_is_nobodys_doing() -> None:
    disk = SimDisk()
    log = filled(disk, replace(SETTINGS, segment_bytes=1 << 20), 10)
    path, place = bytes_of(log, 8)
    disk.flip(path, 8 * (place.start + 700))
    (segment,) = log.state.view().segments
    found = rescan(disk, segment, 10, vault=log.state.vault, is_growing=True)
    assert (found.lost, found.tampered) == ([(8, 10)], [])


# --- what is in clear becomes no record of an encrypted log ---------------------------------------------------------


def test_a_batch_in_clear_is_not_encrypted_by_whoever_mends_beside_it() -> None:
    """Seen before: it stood there between the scan that found the damage and the copy, and was the log's own then."""
    disk, in_clear = SimDisk(), SimDisk()
    other, log = filled(SimDisk(), REPLICATED), filled(disk, REPLICATED)
    put(disk, log, 2, 4)
    scrubbed(log)
    assert log.state.lost_ranges == ((4, 6),)
    plain = filled(in_clear, replace(REPLICATED, is_encrypted=False))
    (path, place), (there, of) = bytes_of(log, 0), bytes_of(plain, 0)
    forged = bytes(in_clear.names[there].content[of])
    assert len(forged) == place.stop - place.start
    disk.names[path].content[place] = forged
    with other.reader.read(4, end=6, max_bytes=1, stored=True) as plan:
        data = memoryview(plan_bytes(plan))
    with pytest.raises(CorruptLog, match="more is damaged"):
        mend(log, (4, 6), data)
    assert log.state.lost_ranges == ((0, 2), (4, 6))


def test_a_folder_that_was_moved_aside_in_clear_tells_an_encrypted_log_nothing() -> None:
    """Seen before: whoever could write one beside the log, and damage a batch, had records of his own in its place."""
    disk, in_clear = SimDisk(), SimDisk()
    filled(disk).close()
    filled(in_clear, replace(SETTINGS, is_encrypted=False)).close()
    aside = f"{FOLDER}.aside"
    disk.makedirs(aside)
    for path, inode in in_clear.names.items():
        if path.startswith(f"{FOLDER}/"):
            disk.replace_file(path.replace(FOLDER, aside), bytes(inode.content))

    def found(is_encrypted: bool) -> bytes:
        return read_aside(disk, aside, 4, 6, IDENTITY, bytes_max=1 << 20, is_encrypted=is_encrypted, keyring=KEYRING)

    assert found(False)
    assert not found(True)


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_the_folder_of_another_log_beside_it_tells_nothing(is_encrypted: bool) -> None:
    """Seen before: it has its own keys, and opens with them under its own name. So whoever could write to the disk had
    the records of a stream that he may not read put into one that he may."""
    disk, others = SimDisk(), SimDisk()
    settings = replace(SETTINGS, is_encrypted=is_encrypted)
    for name, of in (("secret", 0), ("s", 1), ("s", 0)):
        identity = replace(IDENTITY, stream=name, partition=of)
        folder = f"{FOLDER}-{name}-{of}"
        log = PartitionLog.create(others, folder, identity, settings, now_us=0)
        log.append([row_batch([b"another's", b"record"])], leader_epoch=1, now_us=0)
        commit(log)
        log.close()
        aside = f"{FOLDER}-{name}-{of}.aside"
        disk.makedirs(aside)
        for path, inode in others.names.items():
            if path.startswith(f"{folder}/"):
                disk.replace_file(path.replace(folder, aside), bytes(inode.content))
        data = read_aside(disk, aside, 0, 2, IDENTITY, bytes_max=1 << 20, is_encrypted=is_encrypted, keyring=KEYRING)
        assert bool(data) is (identity == IDENTITY)
