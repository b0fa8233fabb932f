"""How hard the property tests try, and where their luck begins: `make prop` sets both, else they are as in CI.

LIFTLOG_PROP_EFFORT   times the number of examples, 1 unless given
LIFTLOG_PROP_SEED     moves every seed that a test fixes itself: fault positions, what a power cut leaves;
                      and Hypothesis tries other examples than in CI
"""

from __future__ import annotations

import os
from typing import Final

EFFORT: Final = int(os.environ.get("LIFTLOG_PROP_EFFORT", "1"))
SEED: Final = int(os.environ.get("LIFTLOG_PROP_SEED", "0"))


def examples(count: int) -> int:
    """So many examples are to be tried where CI tries `count`."""
    return count * EFFORT


def seeded(number: int) -> int:
    """The seed of this run for what has the seed `number` in CI."""
    return number + SEED * 1_000_003
