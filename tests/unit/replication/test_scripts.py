"""Each script in tests/golden/replication comes out as it is written there."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.replication import leader
from tests.support.scripts import check
from tests.unit.replication.scenario import Scenario

SCRIPTS = sorted((Path(__file__).parents[2] / "golden" / "replication").glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_script(script: Path) -> None:
    scenario = Scenario(leader)
    check(script, scenario.run, scenario.state)


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 20
