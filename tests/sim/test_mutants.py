"""The simulator can fail: it finds each of these mistakes, within the number of seeds that is stated for it. Others are
shown by a script. The first lane has those that are found soon.
"""

from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS, PLAYED, STAGED, Mutant, found_by, shown_by, staged_by
from tests.support.effort import short_but

COSTLY = [each.name for each in MUTANTS if each.seed]
"""Some seconds each: seeds before theirs hold."""
COSTLY_STAGED = [
    each.name
    for each in STAGED
    if each.name
    not in (
        "believes a tail that a header disproves",
        "compacts no further than who is away",
        "fails a broker that has renewed its session since",
        "lets ids go by the time of day",
        "takes a log without a checkpoint for a young one",
    )
]
"""A scenario takes one to ten seconds."""


@pytest.mark.parametrize("mutant", short_but(MUTANTS, COSTLY), ids=lambda mutant: mutant.name)
def test_a_mistake_is_found(mutant: Mutant) -> None:
    assert found_by(mutant), f"{mutant.seeds} seeds do not find it"


@pytest.mark.parametrize("mutant", PLAYED, ids=[mutant.name for mutant in PLAYED])
def test_a_mistake_is_shown(mutant: Mutant) -> None:
    assert shown_by(mutant), f"{mutant.script} comes out as it should"


@pytest.mark.parametrize("mutant", short_but(STAGED, COSTLY_STAGED), ids=lambda mutant: mutant.name)
def test_a_mistake_is_noticed_in_its_scenario(mutant: Mutant) -> None:
    assert staged_by(mutant), f"{mutant.script} ends well"
