"""The cluster's part of the catalog against the watcher of `cluster.py`."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.metadata.cluster import Cluster
from tests.support.effort import examples, first_short, seeded


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=80))
def test_any_commands(steps: list[int]) -> None:
    """Hypothesis leaves out commands until the fewest are left that show a fault."""
    cluster = Cluster()
    for step in steps:
        cluster.step(random.Random(step))
    cluster.finish()


@pytest.mark.parametrize("seed", first_short(range(0, examples(120), 10)))
def test_long_lives(seed: int) -> None:
    """Long enough for reassignments, unclean elections and brokers that are removed."""
    for each in range(seed, seed + 10):
        rng = random.Random(seeded(each))
        cluster = Cluster()
        for _ in range(300):
            cluster.step(rng)
        cluster.finish()
