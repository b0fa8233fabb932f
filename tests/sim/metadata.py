"""The plane that the catalog comes through: commands are late, overtake each other, are committed twice or lost;
answers are lost; controllers change, and with them goes what they had not committed.

The catalog is the broker's own (`broker.metadata`). One list of commands is committed. Each broker applies it by
itself, from a snapshot or from the first command on, and all that are equally far must be equal byte for byte. A
command is judged by the catalog of the controller, which may be behind, before it is committed, and again where it
stands.

There is a controller while some broker is connected with a majority. A broker that is not connected with it can neither
ask nor learn. A committed command stays: the adapter of Raft is simulated by itself (`tests.sim.raft`), with pysyncobj
inside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.api.errors import LiftlogError
from broker.api.stream import StreamSettings
from broker.metadata.catalog import Catalog
from broker.metadata.partition import PartitionState, Place
from tests.sim.network import Network
from tests.sim.world import Violation, World

if TYPE_CHECKING:
    from tests.sim.driven.node import Broker

ROUND_MS = 250
COMPARED_EVERY = 16
"""So many commands lie between two that every broker's catalog is compared after, and that snapshots are taken at."""

Answered = Callable[[dict[str, Any], int], None]
"""Told the result of a command, and how many were applied with it."""
Failed = Callable[[str, int, Mapping[Place, PartitionState]], None]


def name_of(at: Place) -> str:
    """The name of a partition here: the first one is called as its stream."""
    return at[0] if at[1] == 0 else f"{at[0]}+{at[1]}"


def place_of(name: str) -> Place:
    """Where a partition of that name stands."""
    stream, _, number = name.partition("+")
    return stream, int(number or 0)


def by_stream(names: Iterable[str]) -> dict[str, list[int]]:
    """Partitions as commands list them."""
    found: dict[str, list[int]] = {}
    for stream, number in map(place_of, names):
        found.setdefault(stream, []).append(number)
    return found


def text_of(catalog: Catalog) -> str:
    """A snapshot as it is written."""
    return json.dumps(catalog.snapshot(), sort_keys=True)


class Metadata:
    """See the module.

    Attributes:
        catalog: As it is after all that is committed.
        log: Commands that are committed, each with its result.
        states: The state of each partition, by its name.
        snapshots: By the number of commands before them.
        controller, term, began_at: The broker that has a majority by now; which term it is, and how much was committed
            before it.
        depose_at: A kind of command: with the next such one the controller steps down.
        failed: Told of brokers that are taken for dead; `altered`: of a partition, and its stream's settings by now;
            `added`: of a partition that was not there before; `came`: of a broker that has registered, and its folder;
            `removed`: of one that was removed, and its folder; `carried`: of each command.
        expired: Ids of requests that were answered in doubt, and are never carried out after that (`service.V5`).
        deaf: Processes of removed brokers that hear nothing of the group any more.
        is_timed: What is put in the log of Raft goes out when a time is up, not with the next tick (`joined.py`).
        damages: Whether journals of the group are damaged in this run (`joined.py`).
        is_whole: Whether one may be.
    """

    is_timed = False
    damages = False
    is_whole = False

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
        self.began_at = 0
        self.depose_at = ""
        self.first_term = 0
        self.failed: Failed = lambda broker, registration, partitions: None
        self.altered: Callable[[str, StreamSettings], None] = lambda name, settings: None
        self.added: Callable[[str], None] = lambda name: None
        self.came: Callable[[str, str], None] = lambda name, folder: None
        self.removed: Callable[[str, str], None] = lambda name, folder: None
        self.carried: Callable[[], None] = lambda: None
        self.expired: set[str] = set()
        self.deaf: set[tuple[str, int]] = set()
        self._process = 0  # of the controller
        self._gone_ms: float | None = None  # when it will have been silent for too long
        self._checked = checked
        world.after(ROUND_MS, self._round)

    def form(self, names: Sequence[str], commands: Sequence[Mapping[str, Any]]) -> None:
        """Tell the catalog all that it was told before the run."""
        for command in commands:
            result = self.carry_out(command)
            assert "ok" in result, result

    # -- a broker's part

    def begun(self, broker: Broker) -> tuple[int, str]:
        """The catalog that a process finds: how many commands, and a snapshot of them. Its own journal of Raft has
        that, or it is sent it: any that there was."""
        applied = self.world.rng.choice(list(self.snapshots))
        if applied:
            self.world.saw("catalog restored from a snapshot")
        return applied, self.snapshots[applied]

    def ended(self, broker: Broker, mode: str) -> None:
        """A process is gone, as `Broker.crash` has it."""

    def folder_of(self, broker: Broker) -> str:
        """The id of a broker's folder: its id in the Raft group."""
        return f"{broker.name}.{broker.folder}@{broker.name}"

    def damage(self, name: str, how: str = "") -> None:
        """The journal of a broker that does not run loses something that it had synced."""
        raise NotImplementedError

    def why(self) -> str:
        """The part of the group itself that is not well yet; empty: all is."""
        return ""

    def known_to(self, broker: str) -> int:
        """So many commands a broker may apply by now."""
        return len(self.log) if self.reaches(broker) else 0

    def heard(self, broker: str) -> tuple[int, str | None] | None:
        """The newest term, and who controls, as far as a broker hears anything."""
        return (self.term, self.controller) if self.reaches(broker) else None

    def may_control(self, broker: Broker, known: tuple[int, str | None]) -> bool:
        """Whether it controls, and has applied all that was committed in earlier terms."""
        return known == (self.term, broker.name) and broker.applied >= self.began_at

    def all_is_well(self) -> None:
        """At the end."""

    def reaches(self, broker: str) -> bool:
        if self.deaf and (broker, self.brokers[broker].process) in self.deaf:
            return False
        return self.controller is not None and self.network.connects(broker, self.controller)

    def depose(self) -> None:
        """The controller is another soon."""
        self.controller = self._gone_ms = None
        self.term += 1

    def _is_able(self, name: str) -> bool:
        """It runs, and reaches a majority."""
        voters = self.catalog.brokers
        able = [each for each, broker in self.brokers.items() if broker.is_running and each in voters]
        return name in able and 2 * sum(self.network.connects(name, each) for each in able) > len(voters)

    def _is_stuck(self) -> bool:
        """There is a controller that can do nothing just now. One whose process is gone is none."""
        if self.controller is None:
            return False
        if self.brokers[self.controller].process != self._process:
            self.depose()
            return False
        return not self._is_able(self.controller)

    def lose(self, end: int) -> None:
        """A majority of the catalog's disks is gone: a new group begins with what there was after `end` commands."""
        self.depose()
        self.first_term = self.term
        del self.log[end:]
        self.snapshots = {at: text for at, text in self.snapshots.items() if at <= end}
        at = max(self.snapshots)
        self.catalog = Catalog.restore(json.loads(self.snapshots[at]))
        for command, _ in self.log[at:]:
            self.catalog.apply(command)
        self.states.update({name_of(at): state for at, state in self.catalog.cluster.partitions.items()})

    # -- commands

    def submit(self, broker: str, command: Mapping[str, Any], answered: Answered | None = None) -> None:
        """Ask for a command. `answered` may never be called."""
        if self.reaches(broker):
            delay = self.world.rng.expovariate(1 / 3) + (400 if self.world.chance(0.02) else 0)
            self.world.after(delay, self._arrive, self.term, broker, {"v": 1, **command}, answered)

    def submit_own(self, term: int, broker: str, command: Mapping[str, Any], answered: Answered) -> None:
        """The controller of a term asks. One that is none any more writes into a log that nobody takes over."""
        if term != self.term or broker != self.controller:
            self.world.saw("command of a controller that is none any more")
        else:
            self.world.after(0.1, self._arrive, term, broker, {"v": 1, **command}, answered)

    def _arrive(self, term: int, broker: str, command: dict[str, Any], answered: Answered | None) -> None:
        """At the controller: judged by what that has applied."""
        world = self.world
        if term < self.first_term:
            return
        if self._is_stuck():
            world.after(100, self._arrive, term, broker, command, answered)
            return
        judge = self.brokers[self.controller] if self.controller is not None else None
        if term == self.term and judge is not None and judge.process:
            try:
                judge.catalog.judge(command)
            except LiftlogError as error:
                world.saw("command refused before it is committed")
                self._answer(broker, answered, {"error": error.to_problem()}, judge.applied)
                return
        for _ in range(2 if world.chance(0.04) else 1):
            late_ms = world.rng.uniform(0, 1_500) if world.chance(0.02) else 0
            world.after(world.rng.expovariate(1 / 3) + late_ms, self._commit, term, broker, command, answered)

    def _commit(self, term: int, broker: str, command: dict[str, Any], answered: Answered | None) -> None:
        world = self.world
        if term < self.first_term:
            return
        if command["kind"] in (self.depose_at, f"{self.depose_at}s") and self.controller is not None:
            self.depose_at = ""
            world.note("catalog", f"the controller steps down, with {command['kind']} in its log")
            self.depose()
        if self._is_stuck():
            world.after(100, self._commit, term, broker, command, answered)
            return
        if term != self.term:
            world.saw("command of a deposed controller")
            if world.chance(0.5):  # committed after all, by a successor; nobody is told
                world.after(world.rng.uniform(0, 1_500), self._inherit, term, broker, command)
            return
        self._committed(broker, command, answered)

    def _inherit(self, term: int, broker: str, command: dict[str, Any]) -> None:
        if self.controller is None or self._is_stuck():
            self.world.after(100, self._inherit, term, broker, command)
        elif term >= self.first_term:
            self._committed(broker, command, None)

    def _committed(self, broker: str, command: dict[str, Any], answered: Answered | None) -> None:
        world = self.world
        if command.get("request_id") in self.expired:
            world.saw("command came too late")
            return
        result = self.carry_out(command)
        for name in self.brokers:
            if self.reaches(name):
                late_ms = world.rng.uniform(0, 700) if world.chance(0.1) else 0
                world.after(world.rng.expovariate(1 / 15) + late_ms, self.brokers[name].learn, len(self.log))
        self._answer(broker, answered, result, len(self.log))

    def _answer(self, broker: str, answered: Answered | None, result: dict[str, Any], at: int) -> None:
        if answered is not None and not self.world.chance(0.08) and self.reaches(broker):
            self.world.after(self.world.rng.expovariate(1 / 5), answered, result, at)

    def carry_out(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Commit a command. Returns its result."""
        world, command = self.world, json.loads(json.dumps(command))
        before = self.catalog.brokers.get(command.get("broker_id", ""))
        result = self.catalog.apply(command)
        self.log.append((command, result))
        if "error" in result:
            world.saw("committed command refused")
        elif command["kind"] == "fail_broker":
            world.saw("session lapsed")
        elif command["kind"] == "register_broker":
            if before is None and self.brokers:
                world.saw("broker joined")
                world.note("catalog", f"{command['broker_id']} has joined")
            self.came(command["broker_id"], command.get("raft", ""))
        elif command["kind"] == "remove_broker":
            self.removed(command["broker_id"], before.raft if before is not None else "")
        elif command["kind"] == "alter_stream":
            info = self.catalog.streams[command["name"]]
            world.note("catalog", f"{info.incarnation}: is altered: {command['settings']}")
            self.altered(info.incarnation, info.settings)
        elif command["kind"] == "confirm_partitions" and not result["ok"]["waiting"]:
            world.saw("added partitions counted")
            world.note("catalog", f"{command['incarnation']}: {command['partitions']} partitions count from now on")
        if len(self.log) % COMPARED_EVERY == 0:
            self.snapshots[len(self.log)] = text_of(self.catalog)
        for at, state in self.catalog.cluster.partitions.items():
            name = name_of(at)
            was = self.states.get(name)
            if was is state:
                continue
            if was is None:
                self.added(name)
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
        self.carried()
        if command["kind"] == "fail_broker" and "ok" in result:
            self.failed(command["broker_id"], command["registration"], self.catalog.cluster.partitions)
        return result

    def compare(self, broker: Broker, result: dict[str, Any]) -> None:
        """A broker has applied one more command: it must be where everybody was who had applied so many."""
        at, name = broker.applied, broker.name
        if result != self.log[at - 1][1]:
            raise Violation(f"R8: {name} answers {result} to command {at}, others {self.log[at - 1][1]}")
        if at in self.snapshots and text_of(broker.catalog) != self.snapshots[at]:
            raise Violation(f"R8: {name} has another catalog than others after command {at}")

    # -- the controllership

    def count_of(self, stream: str) -> int:
        """So many partitions of a stream count, by all that is committed."""
        found = (info.settings.partitions for info in self.catalog.streams.values() if info.incarnation == stream)
        return next(found, 1)

    def _round(self) -> None:
        """Choose the controller. A silent one is replaced after a while."""
        world = self.world
        world.after(ROUND_MS, self._round)
        if not self._is_stuck():
            self._gone_ms = None
        elif self._gone_ms is None:
            self._gone_ms = world.now_ms + world.rng.uniform(0, 1_000)
        elif world.now_ms >= self._gone_ms:
            self.depose()
        if self.controller is None:
            fit = [name for name in self.brokers if self._is_able(name)]
            if fit and world.chance(0.8):
                self.controller = world.rng.choice(fit)
                self._process = self.brokers[self.controller].process
                self.began_at = len(self.log)
                world.saw("controller")
                world.note("catalog", f"{self.controller} is elected for term {self.term}")


def _brief(command: Mapping[str, Any]) -> str:
    if command["kind"] == "alter_isrs":
        changes = [f"+{row[4]}" for row in command["add"]] + [f"-{row[4]}" for row in command["remove"]]
        return f"alter_isrs {' '.join(changes)}"
    who = command["add"][0] if "add" in command else command.get("remove", command.get("broker_id", ""))
    sign = "+" if "add" in command else "-" if "remove" in command else ""
    return f"{command['kind']} {sign}{who}".strip()
