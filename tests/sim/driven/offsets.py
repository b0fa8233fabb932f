"""Consumers' offsets: the real `PlacedConsumers` of a driven broker, consumers that commit them, and what must hold.

A consumer commits greater and greater offsets, one try after the other; it may give up one before its broker has. A
try is open until its broker has done with it, or is gone. Then it never takes effect later: what is in a log is there
before what is appended next.

BACK   whoever leads `__offsets` answers no offset below the last one that somebody was told before he was asked: that
       it is committed, or that it was read; but for what was open still when that was asked for
ASKED  and none that nobody has committed
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from broker.api.batch import decode_batch
from broker.api.errors import LiftlogError, UnknownConsumer
from broker.api.stream import OFFSETS_STREAM
from broker.groups.offsets import ConsumerOffset, decode_offset
from broker.metadata.partition import Place
from broker.node import offsets
from broker.node.offsets import PlacedConsumers
from broker.node.sinks.committed import WholeRead
from tests.sim.driven.running import PausedReplica, Threads
from tests.sim.metadata import name_of

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.driven.node import Broker
    from tests.sim.driven.sinks import SteppedSinks

OFFSETS: Final[Place] = ("offsets", 0)
PACE_MS: Final = 120
STRAY: Final = 0.05
Done = Callable[[Any, LiftlogError | None], None]


class PausedRead(WholeRead):
    """Reading takes time, where it is on a fiber."""

    def check(self) -> None:
        replica = self._partition.replica
        if isinstance(replica, PausedReplica):
            replica.process.preempt()
        super().check()
        if isinstance(replica, PausedReplica):
            replica.process.preempt()


offsets.WholeRead = PausedRead  # type: ignore[misc]  # the driver makes it by its name


class SteppedOffsets:
    """Of one process."""

    def __init__(self, sinks: SteppedSinks) -> None:
        self._loop, process = sinks._stepped, sinks._process
        self._view = PlacedConsumers(
            sinks._streams.partition, Threads(process, 2, waits=True), lambda: f"no {OFFSETS_STREAM}"
        )

    def handle(self, consumer: str, offset: ConsumerOffset | None, done: Done) -> None:
        """Commit, or get."""
        self._loop.create_task(self._handled(consumer, offset, done))

    async def _handled(self, consumer: str, offset: ConsumerOffset | None, done: Done) -> None:
        try:
            if offset is not None:
                await self._view.commit(consumer, [offset])
                done(None, None)
            else:
                done(self._view.get(consumer), None)
        except UnknownConsumer:
            done([], None)
        except LiftlogError as error:
            done(None, error)


@dataclass
class Try:
    """A commit. `open_before`: the offsets of those that were open when it was asked for. process: that is at it."""

    offset: int
    broker: Broker
    open_before: frozenset[int]
    process: int = 0
    is_over: bool = False

    @property
    def is_open(self) -> bool:
        return not self.is_over and self.process in (0, self.broker.process)


@dataclass
class Reached:
    """How far a consumer is in a partition: the last offset that somebody was told, and those that may come later."""

    offset: int = 0
    loose: frozenset[int] = frozenset()
    asked: int = 0
    tries: list[Try] = field(default_factory=list)


class Committing:
    """One consumer, and what must hold of its offsets."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.name = name
        self.rng = random.Random(f"offsets of {name} in {cluster.seed}")
        self.reached: dict[tuple[str, int], Reached] = {}
        self.world.after(self.rng.uniform(1_000, 2_000), self._next)

    def _next(self) -> None:
        self.world.after(self.rng.expovariate(1 / PACE_MS), self._next)
        if self.rng.random() < 0.4:
            self._get()
            return
        published = self.cluster.published
        assert published is not None
        place = self.rng.choice(published.places())
        known = self.reached.setdefault(place, Reached())
        known.tries = [each for each in known.tries if each.is_open]
        if not known.tries or self.rng.random() < 0.1:
            self._commit(place, known)

    def _leader(self) -> Broker:
        leader = self.cluster.metadata.states[name_of(OFFSETS)].leader
        if leader is None or self.rng.random() < STRAY:
            leader = self.rng.choice(list(self.cluster.brokers))
        return cast("Broker", self.cluster.brokers[leader])

    def _carry(self, source: str, target: str, act: Callable[[], None]) -> bool:
        """A request or an answer, over a connection: once, or never. Returns whether it is on its way."""
        network, weather = self.cluster.network, self.cluster.network.weather
        if (source, target) in network.cut or self.rng.random() < weather.lost:
            return False
        late_ms = self.rng.uniform(0, weather.late_ms) if self.rng.random() < weather.late else 0.0
        self.world.after(self.rng.expovariate(1 / weather.delay_ms) + late_ms, act)
        return True

    def _commit(self, place: tuple[str, int], known: Reached) -> None:
        known.asked += 1
        to = self._leader()
        this = Try(known.asked, to, frozenset(each.offset for each in known.tries))
        offset = ConsumerOffset(consumer=self.name, stream=place[0], partition=place[1], offset=this.offset)

        def done(_: Any, error: LiftlogError | None) -> None:
            this.is_over = True
            if error is not None:
                self.world.saw(f"offset refused: {type(error).__name__}")
                return
            self.world.saw("offset committed")
            if this.offset > known.offset:
                known.offset, known.loose = this.offset, this.open_before

        def arrive() -> None:
            this.process = to.process or -1
            to.asked_of_offsets(self.name, offset, done)

        if self._carry("client", to.name, arrive):
            known.tries.append(this)

    def _get(self) -> None:
        to = self._leader()
        floors = {place: (known.offset, known.loose) for place, known in self.reached.items()}
        is_open = {
            place: frozenset(each.offset for each in known.tries if each.is_open)
            for place, known in self.reached.items()
        }

        def done(said: list[ConsumerOffset] | None, error: LiftlogError | None) -> None:
            state = self.cluster.metadata.states[name_of(OFFSETS)]
            if said is None or state.leader != to.name:  # who leads no more may not have heard of it
                return
            self.world.saw("offsets read")
            found = {(each.stream, each.partition): each.offset for each in said}
            for place, (floor, loose) in floors.items():
                offset, who = found.get(place, 0), f"{self.name} in {place}: {to.name} answers"
                if offset < floor and offset not in loose:
                    self._fail(f"BACK: {who} {offset}, and {floor} was committed before")
                known = self.reached[place]
                if offset > known.asked:
                    self._fail(f"ASKED: {who} {offset}, and nobody has committed that")
                if offset > known.offset:
                    known.offset, known.loose = offset, is_open[place]

        self._carry("client", to.name, lambda: to.asked_of_offsets(self.name, None, done))

    def _fail(self, what: str) -> None:
        published = self.cluster.published
        assert published is not None
        published.fail(what)

    def all_is_well(self) -> None:
        """At the end: from the log of the leader."""
        state = self.cluster.metadata.states[name_of(OFFSETS)]
        seen: Any = self.cluster.brokers[state.leader or ""].replicas[name_of(OFFSETS)]
        found: dict[tuple[str, int], int] = {}
        for message in seen._read(0, seen.log.state.high_watermark, 1 << 24):
            for each in offsets_in(message):
                if each.consumer == self.name:
                    found[each.stream, each.partition] = each.offset
        for place, known in self.reached.items():
            offset = found.get(place, 0)
            if offset < known.offset and offset not in known.loose:
                self._fail(f"BACK: {self.name} in {place}: {offset} is in the log, and {known.offset} was committed")


def offsets_in(message: memoryview) -> list[ConsumerOffset]:
    """The offsets of one batch."""
    rows = decode_batch(message)
    pairs = zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True)
    found = (decode_offset(key, value) for key, value in pairs if value is not None)
    return [each for each in found if each is not None]
