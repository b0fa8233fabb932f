"""The catalog's commands through the real pysyncobj, in the same simulated time as the replicas that they are about.
More: `python -m tests.sim --raft --seeds 0..100`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.sim import joined
from tests.sim.cluster import play
from tests.sim.raft.mutants import mutated
from tests.sim.story import shortened
from tests.support.effort import LONG, examples, first_short, seeded

MORE = 48
DAMAGES = 3
"""A seed in which journals are damaged."""
FIRST = range(DAMAGES, DAMAGES + 2)
SEEN = (
    *("controller", "catalogs compared", "catalog restored from a snapshot", "message of Raft lost"),
    *("command refused", "committed command refused", "command without an answer", "session lapsed", "election"),
    *("journal damaged", "vote: rem", "vote: add"),
    *("ISR asked to grow", "ISR asked to shrink", "truncation"),
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("pysyncobj")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)


@pytest.mark.parametrize("seeds", first_short([FIRST, range(examples(MORE))]), ids=["first", "all"])
def test_what_was_acknowledged_is_there_and_no_command_is_lost(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in map(seeded, seeds):
        cluster, failure = play(seed, raft=True)
        seen.update(cluster.world.seen)
        if failure:
            print(shortened(cluster, failure))
        assert not failure, f"python -m tests.sim --raft --seed {seed}"
    assert len(seeds) < MORE or not [what for what in SEEN if not seen[what]], "never happened"


@pytest.mark.parametrize(
    ("mutant", "seed"),
    [
        ("forgets_results", 0),
        ("counts_on_from_a_snapshot", 0),
        pytest.param("no_append_filter", 5, marks=LONG),
    ],
)
def test_a_mistake_in_the_adapter_of_raft_is_found_here_too(mutant: str, seed: int) -> None:
    with mutated(mutant):
        assert any(play(each, raft=True)[1] for each in (seed, *range(8)))


@pytest.mark.slow
@pytest.mark.long
def test_a_vote_that_is_never_given_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "next_change", lambda *_: None)
    _, failure = play(DAMAGES, raft=True)
    assert "has no vote" in failure
