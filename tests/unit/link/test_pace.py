"""A replica that is filled takes no more than its share; arithmetic against a clock that stands still."""

from __future__ import annotations

import pytest

from broker.link.pace import BURST_S, Pace


class Clock:
    """`now_s`: as a test sets it."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_what_was_taken_is_waited_for() -> None:
    clock = Clock()
    pace = Pace(1_000, clock)
    assert pace.wait_s() == 0.0
    pace.take(500)  # nobody waits for what goes first
    assert pace.wait_s() == pytest.approx(0.5 - BURST_S, abs=BURST_S)
    clock.now_s += 1.0
    assert pace.wait_s() == 0.0


def test_over_a_long_time_no_more_goes_than_the_limit() -> None:
    clock = Clock()
    pace, sent = Pace(1_000, clock), 0
    while clock.now_s < 160.0:
        if pace.wait_s() == 0.0:
            pace.take(70)
            sent += 70
        clock.now_s += 0.01
    assert 59_000 <= sent <= 60_000 + 1_000 * BURST_S + 70


def test_what_is_not_used_is_kept_for_a_moment_only() -> None:
    clock = Clock()
    pace = Pace(1_000, clock)
    clock.now_s += 3_600.0
    pace.take(1_000)
    assert pace.wait_s() == pytest.approx(1.0 - BURST_S)
