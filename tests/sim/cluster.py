"""One run: a cluster, its clients, what goes wrong, and how it ends."""

from __future__ import annotations

import gc
from asyncio import InvalidStateError
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from broker.metadata.cluster import FEATURE_LEVEL
from broker.metadata.controller import CALM_MS
from broker.metadata.partition import Place
from tests.sim.batches import columns
from tests.sim.checker import Checker, Known
from tests.sim.clients import (
    Consumer,
    CorePublisher,
    IdPublisher,
    KeyedPublisher,
    NatsPublisher,
    Publisher,
    Repeater,
)
from tests.sim.driven.changing import CAPTURING, CHANGING, COMPACTING, FORMED, PAUSING, Changing, captured
from tests.sim.driven.nats import Server
from tests.sim.driven.node import Broker, Bugs
from tests.sim.driven.published import OWN, PUBLISHING, Published
from tests.sim.driven.rewriting import LAZY_PERCENT
from tests.sim.driven.wire import Link
from tests.sim.faults import CLOSING, ROTTING, Faults
from tests.sim.joined import DAMAGING, RaftPlane, joined
from tests.sim.joining import Operator
from tests.sim.metadata import Metadata, name_of, place_of
from tests.sim.network import CALM, Network, Weather
from tests.sim.quick import verified_once
from tests.sim.rewritten import Rewritten
from tests.sim.stored import SETTINGS
from tests.sim.world import Violation, World
from tests.support.simdisk import SimDisk

FAULTS_MS = 16_000
QUIET_MS = 3_000
"""After the faults clients go on for so long at least."""
TAKES_MS = 15_000
"""R9: within so long after all faults every partition takes records again."""
RESTS_MS = 5_000
"""R9: for so long nothing is asked of the catalog, in the end."""
REWRITING = 6
"""In this one of eight seeds the replicas write their logs anew, beside those in which an operator alters streams."""
JOINING = (16, 17)
"""In these of thirty-two seeds brokers join and leave for good, because an operator says so."""
OVER_NATS = 3
"""So many publish to each stream over NATS, where there is a server."""
AHEAD_BYTES = 16 << 10
"""So far files run ahead, at most: more than segments are long, and little enough for bits to flip in records."""
OF_OURS = (AssertionError, AttributeError, InvalidStateError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that are faults of a driver."""
HEAL_MS = 60_000
"""R6: within so long after all faults everything is well."""


class Cluster:
    """A run, made from a seed.

    Args:
        faults: Whether luck lets things go wrong. A scenario does that itself.
        raft: Whether the catalog comes through pysyncobj (`joined.py`): within `joined()` only.
        rewrites: Whether replicas write their logs anew; None: in some seeds. In a scenario only when it says so.
    Attributes:
        compacted: Partitions whose records may be missing; without `rewrites` they behave as if it were so: who comes
            from behind the leader's state file takes that.
        operator: Lets brokers join and leave, in the seeds that have one.
        level: What brokers say of it as they register: in one of four seeds that of this release, in half of which the
            cluster began with the first one. In the others they are of an earlier release.
        has_folders: Whether brokers register with the id of their folder.
        trims: Whether consumers ask for trims.
        calm_ms: The time that the controller calls calm: with its own ten seconds it would hardly ever give anything
            back.
        rots: Whether the files of its real replicas are damaged.
        changes: Changes streams of real brokers while they are written, in the seeds that have it.
        nats: A server that brokers capture streams from, in the seeds that have one.
        published: Writes through sinks, in the seeds that have it.
        faults_are_over: Repeaters stop when they know where their last group is.
    """

    def __init__(
        self,
        seed: int,
        *,
        faults: bool = True,
        size: int | None = None,
        partitions: int | None = None,
        min_insync_replicas: int | None = None,
        rewrites: bool | None = None,
        raft: bool = False,
    ) -> None:
        self.seed = seed
        self.world = world = World(seed)
        self.links: list[Link] = []
        self.bugs = Bugs()
        self.rots = faults and seed % 4 == ROTTING and not raft
        is_changing = faults and seed % 8 in CHANGING
        is_compacting = is_changing and seed % 16 in COMPACTING
        rng = world.rng
        size = size or rng.choice((3, 3, 3, 4, 5, 5, 7))
        if faults and seed % 4 == CLOSING:
            size = max(size, 4)  # else no replica could move
        weather = Weather(
            delay_ms=rng.choice((1, 3, 12)),
            late=rng.choice((0, 0.02, 0.15)),
            lost=rng.choice((0, 0.01, 0.06)),
            doubled=rng.choice((0, 0.02, 0.2)),
            kept=rng.choice((0, 0.02, 0.1)),
        )
        is_pausing = is_changing and seed % 16 in PAUSING
        self.network = Network(world, weather if faults and not is_pausing else CALM)
        self.trims = rng.random() < 0.4
        self.faults_are_over = False
        self.pace_ms = rng.choice((60, 150, 400))
        self.calm_ms = rng.choice((700, 2_000, CALM_MS)) if faults else CALM_MS
        names = [f"b{number}" for number in range(1, size + 1)]
        self.checker = checker = Checker(world)
        plane = RaftPlane if raft else Metadata
        self.metadata = metadata = plane(world, self.network, checker.changed)
        metadata.damages = raft and faults and seed % 4 in DAMAGING
        metadata.is_timed = seed % 4 == 0
        checker.registered, metadata.came = lambda: metadata.catalog.brokers, checker.came
        count = partitions or max(rng.choice((1, 2, 3)), 2 if is_changing else 1)
        minima = [min_insync_replicas or rng.choice((1, 2, 2)) for _ in range(count)]
        checker.known = {f"p{number}": Known() for number in range(len(minima))}
        if is_pausing:
            checker.known[name_of(("p0", 1))] = Known()
        is_publishing = faults and seed % 16 in PUBLISHING
        if is_publishing:
            checker.known.update({name_of(at): Known() for at in OWN})
        self.level = {"feature_level_max": FEATURE_LEVEL} if seed % 4 == 2 else {}
        self.rewrites = (self.rots and seed % 8 == REWRITING) or is_compacting if rewrites is None else rewrites
        self.compacted = {"p1"} if len(minima) > 1 or not self.rewrites else {"p0"}
        self.zeals, self.percents = (0.01, 0.1, 0.3) if faults else (0.0,), (0, 50, LAZY_PERCENT)
        self.log_settings = replace(SETTINGS, segment_bytes=3_000) if self.rewrites and faults else SETTINGS
        if self.rewrites:
            for name, known in checker.known.items():
                known.rewritten = Rewritten(name in self.compacted)
        checker.partitions = metadata.states
        is_internal = faults and len(minima) > 1 and rng.random() < 0.6 and not is_publishing
        internal = f"p{count - 1}" if is_internal else ""
        own = OWN if is_publishing else {}
        self._form(names, minima, "__offsets" if is_internal else "", FORMED if is_changing else {}, own)
        self._processes = self._producers = 0
        self.brokers = {name: self._made(name) for name in names}
        checker.brokers = metadata.brokers = self.brokers
        metadata.failed, metadata.altered = checker.failed, checker.altered
        self.publishers: list[Publisher] = []
        of_clients = [name for name in metadata.states if place_of(name) not in OWN]
        self.consumers = [Consumer(self, name) for name in of_clients]
        for name in of_clients:
            for number in range(2):
                producer_id = self.next_producer_id() if number == 0 or rng.random() < 0.3 else 0
                if self.rewrites and (number == 0 or rng.random() < 0.6):
                    producer_id = rng.choice((0, 0, producer_id))  # batches with stamps are seldom joined
                    has_keys = number == 0 and (is_changing or name in self.compacted)
                    kind = KeyedPublisher if has_keys else Publisher
                    self.publishers.append(kind(self, name, producer_id, f"{name}.{number}"))
                elif not producer_id and rng.random() < 0.5:
                    self.publishers.append(IdPublisher(self, name, f"{name}.{number}"))
                else:
                    self.publishers.append(Publisher(self, name, producer_id, f"{name}.{number}"))
                if is_changing:
                    self.publishers.append(IdPublisher(self, name, f"{name}.{number + 2}"))
        self.operator: Operator | None = None
        if seed % 32 in JOINING and faults and not raft:
            self.operator = Operator(self)
        self.has_folders = self.operator is not None or metadata.damages
        self.changes: Changing | None = None
        self.nats: Server | None = None
        self.published = Published(self) if is_publishing else None
        if is_publishing:
            self.pace_ms = min(self.pace_ms, 60)
        self.repeaters: list[Repeater] = []
        if seed % 8 == 1:
            self.trims = True
            self.repeaters = [Repeater(self, name, self.next_producer_id()) for name in of_clients]
        for broker in self.brokers.values():
            world.after(rng.uniform(0, 300), broker.start)
        metadata.added = self._added
        if is_changing:
            self.pace_ms = min(self.pace_ms, 60)
            self.changes = Changing(self)
            if seed % 8 in CAPTURING:
                self.nats = Server(self)
                self.publishers += [
                    each
                    for name in metadata.states
                    if name != internal and place_of(name)[1] == 0
                    for each in self._over_nats(name)
                ]
            metadata.carried = self.changes.carried_out
            self.changes.carried_out()
        self.faults = Faults(self)
        self.faults.is_over = not faults

    def _form(
        self,
        names: list[str],
        minima: list[int],
        internal: str,
        of_all: dict[str, Any],
        own: Mapping[Place, tuple[str, dict[str, Any]]],
    ) -> None:
        """Tell the catalog of the brokers, and of a stream of one partition for each minimum.

        Args:
            internal: The name of the last stream, with two replicas, as if there had been two brokers; empty: none is
                so.
            of_all: Settings of all streams.
            own: Streams of one partition for the brokers themselves: name and settings.
        """
        began_with = {"feature_level": FEATURE_LEVEL} if self.level and self.seed % 8 == 2 else {}
        commands: list[dict[str, Any]] = [{"kind": "form_cluster", "cluster_id": "c", **began_with}]
        for name in names:
            rack = self.world.rng.choice(("", "north", "south"))
            of = {"broker_id": name, "incarnation": "0", "http": f"{name}:9293", "grpc": f"{name}:9292", "rack": rack}
            commands.append({"kind": "register_broker", **of, **self.level})
        for number, minimum in enumerate(minima):
            is_compacted = self.rewrites and f"p{number}" in self.compacted
            settings = {"cleanup": "compact"} if is_compacted else {}
            settings |= of_all
            if of_all and self.seed % 8 in CAPTURING and not (internal and number == len(minima) - 1):
                settings |= captured(f"p{number}")
                if number == 0 and self.seed % 16 in PAUSING:
                    settings["partitions"] = 2
            stream = {"name": f"p{number}", "incarnation": f"p{number}", "created_us": 1, "settings": settings}
            placed = {"replication_factor": 3, "min_insync_replicas": minimum}
            if internal and number == len(minima) - 1:
                stream |= {"name": internal, "internal": True}
                placed = {"replication_factor": 2, "min_insync_replicas": 1}
            commands.append({"kind": "create_stream", **stream, **placed})
        for at, (name, settings) in own.items():
            stream = {"name": name, "incarnation": at[0], "created_us": 1, "settings": settings, "internal": True}
            commands.append({"kind": "create_stream", **stream, "replication_factor": 3})
        self.metadata.form(names, [{"v": 1, **command} for command in commands])
        self.began_ms = self.world.now_ms

    def _added(self, name: str) -> None:
        """A stream has one more partition, which nobody counts yet. Clients try it at once."""
        if name in self.checker.known:
            return  # a scenario has clients of its own
        self.checker.known[name] = known = Known()
        if self.published is not None and place_of(name)[0] in self.published.companions():
            return
        self.consumers.append(Consumer(self, name))
        if self.changes is not None and self.rewrites:
            info = next(i for i in self.metadata.catalog.streams.values() if i.incarnation == place_of(name)[0])
            known.rewritten = Rewritten(info.settings.cleanup != "delete")
            self.publishers.append(KeyedPublisher(self, name, 0, f"{name}.0"))
        else:
            self.publishers.append(Publisher(self, name, self.next_producer_id(), f"{name}.0"))
        if self.changes is not None:
            self.publishers.append(IdPublisher(self, name, f"{name}.1"))
        if self.nats is not None and place_of(name)[1] == 0:
            self.publishers += self._over_nats(name)

    def _over_nats(self, name: str) -> list[Publisher]:
        """Those of a stream whose first partition is called so."""
        kinds = (*[NatsPublisher] * OVER_NATS, CorePublisher)
        return [kind(self, name, f"{name}-{number}") for number, kind in enumerate(kinds)]

    def stream_of(self, name: str) -> str:
        """The name of a partition's stream."""
        incarnation, _ = place_of(name)
        streams = self.metadata.catalog.streams.values()
        return next(info.name for info in streams if info.incarnation == incarnation)

    def zeal(self, name: str) -> tuple[float, int]:
        """How likely a replica writes its log anew at a tick, and how much must be dirty for a pass of its own."""
        rng = self.world.rng
        return (rng.choice(self.zeals), rng.choice(self.percents)) if self.rewrites else (0.0, 0)

    def _made(self, name: str) -> Broker:
        return Broker(self, name, self.new_disk())

    def raise_bugs(self) -> None:
        """What a driver has caught, and logged as a fault of ours, or as one of the checker."""
        if self.bugs.found:
            raise self.bugs.found[0]

    def add_broker(self, name: str, rack: str) -> Broker:
        """A broker that nobody knows yet."""
        broker = self.brokers[name] = Broker(self, name, self.new_disk(), rack)
        return broker

    def new_disk(self) -> SimDisk:
        disk = SimDisk(seed=self.world.rng.randrange(1 << 30), runs_ahead=self.world.chance(0.5))
        disk.has_descriptors = False
        disk.ahead_max = AHEAD_BYTES
        return disk

    def next_process(self) -> int:
        self._processes += 1
        return self._processes

    def next_producer_id(self) -> int:
        self._producers += 1
        return self._producers

    def close(self) -> None:
        """Nothing of it goes on. (Else its threads would stay.)"""
        for broker in self.brokers.values():
            if broker.process:
                broker.work.end()

    # -- a run

    def run(self, steps_max: int | None = None) -> None:
        """Until all is over and well.

        Raises:
            Violation: something that must hold does not.
        """
        if steps_max is None:
            self.world.run(self.began_ms + FAULTS_MS)
            self.end()
        else:
            self.world.run(1e9, lambda: self.world.steps >= steps_max)

    def end(self) -> None:
        """Faults stop; clients go on for a while, then stop too; then all must be well within a bound (R6, R9)."""
        self.heal()
        healed_ms, ends = self.world.now_ms, {name: known.end for name, known in self.checker.known.items()}
        self.world.run(healed_ms + QUIET_MS)
        self.world.run(healed_ms + TAKES_MS, lambda: not self.at_rest(ends))
        if names := self.at_rest(ends):
            self.checker.fail(f"R9: {', '.join(names)}: nothing is committed {TAKES_MS / 1000:.0f} s after all faults")
        self.faults_are_over = True
        for publisher in self.publishers:
            publisher.is_stopped = True
        if self.published is not None:
            self.published.stop()
        self.world.run(self.world.now_ms + HEAL_MS, self.is_well)
        if not self.is_well():
            self.checker.fail(f"R6: not well {HEAL_MS / 1000:.0f} s after all faults: {self.why()}")
        for name in self.metadata.states:
            self.checker.all_is_well(name)
        for part in (self.changes, self.published):
            if part is not None:
                part.all_is_well()
        self.checker.only_members_are_left(self.metadata.catalog.cluster.leftovers)
        self.metadata.all_is_well()
        self.rests()

    def rests(self) -> None:
        """Nothing is asked of the catalog any more, but that sessions live (R9)."""
        until_ms, asked = self.world.now_ms + HEAL_MS, [{}]
        while asked and self.world.now_ms < until_ms:
            before = len(self.metadata.log)
            self.world.run(self.world.now_ms + RESTS_MS)
            asked = [command for command, _ in self.metadata.log[before:] if command["kind"] != "renew_sessions"]
        if asked:
            self.checker.fail(
                f"R9: all is well, and {HEAL_MS / 1000:.0f} s later the catalog is still asked: {asked[:3]}"
            )

    def at_rest(self, ends: Mapping[str, int]) -> list[str]:
        """Partitions that somebody writes to, in which nothing was committed since they had these ends."""
        written = {publisher.partition for publisher in self.publishers if not publisher.is_stopped}
        known = {name: self.checker.known[name] for name in sorted(written & self.metadata.states.keys())}
        return [
            name for name, of in known.items() if of.end <= ends.get(name, 0) and not of.is_lost and not of.is_orphaned
        ]

    def heal(self) -> None:
        self.world.note("faults", "are over")
        self.faults.heal()
        self.network.weather = CALM

    def is_well(self) -> bool:
        return not self.why()

    def why(self) -> str:
        """The parts that are not well yet."""
        for name, p in self.metadata.states.items():
            known = self.checker.known[name]
            if known.is_lost or (known.is_orphaned and all(self.brokers[who].is_scrapped for who in p.electable)):
                continue
            if sorted(p.isr) != sorted(p.replicas) or p.target is not None:
                return f"{name}: the ISR is {p.isr}, replicas {p.replicas}, target {p.target}"
            for who in p.replicas:
                replica = self.brokers[who].replicas.get(name)
                if replica is None or replica.log is None:
                    return f"{name}: {who} has no log"
                log = replica.log
                if log.state.high_watermark != log.state.log_end_offset or replica.is_damaged:
                    return (
                        f"{name}: {who} ends at {log.state.log_end_offset}, high watermark {log.state.high_watermark}"
                    )
                if log.state.log_end_offset != self.checker.known[name].end:
                    return f"{name}: {who} ends at {log.state.log_end_offset}"
            core = self.brokers[p.leader or ""].replicas[name].leader
            if core.waiting_count or core.epoch != p.leader_epoch or not core.may_tell_end(core.high_watermark):
                return f"{name}: {core.waiting_count} wait for epoch {core.epoch}"
        sent = None if self.nats is None else self.nats.delivered
        for part in (self.operator, self.changes, sent, self.published, self.metadata):
            if part is not None and (why := part.why()):
                return why
        grows = {info.incarnation for info in self.metadata.catalog.streams.values() if info.partitions_next}
        gone = {place_of(name)[0] for name, known in self.checker.known.items() if known.is_lost or known.is_orphaned}
        if grows - gone:
            return f"partitions of {', '.join(sorted(grows - gone))} are not counted"
        for publisher in self.publishers:
            known = self.checker.known[publisher.partition]
            is_stuck = place_of(publisher.partition)[0] in grows
            if not publisher.is_done and not known.is_lost and not known.is_orphaned and not is_stuck:
                return f"publisher {publisher.name} waits"
        for broker in self.brokers.values():
            if waiting := broker.waiting():
                return f"{broker.name} owes an answer about {waiting}"
        return ""


_is_frozen = False


def play(seed: int, **options: Any) -> tuple[Cluster, str]:
    """One seed. Returns its cluster, and what does not hold: empty if all does."""
    global _is_frozen
    gc.disable()  # clusters are full of cycles; they go at the end of each
    if not _is_frozen:  # what was there before would be looked through each time, for half as long as a seed takes
        _is_frozen = True
        columns(1)  # with its first array pyarrow imports pandas, which is most of it
        gc.collect()
        gc.freeze()
    with joined() if options.get("raft") else nullcontext():
        return _played(Cluster(seed, **options))


def _played(cluster: Cluster) -> tuple[Cluster, str]:
    try:
        with verified_once(), cluster.bugs.noticed():
            cluster.run()
    except Violation as violation:
        return cluster, str(violation)
    except OF_OURS as error:
        return cluster, f"{type(error).__name__}: {error}"
    finally:
        cluster.close()
        gc.enable()
        gc.collect()
    return cluster, ""
