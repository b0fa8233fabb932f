"""The short form of `python -m tests.spark --brokers 3`: an executor, then the driver, dies together with a leader."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from examples import flights
from tests.spark.kills import Rounds


@pytest.mark.timeout(900)
def test_each_flight_is_in_the_sink_once_whoever_dies_together_with_a_broker(tmp_path: Path) -> None:
    five_days = flights.load(end="2013-01-06")
    kills = ["executor+broker", "before+broker"]
    rounds = Rounds(tmp_path, "local-cluster[2,1,1024]", random.Random(2), 3)
    assert rounds.run(kills, five_days) == dict.fromkeys(kills, 1)
    assert rounds.bundled, "tasks had staged bundles"
