"""The simulator can fail: it finds each of these mistakes, within the number of seeds that is stated for it. Others are
shown by a script.
"""

from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS, PLAYED, STAGED, Mutant, found_by, shown_by, staged_by


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mistake_is_found(mutant: Mutant) -> None:
    assert found_by(mutant), f"{mutant.seeds} seeds do not find it"


@pytest.mark.parametrize("mutant", PLAYED, ids=[mutant.name for mutant in PLAYED])
def test_a_mistake_is_shown(mutant: Mutant) -> None:
    assert shown_by(mutant), f"{mutant.script} comes out as it should"


@pytest.mark.parametrize("mutant", STAGED, ids=[mutant.name for mutant in STAGED])
def test_a_mistake_is_noticed_in_its_scenario(mutant: Mutant) -> None:
    assert staged_by(mutant), f"{mutant.script} ends well"
