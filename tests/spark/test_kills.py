"""The short form of `python -m tests.spark`: killed between stage and commit, and between the two commits.

And once the checkpoint is lost, too: then nothing is missing, and what is there twice was not published.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from examples import flights
from tests.spark.kills import Rounds


@pytest.mark.timeout(900)
def test_each_flight_is_in_the_sink_once_whoever_is_killed(tmp_path: Path) -> None:
    five_days = flights.load(end="2013-01-06")
    told = Rounds(tmp_path, "local[2]", random.Random(1)).run(["before", "after"], five_days)
    assert told == {"before": 1, "after": 1}


@pytest.mark.timeout(900)
def test_no_flight_is_missing_when_the_checkpoint_is_lost(tmp_path: Path) -> None:
    five_days = flights.load(end="2013-01-06")
    rounds = Rounds(tmp_path, "local[2]", random.Random(3))
    assert rounds.run(["checkpoint", "after"], five_days) == {"checkpoint": 1, "after": 1}
    assert sum(rounds.lost[0].values()) > 0, "it went on in the midst of the stream"
