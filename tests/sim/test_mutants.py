"""The simulator can fail: it finds each of these mistakes, within the number of seeds that is stated for it. Others are
shown by a script. The first lane has those that are found soon.
"""

from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS, PLAYED, STAGED, Mutant, found_by, shown_by, staged_by
from tests.support.effort import short_but

COSTLY = (
    "drops damaged files before it has stepped out",
    "waits for the folders of a removed broker",
    "takes a copy of a compacted log for whole",
    "leads on in its epoch when the replicas become others",
    "learns nothing from the log when it begins to lead",
)
COSTLY_STAGED = (
    "believes an old file of epochs",
    "forgets in a snapshot how long a session is",
    "gives up under its own epoch",
    "gives up what stands behind the damage",
    "counts a long session as short as others",
    "takes what is lost at its end for an end",
    "lets a renewal make a session shorter",
    "takes records away before it says by how much",
    "forgets that it is behind before anybody was told",
)
"""They take more than a second each: most of the time of all."""


@pytest.mark.parametrize("mutant", short_but(MUTANTS, COSTLY), ids=lambda mutant: mutant.name)
def test_a_mistake_is_found(mutant: Mutant) -> None:
    assert found_by(mutant), f"{mutant.seeds} seeds do not find it"


@pytest.mark.parametrize("mutant", PLAYED, ids=[mutant.name for mutant in PLAYED])
def test_a_mistake_is_shown(mutant: Mutant) -> None:
    assert shown_by(mutant), f"{mutant.script} comes out as it should"


@pytest.mark.parametrize("mutant", short_but(STAGED, COSTLY_STAGED), ids=lambda mutant: mutant.name)
def test_a_mistake_is_noticed_in_its_scenario(mutant: Mutant) -> None:
    assert staged_by(mutant), f"{mutant.script} ends well"
