"""The short form of `python -m tests.spark`: killed between stage and commit, and between the two commits."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.spark.kills import Rounds


@pytest.mark.timeout(900)
def test_each_record_is_in_the_sink_once_whoever_is_killed(tmp_path: Path) -> None:
    told = Rounds(tmp_path, "local[2]", random.Random(1)).run(["before", "after"])
    assert told == {"before": 1, "after": 1}
