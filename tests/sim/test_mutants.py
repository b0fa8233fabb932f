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
    "keeps who was moved away in the ISR",
    "forgets in a snapshot who was removed",
    "lets a restarted leader lead on in its epoch",
    "cuts nothing",
    "forgets who has failed below the minimum",
    "moves replicas to whoever is named",
    "joins batches of two epochs",
    "runs on although it was removed",
    "asks in who has not fsynced it",
    "tells an end before the start of its epoch is committed",
    "answers heartbeats before they are renewed",
    "takes the refusal of a second try for the first one's",
    "does not count a pending addition",
    "keeps a wiped broker in the ISR",
    "goes on as a controller, and asks the next one",
    "takes the folder of a removed broker back",
    "takes for dead whom it has never heard",
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
    "begins anew as if nothing had been told",
    "ends a rescue that somebody is missing in",
    "tells of what it has removed only while it removes",
    "serves nothing below the minimum",
    "takes a folder back that was replaced",
    "asks to step out in vain",
    "lets tombstones go below the least durable end",
    "lets the shortest log lead after a rescue",
    "goes on when a step-out does not come through",
    "does not say who was excused",
    "counts who is unheard as done",
    "counts the in-sync replicas for tombstones",
    "follows with a damaged log",
    "believes a tail that a header disproves",
    "sends no epoch with a read",
    "keeps the replicas of a deleted stream",
    "fails a broker that has renewed its session since",
    "steps out one by one",
    "serves the rest of a joined batch",
    "lets ids go by the time of day",
    "tells nobody that a tombstone waits",
    "takes a log without a checkpoint for a young one",
)
"""They take 0.4 s each, or more: most of the time of all. The gravest that do are in the first lane all the same."""


@pytest.mark.parametrize("mutant", short_but(MUTANTS, COSTLY), ids=lambda mutant: mutant.name)
def test_a_mistake_is_found(mutant: Mutant) -> None:
    assert found_by(mutant), f"{mutant.seeds} seeds do not find it"


@pytest.mark.parametrize("mutant", PLAYED, ids=[mutant.name for mutant in PLAYED])
def test_a_mistake_is_shown(mutant: Mutant) -> None:
    assert shown_by(mutant), f"{mutant.script} comes out as it should"


@pytest.mark.parametrize("mutant", short_but(STAGED, COSTLY_STAGED), ids=lambda mutant: mutant.name)
def test_a_mistake_is_noticed_in_its_scenario(mutant: Mutant) -> None:
    assert staged_by(mutant), f"{mutant.script} ends well"
