"""How many records a caller may cause: by hand, and against the definition with callers and times at random."""

from __future__ import annotations

import random

from broker.serving.http.allowance import CALLERS_MAX, OTHERS, Allowance, Rate


def test_a_caller_has_a_burst_and_then_one_each_interval() -> None:
    allowance = Allowance(Rate(3, 10.0), Rate(100, 1.0))
    assert [allowance.admits("a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert allowance.admits("b", 0.0), "another one has his own"
    assert not allowance.admits("a", 9.9)
    assert allowance.admits("a", 10.0)
    assert (allowance.take("a"), allowance.take("a"), allowance.take("nobody")) == (3, 0, 0)


def test_all_together_have_a_burst_too() -> None:
    allowance = Allowance(Rate(3, 10.0), Rate(5, 10.0))
    admitted = [allowance.admits(f"c{number}", 0.0) for number in range(20)]
    assert admitted == [True] * 5 + [False] * 15
    assert sum(allowance.drain().values()) == 15
    assert allowance.drain() == {}
    assert allowance.admits("c19", 10.0)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    allowance = Allowance(Rate(1, 10.0), Rate(5, 10.0))
    assert allowance.admits("a", 100.0)
    assert not allowance.admits("a", 0.0)
    assert not allowance.admits("a", 5.0)


def test_each_one_is_admitted_or_counted_whoever_comes() -> None:
    """C1, C2."""
    for seed in range(20):
        rng = random.Random(seed)
        allowance = Allowance(Rate(2, 5.0), Rate(50, 0.5))
        now_s, admitted, told, asked = 0.0, 0, 0, 3_000
        for _ in range(asked):
            now_s += rng.expovariate(20.0)
            caller = f"c{rng.randrange(2 * CALLERS_MAX)}"
            admitted += allowance.admits(caller, now_s)
            if rng.random() < 0.1:
                told += allowance.take(caller)
            if rng.random() < 0.01:
                told += sum(allowance.drain().values())
        left = allowance.drain()
        assert admitted + told + sum(left.values()) == asked
        assert admitted <= 50 + now_s / 0.5 + 1
        assert len(left) <= CALLERS_MAX + 1
        assert not any(caller.startswith(OTHERS) for caller in left if caller != OTHERS)
