"""Clusters from seeds: `SEEDS` of them. A test plays `IN_ONE`; a failure names its seed, and how to see its story.

The first lane plays `IN_FIRST`. More, and others: LIFTLOG_PROP_EFFORT and LIFTLOG_PROP_SEED (tests/support/effort.py).
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
from tests.sim.story import shortened
from tests.sim.world import told
from tests.support.effort import LONG, examples, first_short, seeded

SEEDS = 120
IN_ONE = 60
IN_FIRST = 4
COSTLY = (
    "a_checkpoint_is_gone",
    "a_damaged_replica_cannot_step_out",
    "a_lapse_is_committed_after_the_broker_is_back",
    "a_session_comes_back_while_the_leader_asks_it_in",
    "a_stale_leader_is_asked_by_who_has_seen_a_newer_one",
    "a_step_out_does_not_come_through",
    "a_stream_below_its_minimum_is_read_on",
    "a_stream_is_compacted_no_more",
    "a_stream_is_damaged_where_it_is_alone",
    "a_stream_is_damaged_where_somebody_lags_beyond",
    "a_stream_is_made_anew_while_a_follower_is_down",
    "a_stream_is_made_anew_while_its_leader_is_cut_off",
    "a_wiped_follower_of_a_log_that_begins_within_a_batch",
    "acknowledged_records_go_that_no_checkpoint_tells_of",
    "an_old_file_of_epochs_is_put_back",
    "an_operator_elects_who_lacks_a_newer_value",
    "an_operator_elects_who_lacks_records",
    "an_operator_elects_who_lacks_what_was_trimmed",
    "an_operator_gives_up_the_damaged_range_alone",
    "an_operator_gives_up_what_is_damaged",
    "an_operator_puts_an_old_disk_back",
    "clocks_are_apart_and_are_set",
    "controller_changes_while_the_isr_does",
    "flipped_bit_in_a_log",
    "flipped_bit_in_a_state_file",
    "flipped_bit_in_an_index",
    "power_failure_of_all",
    "replicas_that_began_anew_lead",
    "sessions_become_longer_and_would_become_shorter",
    "the_catalog_loses_commands",
    "the_catalog_loses_commands_and_a_broker_is_gone",
    "tombstones_go_once_all_have_compacted",
    "truncated_files",
    "two_failovers_each_losing_a_tail",
)
"""Scenarios of which a seed takes more than 0.8 s, but for two: a shard of `make test-long` plays them."""
FOUND = (347, 792, 1027, 1400, 1874, 4734, 100721, 100838, 201532, 407405, 501170)
"""Seeds beyond those that found something. 347: an open had replaced the damaged checkpoint, and with it the evidence.
792: a read went past a damaged header, and nobody noticed. 1027: nobody started a process that had ended by itself.
1400: a new leader believed a damaged header, and cut a group that was whole and acknowledged.
1874: the simulator itself ended in a power cut that a fault caused (a checkpoint before the damage).
100721: the checker asked for a leader of a partition whose only member had lost its disk before the first commit; that
is an operator's to choose. 100838: it did not count a replica that had said what it held, and had begun anew before the
leader, who slept, heard of either. 201532: an operator chose a replica that began within a commit group; the checker
gave up the part of it below its start. 407405: a leader from before an operator's choice heard seconds late, without a
session, what the catalog had decided in his time; the checker did not know that commit of then. 501170: a leader
that could not read its first batch committed; the checker took what was committed from him alone.
4734: an operator chose a replica that had a compacted batch, and lacked the later records of its keys; the checker
missed the earlier ones.
A change of the order in which things happen makes another story of a seed."""
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
    *("power cut in the midst of a change", "disk full at an append", "follower without room", "acked by the leader"),
    *("pass of compaction", "pass of compaction that did not come to the end", "rewriting stopped midway"),
    *("tombstones let go", "batches joined", "follower within a joined batch"),
    *("fault: alter", "settings altered", "retention lets go"),
    *("partitions asked for", "added partitions counted"),
    *("broker joined", "broker drained", "broker removed", "removed broker refused"),
    *("removed broker back with an empty folder", "leaving given up", "operator refused"),
)
"""Happens in each test of `IN_ONE` seeds: a fault that never happens is not tested."""


@pytest.mark.timeout(1_200)  # a minute of a core, on a machine that may be busy
@pytest.mark.parametrize(
    "seeds",
    first_short([range(IN_FIRST), *(range(first, first + IN_ONE) for first in range(0, examples(SEEDS), IN_ONE))]),
    ids=lambda seeds: f"{seeds.start}-{seeds.stop}",
)
def test_what_was_acknowledged_is_there(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in map(seeded, seeds):
        cluster, failure = play(seed)
        seen.update(cluster.world.seen)
        if failure:
            print(shortened(cluster, failure))
        assert not failure, f"python -m tests.sim --seed {seed}"
    assert len(seeds) < IN_ONE or not [what for what in SEEN if not seen[what]], "never happened"


@pytest.mark.parametrize("seed", first_short(FOUND))
def test_a_seed_that_found_something_holds(seed: int) -> None:
    assert not play(seed)[1], f"python -m tests.sim --seed {seed}"


@pytest.mark.parametrize("seed", first_short(range(3)))
@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG) if name in COSTLY else name for name in SCENARIOS])
def test_scenario(name: str, seed: int) -> None:
    cluster = made(name, seed)
    failure = played(cluster, name)
    if failure:
        print(shortened(cluster, failure))
    assert not failure, f"python -m tests.sim --scenario {name} --seed {seed}"
    assert cluster.world.seen["acked by all"] > 20


DIGEST = """
import hashlib
from tests.sim.cluster import play
from tests.sim.world import told
import sys
cluster, _ = play(5, raft="raft" in sys.argv)
print(hashlib.sha256(told(cluster.world.story).encode()).hexdigest())
"""


@pytest.mark.process
@pytest.mark.parametrize("plane", ["", "raft"])
def test_a_seed_repeats_itself_whatever_the_hashes_of_this_process(plane: str) -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST, plane],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    cluster, _ = play(5, raft=bool(plane))
    here = hashlib.sha256(told(cluster.world.story).encode()).hexdigest()
    assert digests == {here.encode() + b"\n"}
