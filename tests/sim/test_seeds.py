"""Clusters from seeds. A test plays `IN_ONE` of them; a failure names its seed, and how to see its story.

More, and others: LIFTLOG_PROP_EFFORT and LIFTLOG_PROP_SEED (tests/support/effort.py).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from tests.sim.cluster import Cluster, play
from tests.sim.scenarios import OPTIONS, SCENARIOS, played
from tests.support.effort import examples, seeded

SEEDS = 300
IN_ONE = 20


@pytest.mark.parametrize("first", range(0, examples(SEEDS), IN_ONE))
def test_what_was_acknowledged_is_there(first: int) -> None:
    for seed in range(seeded(first), seeded(first) + IN_ONE):
        cluster, failure = play(seed)
        if failure:
            print("\n".join(cluster.world.story[-100:]))
        assert not failure, f"python -m tests.sim --seed {seed}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    for seed in range(3):
        cluster = Cluster(seed, faults=False, **OPTIONS)
        failure = played(cluster, name)
        if failure:
            print("\n".join(cluster.world.story[-100:]))
        assert not failure, f"python -m tests.sim --scenario {name} --seed {seed}"
        assert cluster.world.seen["acked by all"] > 20


DIGEST = """
import hashlib
from tests.sim.cluster import play
cluster, _ = play(5)
print(hashlib.sha256("\\n".join(cluster.world.story).encode()).hexdigest())
"""


@pytest.mark.process
def test_a_seed_repeats_itself_whatever_the_hashes_of_this_process() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "12"
    }
    cluster, _ = play(5)
    here = hashlib.sha256("\n".join(cluster.world.story).encode()).hexdigest()
    assert digests == {here.encode() + b"\n"}
