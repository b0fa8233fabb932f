"""Messages between brokers, and between clients and brokers: late, lost, doubled, out of order; links cut one way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.sim.world import World


@dataclass
class Weather:
    """How messages fare.

    Attributes:
        delay_ms: The delay of most messages.
        late, late_ms: Such a share is so late at most.
        lost, doubled: Shares.
        kept, kept_ms: Such a share of the messages between brokers comes once more, so much later at most.
    """

    delay_ms: float = 3
    late: float = 0.02
    late_ms: float = 900
    lost: float = 0.01
    doubled: float = 0.02
    kept: float = 0.02
    kept_ms: float = 6_000


CALM = Weather(late=0, lost=0, doubled=0, kept=0)


class Network:
    """Links between brokers by name; a client is `client` on all of them."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.weather = weather
        self.cut: set[tuple[str, str]] = set()
        self.slow: set[str] = set()

    def send(self, source: str, target: str, arrive: Callable[..., Any], *args: Any) -> None:
        """Let `arrive` be called at the target, once, late, twice or never."""
        world, weather = self.world, self.weather
        if (source, target) in self.cut:
            world.saw("message cut off")
            return
        if world.chance(weather.lost):
            world.saw("message lost")
            return
        for _ in range(2 if world.chance(weather.doubled) else 1):
            delay = world.rng.expovariate(1 / weather.delay_ms)
            if world.chance(weather.late):
                delay += world.rng.uniform(0, weather.late_ms)
                world.saw("message late")
            if source in self.slow or target in self.slow:
                delay += world.rng.uniform(20, 400)
            world.after(delay, arrive, *args)
        if "client" not in (source, target) and world.chance(weather.kept):
            world.saw("message of long ago")
            world.after(world.rng.uniform(500, weather.kept_ms), arrive, *args)

    def connects(self, source: str, target: str) -> bool:
        """Whether messages get through both ways, for what is not sent message by message here."""
        return source == target or not ({(source, target), (target, source)} & self.cut)
