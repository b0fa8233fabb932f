"""Controllers that come and go, around the catalog: see `controllers.py`."""

from __future__ import annotations

import random

import pytest

from tests.properties.metadata.controllers import World
from tests.support.effort import examples, seeded


@pytest.mark.parametrize("is_lax", [False, True])
@pytest.mark.parametrize("seed", range(0, examples(12), 4))
def test_controllers_come_and_go(seed: int, is_lax: bool) -> None:
    for each in range(seed, seed + 4):
        world = World(random.Random(seeded(each)), is_lax=is_lax)
        for _ in range(300):
            world.tick()
        world.settle()
