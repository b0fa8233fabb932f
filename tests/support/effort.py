"""How hard the property tests try, and where their luck begins: `make prop` sets both, else they are as in `make test`.

LIFTLOG_PROP_EFFORT   times the number of examples, 1 unless given
LIFTLOG_PROP_SEED     moves every seed that a test fixes itself: fault positions, what a power cut leaves;
                      and Hypothesis tries other examples
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any, Final

import pytest

EFFORT: Final = int(os.environ.get("LIFTLOG_PROP_EFFORT", "1"))
SEED: Final = int(os.environ.get("LIFTLOG_PROP_SEED", "0"))


def examples(count: int) -> int:
    """So many examples are to be tried where `make test` or `make test-long` tries `count`."""
    return count * EFFORT


def seeds(count: int) -> list[Any]:
    """The seeds from 0 on, for `parametrize`. `make check` plays the first one, `make test` all of them."""
    return first_quick(range(count))


def first_quick(cases: Iterable[Any]) -> list[Any]:
    """Cases of a heavy test, for `parametrize`. `make check` plays the first one, `make test` all of them."""
    first, *others = cases
    return [first, *(pytest.param(case, marks=pytest.mark.slow) for case in others)]


def first_short(cases: Iterable[Any], count: int = 1) -> list[Any]:
    """Cases that take some seconds each. `make test` plays the first `count`, a shard of `make test-long` the others.

    `make check` plays the first one.
    """
    first, *others = cases
    marks = ([pytest.mark.slow], [pytest.mark.slow, pytest.mark.long])
    return [first, *(pytest.param(case, marks=marks[at >= count]) for at, case in enumerate(others, 1))]


LONG: Final = (pytest.mark.slow, pytest.mark.long)
"""Marks of a case that a shard of `make test-long` plays."""


def short_but(cases: Iterable[Any], costly: Collection[str]) -> list[Any]:
    """Cases with a `name`. `make test` plays all but the costly ones, a shard of `make test-long` those."""
    given = list(cases)
    assert {*costly} <= {case.name for case in given}, "a case has another name"
    return [pytest.param(case, marks=LONG) if case.name in costly else case for case in given]


def seeded(number: int) -> int:
    """The seed of this run for what has the seed `number` in `make test`."""
    return number + SEED * 1_000_003
