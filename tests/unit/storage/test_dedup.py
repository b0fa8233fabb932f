"""Goal: the table of ids keeps each for its window in bounded memory, and what is written of it is what it knew.

Method: against a dictionary, by random operations from seeds; the hash against the vectors of its reference code;
damaged bytes against the documented errors. That the compiled twin does the same: test_twins_agree.py.
"""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from broker.api.batch import BatchHeader, encode_batch
from broker.api.errors import CorruptLog, UnknownFormatVersion
from broker.api.schema import SCHEMA
from broker.storage.memory.ids import CAPACITY_MIN, IdTable, ids_in
from broker.storage.memory.siphash import FEW, siphash, siphash_all
from tests.support.effort import first_short

KEY = bytes(range(16))


def test_the_hash_is_the_references() -> None:
    expected = {b"": "a3817f04ba25a8e66df67214c7550293", b"\0": "da87c1d86b99af44347659119b22fc45"}
    for text, value in expected.items():
        first, second = siphash(KEY, text)
        assert (first.to_bytes(8, "little") + second.to_bytes(8, "little")).hex() == value


def test_many_are_hashed_like_one() -> None:
    rng = random.Random(1)
    texts = [rng.randbytes(rng.randrange(40)) for _ in range(200)] + [b"x" * 300]
    assert siphash_all(KEY, texts).tolist() == [list(siphash(KEY, text)) for text in texts]
    assert siphash_all(KEY, texts[:FEW]).tolist() == siphash_all(KEY, texts)[:FEW].tolist()
    assert siphash_all(KEY, []).shape == (0, 2)


@pytest.mark.parametrize("seed", first_short(range(4)))
def test_against_a_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    table = IdTable()
    model: dict[bytes, tuple[int, int]] = {}
    window, now, offset = 50, 1_000, 0
    for _ in range(1_000):
        now += rng.choice([0, 0, 1, 3])
        text = b"%d" % rng.randrange(80)
        known = model.get(text)
        expected = known[0] if known is not None and known[1] > now - window else -1
        match rng.randrange(10):
            case 0:
                table.expire(now - window)
            case 1:
                data = table.snapshot(end=1 << 62, since_us=now - window)
                table = IdTable.restore(data)
                assert table.snapshot(end=1 << 62, since_us=0) == data
            case 2:
                few, many = rng.choices(range(80, 100), k=rng.randrange(4)), rng.sample(range(80, 100), FEW + 2)
                texts = [b"%d" % name for name in (many if rng.random() < 0.3 else few)]
                numbers = np.arange(len(texts))
                table.note(texts, offset + numbers, np.full(len(texts), now))
                for i, other in enumerate(texts):
                    model[other] = (offset + i, now)
                offset += len(texts)
            case 3:
                table.reserve(2)
                tail = int(table.places[1])
                for i in range(2):
                    other = b"not-%d" % i
                    table.add(other, offset + i, now)
                table.take_back(tail)
                assert table.find(b"not-0", 0) == -1
            case _:
                assert table.find(text, now - window) == expected
                if expected < 0:
                    table.reserve(1)
                    table.add(text, offset, now)
                    model[text] = (offset, now)
                    offset += 1
        for other, (place, time) in model.items():
            assert table.find(other, now - window) == (place if time > now - window else -1)
    assert np.count_nonzero(table.index) == len(table._held())  # I4


def test_memory_is_bounded_and_stays_small_while_ids_go() -> None:
    table = IdTable()
    for i in range(10 * CAPACITY_MIN):
        table.expire(i - 40)
        table.reserve(1)
        table.add(b"%d" % i, i, i)
    assert table.entries.nbytes + table.index.nbytes == CAPACITY_MIN * 48


def test_a_snapshot_leaves_out_what_is_above_its_end() -> None:
    table = IdTable(KEY)
    table.note([b"a", b"b"], np.arange(2), np.full(2, 10))
    restored = IdTable.restore(table.snapshot(end=1, since_us=0))
    assert [restored.find(text, 0) for text in (b"a", b"b")] == [0, -1]
    assert restored.key == KEY


def test_any_damage_of_a_snapshot_is_an_error_or_another_table() -> None:
    table = IdTable(KEY)
    table.note([b"a", b"b"], np.arange(2), np.full(2, 10))
    data = table.snapshot(end=9, since_us=0)
    for end in range(len(data)):
        with pytest.raises((CorruptLog, UnknownFormatVersion)):
            IdTable.restore(data[:end])
    with pytest.raises(UnknownFormatVersion):
        IdTable.restore(b"\x02" + data[1:])
    entry = data[-32:]
    with pytest.raises(CorruptLog, match="stands twice"):
        IdTable.restore(data[:-64] + entry + entry)


def batch_of(headers: list[list[tuple[str, bytes]] | None]) -> bytes:
    n = len(headers)
    values = [None if pairs is None else [{"key": key, "value": value} for key, value in pairs] for pairs in headers]
    columns = [range(7, 7 + n), range(100, 100 + n), ["s"] * n, [None] * n, [b""] * n, values, [None] * n]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    rows = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    return bytes(encode_batch(rows, BatchHeader(first_offset=7, last_offset=6 + n)))


def test_the_ids_of_a_batch_are_found_among_its_headers() -> None:
    headers: list[list[tuple[str, bytes]] | None] = [
        None,
        [("A", b"1"), ("Nats-Msg-Id", b"one"), ("Nats-Msg-Id", b"two")],
        [],
        [("Nats-Msg-Id", b"")],
        [("nats-msg-id", b"three")],
        [("Nats-Msg-Id", b"four")],
    ]
    texts, offsets, last_id = ids_in(batch_of(headers))
    assert (texts, offsets.tolist(), last_id) == ([b"one", b"four"], [8, 12], b"four")
    assert ids_in(batch_of(headers[:5])).last_id == b""
    for none in ([None], [[]], [[("A", b"")]], headers[3:4]):
        texts, offsets, last_id = ids_in(batch_of(none))
        assert (texts, len(offsets), last_id) == ([], 0, b"")


def test_the_ids_of_some_batches_are_those_of_each() -> None:
    one: list[list[tuple[str, bytes]] | None] = [
        [("Nats-Msg-Id", b"a")],
        None,
        [("Other", b"b"), ("Nats-Msg-Id", b"c")],
    ]
    batches = [batch_of(one), batch_of([None]), batch_of([[("Nats-Msg-Ix", b"no"), ("Nats-Msg-Id", b"d")]])]
    each = [ids_in(batch) for batch in batches]
    texts, offsets, last_id = ids_in(*batches)
    assert texts == [b"a", b"c", b"d"] == [text for found in each for text in found.texts]
    assert offsets.tolist() == [7, 9, 7]
    assert (last_id, ids_in(*batches[:2]).last_id, ids_in(*batches[:1]).last_id) == (b"d", b"", b"c")
