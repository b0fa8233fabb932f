"""R8 from seeds, and that the simulator would notice: `python -m tests.sim.raft` tries more."""

from __future__ import annotations

import logging

import pytest

from tests.sim.raft.__main__ import found_at
from tests.sim.raft.mutants import BY_LUCK, MUTANTS
from tests.sim.raft.world import run
from tests.support.effort import examples, seeded


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)


@pytest.mark.parametrize("seed", range(0, examples(40), 8))
def test_no_acknowledged_command_is_lost(seed: int) -> None:
    for each in range(seed, seed + 8):
        run(seeded(each))


@pytest.mark.parametrize("seed", [383, 806])
def test_seeds_that_once_failed(seed: int) -> None:
    """383: a vote that was never committed (N5). 806: an observer whose log named the lost voter alone."""
    run(seed)


@pytest.mark.parametrize("name", BY_LUCK)
def test_mutant_is_found(name: str) -> None:
    """It begins with the seed that is known to find it; `--mutants` begins with 0."""
    seed, _ = found_at(name, MUTANTS[name].seeds, first=MUTANTS[name].known)
    assert seed is not None
