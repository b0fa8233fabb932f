"""Goal: what was acknowledged is there, with the real drivers of replicas under whatever goes wrong; and mistakes that
are made in the drivers are found.

Method: clusters from seeds. A failure names its seed, and how to see its story. More, and others: LIFTLOG_PROP_EFFORT
and LIFTLOG_PROP_SEED (tests/support/effort.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.sim.cluster import play
from tests.sim.driven.captured import CAPTURED
from tests.sim.driven.changed import CHANGED, QUICK
from tests.sim.driven.decided import DECIDED
from tests.sim.driven.mutants import DRIVEN, driven_by
from tests.sim.driven.published import PUBLISHING
from tests.sim.faults import ROTS
from tests.sim.mutants import Mutant
from tests.sim.story import shortened
from tests.support.effort import first_short, seeded, short_but

IN_ONE = (0, 4)
"""One of many kinds, and one in which streams are changed."""
MORE = 60
FOUND = (137,)
"""Seeds beyond those that found something. 137: the core named no error to a trim that waited when an fsync failed, and
its driver took that for done (`test_who_waits_for_a_trim_hears_that_an_fsync_has_failed`)."""
SEEN = (
    *(f"fault: {kind}" for kind in ("kill", "power", "power_all", "cut_within", "wipe", "full", "fsync", "pause")),
    *(f"fault: {kind}" for kind in ("isolate", "one_way", "split", "slow", "takeovers", "assign", "stop")),
    *("election", "leader reported", "session lapsed", "truncation", "torn tail", "process halted", "trim answered"),
    *("repeat known by its sequence", "repeat known by its id", "acked by the leader", "acked by all"),
    *("fsync of the pool", "fsync with a lock", "stopped", "stopped beside a turn"),
    *("closed beside an fsync", "closed beside an answer"),
    *(f"fault: {kind}" for kind in ROTS if kind != "flip_index"),
    *(
        "damage found",
        "range asked for",
        "range garbled",
        "mended",
        "whole again",
        "pass of compaction",
        "batches joined",
    ),
    *("answered: pause", "answered: read_only", "answered: alter", "answered: grow", "answered: delete"),
    *("change holds", "stream made anew", "added partitions counted", "retention lets go"),
    *("NATS: cut", "NATS: away", "NATS: close", "NATS connection refused", "message lost by NATS"),
    "taken in for a pause",
    *("batch committed", "batch done already", "run died", "row published", "fault amid a commit", "sinks are well"),
    *("offset committed", "offsets read"),
    *("catalog restored from a snapshot", "power cut in the midst of a change", "command of a deposed controller"),
    *("broker joined", "broker drained", "broker removed", "operator refused"),
)
"""Happens in the first `MORE` seeds; a process gives up in few of them, and few indexes are damaged."""


COSTLY = (
    "follows with the epoch of before",
    "goes on by the former settings",
    "asks on for what was let go",
    "believes a registration of before",
    "holds a question that was answered for one under way",
    "opens a log by a clock that began before it",
    "sends one command for many, and no other",
    "counts the age of ids by the time of day",
    "syncs a follower once",
    "does not say that its folder is there",
    "steps out for what was seen before the log recovered",
    "gives up after a round in vain",
    "tells a publisher without a session",
    "copies a range of another epoch",
    "closes a log while somebody answers from it",
    "says that a folder is gone before it is durable",
    "says that a folder is gone before it is",
    "answers a change before it has it",
    "takes records into a stream that takes none",
)
"""Mistakes that take 0.4 s or more to find: most of the time of all."""


def _played(seeds: Sequence[int]) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        cluster, failure = play(seed)
        seen.update(cluster.world.seen)
        if failure:
            print(shortened(cluster, failure))
        assert not failure, f"python -m tests.sim --seed {seed}"
    return seen


@pytest.mark.timeout(1_200)  # a minute of a core, on a machine that may be busy
@pytest.mark.parametrize("seeds", first_short([IN_ONE, *(range(n, n + MORE) for n in (0, MORE))]), ids=str)
def test_what_was_acknowledged_is_there(seeds: Sequence[int]) -> None:
    seen = _played([seeded(seed) for seed in seeds])
    assert seen["acked by all"] > 20 * len(seeds)
    assert seeds != range(MORE) or [what for what in SEEN if not seen[what]] == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_something_holds(seed: int) -> None:
    _played([seed])


DIGEST = """
import hashlib, sys
from tests.sim.cluster import play
from tests.sim.world import told
cluster, _ = play(int(sys.argv[1]))
print(hashlib.sha256(told(cluster.world.story).encode()).hexdigest())
"""


@pytest.mark.process
@pytest.mark.parametrize("seed", [5, pytest.param(8, marks=[pytest.mark.slow, pytest.mark.long])])
def test_a_seed_repeats_itself_whatever_the_hashes_of_a_process(seed: int) -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST, f"{seed}"],
            env={**os.environ, "PYTHONHASHSEED": of_process},
            capture_output=True,
            check=True,
        ).stdout
        for of_process in "12"
    }
    assert len(digests) == 1


@pytest.mark.parametrize("mutant", short_but([*DRIVEN, *QUICK], COSTLY), ids=lambda mutant: mutant.name)
def test_a_mistake_in_a_driver_is_found(mutant: Mutant) -> None:
    assert driven_by(mutant), f"{mutant.seeds} seeds do not find it"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("mutant", [*CHANGED, *CAPTURED], ids=lambda mutant: mutant.name)
def test_a_mistake_in_a_change_is_found(mutant: Mutant) -> None:
    assert driven_by(mutant), f"{mutant.seeds} seeds do not find it"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("mutant", DECIDED, ids=lambda mutant: mutant.name)
def test_a_mistake_in_a_sink_is_found(mutant: Mutant) -> None:
    assert driven_by(mutant, of=PUBLISHING), f"{mutant.seeds} seeds do not find it"
