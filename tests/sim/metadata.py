"""The plane that the catalog comes through: commands are late, overtake each other, are committed twice or lost;
answers are lost; controllers change, and with them goes what they had not committed.

The catalog is the broker's own (`broker.metadata`). One list of commands is committed. Each broker applies it by
itself, from a snapshot or from the first command on, and all that are equally far must be equal byte for byte. A
command is judged by the catalog of the controller, which may be behind, before it is committed, and again where it
stands.

There is a controller while some broker is connected with a majority. Whoever is not connected with it can neither ask
nor learn. A committed command stays: the adapter of Raft is simulated by itself (`tests.sim.raft`), with pysyncobj
inside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from broker.api.errors import LiftlogError
from broker.metadata.catalog import Catalog
from broker.metadata.partition import PartitionState
from tests.sim.network import Network
from tests.sim.world import Violation, World

if TYPE_CHECKING:
    from tests.sim.broker import Broker

ROUND_MS = 250
SESSION_MS = 2_000
FIRST_ELECTION_MS = 3_000
COMPARED_EVERY = 16
"""So many commands lie between two that every broker's catalog is compared after, and that snapshots are taken at."""

Answered = Callable[[dict[str, Any]], None]
"""Told the result of a command."""


def text_of(catalog: Catalog) -> str:
    """A snapshot as it is written."""
    return json.dumps(catalog.snapshot(), sort_keys=True)


class Metadata:
    """See the module.

    Attributes:
        catalog: As it is after all that is committed.
        log: What is committed, each with its result.
        states: Of each partition, by the name of its stream: each stream here has one.
        snapshots: By the number of commands before them.
    """

    def __init__(self, world: World, network: Network, checked: Callable[[str, PartitionState], None]) -> None:
        self.world = world
        self.network = network
        self.catalog = Catalog()
        self.brokers: dict[str, Broker] = {}
        self.log: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.states: dict[str, PartitionState] = {}
        self.snapshots: dict[int, str] = {0: text_of(self.catalog)}
        self.controller: str | None = None
        self.term = 0
        self.heard_ms: dict[str, float] = {}
        self._heard_of: dict[str, int] = {}  # registrations that are to be renewed
        self._checked = checked
        world.after(ROUND_MS, self._round)
        world.after(FIRST_ELECTION_MS, self._deadline)

    @property
    def live(self) -> list[str]:
        """The brokers that have a session."""
        return [name for name, info in self.catalog.brokers.items() if info.is_live]

    def reaches(self, broker: str) -> bool:
        return self.controller is not None and self.network.connects(broker, self.controller)

    def depose(self) -> None:
        """The controller is another soon."""
        self.controller = None
        self.term += 1

    # -- commands

    def submit(self, broker: str, command: Mapping[str, Any], answered: Answered | None = None) -> None:
        """Ask for a command. `answered` may never be called."""
        if self.reaches(broker):
            delay = self.world.rng.expovariate(1 / 3) + (400 if self.world.chance(0.02) else 0)
            self.world.after(delay, self._arrive, self.term, broker, {"v": 1, **command}, answered)

    def _arrive(self, term: int, broker: str, command: dict[str, Any], answered: Answered | None) -> None:
        """At the controller: judged by what that has applied."""
        world = self.world
        judge = self.brokers[self.controller] if self.controller is not None else None
        if term == self.term and judge is not None and judge.process:
            try:
                judge.catalog.judge(command)
            except LiftlogError as error:
                world.saw("command refused before it is committed")
                self._answer(broker, answered, {"error": error.to_problem()})
                return
        for _ in range(2 if world.chance(0.04) else 1):
            late_ms = world.rng.uniform(0, 1_500) if world.chance(0.02) else 0
            world.after(world.rng.expovariate(1 / 3) + late_ms, self._commit, term, broker, command, answered)

    def _commit(self, term: int, broker: str, command: dict[str, Any], answered: Answered | None) -> None:
        world = self.world
        if term != self.term:
            world.saw("command of a deposed controller")
            if world.chance(0.5) or self.controller is None:
                return
            answered = None  # committed after all; nobody is told
        result = self.carry_out(command)
        for name in self.brokers:
            if self.reaches(name):
                late_ms = world.rng.uniform(0, 700) if world.chance(0.1) else 0
                world.after(world.rng.expovariate(1 / 15) + late_ms, self.brokers[name].learn, len(self.log))
        self._answer(broker, answered, result)

    def _answer(self, broker: str, answered: Answered | None, result: dict[str, Any]) -> None:
        if answered is not None and not self.world.chance(0.08) and self.reaches(broker):
            self.world.after(self.world.rng.expovariate(1 / 5), answered, result)

    def carry_out(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Commit a command. Returns its result."""
        world, command = self.world, json.loads(json.dumps(command))
        result = self.catalog.apply(command)
        self.log.append((command, result))
        if "error" in result:
            world.saw("committed command refused")
        if len(self.log) % COMPARED_EVERY == 0:
            self.snapshots[len(self.log)] = text_of(self.catalog)
        for (name, _), state in self.catalog.cluster.partitions.items():
            was = self.states.get(name)
            if was is state:
                continue
            self.states[name] = state
            if was is not None and (state.leader_epoch, state.isr, state.last_isr) != (
                was.leader_epoch,
                was.isr,
                was.last_isr,
            ):
                leader = f"leader {state.leader or '-'} epoch {state.leader_epoch} isr {','.join(state.isr) or '-'}"
                last = ",".join(state.last_isr) or "-"
                world.note("catalog", f"{name}: {leader} last {last}  ({_brief(command)})")
            if was is not None and state.leader_epoch != was.leader_epoch:
                world.saw("election")
            self._checked(name, state)
        return result

    def compare(self, broker: Broker, result: dict[str, Any]) -> None:
        """A broker has applied one more command: it must be where everybody was who had applied so many."""
        at, name = broker.applied, broker.name
        if result != self.log[at - 1][1]:
            raise Violation(f"R8: {name} answers {result} to command {at}, others {self.log[at - 1][1]}")
        if at in self.snapshots and text_of(broker.catalog) != self.snapshots[at]:
            raise Violation(f"R8: {name} has another catalog than others after command {at}")

    # -- the controller's rounds

    def heartbeat(self, broker: str, registration: int) -> None:
        if self.reaches(broker):
            self.heard_ms[broker] = self.world.now_ms
            self._heard_of[broker] = registration

    def _round(self) -> None:
        """Who controls, whose session is renewed or has lapsed."""
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
                self._heard_of = {}
                world.saw("controller")
                world.note("catalog", f"{self.controller} controls")
            return
        self._sessions(self.brokers[self.controller])

    def _sessions(self, controller: Broker) -> None:
        """By the controller's own catalog."""
        world, known = self.world, controller.catalog.brokers
        if self._heard_of and (
            world.chance(0.25) or any(name in known and not known[name].is_live for name in self._heard_of)
        ):
            self.submit(controller.name, {"kind": "renew_sessions", "renewals": self._heard_of})
            self._heard_of = {}
        for name, info in sorted(known.items()):
            if info.is_live and world.now_ms - self.heard_ms.get(name, 0) > SESSION_MS:
                world.saw("session lapsed")
                self.heard_ms[name] = world.now_ms
                lapse = {"broker_id": name, "registration": info.registration, "renewal": info.renewal}
                self.submit(controller.name, {"kind": "fail_broker", **lapse})

    def _deadline(self) -> None:
        waiting = {name: [0] for name, state in self.states.items() if not state.has_led}
        if waiting and self.controller is not None:
            self.submit(self.controller, {"kind": "elect_first", "partitions": waiting})
        if waiting:
            self.world.after(1_000, self._deadline)


def _brief(command: Mapping[str, Any]) -> str:
    who = command["add"][0] if "add" in command else command.get("remove", command.get("broker_id", ""))
    sign = "+" if "add" in command else "-" if "remove" in command else ""
    return f"{command['kind']} {sign}{who}".strip()
