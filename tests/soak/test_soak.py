"""A short soak with every operation, and a mutant that it must find, on one broker and on three; `make soak MINUTES=60`
and `make soak MINUTES=60 BROKERS=3` are the long ones.

The rules that must hold: `checker`, K1 to K9. How to read a failure: docs/explain/soak.md.
"""

from __future__ import annotations

from pathlib import Path

from tests.soak.run import Outcome, run_round
from tests.support.effort import seeded


def told(outcome: Outcome, options: str = "") -> str:
    """All that a person needs to go on from a failure."""
    return f"{outcome.violation}\n{outcome.story}\nTo repeat it: python -m tests.soak --seed {outcome.seed}{options}"


def test_a_short_soak_finds_nothing(tmp_path: Path) -> None:
    outcome = run_round(tmp_path, seeded(7), 15)
    assert outcome.violation is None, told(outcome)
    assert outcome.figures["acks checked"] > 100
    assert outcome.figures["sights checked"] > 100
    assert outcome.figures["sink batches"] > 0
    assert outcome.figures["links"] > 0


def test_the_soak_finds_that_half_a_message_ends_intake(tmp_path: Path) -> None:
    """The mutant that is found within seconds; the others: `test_mutants.py`."""
    outcome = run_round(tmp_path, seeded(1), 60, mutant="half-message", operations={"alter_often"})
    assert outcome.violation is not None
    assert "KeyError" in str(outcome.violation), told(outcome)


def test_a_short_soak_of_three_brokers_finds_nothing(tmp_path: Path) -> None:
    outcome = run_round(tmp_path, seeded(7), 10, brokers=3)
    assert outcome.violation is None, told(outcome, " --brokers 3")
    assert outcome.figures["acks checked"] > 100
    assert outcome.figures["sights checked"] > 100
    assert outcome.figures["sink batches"] > 0
    assert outcome.figures["links"] > 0
    assert outcome.figures["records of replicas"] > 100
