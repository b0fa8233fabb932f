"""The simulator can fail: it finds each of these mistakes, within the number of seeds that is stated for it."""

from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS, Mutant, found_by


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mistake_is_found(mutant: Mutant) -> None:
    assert found_by(mutant, mutant.seeds), f"{mutant.seeds} seeds do not find it"
