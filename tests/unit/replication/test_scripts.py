"""Each script in tests/golden/replication comes out as it is written there."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.replication import follower, leader
from tests.support.scripts import check
from tests.unit.replication.following import Following
from tests.unit.replication.scenario import Scenario

GOLDEN = Path(__file__).parents[2] / "golden" / "replication"
SCRIPTS = sorted(GOLDEN.glob("*.txt"))
OF_FOLLOWERS = sorted((GOLDEN / "following").glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_script(script: Path) -> None:
    scenario = Scenario(leader)
    check(script, scenario.run, scenario.state)


@pytest.mark.parametrize("script", OF_FOLLOWERS, ids=[script.stem for script in OF_FOLLOWERS])
def test_script_of_a_follower(script: Path) -> None:
    scenario = Following(follower)
    check(script, scenario.run, scenario.state)


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 20
    assert len(OF_FOLLOWERS) >= 10
