"""Gathering. Goal: G1 to G4 of _gathering.pyx for both implementations, and M1 of memory.py.

Method: random batches, plain and compressed, dense and compacted, empty and long, whole or some columns of them, read
through a block that is received into again and again, against the rows that went in.
"""

from __future__ import annotations

import gc
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from broker.api.batch import (
    BODY_LENGTH_AT,
    BUFFER_COUNT,
    BUFFERS_AT,
    NODE_COUNT,
    NODES_AT,
    ROWS_AT,
    BatchHeader,
    encode_batch,
    seal,
    verify_batch,
)
from broker.api.columns import Columns, columns_in, schema_bytes
from broker.api.errors import BadBatch
from broker.api.gathered.reused_memory import KEPT_MAX, ReusedMemory
from broker.api.schema import END_OF_STREAM, SCHEMA
from broker.client.reading import gathering as gathering_module
from broker.client.reading.frames import Message, read_messages
from broker.client.reading.gathering import PureGathering, Shape
from tests.support.messages import projected
from tests.support.rows import random_rows
from tests.unit.client.logs import body, message

COMPILED = gathering_module.Gathering
IMPLEMENTATIONS = [PureGathering] + ([COMPILED] if COMPILED is not PureGathering else [])
each = pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=lambda found: found.__name__)


def random_log(rng: random.Random) -> tuple[list[bytes], pa.Table]:
    """Messages and all their rows."""
    messages, tables, offset = [], [], rng.randrange(50)
    for _ in range(rng.randint(1, 25)):
        count = rng.choice([0, 1, 1, 2, 7, 8, 9, 40, 150])
        rows = random_rows(rng, count, first_offset=offset)
        if rng.random() < 0.3:
            rows = rows.filter(pa.array([rng.random() < 0.6 for _ in range(count)], pa.bool_()))
        span = max(count, 1) + rng.choice([0, 0, 3])
        header = BatchHeader(first_offset=offset, last_offset=offset + span - 1)
        messages.append(bytes(encode_batch(rows, header, compression=rng.choice(["none", "none", "lz4", "zstd"]))))
        tables.append(rows)
        offset += span
    return messages, pa.Table.from_batches(tables, SCHEMA)


def random_shape(rng: random.Random) -> Shape:
    """Some columns under some names, and up to two constants between them."""
    columns = rng.sample(SCHEMA.names, rng.randint(0, len(SCHEMA.names)))
    if columns and rng.random() < 0.5:
        return Shape(columns)
    constants = {"place": pa.scalar(rng.choice(["", "a", "länger"]), pa.string()), "number": pa.scalar(7, pa.int32())}
    for name in rng.sample(sorted(constants), rng.randint(1, 2)):
        columns.insert(rng.randint(0, len(columns)), name)
    kinds = [constants[name].type if name in constants else SCHEMA.field(name).type for name in columns]
    renamed = [pa.list_(pa.field("element", kind.value_type)) if pa.types.is_list(kind) else kind for kind in kinds]
    schema = pa.schema([pa.field(f"{name} as wanted", kind) for name, kind in zip(columns, renamed, strict=True)])
    return Shape(columns, schema, constants)


def received(
    data: bytes, rng: random.Random, memory: ReusedMemory | None, buffer_bytes: int, columns: Columns | None = None
) -> Iterator[Message]:
    at = 0

    def readinto(view: memoryview) -> int:
        nonlocal at
        count = min(rng.choice([1, 500, 5000, 1 << 20]), len(view), len(data) - at)
        view[:count] = data[at : at + count]
        at += count
        return count

    return read_messages(readinto, len(data), buffer_bytes=buffer_bytes, memory=memory, columns=columns)


def stored(data: bytes) -> Message:
    return Message(verify_batch(data), memoryview(data))


@each
@pytest.mark.parametrize("seed", range(60))
def test_gathered_rows_are_those_that_were_written(implementation: Any, seed: int) -> None:
    rng = random.Random(seed)
    messages, rows = random_log(rng)
    offsets = rows.column("offset").to_pylist() or [0]
    start, end = sorted(rng.randrange(offsets[0] - 2, offsets[-1] + 3) for _ in range(2))
    if rng.random() < 0.4:
        start, end = 0, 1 << 40
    shape = random_shape(rng)
    rows_max, bytes_enough = rng.choice([1, 7, 64, 65536]), rng.choice([1, 3000, 50_000, 1 << 20])
    gathering = implementation(shape, rows_max=rows_max, bytes_enough=bytes_enough, memory=ReusedMemory())
    found: list[pa.RecordBatch] = []
    data, columns = body(*messages), columns_in(shape.stored_columns)
    if len(columns) < len(SCHEMA) and rng.random() < 0.4:
        some = [projected(each, columns) for each in messages]
        data = b"".join([schema_bytes(columns), *some, END_OF_STREAM])
    for there in received(data, rng, gathering.memory, rng.choice([2048, 10_000, 1 << 20]), columns):
        found += gathering.add(there, start, end)
    found += gathering.rest()
    assert gathering.rest() == []
    for batch in found:
        batch.validate(full=True)
        assert 1 <= batch.num_rows <= rows_max
    wanted = [start <= offset < end for offset in rows.column("offset").to_pylist()]
    assert all(batch.schema.equals(shape.schema, check_metadata=True) for batch in found)
    expected = rows.filter(pa.array(wanted, pa.bool_()))
    table = pa.Table.from_batches(found, shape.schema)
    assert table.num_rows == expected.num_rows
    for name, column in zip(shape.columns, table.columns, strict=True):
        if name in shape.constants:
            assert column.to_pylist() == [shape.constants[name].as_py()] * expected.num_rows
        else:
            assert column.combine_chunks().equals(expected.column(name).combine_chunks()), name


@each
def test_what_was_handed_out_does_not_change_while_more_is_gathered(implementation: Any) -> None:
    memory, rng = ReusedMemory(), random.Random(1)
    data = body(*[message(first, first + 10, value_bytes=300) for first in range(0, 3000, 10)])
    gathering = implementation(Shape(["value", "offset"]), rows_max=100, bytes_enough=1 << 20, memory=memory)
    kept: list[pa.RecordBatch] = []
    for number, there in enumerate(received(data, rng, gathering.memory, 8192)):
        kept += [batch for batch in gathering.add(there, 0, 3000) if number % 3]  # the rest is dropped and used again
    for batch in kept:
        numbers = [int(bytes(value).split()[0]) for value in batch.column("value").to_pylist()]
        assert numbers == batch.column("offset").to_pylist()


@each
def test_short_batches_are_gathered_and_long_ones_handed_out_as_they_are(implementation: Any) -> None:
    gathering = implementation(Shape(["value"]), rows_max=65536, bytes_enough=100_000, memory=ReusedMemory())
    long = stored(message(60, 160, value_bytes=2000))
    sizes = [batch.num_rows for i in range(60) for batch in gathering.add(stored(message(i, i + 1)), 0, 1000)]
    assert len(sizes) <= 1
    short, whole = gathering.add(long, 0, 1000)
    assert (sum(sizes) + short.num_rows, whole.num_rows) == (60, 100)
    assert whole.column(0).buffers()[2].address >= np.frombuffer(long.data, np.uint8).ctypes.data
    assert whole.column(0).buffers()[2].address < np.frombuffer(long.data, np.uint8).ctypes.data + len(long.data)


@each
def test_no_header_that_lies_touches_other_memory_or_what_was_gathered(implementation: Any) -> None:
    """Numbers of a header changed at random under a right CRC; then the right message, as a second request has it."""
    rng = random.Random(7)
    places = [BODY_LENGTH_AT, ROWS_AT, *range(BUFFERS_AT, BUFFERS_AT + 16 * BUFFER_COUNT, 8)]
    places += range(NODES_AT, NODES_AT + 16 * NODE_COUNT, 8)
    rows = random_rows(random.Random(3), 50)
    good = bytes(encode_batch(rows, BatchHeader(first_offset=0, last_offset=49)))
    refused = 0
    for _ in range(400):
        damaged = bytearray(good)
        (was,) = struct.unpack_from("<q", damaged, place := rng.choice(places[1:]))
        lie = rng.choice([-1, 1, 8, -(1 << 63), (1 << 63) - 1 - max(was, 0), rng.randrange(1 << 20)])
        struct.pack_into("<q", damaged, place, was + lie)
        seal(damaged)
        gathering = implementation(Shape(SCHEMA.names), rows_max=1 << 16, bytes_enough=1 << 20, memory=ReusedMemory())
        found = gathering.add(stored(message(-10 + 10, 5)), 0, 5)
        try:
            lied = gathering.add(stored(bytes(damaged)), 0, 30)
        except BadBatch:
            refused += 1
            found += gathering.add(stored(good), 0, 30)
            found += gathering.rest()
            table = pa.Table.from_batches(found, SCHEMA)
            table.validate(full=True)
            assert table.slice(5).equals(pa.Table.from_batches([rows.slice(0, 30)]))
            assert table.slice(0, 5).column("offset").to_pylist() == list(range(5))
        else:
            del lied  # a lie that changes nothing, or what Arrow does not see either
    assert refused > 0 if implementation is PureGathering else refused > 150


@each
def test_a_number_of_rows_that_overflows_as_bytes_is_refused(implementation: Any) -> None:
    """Eight bytes each, 2**61 + 1 rows would be eight bytes. Kept apart by the compaction of all others."""
    damaged = bytearray(encode_batch(random_rows(random.Random(3), 1), BatchHeader(first_offset=0, last_offset=49)))
    for place in (ROWS_AT, NODES_AT):
        struct.pack_into("<q", damaged, place, (1 << 61) + 1)
    seal(damaged)
    gathering = implementation(Shape(SCHEMA.names), rows_max=1 << 16, bytes_enough=1 << 20, memory=ReusedMemory())
    with pytest.raises(BadBatch):
        gathering.add(stored(bytes(damaged)), 3, 40)


VIEWS: dict[str, Callable[[pa.RecordBatch], Any]] = {
    "column": lambda batch: batch.column(0).slice(3, 2),
    "child": lambda batch: batch.column(1).values.field(0),
    "buffer": lambda batch: batch.column(0).buffers()[1],
    "array": lambda batch: batch.column(0).to_numpy(),
}


@pytest.mark.skipif(COMPILED is PureGathering, reason="the gathering is not compiled here")
@pytest.mark.parametrize("kept", VIEWS)
def test_blocks_are_used_again_only_when_the_last_view_of_a_batch_is_dropped(kept: str) -> None:
    memory = TakenAndGiven()
    gathering = COMPILED(Shape(["offset", "headers"]), rows_max=100, bytes_enough=1, memory=memory)
    rows = random_rows(random.Random(3), 50)
    (batch,) = gathering.add(Message(*stored_passing(rows)), 0, 50)
    lent = memory.taken - memory.given
    view = VIEWS[kept](batch)
    was = bytes(view) if kept == "buffer" else view.tolist()
    del batch
    gc.collect()
    assert lent
    assert memory.taken - memory.given == lent
    for _ in range(3):
        gathering.add(Message(*stored_passing(random_rows(random.Random(4), 50))), 0, 50)
    assert (bytes(view) if kept == "buffer" else view.tolist()) == was
    del view
    gc.collect()
    assert lent <= memory.given


class TakenAndGiven(ReusedMemory):
    """Says which blocks were taken, and which of them came back at some time."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: set[int] = set()
        self.given: set[int] = set()

    def take(self, size: int) -> Any:
        block = super().take(size)
        self.taken.add(id(block))
        return block

    def give(self, block: Any) -> None:
        self.given.add(id(block))
        super().give(block)


def stored_passing(rows: pa.RecordBatch) -> tuple[BatchHeader, memoryview, bool]:
    data = bytes(encode_batch(rows, BatchHeader(first_offset=0, last_offset=rows.num_rows - 1)))
    return verify_batch(data), memoryview(data), True


def test_no_more_than_a_few_blocks_of_a_size_are_kept() -> None:
    memory = ReusedMemory()
    blocks = [memory.take(4096) for _ in range(3 * KEPT_MAX)]
    for block in blocks:
        memory.give(block)
    again = [memory.take(4096) for _ in range(3 * KEPT_MAX)]
    assert sum(any(a is b for b in blocks) for a in again) == KEPT_MAX
