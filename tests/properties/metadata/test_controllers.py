"""Controllers that come and go, around the catalog: see `controllers.py`."""

from __future__ import annotations

import random

import pytest

from broker.metadata import cluster
from broker.metadata.session import SESSION_MS
from tests.properties.metadata.controllers import World
from tests.support.effort import examples, first_short, seeded


@pytest.mark.parametrize("is_lax", first_short([False, True]))
@pytest.mark.parametrize("seed", first_short(range(0, examples(12), 4)))
def test_controllers_come_and_go(seed: int, is_lax: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "session_ms", lambda partitions: SESSION_MS + 500 * max(0, partitions - 4))
    for each in range(seed, seed + 4):
        world = World(random.Random(seeded(each)), is_lax=is_lax)
        for _ in range(300):
            world.tick()
        world.settle()
