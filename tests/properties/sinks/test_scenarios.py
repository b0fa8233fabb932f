"""Orders that nobody intended, as they are in the product. The rules that they are about: test_mutants."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.properties.sinks.scenarios import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_nothing_is_lost_twice_stuck_or_left(scenario: Callable[[], None]) -> None:
    scenario()
