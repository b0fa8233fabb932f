"""Courses of events by hand (`scenarios.py`), and that a seed has one story.

Each scenario is played with three seeds; the first lane plays one seed of the quick ones.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from tests.sim.cluster import play
from tests.sim.scenarios import SCENARIOS, made, played
from tests.sim.story import shortened
from tests.sim.world import told
from tests.support.effort import LONG, first_short

COSTLY = (
    "a_checkpoint_is_gone",
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
"""Scenarios of which a seed takes more than a second: a shard of `make test-long` plays them."""


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
cluster, _ = play(5, raft=True)
print(hashlib.sha256(told(cluster.world.story).encode()).hexdigest())
"""


@pytest.mark.process
def test_a_seed_over_raft_repeats_itself_whatever_the_hashes_of_this_process() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    cluster, _ = play(5, raft=True)
    here = hashlib.sha256(told(cluster.world.story).encode()).hexdigest()
    assert digests == {here.encode() + b"\n"}
