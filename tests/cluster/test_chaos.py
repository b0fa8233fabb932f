"""A few rounds of chaos on three brokers; `make chaos MINUTES=60` is the long one. What holds: `chaos`, D1 to D4."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.chaos import run
from tests.support.effort import seeded


def test_nothing_acked_is_lost_whatever_happens_to_the_processes_of_three_brokers(tmp_path: Path) -> None:
    figures = run(tmp_path, seeded(1), rounds=2)
    print(figures)
    assert figures.acks > 2 * 10
