"""Goal: an inspection finds what is wrong, says where and how bad it is, and changes nothing.

Method: logs on the disk that the fault tests use, damaged one way at a time; then at random, held against what was
appended and against what the real recovery does with the same files.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from broker.api.batch import VALUE_AT, BatchHeader, encode_batch, seal
from broker.api.errors import FolderNotAllowed, InvalidRequest
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.storage.disk import OsDisk
from broker.storage.disk.overlay import OverlayDisk
from broker.storage.folder import DataFolder
from broker.storage.inspect.findings import CONSEQUENCES, Inspection
from broker.storage.inspect.inspection import inspect_partition
from broker.storage.inspect.places import find_places, used_by
from broker.storage.log import PartitionLog
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.segments.checkpoint import Checkpoint, LogSettings, seal_json
from tests.support.effort import first_short
from tests.support.logs import FOLDER, IDENTITY, commit, create_log, open_log, row_batch, verified_records
from tests.support.rows import random_rows
from tests.support.simdisk import SimDisk

SMALL = LogSettings(segment_bytes=8_000)
CHECKPOINT = f"{FOLDER}/checkpoint"


class Made:
    """A log of several segments, as a killed process leaves it. `content` may be changed."""

    def __init__(
        self, *, appends: int = 12, settings: LogSettings = SMALL, clean: bool = False, runs_ahead: bool = False
    ) -> None:
        disk = SimDisk(runs_ahead=runs_ahead)
        log = create_log(disk, settings=settings)
        for number in range(appends):
            batches = [row_batch([b"x" * 300] * 3), row_batch([b"y"] * 2)]
            log.append(batches, leader_epoch=1 + number // 5, now_us=number)
            commit(log)
        log.checkpoint()
        if clean:
            log.close()
        self.log_end_offset = log.state.log_end_offset
        self.disk = disk.after_crash("kept")

    def paths(self, ending: str) -> list[str]:
        return sorted(path for path in self.disk.names if path.endswith(ending))

    def content(self, path: str) -> bytearray:
        inode = self.disk.names[path]
        inode.durable = inode.content
        return inode.content

    def snapshot(self) -> dict[str, bytes]:
        return {path: bytes(inode.content) for path, inode in self.disk.names.items()}

    def inspect(self, **options: object) -> Inspection:
        """Inspect; whatever is found, nothing has changed and no file is left open."""
        before = self.snapshot()
        found = inspect_partition(self.disk, FOLDER, **options)  # type: ignore[arg-type]
        assert self.snapshot() == before
        assert self.disk.steps == 0
        assert self.disk.open_files == 0
        assert all(finding.kind in CONSEQUENCES for finding in found.findings)
        return found


def _kinds(found: Inspection) -> list[str]:
    return [finding.kind for finding in found.findings]


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_is_well_has_no_findings(clean: bool) -> None:
    made = Made(clean=clean)
    found = made.inspect(expected=IDENTITY)
    assert found.findings == []
    assert (found.segments, found.batches) == (len(made.paths(".arrows")), 24)
    assert (found.log_start_offset, found.log_end_offset) == (0, made.log_end_offset)
    assert found.bytes == sum(len(made.content(path)) for path in made.paths(".arrows"))


def test_an_empty_log_is_well() -> None:
    made = Made(appends=0)
    assert made.inspect().findings == []


def test_a_log_whose_last_appends_were_not_checkpointed_is_well() -> None:
    disk = SimDisk()
    log = create_log(disk, settings=SMALL)
    for _ in range(20):
        log.append([row_batch([b"x" * 300] * 3)], leader_epoch=1, now_us=0)
        commit(log)
    assert inspect_partition(disk.after_crash("kept"), FOLDER).findings == []


def test_bytes_behind_the_log_are_a_torn_tail_at_their_place() -> None:
    made = Made()
    last = made.content(made.paths(".arrows")[-1])
    size = len(last)
    last += bytes(92) + b"\xff" * 8
    (finding,) = made.inspect().findings
    assert (finding.kind, finding.position, finding.end) == ("torn_tail", size, size + 100)
    assert finding.is_repairable


def test_an_unsynced_batch_behind_a_torn_one_is_part_of_the_tail_with_its_offsets() -> None:
    disk = SimDisk()
    log = create_log(disk)
    log.append([row_batch([b"a"])], leader_epoch=1, now_us=0)
    commit(log)
    log.checkpoint()
    first = log.append([row_batch([b"b" * 500])], leader_epoch=1, now_us=0)
    log.append([row_batch([b"c"] * 3)], leader_epoch=1, now_us=0)
    disk = disk.after_crash("kept")
    path = f"{FOLDER}/{0:020d}.arrows"
    second = disk.size(path) - 1_100 - first.bytes
    disk.names[path].content[second + 300] ^= 1
    (finding,) = inspect_partition(disk, FOLDER).findings
    assert finding.kind == "torn_tail"
    assert (finding.first_offset, finding.next_offset) == (1, 5)


@pytest.mark.parametrize("segment", [0, 2, -1])
def test_a_flipped_bit_in_a_committed_batch_is_a_lost_range_with_place_and_offsets(segment: int) -> None:
    made = Made()
    path = made.paths(".arrows")[segment]
    made.content(path)[len(SCHEMA_BYTES) + 1_000] ^= 4
    found = made.inspect()
    (lost,) = found.of_kind("lost_range")
    base = int(path[-27:-7])
    assert (lost.path, lost.first_offset, lost.next_offset) == (path, base, base + 3)
    assert lost.position == len(SCHEMA_BYTES)
    assert "CRC" in lost.text
    assert set(_kinds(found)) == {"lost_range", "wrong_index"}  # the index lists a batch that is none


def test_what_the_checkpoint_lists_as_lost_is_known() -> None:
    made = Made()
    made.content(made.paths(".arrows")[1])[len(SCHEMA_BYTES) + 1_000] ^= 4
    (lost,) = made.inspect().of_kind("lost_range")
    assert not lost.is_known
    checkpoint = Checkpoint.decode(bytes(made.content(CHECKPOINT)), where="")
    assert checkpoint is not None
    assert lost.first_offset is not None
    assert lost.next_offset is not None
    ranges = ((lost.first_offset, lost.next_offset),)
    made.content(CHECKPOINT)[:] = replace(checkpoint, lost_ranges=ranges).encode()
    (lost,) = made.inspect().of_kind("lost_range")
    assert lost.is_known
    assert not lost.is_repairable


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_segment_is_a_lost_range(which: int) -> None:
    made = Made()
    first, second, third = made.paths(".arrows")[:3]
    gone, end = ((first, second), (second, third))[which]
    del made.disk.names[gone], made.disk.names[gone.replace(".arrows", ".index")]
    (lost,) = made.inspect().findings
    assert (lost.kind, lost.first_offset, lost.next_offset) == ("lost_range", int(gone[-27:-7]), int(end[-27:-7]))


def test_a_segment_that_ends_before_the_recovery_point_has_lost_what_is_missing() -> None:
    made = Made()
    path = made.paths(".arrows")[-1]
    last = made.content(path)
    del last[-10:]
    (lost,) = made.inspect().of_kind("lost_range")
    assert (lost.first_offset, lost.next_offset) == (made.log_end_offset - 2, made.log_end_offset)


@pytest.mark.parametrize("damage", ["missing", "flipped", "short", "of another segment"])
@pytest.mark.parametrize("segment", [0, 1])
def test_an_index_that_is_not_the_segments_is_a_wrong_index_and_nothing_is_lost(damage: str, segment: int) -> None:
    made = Made()
    path, other = made.paths(".index")[segment], made.paths(".index")[segment + 1]
    match damage:
        case "missing":
            del made.disk.names[path]
        case "flipped":
            made.content(path)[40] ^= 1
        case "short":
            del made.content(path)[-32:]
        case "of another segment":
            made.content(path)[:] = made.content(other)
    (finding,) = made.inspect().findings
    assert (finding.kind, finding.path) == ("wrong_index", path)
    assert finding.is_repairable


def test_the_index_of_the_active_segment_counts_as_far_as_the_checkpoint_says() -> None:
    made = Made()
    path = made.paths(".index")[-1]
    made.content(path).extend(b"half an entry")
    assert made.inspect().findings == []
    made.content(path)[3] ^= 1
    assert _kinds(made.inspect()) == ["wrong_index"]


def test_a_damaged_checkpoint_and_a_missing_one_are_told() -> None:
    made = Made()
    made.content(CHECKPOINT)[10] ^= 1
    assert _kinds(made.inspect()) == ["wrong_checkpoint"]
    del made.disk.names[CHECKPOINT]
    assert _kinds(made.inspect()) == ["wrong_checkpoint"]


def test_a_checkpoint_that_contradicts_itself_is_told() -> None:
    made = Made()
    checkpoint = Checkpoint.decode(bytes(made.content(CHECKPOINT)), where="")
    assert checkpoint is not None
    made.content(CHECKPOINT)[:] = replace(checkpoint, log_start_offset=10, high_watermark=5).encode()
    assert "wrong_checkpoint" in _kinds(made.inspect())


@pytest.mark.parametrize("damage", ["flipped", "missing", "shifted"])
def test_epochs_that_the_batches_contradict_are_told(damage: str) -> None:
    made = Made()
    path = f"{FOLDER}/epochs"
    match damage:
        case "flipped":
            made.content(path)[5] ^= 1
        case "missing":
            del made.disk.names[path]
        case "shifted":
            made.content(path)[:] = seal_json({"epochs": [[1, 0], [2, 30], [3, 50]]})
    found = made.inspect()
    assert set(_kinds(found)) == {"wrong_epochs"}
    if damage == "shifted":
        assert found.findings[0].first_offset == 25


def test_a_folder_of_another_partition_or_of_none_is_told() -> None:
    made = Made()
    assert _kinds(made.inspect(expected=replace(IDENTITY, partition=1))) == ["wrong_identity"]
    del made.disk.names[f"{FOLDER}/partition.json"]
    assert "wrong_identity" in _kinds(made.inspect())


def test_a_batch_of_a_later_format_version_is_told_and_nothing_of_the_segment_judged() -> None:
    made = Made(appends=1)
    content = made.content(made.paths(".arrows")[0])
    at = len(SCHEMA_BYTES)
    content[at + VALUE_AT : at + VALUE_AT + 4] = b"0002"
    (length,) = np.frombuffer(bytes(content[at + 48 : at + 56]), "<i8").tolist()
    message = bytearray(content[at : at + 888 + length])
    seal(message)
    content[at : at + len(message)] = message
    assert _kinds(made.inspect()) == ["unknown_version"]


def _hand_made(rows: pa.RecordBatch, header: BatchHeader) -> Inspection:
    """A log of one batch that no writer of ours would make, CRC and all."""
    disk = SimDisk()
    create_log(disk).close(clean=False)
    disk = disk.after_crash("kept")
    file = disk.open(f"{FOLDER}/{0:020d}.arrows", create=True)
    file.write(SCHEMA_BYTES + bytes(encode_batch(rows, header)))
    file.close()
    disk.replace_file(f"{FOLDER}/epochs", seal_json({"epochs": [[0, 0]]}))
    disk.replace_file(CHECKPOINT, Checkpoint(high_watermark=3, recovery_point=3).encode())
    return inspect_partition(disk, FOLDER)


def test_rows_that_contradict_their_header_are_told_though_the_crc_fits() -> None:
    rows = random_rows(random.Random(1), 3)
    newest = max(rows.column("timestamp").cast(pa.int64()).to_pylist())
    good = BatchHeader(first_offset=0, last_offset=2, max_timestamp_us=newest)
    assert _hand_made(rows, good).findings == []
    assert _hand_made(rows.slice(0, 2), good).findings == []  # a compacted batch keeps its range
    offsets = rows.schema.get_field_index("offset")
    for wrong in ([0, 2, 1], [0, 1, 1], [0, 1, 3], [-1, 0, 1]):
        column = pa.array(wrong, pa.int64())
        changed = rows.set_column(offsets, rows.schema.field(offsets), column)
        assert _kinds(_hand_made(changed, good)) == ["wrong_rows"], wrong
    assert _kinds(_hand_made(rows, replace(good, max_timestamp_us=newest - 1))) == ["wrong_rows"]


def test_a_committed_group_that_is_not_whole_is_told() -> None:
    rows = random_rows(random.Random(1), 3)
    newest = max(rows.column("timestamp").cast(pa.int64()).to_pylist())
    header = BatchHeader(first_offset=0, last_offset=2, max_timestamp_us=newest)
    assert _kinds(_hand_made(rows, replace(header, group_index=1, group_count=2))) == ["wrong_group"]
    assert _kinds(_hand_made(rows, replace(header, group_index=0, group_count=2))) == ["wrong_group"]


def test_foreign_bytes_between_batches_are_told_and_nothing_is_lost() -> None:
    made = Made()
    path = made.paths(".arrows")[0]
    content = made.content(path)
    content[-8:] = bytes(64) + END_OF_STREAM
    (finding,) = made.inspect().findings
    assert (finding.kind, finding.position) == ("wrong_framing", len(content) - 72)
    content[-72:] = END_OF_STREAM * 2
    assert _kinds(made.inspect()) == ["wrong_framing"]


def test_what_an_interrupted_removal_left_is_told_as_a_leftover() -> None:
    made = Made()
    checkpoint = Checkpoint.decode(bytes(made.content(CHECKPOINT)), where="")
    assert checkpoint is not None
    second = int(made.paths(".arrows")[1][-27:-7])
    made.content(CHECKPOINT)[:] = replace(checkpoint, log_start_offset=second).encode()
    made.disk.names[f"{FOLDER}/checkpoint.tmp"] = made.disk.names[CHECKPOINT]
    found = made.inspect()
    assert _kinds(found) == ["leftover", "leftover"]
    assert found.segments == len(made.paths(".arrows")) - 1


def test_one_segment_alone_is_judged_by_the_folder_it_is_in() -> None:
    made = Made()
    made.content(made.paths(".arrows")[1])[2_000] ^= 1
    assert made.inspect(only=0).findings == []
    assert made.inspect(only=0).segments == 1
    assert "lost_range" in _kinds(made.inspect(only=int(made.paths(".arrows")[1][-27:-7])))


def test_a_segment_that_somebody_copied_elsewhere_can_be_looked_at() -> None:
    made = Made()
    disk = SimDisk()
    disk.makedirs("/copy")
    name = made.paths(".arrows")[1].rpartition("/")[2]
    disk.replace_file(f"/copy/{name}", bytes(made.content(made.paths(".arrows")[1])))
    found = inspect_partition(disk, "/copy", only=int(name[:20]))
    assert _kinds(found) == ["wrong_index"]  # sealed, and none is beside it
    assert found.batches > 0


# --- a folder in use ------------------------------------------------------------------------------------------


def test_in_use_the_active_segment_is_read_up_to_the_recovery_point_and_no_further() -> None:
    disk = SimDisk()
    log = create_log(disk, settings=SMALL)
    for _ in range(14):
        log.append([row_batch([b"x" * 300] * 3)], leader_epoch=1, now_us=0)
    commit(log)
    log.checkpoint()
    point = log.state.log_end_offset
    log.append([row_batch([b"x" * 300] * 2)], leader_epoch=1, now_us=0)
    path = log.state.view().segments[-1].path
    disk.names[path].content.extend(b"half a batch")
    found = inspect_partition(disk, FOLDER, in_use=True)
    assert found.findings == []
    assert found.log_end_offset == point
    assert any("recovery point" in note for note in found.notes)
    disk.flip(path, 8 * (len(SCHEMA_BYTES) + 1_000))
    found = inspect_partition(disk, FOLDER, in_use=True)
    (lost,) = found.of_kind("lost_range")
    assert lost.next_offset is not None
    assert lost.next_offset <= point


def test_in_use_a_last_segment_that_was_sealed_and_written_anew_since_the_checkpoint_is_well() -> None:
    """The checkpoint counts entries of the index that it had as the active one."""
    disk = SimDisk()
    log = create_log(disk, settings=LogSettings(segment_bytes=1 << 20))
    for number in range(20):
        log.append([row_batch([b"x"], [number])], leader_epoch=1, now_us=0)
    commit(log)
    log.checkpoint()
    assert log.roll_if_due(1 << 50)
    assert coalesce(log, CoalescingSettings(min_age_ms=0, segment_bytes=1 << 20), {}, now_us=1 << 50) is not None
    found = inspect_partition(disk, FOLDER, in_use=True)
    assert found.findings == []
    assert (found.batches, found.log_end_offset) == (1, 20)
    index = log.state.view().segments[-1].index_path
    disk.names[index].content[20] ^= 1
    assert _kinds(inspect_partition(disk, FOLDER, in_use=True)) == ["wrong_index"]


@pytest.mark.slow
@pytest.mark.parametrize("times", first_short([20, 100]))
def test_in_use_a_log_may_grow_roll_and_shrink_while_it_is_inspected(times: int) -> None:
    """Between any two reads of the inspection the log appends; nothing is found wrong."""
    disk = SimDisk()
    settings = LogSettings(segment_bytes=3_000, retention_records=40)
    log = create_log(disk, settings=settings)

    def work() -> None:
        log.append([row_batch([b"x" * 200] * 3)], leader_epoch=1, now_us=0)
        commit(log)
        log.checkpoint()
        log.apply_retention(now_us=0)

    class Busy(OverlayDisk):
        def open(self, path: str, *, create: bool = False, readonly: bool = False, ahead: int = 0):  # type: ignore[no-untyped-def]
            work()
            return super().open(path, create=create, readonly=readonly)

        def listdir(self, path: str) -> list[str]:
            names = super().listdir(path)
            work()
            return names

        def read_file(self, path: str) -> bytes:
            data = super().read_file(path)
            if busy.random() < 0.3:
                work()
            return data

    for _ in range(20):
        work()
    busy = random.Random(1)
    for _ in range(times):
        assert inspect_partition(Busy(disk), FOLDER, in_use=True).findings == []


def test_asking_who_uses_a_folder_leaves_its_lock_alone(tmp_path: Path) -> None:
    assert used_by(str(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []
    with DataFolder.open(tmp_path, broker_id="b"):
        assert used_by(str(tmp_path)) is not None
    assert used_by(str(tmp_path)) is None
    with DataFolder.open(tmp_path, broker_id="b"):
        pass


# --- at random ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs_ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("seed", range(40))
def test_what_is_found_is_what_recovery_loses_and_cuts(seed: int, runs_ahead: bool) -> None:
    """Random damage in the last segment: offsets told as lost or cut, and those that are there, are all offsets."""
    rng = random.Random(seed)
    made = Made(appends=rng.randint(1, 5), settings=LogSettings(), runs_ahead=runs_ahead)
    content = made.content(made.paths(".arrows")[0])
    written = len(content.rstrip(b"\0"))
    for _ in range(rng.randint(1, 3)):
        written = min(written, len(content))
        match rng.randrange(3):
            case 0:
                content[rng.randrange(len(SCHEMA_BYTES), written)] ^= 1 << rng.randrange(8)
            case 1:
                del content[rng.randrange(len(SCHEMA_BYTES), written) :]
                content.extend(bytes(16))
            case 2:
                content.extend(rng.randbytes(rng.randint(1, 500)))
    found = made.inspect()
    assert not found.is_well
    disk = made.disk.after_crash("kept")
    path = made.paths(".index")[0]
    if disk.exists(path):
        disk.unlink(path)  # so that recovery reads the whole segment
    log = open_log(disk, settings=LogSettings())
    log.state.advance_high_watermark(log.state.log_end_offset)
    there = {record[0] for record in verified_records(log)}
    lost = {
        offset
        for finding in found.of_kind("lost_range")
        for offset in range(finding.first_offset or 0, finding.next_offset or 0)
    }
    assert found.log_end_offset == log.state.log_end_offset
    assert there | lost == set(range(log.state.log_end_offset))
    assert not there & lost


# --- paths ----------------------------------------------------------------------------------------------------


def test_a_path_may_be_a_data_folder_a_stream_a_partition_or_a_segment(tmp_path: Path) -> None:
    with DataFolder.open(tmp_path / "up" / "broker-0", broker_id="b", cluster_id="c1") as data:
        for stream, partition in (("orders", 0), ("orders", 10), ("orders", 2), ("clicks", 0)):
            identity = replace(IDENTITY, stream=stream, partition=partition)
            folder = f"{data.path}/streams/{stream}/i1/{partition}"
            log = PartitionLog.create(OsDisk(), folder, identity, LogSettings(), now_us=0)
            log.append([row_batch([b"a"])], leader_epoch=1, now_us=0)
            log.close()
        root = data.path
    names = ["clicks/i1/0", "orders/i1/0", "orders/i1/2", "orders/i1/10"]
    assert [place.name for place in find_places(root)] == names
    assert [place.name for place in find_places(str(tmp_path / "up"))] == names
    assert [place.name for place in find_places(f"{root}/streams/orders")] == names[1:]
    (place,) = find_places(f"{root}/streams/orders/i1/2/{0:020d}.arrows")
    assert (place.name, place.only, place.root) == ("orders/i1/2", 0, root)
    for found in find_places(root):
        assert inspect_partition(OsDisk(), found.folder, expected=found.expected).findings == []
    moved = tmp_path / "copy"
    (tmp_path / "up/broker-0/streams/orders/i1/2").rename(moved)
    (place,) = find_places(str(moved))
    assert (place.root, place.expected) == (None, None)
    (tmp_path / "up/broker-0/streams/orders/i1/3").mkdir()
    moved.rename(tmp_path / "up/broker-0/streams/orders/i1/3")
    place = find_places(f"{root}/streams/orders/i1/3")[0]
    assert _kinds(inspect_partition(OsDisk(), place.folder, expected=place.expected)) == ["wrong_identity"]


def test_a_path_without_anything_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file", tmp_path / "none"):
        with pytest.raises(InvalidRequest) as caught:
            find_places(str(path))
        assert not isinstance(caught.value, FolderNotAllowed)
