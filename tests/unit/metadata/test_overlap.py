"""The tree of subjects against the definition of overlap, pair by pair."""

from __future__ import annotations

import random

import pytest

from broker.metadata.overlap import SubjectTree, overlaps

SEEDS = range(20)


def subject_of(rng: random.Random) -> str:
    tokens = [rng.choice("ab*") for _ in range(rng.randint(0, 3))]
    return ".".join([*tokens, rng.choice(["a", "b", "*", ">"])])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_tree_finds_exactly_the_streams_that_overlap(seed: int) -> None:
    """Streams come and go; after each step every subject finds what comparing it with all would."""
    rng = random.Random(seed)
    tree = SubjectTree()
    live: dict[str, list[str]] = {}
    for step in range(60):
        if live and rng.random() < 0.4:
            name = rng.choice(sorted(live))
            tree.remove(name, live.pop(name))
        else:
            name = f"s{step}"
            live[name] = [subject_of(rng) for _ in range(rng.randint(1, 3))]
            tree.add(name, live[name])
        asked = [subject_of(rng) for _ in range(rng.randint(1, 2))]
        expected = {n for n, mine in live.items() if any(overlaps(a, b) for a in asked for b in mine)}
        assert tree.overlapping(asked) == expected, (asked, live)
    for name, subjects in live.items():
        tree.remove(name, subjects)
    assert tree.overlapping([">"]) == set()
