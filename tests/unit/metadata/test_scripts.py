"""Each script in tests/golden/catalog comes out as it is written there; bytes of commands and snapshots stay."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from broker.metadata.catalog import Catalog
from tests.support.scripts import REWRITE, check, replay
from tests.unit.metadata.scenario import Scenario

GOLDEN = Path(__file__).parents[2] / "golden" / "catalog"
SCRIPTS = sorted(GOLDEN.glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_script(script: Path) -> None:
    scenario = Scenario()
    check(script, scenario.run, scenario.state)


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 12


def test_commands_and_snapshots_are_those_of_the_release_before() -> None:
    """The rule: a change of these changes `COMMAND_VERSION` or `SNAPSHOT_VERSION`, once there is a release."""
    commands, snapshots = GOLDEN / "commands-v1.jsonl", GOLDEN / "snapshots-v2.jsonl"
    if os.environ.get(REWRITE):
        written, taken = [], []
        for script in SCRIPTS:
            scenario = Scenario()
            replay(script.read_text(), scenario.run, scenario.state)
            written.append(scenario.commands)
            taken.append(scenario.catalog.snapshot())
        commands.write_text("".join(json.dumps(each) + "\n" for each in written))
        snapshots.write_text("".join(json.dumps(each) + "\n" for each in taken))
    lines = zip(commands.read_text().splitlines(), snapshots.read_text().splitlines(), strict=True)
    for journal, snapshot in lines:
        catalog = Catalog()
        for command in json.loads(journal):
            catalog.apply(command)
        assert json.dumps(catalog.snapshot()) == snapshot
        assert json.dumps(Catalog.restore(json.loads(snapshot)).snapshot()) == snapshot
