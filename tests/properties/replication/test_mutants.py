"""The simulation and the scripts can fail: they find each of these mistakes, and find none in the core as it is."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.properties.replication.alone import Life
from tests.properties.replication.cluster import Cluster
from tests.properties.replication.mutants import MUTANTS, Mutant, mutated
from tests.support.scripts import replay
from tests.unit.replication.scenario import Scenario
from tests.unit.replication.test_scripts import SCRIPTS

LIVES, CLUSTERS = 12, 150


def by_scripts(leader: ModuleType) -> str:
    for script in SCRIPTS:
        scenario = Scenario(leader)
        try:
            if replay(script.read_text(), scenario.run, scenario.state) == script.read_text():
                continue
        except Exception:  # as good as another outcome
            pass
        return script.stem
    return ""


def by_simulation(leader: ModuleType) -> str:
    for kind, count in ((Cluster, CLUSTERS), (Life, LIVES)):
        for seed in range(count):
            try:
                kind(leader, seed).run()
            except Exception:
                return f"{kind.__name__} {seed}"
    return ""


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mistake_is_found(mutant: Mutant) -> None:
    leader = mutated(mutant)
    assert by_scripts(leader) or by_simulation(leader), "neither the scripts nor the simulation find it"
