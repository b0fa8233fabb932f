"""Picking. Goal: the rows that are wanted, whichever implementation finds and gathers them, and no other memory.

Method: random batches, plain and compressed, whole or some columns of them, against Arrow's choice of the rows that
went in; headers that lie. Whole logs: tests/properties/storage/test_select.py.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from broker.api.batch import (
    BODY_LENGTH_AT,
    BUFFER_COUNT,
    BUFFERS_AT,
    NODE_COUNT,
    NODES_AT,
    ROWS_AT,
    BatchHeader,
    decode_batch,
    encode_batch,
    seal,
    verify_batch,
)
from broker.api.columns import BUFFERS_OF, Columns, columns_in, verify_projected
from broker.api.conditions import Conditions
from broker.api.errors import BadBatch, StorageFailed
from broker.api.gathered.reused_memory import ReusedMemory
from broker.api.schema import END_OF_STREAM, HEADERS_TYPE, SCHEMA, SCHEMA_BYTES
from broker.serving.http.sending import read_ranges
from broker.storage import picking
from broker.storage.disk import OsDisk
from broker.storage.log import PartitionLog
from broker.storage.made import MadeFile
from broker.storage.picking import PurePicking, Search, StoredMessage, only_equal
from broker.storage.read import FileRange
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.rewriting import BATCH_COST_BYTES, BatchShape
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.select import select
from tests.support.logs import commit, create_log
from tests.support.messages import projected, split_messages
from tests.support.rows import random_rows

COMPILED = picking.Picking
IMPLEMENTATIONS = [PurePicking] + ([COMPILED] if COMPILED is not PurePicking else [])
each = pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=lambda found: found.__name__)


@pytest.fixture
def implementation_of(monkeypatch: pytest.MonkeyPatch, implementation: Any) -> Any:
    if implementation is PurePicking:
        monkeypatch.setattr(picking, "_rows_equal", None)
    return implementation


def stored(rows: pa.RecordBatch, columns: Columns | None = None, compression: str = "none") -> StoredMessage:
    header = BatchHeader(first_offset=0, last_offset=max(0, rows.num_rows - 1))
    data = bytes(encode_batch(rows, header, compression=compression))
    if columns is None:
        return StoredMessage(verify_batch(data), memoryview(data), None, "")
    some = projected(data, columns)
    return StoredMessage(verify_projected(some, columns), memoryview(some), columns, "")


def numbers_of(rng: random.Random, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Some rows, here and there and side by side."""
    share = rng.choice([0.02, 0.5, 0.95])
    return np.array([n for n in range(count) if rng.random() < share], np.int32)


@each
@pytest.mark.parametrize("seed", range(40))
def test_picked_rows_are_those_that_were_written(implementation_of: Any, seed: int) -> None:
    rng = random.Random(seed)
    columns = columns_in(rng.sample(SCHEMA.names, rng.randint(0, len(SCHEMA.names))))
    picked = implementation_of(columns, ReusedMemory())
    for _ in range(2):
        expected: list[pa.RecordBatch] = []
        for _ in range(rng.randint(1, 12)):
            rows = random_rows(rng, rng.choice([1, 2, 9, 64, 300]))
            has = columns_in([*columns, *rng.sample(SCHEMA.names, 2)]) if rng.random() < 0.5 else None
            message = stored(rows, has, rng.choice(["none", "none", "lz4", "zstd"]))
            numbers = numbers_of(rng, rows.num_rows)
            if len(numbers):
                picked.add(message, numbers)
                expected.append(rows.select(columns).take(pa.array(numbers)))
        table = pa.Table.from_batches(expected, schema=pa.schema([SCHEMA.field(name) for name in columns]))
        assert picked.rows == table.num_rows
        assert (picked.byte_count > 0) == (table.num_rows > 0)
        if expected:
            found = picked.take()
            found.validate(full=True)
            assert found.schema.equals(table.schema, check_metadata=True)
            assert pa.Table.from_batches([found]).equals(table)
        assert (picked.rows, picked.byte_count) == (0, 0)


@each
@pytest.mark.parametrize("seed", range(40))
def test_wanted_rows_are_those_that_arrow_finds(implementation_of: Any, seed: int) -> None:
    rng = random.Random(seed)
    rows = random_rows(rng, rng.choice([0, 1, 9, 200]))
    subjects, keys = rows.column("subject").to_pylist() or ["a"], rows.column("key").to_pylist() or [b"a"]
    for wanted in (
        Conditions(subjects=(rng.choice(subjects),)),
        Conditions(subjects=(rng.choice(subjects) + ".x",)),
        Conditions(subjects=(">",)),
        Conditions(subjects=tuple(subjects[:2])),
        Conditions(key=rng.choice(keys) or b""),
        Conditions(key=b""),
        Conditions(key=b"not there"),
        Conditions(key=rng.choice(keys) or b"a", subjects=(rng.choice(subjects),)),
        Conditions(since_us=0, subjects=(rng.choice(subjects),)),
    ):
        has = columns_in(wanted.columns) if rng.random() < 0.5 else None
        found = Search(wanted).rows(stored(rows, has, rng.choice(["none", "none", "lz4"])))
        assert found.tolist() == np.flatnonzero(wanted.mask(rows).to_numpy(zero_copy_only=False)).tolist(), wanted


def test_a_key_that_is_null_is_not_the_empty_one() -> None:
    rows = random_rows(random.Random(1), 3)
    keys = pa.array([None, b"", b"a"], pa.binary())
    rows = rows.set_column(SCHEMA.get_field_index("key"), SCHEMA.field("key"), keys)
    assert Search(Conditions(key=b"")).rows(stored(rows)).tolist() == [1]


@pytest.mark.parametrize(
    "wanted, expected",
    [
        (Conditions(key=b"a"), ("key", b"a")),
        (Conditions(key=b""), ("key", b"")),
        (Conditions(subjects=("a.b",)), ("subject", b"a.b")),
        (Conditions(subjects=("a.b", "a.c")), None),
        (Conditions(subjects=("a.*",)), None),
        (Conditions(subjects=("a.b",), key=b"a"), None),
        (Conditions(subjects=("a.b",), until_us=1), None),
        (Conditions(since_us=1), None),
    ],
)
def test_one_text_in_one_column_is_told_from_all_else(wanted: Conditions, expected: tuple[str, bytes] | None) -> None:
    assert only_equal(wanted) == expected


LIES: Sequence[int] = (-1, 1, 8, -(1 << 63), (1 << 61) + 1, (1 << 63) - 1)


@pytest.mark.skipif(COMPILED is PurePicking, reason="the picking is not compiled here")
@pytest.mark.parametrize("columns", [None, ("offset", "subject", "key", "headers")], ids=["whole", "some"])
def test_no_header_that_lies_touches_other_memory_or_what_was_taken(columns: Any) -> None:
    """Numbers of a header changed at random: the rows of before stay as they are, and the right message goes on.

    Arrow, which the twin asks, believes a header whose CRC is right.
    """
    rng = random.Random(7)
    places = [BODY_LENGTH_AT, ROWS_AT, *range(BUFFERS_AT, BUFFERS_AT + 16 * BUFFER_COUNT, 8)]
    places += range(NODES_AT, NODES_AT + 16 * NODE_COUNT, 8)
    rows, taken = random_rows(random.Random(3), 50), random_rows(random.Random(4), 5)
    good = stored(rows, columns)
    names = columns or SCHEMA.names
    every, some = np.arange(5, dtype=np.int32), np.array([0, 3, 4, 5, 20, 49], np.int32)
    refused = 0
    for _ in range(400):
        damaged = bytearray(good.data)
        (was,) = struct.unpack_from("<q", damaged, place := rng.choice(places[1:]))
        lie = rng.choice([*LIES, rng.randrange(1 << 20)])
        struct.pack_into("<q", damaged, place, min(max(was + lie, -(1 << 63)), (1 << 63) - 1))
        seal(damaged)
        bad = StoredMessage(good.header, memoryview(bytes(damaged)), columns, "")
        picked = COMPILED(columns_in(names), ReusedMemory())
        picked.add(stored(taken), every)
        for wanted in (Conditions(subjects=("a",)), Conditions(key=b"a")):
            try:
                Search(wanted).rows(bad)
            except BadBatch:
                refused += 1
        try:
            picked.add(bad, some)
        except BadBatch:
            refused += 1
            picked.add(good, some)
            found = picked.take()
            found.validate(full=True)
            expected = pa.Table.from_batches([taken, rows.take(pa.array(some))]).select(columns_in(names))
            assert pa.Table.from_batches([found]).equals(expected)
    assert refused > 100


@each
def test_what_an_error_has_left_in_a_header_does_not_count(implementation_of: Any) -> None:
    """The values of headers lie outside of the message, and the next one has headers that are all null."""
    headers = pa.array([[{"key": "h" * 500, "value": b"v" * 500}] * 20] * 5, HEADERS_TYPE)
    nulls = pa.array([[None]] * 5, HEADERS_TYPE)
    some, none = (
        random_rows(random.Random(3), 5).set_column(SCHEMA.get_field_index("headers"), SCHEMA.field("headers"), each)
        for each in (headers, nulls)
    )
    damaged = bytearray(stored(some).data)
    values_of_headers = BUFFERS_AT + 16 * (BUFFERS_OF["headers"][1] - 1)
    struct.pack_into("<q", damaged, values_of_headers + 8, 8)
    seal(damaged)
    every = np.arange(5, dtype=np.int32)
    picked = implementation_of(columns_in(["headers"]), ReusedMemory())
    if implementation_of is not PurePicking:
        with pytest.raises(BadBatch):
            picked.add(StoredMessage(verify_batch(bytes(damaged)), memoryview(damaged), None, ""), every)
    picked.add(stored(none), every)
    assert picked.byte_count < 500
    assert picked.take().column("headers").to_pylist() == [[None]] * 5


@each
def test_rows_that_were_taken_stay_when_the_memory_of_the_message_is_used_again(implementation_of: Any) -> None:
    rows = random_rows(random.Random(3), 50)
    memory = bytearray(stored(rows).data)
    picked = implementation_of(columns_in(SCHEMA.names), ReusedMemory())
    picked.add(
        StoredMessage(verify_batch(bytes(memory)), memoryview(memory), None, ""), np.arange(10, 40, dtype=np.int32)
    )
    memory[:] = bytes(len(memory))
    assert pc.equal(picked.take().column("offset"), rows.column("offset").slice(10, 30)).to_pylist() == [True] * 30


def grown(folder: Path, groups: int) -> PartitionLog:
    """Commit groups of two batches each, each batch with a subject that all have, and one of its own."""
    log = create_log(OsDisk(), settings=LogSettings(segment_bytes=1 << 20), folder=str(folder))
    log.lead(1)
    for n in range(groups):
        log.append([rows_of("a", f"b.{n}"), rows_of("a", f"b.{n}")], leader_epoch=1, now_us=n)
    commit(log)
    return log


def rows_of(*subjects: str) -> RowBatch:
    n = len(subjects)
    columns = [
        pa.array([0] * n, SCHEMA.field("timestamp").type),
        pa.array(subjects),
        pa.nulls(n, pa.binary()),
        pa.array([b"x" * 1_000] * n, pa.binary()),
        pa.nulls(n, SCHEMA.field("headers").type),
        pa.nulls(n, pa.string()),
    ]
    return RowBatch(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names[1:]))


def test_of_neighbours_comes_one_batch_that_is_of_no_commit_group(tmp_path: Path) -> None:
    log = grown(tmp_path / "log", 3)
    with log.reader.read(0) as plan:
        select(plan, Conditions(subjects=("a",)), lambda _: None, asked=0)
        (message,) = split_messages(SCHEMA_BYTES + read_ranges(plan.ranges) + END_OF_STREAM)
    header = verify_batch(message)
    assert (header.first_offset, header.last_offset) == (0, 11)
    assert (header.group_index, header.group_count, header.decision) == (0, 1, 0)
    assert decode_batch(bytes(message)).column("offset").to_pylist() == [0, 2, 4, 6, 8, 10]
    log.close()


@pytest.mark.parametrize("refused", [1, 2, 3])
def test_where_there_is_no_room_for_what_is_made_nothing_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """It is no damage, behind which a reader may find more: what was picked so far would be lost."""
    log = grown(tmp_path / "log", 3)
    monkeypatch.setattr("broker.storage.select.SHAPE", BatchShape(batch_bytes=1))
    written = itertools.count(1)

    def write(file: MadeFile, message: bytearray) -> FileRange:
        if next(written) == refused:
            raise StorageFailed("no room")
        return real(file, message)

    real = MadeFile.write
    with log.reader.read(0) as plan:
        monkeypatch.setattr(MadeFile, "write", write)
        with pytest.raises(StorageFailed, match="no room"):
            select(plan, Conditions(subjects=("a",)), lambda _: None, asked=0)
    log.close()


def test_an_answer_ends_where_it_has_made_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = grown(tmp_path / "log", 3)
    monkeypatch.setattr("broker.storage.select.SHAPE", BatchShape(batch_bytes=1))
    monkeypatch.setattr("broker.storage.select.MADE_BYTES_MAX", 3_000)
    with log.reader.read(0) as plan:
        select(plan, Conditions(subjects=("a",)), lambda _: None, asked=0)
        found = split_messages(SCHEMA_BYTES + read_ranges(plan.ranges) + END_OF_STREAM)
        offsets = [n for each in found for n in decode_batch(bytes(each)).column("offset").to_pylist()]
        assert 1 < len(offsets) < 6
        assert offsets == list(range(0, plan.next_offset, 2))
    log.close()


def judged_at_once(log: PartitionLog, columns: Columns | None = None) -> tuple[int, int]:
    """Behind which offset an answer without any record ends, and what was reserved for it."""
    held = [0]
    with log.reader.read(0) as plan:
        select(plan, Conditions(subjects=("c.*",)), held.append, asked=0, columns=columns)
        return plan.next_offset, max(held)


@pytest.mark.parametrize("columns", [None, ("offset",)], ids=["whole", "some"])
def test_tiny_batches_count_by_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: Any) -> None:
    """64 MiB of batches of one record took longer than a client waits for an answer."""
    log = grown(tmp_path / "log", 20)
    monkeypatch.setattr("broker.storage.select.JUDGED_BYTES_MAX", 5 * BATCH_COST_BYTES)
    next_offset, _ = judged_at_once(log, columns)
    assert 2 * 2 <= next_offset <= 5 * 2
    log.close()


def packed(folder: Path) -> PartitionLog:
    """Batches of 100 records each, which take far more memory than stored bytes."""
    log = create_log(OsDisk(), settings=LogSettings(segment_bytes=1 << 20), folder=str(folder))
    log.lead(1)
    for _ in range(6):
        log.append([rows_of(*("a", "b") * 50)], leader_epoch=1, now_us=0)
    commit(log)
    log.roll_if_due(1 << 60)
    shape = BatchShape(batch_records=100, compression="zstd")
    coalesce(log, CoalescingSettings(min_age_ms=0, shape=shape), {}, now_us=1 << 50)
    return log


@pytest.mark.parametrize("columns", [None, ("offset", "value")], ids=["whole", "some"])
def test_compressed_batches_count_by_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: Any
) -> None:
    monkeypatch.setattr("broker.storage.column_crcs.REMEMBERED_BYTES_MIN", 0)
    log = packed(tmp_path / "log")
    next_offset, held = judged_at_once(log, columns)
    assert next_offset == 600
    assert held > 100_000, "what is decompressed is held"
    assert judged_at_once(log, columns)[1] > 100_000, "also if some columns of it are read"
    monkeypatch.setattr("broker.storage.select.JUDGED_BYTES_MAX", 250_000)
    assert judged_at_once(log, columns)[0] in (200, 300)
    log.close()
