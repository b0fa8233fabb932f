"""The digest of a batch's rows. Goal: H1 and H2 of digest.py, and that both twins are the written definition.

Against a second implementation of one row in plain Python, and against single changes of a batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from broker.api.schema import HEADERS_TYPE
from spark_liftlog.writing import digest as module
from spark_liftlog.writing.digest import _KEYS, as_text, digest_of, hashed_by_numpy, summed, together

MASK = (1 << 64) - 1
SIZES = (0, 1, 7, 8, 9, 63, 64, 511, 512, 513, 1024, 1025, 5000)
COMPILED = getattr(module, "hashed")  # noqa: B009 -- the twin in Python where nothing is compiled


def mixed(word: int) -> int:
    for shift in (32, 29):
        word = ((word ^ (word >> shift)) * 0xFF51AFD7ED558CCD) & MASK
    return word ^ (word >> 32)


def one_hash(data: bytes) -> int:
    """The hash that digest.py gives of a value."""
    keys = [int(key) for key in _KEYS]
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    chunks = [words[at : at + 64] for at in range(0, len(words), 64)]
    total = 0
    for number, chunk in enumerate(chunks):
        found = sum(mixed(word ^ keys[place]) for place, word in enumerate(chunk)) & MASK
        total += mixed(found ^ mixed((number + keys[-1]) & MASK)) if number else found
    return mixed((total + len(data)) & MASK)


@pytest.mark.parametrize("twin", [hashed_by_numpy, COMPILED], ids=["numpy", "compiled"])
def test_a_value_has_the_hash_that_is_written_down(twin: Callable[..., Any]) -> None:
    luck = random.Random(1)
    values = [luck.randbytes(size) for size in luck.sample(SIZES, len(SIZES))]
    offsets = np.cumsum([3, *map(len, values)]).astype(np.int32)  # the first begins within the data
    data = np.frombuffer(b"xyz" + b"".join(values), np.uint8)
    assert twin(data, offsets, _KEYS).tolist() == [one_hash(value) for value in values]
    some = twin(data, offsets[2:6], _KEYS).tolist()
    assert some == [one_hash(value) for value in values[2:5]]


def batch(**columns: list[Any]) -> dict[str, Any]:
    types = {"headers": HEADERS_TYPE, "partition": pa.int32(), "stream": pa.string(), "subject": pa.string()}
    return {name: pa.array(values, types.get(name, pa.binary())) for name, values in columns.items()}


def of(columns: dict[str, Any], stream: str = "s", subject: str | None = None) -> int:
    return digest_of(columns, rows=len(columns["value"]), stream=stream, subject=subject)


ROWS = {
    "value": [b"a", b"bb", None, b"d" * 700, b"", b"a"],
    "key": [b"k", None, b"", b"k", b"k", b"k"],
    "subject": ["x", None, "x", "y", "x", "x"],
    "stream": ["s", "s", "t", "s", None, "s"],
    "partition": [0, None, 1, 0, 0, 0],
    "headers": [
        [{"key": "h", "value": b"1"}, {"key": "i", "value": b"2"}],
        None,
        [],
        [{"key": "h", "value": None}],
        None,
        [{"key": "h", "value": b"1"}, {"key": "i", "value": b"2"}],
    ],
}


def test_rows_may_stand_in_any_order_and_in_any_task() -> None:
    columns = batch(**ROWS)
    whole = of(columns)
    for order in ([5, 4, 3, 2, 1, 0], [1, 0, 3, 2, 5, 4]):
        assert of({name: column.take(pa.array(order)) for name, column in columns.items()}) == whole
    for cut in range(7):
        parts = [{name: column.slice(*part) for name, column in columns.items()} for part in ((cut,), (0, cut))]
        assert together(map(of, parts)) == whole
    assert of({name: column.slice(0, 0) for name, column in columns.items()}) == 0
    assert as_text(whole).startswith("rows1:")


def test_sums_of_tasks_are_added_up_under_one_name_only() -> None:
    columns = batch(**ROWS)
    texts = [as_text(of({name: column.slice(*part) for name, column in columns.items()})) for part in ((2,), (0, 2))]
    assert summed(texts) == as_text(of(columns))
    assert summed([]) == as_text(0)
    assert summed([*texts, "rows2:" + "0" * 32]) == summed([*texts, ""]) == summed(["0" * 32]) == ""


@pytest.mark.parametrize(
    "column, row, value",
    [
        ("value", 0, b"b"),
        ("value", 1, b"bc"),
        ("value", 2, b""),
        ("value", 3, b"d" * 699 + b"e"),
        ("value", 3, b"e" + b"d" * 699),
        ("value", 4, b"\0"),
        ("key", 1, b""),
        ("key", 0, b"K"),
        ("subject", 1, "x"),
        ("stream", 0, "t"),
        ("partition", 1, 0),
        ("headers", 0, [{"key": "i", "value": b"2"}, {"key": "h", "value": b"1"}]),
        ("headers", 3, [{"key": "h", "value": b""}]),
        ("headers", 3, None),
    ],
)
def test_any_other_row_is_another_digest(column: str, row: int, value: Any) -> None:
    other = {**ROWS, column: [*ROWS[column][:row], value, *ROWS[column][row + 1 :]]}
    assert of(batch(**other)) != of(batch(**ROWS))


def test_values_that_change_places_between_rows_are_seen() -> None:
    """A sum over columns alone would not: the same keys and the same values, paired otherwise."""
    assert of(batch(value=[b"1", b"2"], key=[b"a", b"b"])) != of(batch(value=[b"2", b"1"], key=[b"a", b"b"]))
    assert of(batch(value=[b"12", b"21"])) != of(batch(value=[b"11", b"22"]))
    assert of(batch(value=[b"ab"], key=[b"c"])) != of(batch(value=[b"b"], key=[b"ca"]))


def test_empty_headers_are_none_and_a_repeated_row_counts() -> None:
    assert of(batch(value=[b"a"], headers=[[]])) == of(batch(value=[b"a"], headers=[None]))
    assert of(batch(value=[b"a", b"a"])) != of(batch(value=[b"a"]))
    assert of(batch(value=[b"a"]), stream="t") != of(batch(value=[b"a"])) != of(batch(value=[b"a"]), subject="x")


def test_no_two_of_many_values_have_one_hash() -> None:
    """Values as people write them: numbers, which differ in few bits."""
    values = [str(n).encode() for n in range(200_000)] + [str(n).zfill(24).encode() for n in range(200_000)]
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int32)
    found = COMPILED(np.frombuffer(b"".join(values), np.uint8), offsets, _KEYS)
    assert len(np.unique(found)) == len(values)
