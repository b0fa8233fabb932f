"""A few rounds of the kill loop; `make chaos ROUNDS=50` is the long one. What must hold: `kill_loop`, X1 to X5."""

from __future__ import annotations

from pathlib import Path

from broker.runtime.sync import file_system_of
from tests.cluster.kill_loop import run
from tests.support.effort import seeded


def test_nothing_acked_is_lost_or_doubled_or_disordered_by_kill_9_at_any_moment(tmp_path: Path) -> None:
    figures = run(tmp_path, rounds=4, seed=seeded(1))
    print(figures)
    assert figures.acks >= 4 * 30
    assert figures.compactions >= 1


def test_the_same_holds_where_the_file_system_is_synced_for_all_partitions_at_once(tmp_path: Path) -> None:
    """One thread, so that they gather; where the system cannot be trusted with it, the same broker without."""
    settings = {"LIFTLOG_FSYNC_SYNCFS_THRESHOLD": "2", "LIFTLOG_FSYNC_THREADS": "1"}
    if (file_system := file_system_of(str(tmp_path), 2)) is not None:
        file_system.close()
    figures = run(tmp_path, rounds=2, seed=seeded(2), env=settings, together=file_system is not None)
    print(figures)
    assert figures.acks >= 2 * 30
