"""docs/reference/storage.md is enough to write a reader: a reader made from it alone reads files and a partition."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pyarrow as pa
import pytest

from broker.api.schema import SCHEMA_BYTES
from broker.storage.disk import OsDisk
from broker.storage.log import PartitionLog
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogSettings
from tests.support import plain_reader
from tests.support.logs import IDENTITY, commit, stamped
from tests.support.plain_reader import Damaged, crc32c, read_index, read_segment, read_small_file, read_state
from tests.support.rows import random_rows

GOLDEN = Path(__file__).parents[2] / "golden" / "format-v1"


def decompress(codec: str, data: bytes, size: int) -> bytes:
    found: bytes = pa.Codec(codec).decompress(data, size, asbytes=True)
    return found


def by_arrow(data: bytes) -> list[dict[str, object]]:
    with pa.ipc.open_stream(data) as stream:
        table = stream.read_all()
    table = table.set_column(1, "timestamp", table.column("timestamp").cast(pa.int64()))
    rows: list[dict[str, object]] = table.to_pylist()
    for row in rows:
        if row["headers"] is not None:
            row["headers"] = [(entry["key"], entry["value"]) for entry in row["headers"]]  # type: ignore[attr-defined]
    return rows


def test_the_crc_is_the_one_that_the_document_names() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_the_reader_stands_alone() -> None:
    tree = ast.parse(Path(plain_reader.__file__ or "").read_text())
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not [name for name in names if name.split(".")[0] in ("broker", "pyarrow", "numpy", "crc32c")]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.arrows")), ids=lambda path: path.stem)
def test_golden_files_are_read_as_arrow_reads_them(path: Path) -> None:
    data = path.read_bytes()
    batches = list(read_segment(data, decompress))
    assert [row for batch in batches for row in batch.rows] == by_arrow(data)
    for batch in batches:
        offsets = [row["offset"] for row in batch.rows]
        assert all(batch.header["first_offset"] <= offset <= batch.header["last_offset"] for offset in offsets)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition with three sealed segments, an active one, epochs, a state file."""
    log = PartitionLog.create(OsDisk(), str(tmp_path), IDENTITY, LogSettings(segment_bytes=6_000), now_us=0)
    rng = random.Random(8)
    log.append([stamped([b"first"], 7, 0, 0)], leader_epoch=1, now_us=0)
    for i in range(12):
        log.append([RowBatch(random_rows(rng, 3)), RowBatch(random_rows(rng, 2))], leader_epoch=1 + i // 5, now_us=i)
        commit(log)
    log.close()
    return tmp_path


def test_a_real_partition_is_read_by_the_document(folder: Path) -> None:
    segments = sorted(folder.glob("*.arrows"))
    assert len(segments) > 2
    expected = 0
    epochs: list[list[int]] = []
    for segment in segments:
        data = segment.read_bytes()
        assert data.startswith(SCHEMA_BYTES)
        batches = list(read_segment(data))
        assert [row for batch in batches for row in batch.rows] == by_arrow(data)
        assert int(segment.stem) == expected
        entries, is_sealed = read_index(segment.with_suffix(".index").read_bytes())
        assert is_sealed == (segment != segments[-1])
        assert [(e[0], e[1], e[3], e[4]) for e in entries] == [
            (b.header["first_offset"], b.position, b.length, b.header["crc"]) for b in batches
        ]
        for batch in batches:
            assert batch.header["first_offset"] == expected
            expected = batch.header["last_offset"] + 1
            if not epochs or batch.header["leader_epoch"] > epochs[-1][0]:
                epochs.append([batch.header["leader_epoch"], batch.header["first_offset"]])
    checkpoint = read_small_file(folder / "checkpoint")
    assert (checkpoint["format_version"], checkpoint["high_watermark"], checkpoint["recovery_point"]) == (
        1,
        expected,
        expected,
    )
    assert read_small_file(folder / "epochs")["epochs"] == epochs
    (state,) = folder.glob("state-*")
    offset, sections = read_state(state.read_bytes())
    assert offset == int(state.name.removeprefix("state-"))
    assert sections["producers"][:6] == b"\x01\x00" + (1).to_bytes(4, "little")


def test_a_flipped_bit_anywhere_in_a_batch_is_found_by_the_crc_of_the_document() -> None:
    data = bytearray((GOLDEN / "segment.arrows").read_bytes())
    rng = random.Random(2)
    end = len(data) - 8
    for at in rng.sample(range(len(SCHEMA_BYTES), end), 60):
        data[at] ^= 1 << rng.randrange(8)
        with pytest.raises((Damaged, ValueError)):
            list(read_segment(bytes(data)))
        data[:] = (GOLDEN / "segment.arrows").read_bytes()
