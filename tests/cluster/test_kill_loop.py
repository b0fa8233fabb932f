"""A few rounds of the kill loop; `make chaos ROUNDS=50` is the long one. The rules that must hold: `kill_loop`, X1 to
X5."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.kill_loop import run
from tests.support.effort import seeded


def test_nothing_acked_is_lost_or_doubled_or_disordered_by_kill_9_at_any_moment(tmp_path: Path) -> None:
    figures = run(tmp_path, rounds=4, seed=seeded(1))
    print(figures)
    assert figures.acks >= 4 * 30
    assert figures.compactions >= 1
