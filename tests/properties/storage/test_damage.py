"""S3: no flipped, zeroed or missing byte of a batch is ever served, and each is known.

Whole segments, every bit of them. The batches beside the damaged one are served unharmed.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.api.schema import SCHEMA_BYTES
from broker.storage.log import PartitionLog
from broker.storage.rows import RowBatch
from broker.storage.segments.scan import scan
from tests.support.effort import examples, first_short, seeded
from tests.support.logs import FOLDER, Record, commit, create_log, open_log, read_records, row_batch, verified_records
from tests.support.rows import random_rows
from tests.support.simdisk import SimDisk, SimFile

SEGMENT = f"{FOLDER}/{0:020d}.arrows"
BATCHES = 4


def made(*, is_committed: bool) -> tuple[SimDisk, list[Record], list[tuple[int, int]]]:
    """A disk with one closed log of four batches of random rows, its records, and the place of each batch."""
    disk, rng = SimDisk(), random.Random(seeded(3))
    log = create_log(disk)
    ends = [len(SCHEMA_BYTES)]
    for _ in range(BATCHES):
        result = log.append([RowBatch(random_rows(rng, 2))], leader_epoch=1, now_us=0)
        ends.append(ends[-1] + result.bytes)
        if is_committed:
            commit(log)
    log.state.advance_high_watermark(log.state.log_end_offset)
    records = verified_records(log)
    if is_committed:
        log.close()
    return disk, records, list(pairwise(ends))


@pytest.mark.parametrize("part", first_short(range(4)))
def test_scan_misses_exactly_the_batch_with_a_flipped_bit(part: int) -> None:
    """Every bit of every batch, in four parts."""
    disk, _, places = made(is_committed=True)
    inode = disk.names[SEGMENT]
    for number, (start, end) in enumerate(places):
        for bit in range(start * 8 + part, end * 8, 4):
            inode.content[bit // 8] ^= 1 << bit % 8
            found = scan(SimFile(disk, SEGMENT, inode), start=len(SCHEMA_BYTES), first_offset=0, where="")
            inode.content[bit // 8] ^= 1 << bit % 8
            expected = [2 * i for i in range(BATCHES) if i != number]
            assert found.batches["first_offset"].tolist() == expected, f"bit {bit}, in batch {number}"
            assert found.gaps == [(start, end)], f"bit {bit}, in batch {number}"


def check_damaged(log: PartitionLog, records: list[Record], harmed: set[int]) -> None:
    """Everything but the harmed batches is served, by both ways to read, and those are reported."""
    for found in (verified_records(log), read_records(log, log.state.log_start_offset)):
        assert found == [record for record in records if record[0] // 2 not in harmed]
    lost = {offset // 2 for start, end in log.state.lost_ranges for offset in range(start, end)}
    assert lost == harmed


@pytest.mark.parametrize("part", first_short(range(3)))
def test_committed_batch_with_a_flipped_bit_is_reported_and_never_served(part: int) -> None:
    """A bit of every fifth byte, through a whole log, in three parts: opened after a crash, its index gone."""
    disk, records, places = made(is_committed=True)
    rng = random.Random(seeded(5))
    for number, (start, end) in enumerate(places):
        for at in range(start + 5 * part, end, 15):
            found = disk.after_crash("kept")
            found.flip(SEGMENT, 8 * at + rng.randrange(8))
            found.unlink(f"{FOLDER}/{0:020d}.index")
            check_damaged(open_log(found, boot_id="next"), records, {number})


@pytest.mark.parametrize("part", first_short(range(3)))
def test_flipped_bit_under_an_open_log_is_met_at_the_read(part: int) -> None:
    """After a clean start, which reads nothing: the header is checked by `read`, the body by `batches`."""
    disk, records, places = made(is_committed=True)
    for number, (start, end) in enumerate(places):
        for at in range(start + 7 * part, end, 21):
            found = disk.after_crash("kept")
            found.flip(SEGMENT, 8 * at + at % 8)
            log = open_log(found)
            assert log.state.recovery.clean
            check_damaged(log, records, {number})


def test_uncommitted_batch_with_a_flipped_bit_is_cut_with_what_follows() -> None:
    disk, records, places = made(is_committed=False)
    for number, (start, end) in enumerate(places):
        for at in range(start, end, 7):
            found = disk.after_crash("kept")
            found.flip(SEGMENT, 8 * at + at % 8)
            log = open_log(found)
            assert (log.state.log_end_offset, log.state.lost_ranges) == (2 * number, ())
            log.state.advance_high_watermark(log.state.log_end_offset)
            assert verified_records(log) == records[: 2 * number]


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_any_damage_to_committed_batches_is_known(data: st.DataObject) -> None:
    """Stretches that are zeroed, overwritten or cut off, several at once, also in checkpoint, index and epochs."""
    disk, records, places = made(is_committed=True)
    content = disk.names[SEGMENT].content
    before = bytes(content)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(len(SCHEMA_BYTES), len(content) - 1))
        size = data.draw(st.integers(1, 1_500))
        match data.draw(st.sampled_from(["zero", "noise", "cut", "small file"])):
            case "zero":
                content[start : start + size] = bytes(len(content[start : start + size]))
            case "noise":
                content[start : start + size] = random.Random(size).randbytes(len(content[start : start + size]))
            case "cut" if size > 1_400:
                del content[start:]
                break
            case "small file":
                name = data.draw(st.sampled_from(["epochs", f"{0:020d}.index"]))
                disk.flip(f"{FOLDER}/{name}", data.draw(st.integers(0, 8 * 30)))
    log = open_log(disk, boot_id=data.draw(st.sampled_from(["boot-1", "next"])))
    assert log.state.log_end_offset == len(records)
    harmed = {i for i, (start, end) in enumerate(places) if content[start:end] != before[start:end]}
    check_damaged(log, records, harmed)
    result = log.append([row_batch([b"new"])], leader_epoch=1, now_us=0)
    assert result.first_offset == len(records)
    commit(log)
    assert verified_records(log)[-1][2] == b"new"
