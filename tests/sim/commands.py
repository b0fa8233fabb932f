"""Faults of the catalog's controller, and an operator who asks for changes meanwhile. A part of `faults.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim.machine import SYNC_MS
from tests.sim.metadata import by_stream, place_of

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.driven.node import Broker
    from tests.sim.world import World

WORST = ("fail_broker", "report_leader", "register_broker", "alter_isr", "step_out", "renew_sessions")


class OfTheCatalog:
    """See the module."""

    cluster: Cluster
    world: World
    is_over: bool
    _pause: Callable[[Broker], bool]
    _later: Callable[[float, float, Callable[[], object]], None]
    _down: Callable[[Broker, str], bool]
    _cut: Callable[[list[tuple[str, str]], float, float], None]

    # -- the controller

    def _controller(self, broker: Broker) -> bool:
        metadata = self.cluster.metadata
        if metadata.controller is None:
            return False
        metadata.depose()
        self.world.note("catalog", "the controller steps down")
        return True

    def _controller_midway(self, broker: Broker) -> bool:
        """It steps down with the next such command in its log, that is not committed yet."""
        self.cluster.metadata.depose_at = self.world.rng.choice(WORST)
        return True

    def _controller_stops(self, broker: Broker) -> bool:
        """It is stopped for a while, and may find that it is none any more when it goes on."""
        controller = self.cluster.metadata.controller
        return controller is not None and self._pause(self.cluster.brokers[controller])

    def _lapse(self, broker: Broker) -> bool:
        """It loses the controller for a little longer than a session, and not the others."""
        controller = self.cluster.metadata.controller
        if controller is None or controller == broker.name:
            return False
        broker.note("does not reach the controller")
        self._cut([(broker.name, controller), (controller, broker.name)], 1_900, 3_500)
        return True

    def _slow_disk(self, broker: Broker) -> None:
        """Who is about to close or to recover something may be at his disk meanwhile."""
        if self.world.chance(0.5):
            broker.sync_ms = self.world.rng.choice((40.0, 200.0, 800.0))
            self._later(3_000, 8_000, lambda: setattr(broker, "sync_ms", SYNC_MS))

    # -- an operator

    def _ask(self, kind: str, **values: Any) -> bool:
        """As an operator, or the controller itself, asks."""
        metadata = self.cluster.metadata
        if metadata.controller is None:
            return False
        metadata.submit(metadata.controller, {"kind": kind, **values})
        return True

    def _elect(self, broker: Broker) -> bool:
        """Leaderships go to the first replicas."""
        return self._ask("elect_preferred", partitions=by_stream(self.cluster.metadata.states))

    def _stop(self, broker: Broker) -> bool:
        """It hands its leaderships over, and ends: before or after they are others'."""
        if not broker.incarnation or broker.process == 0:
            return False
        self._slow_disk(broker)
        return broker.stops()

    def _unclean(self, broker: Broker) -> bool:
        """One lags, all that may lead are gone for a while, and an operator gives up what only they have."""
        if len(self.cluster.brokers) < 5:
            return False  # without those there is no majority for the catalog
        name = self.world.rng.choice(list(self.cluster.metadata.states))
        state = self.cluster.metadata.states[name]
        who = self.world.rng.choice([each for each in state.replicas if each != state.leader])
        self._cut([pair for each in state.replicas for pair in ((who, each), (each, who))], 2_000, 2_400)
        self.world.after(2_400, self._leave, name, who)
        return True

    def _leave(self, name: str, chosen: str) -> None:
        state, brokers = self.cluster.metadata.states.get(name), self.cluster.brokers
        if state is None or self.is_over or chosen in state.electable or not self._has(chosen, name):
            return
        for who in sorted(state.electable):
            brokers[who].crash("kill")
            self._later(4_500, 6_000, brokers[who].start_if_gone)
        self._later(2_500, 4_000, lambda: self._choose(name, chosen))

    def _choose(self, name: str, chosen: str) -> None:
        state = self.cluster.metadata.states.get(name)
        if state is None or state.unclean_epoch:
            return  # once: what was given up may come back with the next one who is chosen
        if state.leader is None and chosen in state.replicas and self._has(chosen, name):
            stream, number = place_of(name)
            self._ask("elect_unclean", stream=stream, partition=number, broker_id=chosen)

    def _has(self, who: str, name: str) -> bool:
        replica = self.cluster.brokers[who].replicas.get(name)
        return replica is not None and replica.log is not None and not replica.is_damaged

    def _minimum(self, broker: Broker) -> bool:
        """So many must be in sync from now on."""
        name = self.world.rng.choice(list(self.cluster.metadata.states))
        stream, _ = place_of(name)
        return self._ask("set_min_insync", stream=stream, min_insync_replicas=self.world.rng.choice((1, 2, 2, 3)))

    def _assign(self, broker: Broker) -> bool:
        """Other brokers get the replicas, or the same in another order."""
        metadata, rng = self.cluster.metadata, self.world.rng
        name = rng.choice(list(metadata.states))
        state, names = metadata.states[name], list(self.cluster.brokers)
        target = list(state.target or state.replicas)
        free = [each for each in names if each not in target]
        if free and rng.random() < 0.8:
            at = rng.randrange(len(target))
            self._slow_disk(self.cluster.brokers[target[at]])
            target[at] = rng.choice(free)
        else:
            rng.shuffle(target)
        stream, number = place_of(name)
        return self._ask("reassign", stream=stream, partition=number, replicas=target)
