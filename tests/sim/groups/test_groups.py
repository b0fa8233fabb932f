"""Consumer groups from seeds, and that the simulator would notice mistakes: `python -m tests.sim.groups` tries more."""

from __future__ import annotations

import pytest

from tests.sim.groups.__main__ import found_at
from tests.sim.groups.mutants import MUTANTS
from tests.sim.groups.world import run
from tests.support.effort import examples, first_short, seeded


@pytest.mark.parametrize("seed", first_short(range(0, examples(200), 10)))
def test_what_a_group_commits_has_no_gap_and_no_overlap(seed: int) -> None:
    for each in range(seed, seed + 10):
        assert run(seeded(each)).saw["begun"]


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_mutant_is_found(name: str) -> None:
    """It begins with the seed that is known to find it; `--mutants` begins with 0."""
    seed, why = found_at(name, MUTANTS[name].seeds, first=MUTANTS[name].known)
    assert seed is not None, why
