"""The plane that the catalog comes through: commands are late, overtake each other before they are committed, or are
lost; answers are lost; controllers change, and with them goes what they had not committed.

There is a controller while some broker is connected with a majority. Whoever is not connected with it can neither ask
nor learn. What is committed stays: `broker.metadata` is simulated by itself, with the real Raft beneath.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.catalog import Catalog, Command, Deadline, Fail, Partition, Register
from tests.sim.network import Network
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.broker import Broker

ROUND_MS = 250
SESSION_MS = 2_000
FIRST_ELECTION_MS = 3_000


Answered = Callable[[bool, dict[str, Partition]], None]
"""Told whether a command was accepted, and the state that it was judged by, or has led to."""


class Metadata:
    """See the module.

    Attributes:
        history: What each committed command has left: the partitions that it changed, and who was registered by it.
    """

    def __init__(self, world: World, network: Network, catalog: Catalog, checked: Callable[[Partition], None]) -> None:
        self.world = world
        self.network = network
        self.catalog = catalog
        self.brokers: dict[str, Broker] = {}
        self.history: list[tuple[tuple[Partition, ...], tuple[str, int, int] | None]] = []
        self.history.append((tuple(catalog.partitions.values()), None))
        self.controller: str | None = None
        self.term = 0
        self.heard_ms: dict[str, float] = {}
        self._checked = checked
        world.after(ROUND_MS, self._round)
        world.after(FIRST_ELECTION_MS, self._deadline)

    def reaches(self, broker: str) -> bool:
        return self.controller is not None and self.network.connects(broker, self.controller)

    def submit(self, broker: str, command: Command, answered: Answered | None = None) -> None:
        """Ask for a command. `answered` may never be called."""
        if self.reaches(broker):
            delay = self.world.rng.expovariate(1 / 6) + (400 if self.world.chance(0.02) else 0)
            self.world.after(delay, self._commit, self.term, broker, command, answered)

    def heartbeat(self, broker: str) -> None:
        if self.reaches(broker):
            self.heard_ms[broker] = self.world.now_ms

    def depose(self) -> None:
        """The controller is another soon."""
        self.controller = None
        self.term += 1

    def _commit(self, term: int, broker: str, command: Command, answered: Answered | None) -> None:
        world = self.world
        if term != self.term:
            world.saw("command of a deposed controller")
            if world.chance(0.5) or self.controller is None:
                return
            answered = None  # committed after all; nobody is told
        before = dict(self.catalog.partitions)
        is_accepted = self.catalog.apply(command)
        changed = tuple(p for name, p in self.catalog.partitions.items() if before[name] is not p)
        registered = (command.broker, *self.catalog.brokers[command.broker]) if isinstance(command, Register) else None
        self.history.append((changed, registered))
        for p in changed:
            was = before[p.name]
            if (p.epoch, p.isr, p.last_isr) != (was.epoch, was.isr, was.last_isr):
                leader = f"leader {p.leader or '-'} epoch {p.epoch} isr {','.join(p.isr) or '-'}"
                world.note("catalog", f"{p.name}: {leader} last {','.join(p.last_isr) or '-'}  ({_brief(command)})")
            if p.epoch != was.epoch:
                world.saw("election")
            self._checked(p)
        for name in self.brokers:
            if self.reaches(name):
                world.after(world.rng.expovariate(1 / 5), self.brokers[name].learn, len(self.history))
        if answered is not None and not world.chance(0.03) and self.reaches(broker):
            world.after(world.rng.expovariate(1 / 5), answered, is_accepted, dict(self.catalog.partitions))

    def _round(self) -> None:
        """Who controls, whose session has lapsed."""
        world = self.world
        world.after(ROUND_MS, self._round)
        names = list(self.brokers)
        able = [name for name in names if self.brokers[name].is_running]
        majority = len(names) // 2 + 1

        def connected(name: str) -> int:
            return sum(self.network.connects(name, other) for other in able)

        if self.controller is not None and (self.controller not in able or connected(self.controller) < majority):
            self.depose()
        if self.controller is None:
            fit = [name for name in able if connected(name) >= majority]
            if fit and world.chance(0.5):
                self.controller = world.rng.choice(fit)
                self.heard_ms = dict.fromkeys(names, world.now_ms)
                world.saw("controller")
                world.note("catalog", f"{self.controller} controls")
            return
        for name in sorted(self.catalog.live):
            if world.now_ms - self.heard_ms[name] > SESSION_MS:
                world.saw("session lapsed")
                self.heard_ms[name] = world.now_ms
                self.submit(self.controller, Fail(broker=name))

    def _deadline(self) -> None:
        waiting = [p.name for p in self.catalog.partitions.values() if not p.is_begun]
        for name in waiting:
            if self.controller is not None:
                self.submit(self.controller, Deadline(partition=name))
        if waiting:
            self.world.after(1_000, self._deadline)


def _brief(command: Command) -> str:
    name = type(command).__name__
    who = getattr(command, "broker", None) or getattr(command, "add", None) or getattr(command, "remove", None)
    sign = "+" if getattr(command, "add", None) else "-" if getattr(command, "remove", None) else ""
    return f"{name} {sign}{who}" if who else name
