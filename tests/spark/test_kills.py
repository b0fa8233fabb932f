"""The short form of `python -m tests.spark`: killed between stage and commit, and between the two commits."""

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
