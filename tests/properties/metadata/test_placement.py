"""Placement against its own definition: L1 to L4 of `placement.py`, for any brokers and racks."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.metadata.placement import candidates, extend, place
from tests.support.effort import examples

RACKS = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["", "r1", "r2", "r3"]), min_size=1)


@settings(max_examples=examples(150), deadline=None)
@given(RACKS, st.integers(1, 40), st.data())
def test_replicas_are_spread(racks: dict[str, str], partitions: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, min(5, len(racks))))
    placed = place(candidates(racks, ()), partitions, factor)
    assert placed == place(candidates(dict(reversed(racks.items())), ()), partitions, factor), "not deterministic"
    rack_of = {broker: rack or f"alone {broker}" for broker, rack in racks.items()}
    for replicas in placed:
        assert len(set(replicas)) == factor, "L1"
        most = min(factor, len(set(rack_of.values())))
        assert len({rack_of[broker] for broker in replicas}) == most, "L2"


@settings(max_examples=examples(100), deadline=None)
@given(RACKS, st.data())
def test_more_replicas_go_where_there_are_none(racks: dict[str, str], data: st.DataObject) -> None:
    """L4: beside what is there, in as many racks as can be, on brokers that may take one and have the least."""
    names = sorted(racks)
    present = tuple(data.draw(st.lists(st.sampled_from(names), unique=True)))
    able = data.draw(st.sets(st.sampled_from(names)))
    factor = data.draw(st.integers(len(present), len(names)))
    placed = extend(candidates(racks, ()), present, factor, able)
    assert placed[: len(present)] == present, "L4"
    chosen = placed[len(present) :]
    assert len(set(placed)) == len(placed), "L1"
    assert set(chosen) <= able
    assert len(placed) == min(factor, len(present) + len(able - set(present)))
    rack_of = {broker: rack or f"alone {broker}" for broker, rack in racks.items()}
    taken = {rack_of[broker] for broker in present}
    new = {rack_of[broker] for broker in able - set(present)} - taken
    assert len({rack_of[broker] for broker in chosen} - taken) == min(len(new), len(chosen)), "L2"


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 8), st.integers(1, 60), st.data())
def test_without_racks_everybody_has_the_same(brokers: int, partitions: int, data: st.DataObject) -> None:
    """L3: replicas differ by one at most. Leaderships come second, and may differ by two."""
    factor = data.draw(st.integers(1, brokers))
    names = [f"b{i}" for i in range(brokers)]
    placed = place(candidates(dict.fromkeys(names, ""), ()), partitions, factor)
    kept = Counter(broker for replicas in placed for broker in replicas)
    assert max(kept[name] for name in names) - min(kept[name] for name in names) <= 1
    led = Counter(replicas[0] for replicas in placed)
    assert max(led[name] for name in names) - min(led[name] for name in names) <= 2


def test_what_there_is_counts() -> None:
    """A broker that joined later takes what is new, until it has as much as others."""
    racks = dict.fromkeys("abcd", "")
    placed = place(candidates(racks, [("a", "b", "c")] * 3), 3, 2)
    assert [sorted(replicas)[-1] for replicas in placed] == ["d", "d", "d"]
    assert [replicas[0] for replicas in placed] == ["b", "c", "d"]
