"""Clusters from seeds. A test plays `IN_ONE` of them; a failure names its seed, and how to see its story.

More, and others: LIFTLOG_PROP_EFFORT and LIFTLOG_PROP_SEED (tests/support/effort.py).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.sim.cluster import play
from tests.sim.faults import WEIGHTS
from tests.sim.scenarios import SCENARIOS, made, played
from tests.support.effort import examples, seeded

SEEDS = 125
IN_ONE = 125
FOUND = (347, 792, 1027, 1874)
"""Seeds beyond those that found something. 347: an open had replaced the damaged checkpoint, and with it the evidence.
792: a read went past a damaged header, and nobody noticed. 1027: nobody started a process that had ended by itself.
1874: the simulator itself ended in a power cut that a fault caused (a checkpoint before the damage).
Whoever changes the order in which things happen makes another story of a seed."""
SEEN = (
    *(f"fault: {kind}" for kind in WEIGHTS),
    *(
        "election",
        "leader deposed",
        "leader reported",
        "session lapsed",
        "session lapsed at the broker",
        "ack held back: no session",
        "controller",
        "controller asks: fail_broker",
        "controller asks: elect_preferred",
        "controller asks: raise_replication",
        "command of a deposed controller",
        "command of a controller that is none any more",
    ),
    *(
        "ISR asked to grow",
        "ISR asked to shrink",
        "command refused before it is committed",
        "committed command refused",
    ),
    *("catalog restored from a snapshot", "folder deleted", "truncation", "reset", "torn tail", "damage found"),
    *("incomplete group cut by a leader", "step-out for damage", "step-out after a failed fsync", "trim answered"),
    *(
        "repeat known by its sequence",
        "repeat known by its id",
        "publish sent again",
        "message of long ago",
        "message late",
        "message lost",
    ),
    *("power cut in the midst of a change", "disk full at an append", "acked by the leader"),
    *("pass of compaction", "pass of compaction that did not come to the end", "rewriting stopped midway"),
    *("tombstones let go", "batches joined", "follower within a joined batch"),
)
"""Happens in each test of so many seeds: a fault that never happens is not tested."""


@pytest.mark.parametrize("first", range(0, examples(SEEDS), IN_ONE))
def test_what_was_acknowledged_is_there(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(seeded(first), seeded(first) + IN_ONE):
        cluster, failure = play(seed)
        seen.update(cluster.world.seen)
        if failure:
            print("\n".join(cluster.world.story[-100:]))
        assert not failure, f"python -m tests.sim --seed {seed}"
    assert not [what for what in SEEN if not seen[what]], "never happened"


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_something_holds(seed: int) -> None:
    assert not play(seed)[1], f"python -m tests.sim --seed {seed}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    for seed in range(3):
        cluster = made(name, seed)
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
