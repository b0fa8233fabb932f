"""R8 from seeds, and that the simulator would notice: `python -m tests.sim.raft` tries more."""

from __future__ import annotations

import logging

import pytest

from tests.sim.raft.__main__ import found_at
from tests.sim.raft.mutants import BY_LUCK, MUTANTS, mutated
from tests.sim.raft.scenarios import SCENARIOS, play
from tests.sim.raft.world import Violation, run
from tests.support.effort import LONG, examples, first_short, seeded


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)


@pytest.mark.parametrize("seed", first_short(range(0, examples(40), 8)))
def test_no_acknowledged_command_is_lost(seed: int) -> None:
    for each in range(seed, seed + 8):
        run(seeded(each))


@pytest.mark.parametrize("seed", [383, 806])
def test_seeds_that_once_failed(seed: int) -> None:
    """383: a vote that was never committed (N5). 806: an observer whose log named the lost voter alone."""
    run(seed)


def test_a_play_that_once_failed() -> None:
    """A snapshot of 16 pieces came to an observer in any order, also after all faults, and so it never came whole."""
    assert play("truncated_journals_of_a_minority", 3).seen["history replayed"]


@pytest.mark.parametrize("name", BY_LUCK)
def test_mutant_is_found(name: str) -> None:
    """It begins with the seed that is known to find it; `--mutants` begins with 0."""
    seed, _ = found_at(name, MUTANTS[name].seeds, first=MUTANTS[name].known)
    assert seed is not None


@pytest.mark.parametrize("seed", first_short([7, 1]))
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, seed: int) -> None:
    """With five voters, and with three."""
    world = play(name, seed)
    assert world.seen["history replayed"]
    assert len(world.acked) + len(world.told) > 50


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        ("torn_whatever", "cut_journal_of_one_that_had_acknowledged"),
        pytest.param("forgets_results", "power_loss_of_all_with_damage_in_a_minority", marks=LONG),
        pytest.param("unsynced_sends", "power_loss_of_all_voters", marks=LONG),
        pytest.param("wiped_keeps_id", "cut_journal_of_one_that_had_acknowledged", marks=LONG),
        pytest.param("counts_on_from_a_snapshot", "power_loss_of_all_voters", marks=LONG),
    ],
)
def test_scenario_finds_a_mistake(mutant: str, name: str) -> None:
    found = []
    for seed in range(6):
        try:
            with mutated(mutant):
                play(name, seed)
        except Violation as error:
            found.append(str(error))
    assert found
