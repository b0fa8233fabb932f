"""The short form of `python -m tests.spark`: killed between stage and commit, and between the two commits.

In between the checkpoint is lost, too: then nothing is missing, and what is there twice was not published.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from examples import flights
from tests.spark.kills import Rounds

KILLS = ["before", "checkpoint", "after"]


@pytest.mark.timeout(900)
def test_each_flight_is_in_the_sink_once_whoever_is_killed_and_none_is_missing_without_a_checkpoint(
    tmp_path: Path,
) -> None:
    five_days = flights.load(end="2013-01-06")
    rounds = Rounds(tmp_path, "local[2]", random.Random(1))
    assert rounds.run(KILLS, five_days) == dict.fromkeys(KILLS, 1)
    assert rounds.bundled, "tasks had staged bundles"
    assert sum(rounds.lost[0].values()) > 0, "it went on in the midst of the stream"


@pytest.mark.timeout(600)
def test_each_flight_is_in_the_sink_once_when_the_driver_is_killed_before_the_commit(tmp_path: Path) -> None:
    """The shortest of its kind."""
    one_day = flights.load(end="2013-01-02")
    rounds = Rounds(tmp_path, "local[2]", random.Random(2), tasks=2)
    assert rounds.run(["before"], one_day) == {"before": 1}
    assert rounds.bundled == 1, "its tasks had staged bundles"
