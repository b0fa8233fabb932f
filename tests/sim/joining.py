"""Brokers that join a running cluster and leave it for good: an operator's part, and what must hold of them.

    join ─► a new name, an empty disk ─► replicas are moved to it by drains, and by hand
    leave ─► drain (the broker's own plan) ─► stop, or it is gone already ─► remove ─► its folder comes back: refused

The operator has a random stream of its own. So has nobody else's luck changed in the seeds without one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from broker.api.errors import InvalidRequest
from broker.control.operating.draining import kept_by, planned
from broker.metadata.partition import PartitionState, Place
from tests.sim.metadata import name_of, place_of

if TYPE_CHECKING:
    from broker.metadata.cluster import Cluster as Members
    from tests.sim.cluster import Cluster
    from tests.sim.driven.node import Broker
    from tests.sim.world import World

MEMBERS_MIN, MEMBERS_MAX = 3, 7
"""With so many one may begin to leave; with so many nobody else joins."""
PATIENCE_MS: Final = 9_000
"""After so long an operator lets who was to leave stay, if it can."""
WAYS: Final = ("drained", "drained", "dead", "disk", "alone", "alone")
"""How brokers leave: alive, and stopped when they keep nothing; their machine is gone, and comes back with its folder
when they are removed; their disk is gone, and another broker comes in their place; nobody hears of them, and they run
on."""


@dataclass
class Leaving:
    """A broker that is about to leave, how, and since when. `is_stopped`: it was, as it keeps nothing any more."""

    broker: Broker
    way: str
    since_ms: float
    is_stopped: bool = False
    is_drained: bool = False


class Operator:
    """See the module.

    Attributes:
        leaving: The broker that is about to leave.
        removed: Brokers that were removed, and have not come back with an empty folder; `refused`: those of them that
            may, as their old folder was refused, or is gone.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.rng = random.Random(f"members of {cluster.seed}")
        self.leaving: Leaving | None = None
        self.is_over = False
        self.removed: list[Broker] = []
        self.refused: list[Broker] = []
        cluster.metadata.removed = self.was_removed
        self.world.after(self.rng.uniform(500, 2_000), self.next)

    @property
    def members(self) -> Collection[str]:
        """All that are registered, by what is committed."""
        return self.cluster.metadata.catalog.brokers

    def stray(self, target: str) -> str:
        """A client may ask a broker of long ago."""
        if self.removed and self.rng.random() < 0.15:
            return self.rng.choice(self.removed).name
        return target

    def next(self) -> None:
        """Let one join or begin to leave, now and then."""
        if self.is_over:
            return
        self.world.after(self.rng.uniform(500, 1_600), self.next)
        count, luck = len(self.members), self.rng.random()
        if self.removed and luck < 0.15:
            self._fill(self.rng.choice(self.removed))  # by mistake
        if self.leaving is not None and luck < 0.6:
            return
        back = [one for one in self.refused if one.process == 0 and one.name not in self.members]
        if back and luck < 0.75:
            self._return(self.rng.choice(back))
        elif count < MEMBERS_MAX and luck < 0.65:
            self.join()
        elif self.leaving is None and count >= MEMBERS_MIN:
            self._begin(self.rng.choice(WAYS))

    # -- who comes

    def join(self) -> Broker:
        """A broker of a new name."""
        name = f"b{len(self.cluster.brokers) + 1}"
        broker = self.cluster.add_broker(name, self.rng.choice(("", "north", "south")))
        broker.note("is to join")
        broker.start()
        self.world.after(self.rng.uniform(300, 1_500), self._fill, broker)
        return broker

    def _return(self, broker: Broker) -> None:
        """With an empty folder a removed broker is another one, whatever it is called."""
        broker.note("comes back with an empty folder")
        broker.replace_disk(self.cluster.new_disk())
        broker.is_scrapped = False
        self.cluster.checker.forget(broker.name)
        self.refused = [one for one in self.refused if one is not broker]
        self.removed = [one for one in self.removed if one is not broker]
        broker.start()
        self.world.saw("removed broker back with an empty folder")

    def _fill(self, broker: Broker) -> None:
        """It gets a replica by hand, whether it has registered by now or not."""
        states = self.cluster.metadata.states
        name = self.rng.choice(list(states))
        target = list(states[name].target or states[name].replicas)
        if not self.is_over and broker.name not in target:
            target[self.rng.randrange(len(target))] = broker.name
            self._reassign(place_of(name), target)

    # -- who leaves

    def _begin(self, way: str) -> None:
        cluster, faults = self.cluster, self.cluster.faults
        broker = cluster.brokers[self.rng.choice(sorted(self.members))]
        mine = [name for name, state in cluster.metadata.states.items() if broker.name in state.replicas]
        if broker.process == 0 or (way == "disk" and not all(faults.spare(broker, name) for name in mine)):
            return
        broker.note(f"is to leave ({way})")
        self.leaving = Leaving(broker, way, self.world.now_ms)
        if way in ("dead", "disk"):
            broker.is_scrapped = True
            broker.crash(self.rng.choice(("kill", "lost")))
        if way == "disk":
            broker.replace_disk(cluster.new_disk())
            for name in mine:
                cluster.checker.lose(broker.name, name)
            self.join()
        if way == "alone":
            self._cut_off(broker)
        self._go_on(self.leaving)

    def _cut_off(self, broker: Broker) -> None:
        """From all, or from all but one; it runs on."""
        others = [name for name in self.cluster.brokers if name != broker.name]
        self.rng.shuffle(others)
        some = others[: len(others) - self.rng.randint(0, 1)]
        pairs = {pair for name in some for pair in ((broker.name, name), (name, broker.name))}
        cut = self.cluster.network.cut
        pairs -= cut
        cut |= pairs
        self.world.after(self.rng.uniform(4_000, 7_000), lambda: cut.difference_update(pairs))

    def _go_on(self, leaving: Leaving) -> None:
        """Drain, stop and remove, again and again until it is so."""
        if self.leaving is not leaving:
            return
        self.world.after(self.rng.uniform(200, 700), self._go_on, leaving)
        metadata, broker = self.cluster.metadata, leaving.broker
        if self.world.now_ms - leaving.since_ms > PATIENCE_MS and leaving.way != "disk":
            self.give_up()
            return
        controller = metadata.controller
        cluster = self.cluster.brokers[controller].catalog.cluster if controller is not None else None
        if cluster is None or broker.name not in cluster.brokers:
            return
        if kept_by(cluster, broker.name):
            self._drain(cluster, leaving)
            if self.rng.random() < 0.8:
                return  # else it is asked for too early
        elif not leaving.is_drained:
            leaving.is_drained = True
            self.world.saw("broker drained")
        if leaving.way == "drained" and leaving.is_drained:
            self._stop(leaving)
        self._ask("remove_broker", broker_id=broker.name)

    def _drain(self, cluster: Members, leaving: Leaving) -> None:
        is_poor = leaving.way != "drained" and (self.is_over or self.rng.random() < 0.5)
        try:
            moves, stuck = planned(cluster, leaving.broker.name, fewer_replicas=is_poor)
        except InvalidRequest:
            self.world.saw("drain refused")
            return
        if stuck:
            self.world.saw("drain of what nobody else has")
        for at, (target, least) in moves.items():
            self._reassign(at, target, min_insync_replicas=least)
            leader = self.cluster.metadata.states[name_of(at)].leader
            if leader is not None and not self.is_over and self.rng.random() < 0.15:
                self.world.after(
                    self.rng.uniform(0, 1_500), self.cluster.faults.inject, "kill", self.cluster.brokers[leader]
                )

    def _stop(self, leaving: Leaving) -> None:
        """Cleanly, or not."""
        broker = leaving.broker
        if leaving.is_stopped:
            return
        leaving.is_stopped = broker.is_scrapped = True
        if self.rng.random() < 0.5 and broker.incarnation:
            broker.submit({"kind": "stop_broker", "broker_id": broker.name, "registration": broker.incarnation})
            broker.after(200, broker.leave)
        self.world.after(300, broker.crash, "kill")

    def give_up(self) -> None:
        """The broker that was to leave stays, and is started again."""
        leaving, self.leaving = self.leaving, None
        if leaving is not None:
            self.world.saw("leaving given up")
            leaving.broker.is_scrapped = False
            leaving.broker.start_if_gone()

    def was_removed(self, name: str, folder: str) -> None:
        """The catalog has it."""
        leaving, broker = self.leaving, self.cluster.brokers[name]
        self.world.saw("broker removed")
        broker.note("is removed")
        self.cluster.checker.removed(broker, folder)
        self.removed.append(broker)
        if leaving is not None and leaving.broker is broker:
            self.leaving = None
        if broker.process and self.rng.random() < 0.3:  # whoever has no vote any more may hear nothing of the group
            self.cluster.metadata.deaf.add((name, broker.process))
        way = leaving.way if leaving is not None else ""
        if way == "disk":
            self.refused.append(broker)
        else:
            least_ms, most_ms = (3_000, 8_000) if way == "alone" else (50, 3_000)
            self.world.after(self.rng.uniform(least_ms, most_ms), self._back_with_its_folder, broker)

    def _back_with_its_folder(self, broker: Broker) -> None:
        if broker.name not in self.members:
            broker.is_scrapped = False
            self.cluster.checker.has_ended(broker)
            broker.crash("kill")
            broker.start()

    # -- how it asks

    def _reassign(self, at: Place, replicas: Collection[str], **values: Any) -> None:
        self._ask("reassign", stream=at[0], partition=at[1], replicas=list(replicas), **values)

    def _ask(self, kind: str, **values: Any) -> None:
        metadata = self.cluster.metadata
        if metadata.controller is not None:
            if not self.is_over and self.rng.random() < 0.06:
                metadata.depose_at = kind  # it is in its log, and not committed
            metadata.submit(metadata.controller, {"kind": kind, **values}, self._answered)

    def _answered(self, result: dict[str, Any], at: int) -> None:
        if "error" in result:
            self.world.saw("operator refused")

    # -- the end

    def heal(self) -> None:
        """Nobody joins or leaves any more, but those whose disk is gone."""
        self.is_over = True
        if self.leaving is not None and self.leaving.way != "disk":
            self.give_up()

    def why(self) -> str:
        """The parts that are not well yet."""
        if self.leaving is None:
            return ""
        name, known = self.leaving.broker.name, self.cluster.checker.known
        kept = [known[name_of(at)] for at, _ in kept_by(self.cluster.metadata.catalog.cluster, name)]
        is_stuck = bool(kept) and all(one.is_lost or one.is_orphaned for one in kept)
        return "" if is_stuck else f"{name} is not removed"


class OfMembers:
    """The rules of the checker for brokers that come and go.

    Attributes:
        registered: All that are, by what is committed.
    """

    brokers: dict[str, Broker]
    world: World
    fail: Callable[[str], None]
    forget: Callable[[str], None]

    def __init__(self) -> None:
        self.registered: Callable[[], Collection[str]] = lambda: self.brokers
        self._placed: dict[str, PartitionState] = {}  # as it was last
        self._folders: set[str] = set()  # of brokers that were removed

    @property
    def clocks_are_even(self) -> bool:
        """No clock of late did not run as others do."""
        return not any(broker.clock.is_odd for broker in self.brokers.values())

    def removed(self, broker: Broker, folder: str) -> None:
        """A broker was removed. Its session is over by its own count, if all clocks run alike."""
        self._folders.add(folder)
        if broker.has_session and self.clocks_are_even:
            self.fail(f"GONE: {broker.name} is removed, and has a session")

    def came(self, name: str, folder: str) -> None:
        """The catalog has taken a process."""
        if folder and folder in self._folders:
            self.fail(f"GONE: {name} is taken back with the folder {folder}, which was removed")

    def is_of_members(self, name: str, partition: PartitionState) -> None:
        """Nobody else is anything of a partition."""
        named = {*partition.replicas, *partition.isr, *partition.last_isr, *(partition.target or ())}
        others = sorted((named | {partition.leader or partition.replicas[0]}) - {*self.registered()})
        if others:
            self.fail(f"GONE: {name}: {','.join(others)} is no broker of the cluster, and is named in {partition}")

    def is_moved_whole(self, name: str, partition: PartitionState) -> None:
        """Replicas go only when all that stay are in sync."""
        before = self._placed.get(name, partition)
        self._placed[name] = partition
        is_none = not before.has_led or set(before.replicas) <= set(partition.replicas)
        if not is_none and not set(partition.replicas) <= set(partition.isr):
            gone = ",".join(sorted(set(before.replicas) - set(partition.replicas)))
            self.fail(f"MOVE: {name}: {gone} keeps it no more, and of {partition.replicas} in sync are {partition.isr}")

    def acks_for_members(self, name: str, broker: Broker) -> None:
        """Nobody is told anything by who was removed."""
        if broker.name not in self.registered() and self.clocks_are_even:
            self.fail(f"GONE: {name}: {broker.name} was removed, and acknowledges")

    def only_members_are_left(self, leftovers: Collection[str]) -> None:
        """At the end nobody waits for a folder of who was removed, and nobody runs who knows that he was."""
        if others := sorted({*leftovers} - {*self.registered()}):
            self.fail(f"GONE: folders of {','.join(others)} are waited for")
        for broker in self.brokers.values():
            self.has_ended(broker)

    def has_ended(self, broker: Broker) -> None:
        """A process that knows that it was removed does not run."""
        if broker.is_running and broker.incarnation and broker.name not in broker.catalog.brokers:
            self.fail(f"GONE: {broker.name} knows that it was removed, and runs")
