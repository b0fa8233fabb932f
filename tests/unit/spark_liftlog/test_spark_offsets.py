"""The offset JSON. Goal: what is in checkpoints stays readable, and equal positions are equal text (O1 to O3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.api.errors import LiftlogError, UnknownFormatVersion
from spark_liftlog.errors import BadOffset
from spark_liftlog.reading.offsets import Offset, ReadPosition, decode, encode, starting_point, symbolic
from spark_liftlog.reading.where import ByTime, Where

GOLDEN = Path(__file__).parents[2] / "golden" / "offsets-v1.json"

KEYS = st.tuples(st.sampled_from(["orders", "returns", "a.b"]), st.integers(0, 1023))
NUMBERS = st.integers(0, (1 << 63) - 1)


@st.composite
def offsets(draw: st.DrawFn) -> Offset:
    positions = draw(st.dictionaries(KEYS, st.builds(ReadPosition, NUMBERS, st.integers(-1, 1 << 32)), max_size=12))
    incarnations = {stream: draw(st.text("0123456789abcdef", min_size=1)) for stream, _ in sorted(positions)}
    base = {key: draw(NUMBERS) for key in positions if draw(st.booleans())}
    return Offset(consumer=draw(st.text()), incarnations=incarnations, positions=positions, base=base)


def golden() -> dict[str, str]:
    cases: dict[str, str] = json.loads(GOLDEN.read_text())
    return cases


GOLDEN_OFFSETS = {
    "first offset of a query": Offset(
        consumer="spark-0f8fad5bd9cb469fa16570867728950e",
        incarnations={"orders": "b1946ac92492d234"},
        positions={
            ("orders", 10): ReadPosition(7, 3),
            ("orders", 2): ReadPosition(105, 3),
            ("orders", 0): ReadPosition(0, -1),
        },
        base={("orders", 10): 7, ("orders", 2): 100, ("orders", 0): 0},
    ),
    "later offset": Offset(
        consumer="billing",
        incarnations={"orders": "b1946ac92492d234"},
        positions={("orders", 0): ReadPosition((1 << 63) - 1, 4294967295)},
    ),
    "two streams": Offset(
        consumer="billing",
        incarnations={"returns": "2", "orders": "1"},
        positions={("returns", 0): ReadPosition(5, 1), ("orders", 0): ReadPosition(9, 2)},
    ),
}


@pytest.mark.parametrize("name", GOLDEN_OFFSETS)
def test_offsets_are_written_as_the_golden_file_has_them(name: str) -> None:
    assert json.dumps(encode(GOLDEN_OFFSETS[name])) == golden()[name]


@pytest.mark.parametrize("name", GOLDEN_OFFSETS)
def test_offsets_of_the_golden_file_are_read(name: str) -> None:
    assert decode(json.loads(golden()[name])) == GOLDEN_OFFSETS[name]


def test_symbolic_offsets_are_written_and_read_as_the_golden_file_has_them() -> None:
    cases: dict[str, Where] = {
        "start latest": "latest",
        "start earliest": "earliest",
        "start committed": "committed",
        "start JSON": {"orders": {1: -2, 0: 5}},
        "start time": ByTime(at_ms=1_700_000_000_000, strategy="error"),
        "start times": ByTime(at_ms={"orders": {1: 2, 0: 1}}, strategy="latest"),
    }
    for name, where in cases.items():
        assert json.dumps(symbolic(where)) == golden()[name]
        assert decode(json.loads(golden()[name])) is None
        assert starting_point(json.loads(golden()[name])) == where


@given(offsets())
def test_any_offset_survives_the_json(offset: Offset) -> None:
    assert decode(json.loads(json.dumps(encode(offset)))) == offset


@given(offsets(), st.randoms(use_true_random=False))
def test_equal_positions_are_equal_text_whatever_order_they_were_built_in(offset: Offset, random: Any) -> None:
    def shuffled(mapping: Any) -> dict[Any, Any]:
        items = list(mapping.items())
        random.shuffle(items)
        return dict(items)

    again = Offset(
        consumer=offset.consumer,
        incarnations=shuffled(offset.incarnations),
        positions=shuffled(offset.positions),
        base=shuffled(offset.base),
    )
    assert json.dumps(encode(again)) == json.dumps(encode(offset))


def test_another_version_is_refused_by_number() -> None:
    with pytest.raises(UnknownFormatVersion, match="version 2, this release reads 1"):
        decode({"v": 2, "start": "latest"})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@given(JSON_VALUES)
def test_any_json_gives_an_offset_or_a_named_error(value: Any) -> None:
    for candidate in (value, {"v": 1, "consumer": "c", "streams": value}, {"v": value, "start": "latest"}):
        text = ""
        try:
            decode(candidate)
        except LiftlogError as error:
            text = str(error)
        assert len(text) < 500


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "latest",
        {},
        {"v": 1},
        {"v": True, "start": "latest"},
        {"v": 1, "start": "latest", "more": 1},
        {"v": 1, "consumer": 7, "streams": {}},
        {"v": 1, "consumer": "c", "streams": {"s": {"incarnation": "i"}}},
        {"v": 1, "consumer": "c", "streams": {"s": {"incarnation": 1, "partitions": {}}}},
        {"v": 1, "consumer": "c", "streams": {"s": {"incarnation": "i", "partitions": {"0": 5}}}},
        {"v": 1, "consumer": "c", "streams": {"s": {"incarnation": "i", "partitions": {"0": [5, 1.0]}}}},
        {"v": 1, "consumer": "c", "streams": {"s": {"incarnation": "i", "partitions": {"0": [-1, 1]}}}},
        {"v": 1, "consumer": "c", "streams": {"s": {"incarnation": "i", "partitions": {"x": [1, 1]}}}},
        {"v": 1, "consumer": "c", "streams": {}, "base": {"s": {"0": 1}}},
        {"v": 1, "consumer": "c", "streams": {"s": {"incarnation": "i", "partitions": {"0": [1, 1], "00": [5, 1]}}}},
        {
            "v": 1,
            "consumer": "c",
            "streams": {"s": {"incarnation": "i", "partitions": {"1": [1, 1]}}},
            "base": {"s": {"01": 0}},
        },
    ],
)
def test_what_this_source_did_not_write_is_refused(value: Any) -> None:
    with pytest.raises((BadOffset, UnknownFormatVersion)):
        decode(value)


@pytest.mark.parametrize(
    "start", [None, 7, "newest", [], {"orders": {"0": "x"}}, {"orders": 7}, {"orders": {"0": 1, "00": 2}}]
)
def test_a_symbolic_offset_of_another_form_is_refused(start: Any) -> None:
    with pytest.raises(BadOffset):
        starting_point({"v": 1, "start": start})
    with pytest.raises(BadOffset):
        starting_point({"v": 1, "start_time": start})
