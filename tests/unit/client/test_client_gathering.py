"""Gathering. Goal: G1 to G4 of _gathering.pyx for both implementations, and M1 of memory.py.

Method: random batches, plain and compressed, dense and compacted, empty and long, read through a block that is received
into again and again, against the rows that went in.
"""

from __future__ import annotations

import gc
import random
import struct
from collections.abc import Iterator
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
from broker.api.errors import BadBatch
from broker.api.schema import SCHEMA
from broker.client import gathering as gathering_module
from broker.client.frames import Message, read_messages
from broker.client.gathering import PureGathering
from broker.client.memory import KEPT_MAX, Memory
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


def received(data: bytes, rng: random.Random, memory: Memory | None, buffer_bytes: int) -> Iterator[Message]:
    at = 0

    def readinto(view: memoryview) -> int:
        nonlocal at
        count = min(rng.choice([1, 500, 5000, 1 << 20]), len(view), len(data) - at)
        view[:count] = data[at : at + count]
        at += count
        return count

    return read_messages(readinto, len(data), buffer_bytes=buffer_bytes, memory=memory)


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
    columns = rng.sample(SCHEMA.names, rng.randint(1, len(SCHEMA.names)))
    rows_max, bytes_enough = rng.choice([1, 7, 64, 65536]), rng.choice([1, 3000, 50_000, 1 << 20])
    gathering = implementation(columns, rows_max=rows_max, bytes_enough=bytes_enough, memory=Memory())
    found: list[pa.RecordBatch] = []
    for there in received(body(*messages), rng, gathering.memory, rng.choice([2048, 10_000, 1 << 20])):
        found += gathering.add(there, start, end)
    found += gathering.rest()
    assert gathering.rest() == []
    for batch in found:
        batch.validate(full=True)
        assert 1 <= batch.num_rows <= rows_max
    wanted = [start <= offset < end for offset in rows.column("offset").to_pylist()]
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    assert all(batch.schema.equals(schema) for batch in found)
    expected = rows.filter(pa.array(wanted, pa.bool_())).select(columns)
    assert pa.Table.from_batches(found, schema).equals(expected)


@each
def test_what_was_handed_out_does_not_change_while_more_is_gathered(implementation: Any) -> None:
    memory, rng = Memory(), random.Random(1)
    data = body(*[message(first, first + 10, value_bytes=300) for first in range(0, 3000, 10)])
    gathering = implementation(["value", "offset"], rows_max=100, bytes_enough=1 << 20, memory=memory)
    kept: list[pa.RecordBatch] = []
    for number, there in enumerate(received(data, rng, gathering.memory, 8192)):
        kept += [batch for batch in gathering.add(there, 0, 3000) if number % 3]  # the rest is dropped and used again
    for batch in kept:
        numbers = [int(bytes(value).split()[0]) for value in batch.column("value").to_pylist()]
        assert numbers == batch.column("offset").to_pylist()


@each
def test_short_batches_are_gathered_and_long_ones_handed_out_as_they_are(implementation: Any) -> None:
    gathering = implementation(["value"], rows_max=65536, bytes_enough=100_000, memory=Memory())
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
        gathering = implementation(SCHEMA.names, rows_max=1 << 16, bytes_enough=1 << 20, memory=Memory())
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
    gathering = implementation(SCHEMA.names, rows_max=1 << 16, bytes_enough=1 << 20, memory=Memory())
    with pytest.raises(BadBatch):
        gathering.add(stored(bytes(damaged)), 3, 40)


def test_a_block_is_used_again_only_when_the_last_view_of_it_is_dropped() -> None:
    memory = Memory()
    block = memory.take(5000)
    block[:3] = (1, 2, 3)
    lent = memory.lend(block).slice(0, 3)
    array = pa.Array.from_buffers(pa.uint8(), 3, [None, lent])
    view = array.to_numpy()
    del lent, array
    gc.collect()
    assert memory.take(5000) is not block
    assert view.tolist() == [1, 2, 3]
    del view
    gc.collect()
    assert memory.take(8192) is block


def test_no_more_than_a_few_blocks_of_a_size_are_kept() -> None:
    memory = Memory()
    blocks = [memory.take(4096) for _ in range(3 * KEPT_MAX)]
    for block in blocks:
        memory.give(block)
    again = [memory.take(4096) for _ in range(3 * KEPT_MAX)]
    assert sum(any(a is b for b in blocks) for a in again) == KEPT_MAX
