"""The decoder of answers. Goal: any byte that is not what a leader wrote is found, whatever the reads look like.

Method: real batches, read back through readers that give as many bytes at a time as they like, then
with every kind of damage.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from broker.api.batch import HEADER_BYTES, BatchHeader, seal
from broker.api.errors import BadBatch, LiftlogError, Unavailable, UnknownFormatVersion
from broker.api.gathered.reused_memory import ReusedMemory
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.client.reading.frames import ReadInto, read_messages
from tests.unit.client.logs import body, message, rows


def reader(data: bytes, step: Callable[[], int]) -> ReadInto:
    at = 0

    def readinto(view: memoryview) -> int:
        nonlocal at
        count = min(step(), len(view), len(data) - at)
        view[:count] = data[at : at + count]
        at += count
        return count

    return readinto


def read_batches(readinto: ReadInto, length: int, **more: Any) -> Iterator[tuple[BatchHeader, pa.RecordBatch]]:
    for each in read_messages(readinto, length, **more):
        yield each.header, each.rows()


def decode(data: bytes, *, length: int | None = None, buffer_bytes: int = 1 << 14, step: int = 1 << 20) -> pa.Table:
    found = read_batches(reader(data, lambda: step), len(data) if length is None else length, buffer_bytes=buffer_bytes)
    return pa.Table.from_batches([batch for _, batch in found], rows([]).schema)


def collect(batches: Iterable[tuple[BatchHeader, pa.RecordBatch]], first_offsets: list[int]) -> None:
    for header, _ in batches:
        first_offsets.append(header.first_offset)


@pytest.mark.parametrize("seed", range(8))
def test_rows_come_back_whatever_the_reads_and_buffers_look_like(seed: int) -> None:
    rng = random.Random(seed)
    bounds = [0, *sorted(rng.sample(range(1, 400), 12)), 400]
    messages = [message(a, b, value_bytes=rng.randrange(200)) for a, b in itertools.pairwise(bounds)]
    data = body(*messages)
    most = rng.choice([7, 1000, 1 << 20])
    found = list(
        read_batches(
            reader(data, lambda: rng.randint(1, most)), len(data), buffer_bytes=rng.choice([1024, 5000, 1 << 20])
        )
    )
    assert [(h.first_offset, h.next_offset) for h, _ in found] == list(itertools.pairwise(bounds))
    assert pa.Table.from_batches([b for _, b in found]).column("offset").to_pylist() == list(range(400))
    for _, batch in found:
        batch.validate(full=True)


def test_rows_that_are_kept_do_not_change_while_reading_goes_on() -> None:
    data = body(*[message(i, i + 10, value_bytes=500) for i in range(0, 300, 10)])
    table = decode(data, buffer_bytes=8192)
    assert [bytes(v.split()[0]) for v in table.column("value").to_pylist()] == [b"%d" % i for i in range(300)]


def test_a_batch_larger_than_a_buffer_is_read_whole() -> None:
    table = decode(body(message(0, 3), message(3, 103, value_bytes=5000), message(103, 105)), buffer_bytes=2048)
    assert table.column("offset").to_pylist() == list(range(105))


@pytest.mark.parametrize("seed", range(8))
def test_passing_messages_are_right_until_the_next_is_asked_for(seed: int) -> None:
    """Short and long ones, some longer than the block that is received into."""
    rng = random.Random(seed)
    bounds = [0, *sorted(rng.sample(range(1, 400), 20)), 400]
    messages = [message(a, b, value_bytes=rng.choice([20, 200, 4000])) for a, b in itertools.pairwise(bounds)]
    data = body(*messages)
    most, buffer_bytes = rng.choice([7, 1000, 1 << 20]), rng.choice([4096, 32768, 1 << 20])
    found, kept = [], []
    for there in read_messages(
        reader(data, lambda: rng.randint(1, most)), len(data), buffer_bytes=buffer_bytes, memory=ReusedMemory()
    ):
        assert there.is_passing == (len(there.data) <= buffer_bytes)
        found.append(bytes(there.data))
        kept.append(there if not there.is_passing else there.kept())
    assert found == messages
    assert [bytes(there.data) for there in kept] == messages


def test_an_answer_without_batches_is_empty() -> None:
    assert decode(body()).num_rows == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_anywhere_is_found_before_its_batch_is_yielded(seed: int) -> None:
    """Batches before the damage may come out, unchanged; the damaged one never does."""
    rng = random.Random(seed)
    messages = [message(0, 5), message(5, 9), message(9, 20)]
    data = body(*messages)
    starts = [len(SCHEMA_BYTES), len(SCHEMA_BYTES) + len(messages[0]), len(data) - 8 - len(messages[2])]
    for _ in range(150):
        bit = rng.randrange(len(data) * 8)
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found: list[int] = []
        with pytest.raises((BadBatch, UnknownFormatVersion)):
            collect(read_batches(reader(bytes(damaged), lambda: 4096), len(damaged)), found)
        assert found == [f for f, s, m in zip((0, 5, 9), starts, messages, strict=True) if s + len(m) <= bit // 8]


def test_a_body_that_ends_early_yields_what_is_whole_and_then_says_where_it_ended() -> None:
    first, second = message(0, 5), message(5, 9)
    data = body(first, second)
    for cut in (0, 10, len(SCHEMA_BYTES), len(SCHEMA_BYTES) + 100, len(SCHEMA_BYTES) + len(first) + 900, len(data) - 3):
        found: list[int] = []
        with pytest.raises(Unavailable, match=f"ended after {cut} of {len(data)} bytes"):
            collect(read_batches(reader(data[:cut], lambda: 777), len(data)), found)
        whole = [len(SCHEMA_BYTES) + len(first), len(SCHEMA_BYTES) + len(first) + len(second)]
        assert len(found) == sum(end <= cut for end in whole)


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("no end marker", SCHEMA_BYTES + message(0, 5) + b"\0" * 8),
        ("no end marker at all", SCHEMA_BYTES + message(0, 5)),
        ("bytes behind the end marker", body(message(0, 5)) + b"\0" * 16),
        ("an end marker in the middle", SCHEMA_BYTES + END_OF_STREAM + message(0, 5) + END_OF_STREAM),
        ("another schema", pa.schema([("a", pa.int32())]).serialize().to_pybytes().ljust(len(SCHEMA_BYTES), b"\0")),
        ("shorter than schema and end", SCHEMA_BYTES),
        ("empty", b""),
        ("half a header", SCHEMA_BYTES + message(0, 5)[: HEADER_BYTES - 8] + END_OF_STREAM),
        ("half a batch", SCHEMA_BYTES + message(0, 5)[:-8] + END_OF_STREAM),
    ],
)
def test_a_body_of_another_shape_is_refused(what: str, data: bytes) -> None:
    with pytest.raises(BadBatch):
        decode(data)


def test_a_batch_that_claims_an_enormous_body_is_refused_without_reserving_it() -> None:
    damaged = bytearray(message(0, 5))
    damaged[48:56] = (1 << 50).to_bytes(8, "little")
    before = pa.total_allocated_bytes()
    with pytest.raises(BadBatch, match="left before the end marker"):
        decode(body(bytes(damaged)))
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_batch_with_a_right_crc_that_is_no_arrow_is_refused() -> None:
    wrong = bytearray(message(0, 5))
    wrong[16:24] = b"\xff" * 8  # inside the flatbuffer
    seal(wrong)
    with pytest.raises(BadBatch):
        decode(body(bytes(wrong)))


def test_random_bytes_give_a_documented_error() -> None:
    rng = random.Random(5)
    good = body(message(0, 5), message(5, 9))
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randint(1, 40)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with pytest.raises(LiftlogError):
            decode(bytes(data))
