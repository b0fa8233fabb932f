"""Goal: the table of subjects knows the last sequence of each, or says that it does not, in bounded memory.

Method: against a dictionary, by random operations from seeds; damaged bytes against the documented errors; its golden
snapshot against docs/reference/storage.md. That the compiled twin does the same: test_twins_agree.py.
"""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest

from broker.api.batch import BatchHeader, encode_batch
from broker.api.errors import CorruptLog, UnknownFormatVersion
from broker.api.schema import SCHEMA
from broker.storage.memory.siphash import siphash, siphash_all, siphash_column
from broker.storage.memory.subjects import NONE, SLOTS_MIN, UNKNOWN, SubjectTable, read_head
from tests.support.effort import first_short

pytestmark = pytest.mark.slow

KEY = bytes(range(16))


def batch_of(subjects: list[str], first_offset: int = 0) -> bytes:
    n = len(subjects)
    columns = [range(first_offset, first_offset + n), [0] * n, subjects, [None] * n, [b""] * n, [None] * n, [None] * n]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    rows = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    return bytes(encode_batch(rows, BatchHeader(first_offset=first_offset, last_offset=first_offset + n - 1)))


def test_a_column_is_hashed_like_its_texts() -> None:
    rng = random.Random(1)
    texts = ["".join(rng.choices("abc.", k=rng.randrange(40))) for _ in range(300)] + ["x" * 300, "é.ü"]
    column = pa.array(texts)
    expected = siphash_all(KEY, [text.encode() for text in texts])
    assert siphash_column(KEY, column).tolist() == expected.tolist()
    assert siphash_column(KEY, column[7:90]).tolist() == expected[7:90].tolist()
    assert siphash_column(KEY, column[:0]).shape == (0, 2)


@pytest.mark.parametrize("seed", first_short(range(6)))
def test_against_a_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    table, model, missed = SubjectTable(), dict[str, int](), set[str]()
    sequence, log_start, most = 0, 0, rng.choice([5, 30, 200])
    table.begin(log_start, most)
    for _ in range(600):
        match rng.randrange(8):
            case 0:
                log_start = rng.randrange(log_start, sequence + 1) if rng.random() < 0.2 else log_start
                table.begin(log_start, most)
            case 1:
                table = SubjectTable.restore(table.snapshot(sequence))
                table.begin(log_start, most)
            case 2:
                subjects = [f"s{rng.randrange(60)}" for _ in range(rng.randrange(1, 9))]
                table.note(table.digest(batch_of(subjects, sequence)))
                for subject in subjects:
                    sequence += 1
                    model[subject] = sequence
            case 3:
                table.make_room()
            case 4:
                undo = [(f"s{rng.randrange(60)}", i) for i in range(5)]
                missed_end = table.missed_end
                puts = [(text, table.put(text.encode(), sequence + 1 + i)) for text, i in undo]
                for text, before in reversed(puts):
                    table.put_back(text.encode(), before)
                table.end_take_back(missed_end)
            case _:
                subject = f"s{rng.randrange(60)}"
                sequence += 1
                table.put(subject.encode(), sequence)
                model[subject] = sequence
        for subject in (f"s{i}" for i in range(60)):
            last = model.get(subject, 0)
            found = table.find(subject.encode())
            if found == UNKNOWN:
                missed.add(subject)
                assert log_start < table.missed_end <= sequence
            else:
                assert found == (last if last > log_start else NONE)
        assert len(table) <= most
        assert len(table) * 2 <= len(table.slots)
    assert bool(missed) == (most < 60)


def test_memory_is_bounded_and_small_again_when_the_log_has_moved_on() -> None:
    table = SubjectTable()
    table.begin(0, 1 << 16)
    words = np.random.default_rng(1).integers(-(1 << 62), 1 << 62, (1 << 17, 2))
    for at in range(0, len(words), 1 << 12):
        table.note(type(table.digest(batch_of([])))(words[at : at + (1 << 12)], np.arange(at + 1, at + 1 + (1 << 12))))
    assert len(table) == 1 << 16
    assert table.slots.nbytes == (1 << 16) * 48
    assert table.missed_end == 1 << 17
    table.begin(1 << 17, 1 << 16)
    table.make_room()
    assert (len(table), len(table.slots)) == (0, SLOTS_MIN)


def test_a_batch_tells_the_last_of_each_subject_from_an_offset_on() -> None:
    table = SubjectTable(KEY)
    message = batch_of(["a", "b", "a", "c", "b"], 10)
    for start, expected in ((0, [13, 15, 14]), (13, [0, 15, 14]), (15, [0, 0, 0])):
        table = SubjectTable(KEY)
        table.begin(0, 9)
        table.note(table.digest(message, start))
        assert [table.find(text) for text in (b"a", b"b", b"c")] == expected


def test_a_snapshot_is_as_documented() -> None:
    table = SubjectTable(KEY)
    table.begin(0, 2)
    for i, text in enumerate((b"a", b"b", b"c", b"a")):
        table.put(text, i + 1)
    data = table.snapshot(4)
    assert struct.unpack_from("<HHI16sqqQ", data) == (1, 0, 0, KEY, 4, 3, 2)
    entries = {struct.unpack_from("<QQq", data, 48 + 24 * i) for i in range(2)}
    assert entries == {(*siphash(KEY, b"a"), 4), (*siphash(KEY, b"b"), 2)}
    assert len(data) == 48 + 2 * 24
    assert read_head(data) == (KEY, 4, 3, 2)


def test_any_damage_of_a_snapshot_is_an_error_or_another_table() -> None:
    table = SubjectTable(KEY)
    table.begin(0, 9)
    table.put(b"a", 1)
    table.put(b"b", 2)
    data = table.snapshot(2)
    for end in range(len(data)):
        with pytest.raises((CorruptLog, UnknownFormatVersion)):
            SubjectTable.restore(data[:end])
    with pytest.raises(UnknownFormatVersion):
        SubjectTable.restore(b"\x02" + data[1:])
    with pytest.raises(CorruptLog, match="stands twice"):
        SubjectTable.restore(data[:-24] + data[-48:-24])
    with pytest.raises(CorruptLog, match="is not in 1 to 2"):
        SubjectTable.restore(data[:-8] + struct.pack("<q", 3))
    with pytest.raises(CorruptLog, match="missed some below 5"):
        SubjectTable.restore(data[:32] + struct.pack("<q", 5) + data[40:])
