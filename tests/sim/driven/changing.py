"""Streams that are changed while they are written: an operator who asks brokers for it over HTTP, and what must hold.

    pause, resume, read-only, alter, more partitions ─► the real endpoints ─► answered: all leaders go by it
    delete ─► answered ─► made anew under the same name, as another incarnation

He asks one thing at a time, of any broker, and waits for an answer for `PATIENCE_MS`. His luck is his own.

HOLDS   what a leader takes behind an answer it takes by that change, for as long as the catalog has no other one: a
        paused or read-only stream takes nothing, a leader of one that was resumed refuses nothing for that. Intake
        sorts by the number of partitions that its leader goes by
FORMER  nobody who can know that a stream was deleted gives out its records, or acknowledges any; no other one has them
KEPT    retention keeps what the settings say that the leader goes by
GROW    as the checker has it
TOLD    whoever appends is told once what became of it, or its append raises
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from broker.api.errors import LiftlogError, NotLeader, StreamPaused
from broker.metadata.info import StreamInfo
from broker.metadata.session import SESSION_MS, lapse_ms
from broker.node.partitions.partition import Partition
from tests.sim.metadata import place_of
from tests.sim.rewritten import records_of

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.driven.node import Broker
    from tests.sim.driven.seen import Seen

CHANGING: Final = (4, 5)
"""Streams are changed in these of eight seeds of driven clusters."""
CAPTURING: Final = (5,)
"""Brokers capture them from NATS, besides, in these of eight."""
PAUSING: Final = (13,)
"""In these of sixteen little else happens to them, and to brokers, than pauses. The first has two partitions."""
COMPACTING: Final = (12,)
"""Whether they are compacted is altered, too, in these of sixteen; their replicas compact and join."""
FORMED: Final = {"segment_age_ms": 1_000}
"""Settings of their streams: else retention would find nothing to let go."""
LATE_MS: Final = 1_500
"""So long publishers go on with a stream that was deleted. Consumers do for good."""
PATIENCE_MS: Final = 5_000
PARTITIONS_MAX: Final = 3
KINDS: Final = {"pause": 3.0, "read_only": 2.0, "alter": 4.0, "grow": 3.0, "delete": 3.0}
PAUSES: Final = {"pause": 20.0, "alter": 1.0, "grow": 1.0}
CLOSED = ("StreamPaused", "ReadOnly")


def captured(name: str) -> dict[str, Any]:
    """Settings of a stream that is captured."""
    return {"subject": f"{name}.>", "partition_by": "subject"}


class Changing:
    """See the module.

    Attributes:
        held: The streams of which a change was answered, as they were told to be, by incarnation: while no other
            change is committed.
        deleted_ms: When a deletion was committed, by incarnation of the stream.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.rng = random.Random(f"changes of {cluster.seed}")
        self.held: dict[str, StreamInfo] = {}
        self.deleted_ms: dict[str, float] = {}
        self._names: dict[str, str] = {}  # of all streams, by incarnation
        self._before: dict[str, StreamInfo] = {}
        self._versions: dict[str, int] = {}  # how often the catalog has changed a stream, by name
        self._missing: list[str] = []  # names of streams that are to be made anew
        self._asked = 0  # questions so far
        self._is_waiting = False
        self._ids = 0
        self._is_over = False
        self._pace_ms = self.rng.choice((100, 250, 600)) if cluster.seed % 16 not in PAUSING else 100
        self.world.after(self.rng.uniform(1_500, 3_500), self.next)

    def new_id(self) -> str:
        """For the broker that makes a stream, or has a command carried out."""
        self._ids += 1
        return f"i{self._ids}"

    def name(self, incarnation: str) -> str:
        """Of a stream that there is or was."""
        return self._names[incarnation]

    # -- the operator

    def next(self) -> None:
        """Ask for something, if nothing is asked for."""
        self.world.after(self.rng.expovariate(1 / self._pace_ms), self.next)
        if self._is_waiting:
            return
        if self._is_over:
            self._settle()
            return
        if self._missing and self.rng.random() < 0.7:
            self._create(self._missing[0])
            return
        fit = self._fit()
        if not fit:
            return
        info = self.rng.choice(fit)
        kinds = PAUSES if self.cluster.seed % 16 in PAUSING else KINDS
        [kind] = self.rng.choices(list(kinds), list(kinds.values()))
        match kind:
            case "pause":
                self._ask("resume" if info.paused else "pause", info)
            case "read_only":
                self._ask("read_only", info, read_only=not info.read_only)
            case "alter":
                self._ask("alter", info, **self._settings())
            case "grow" if info.settings.partitions < PARTITIONS_MAX:
                self._ask("grow", info, partitions=info.settings.partitions + 1)
            case "delete" if info.incarnation != "p0":  # faults need some stream
                self._ask("delete", info)

    def heal(self) -> None:
        """From now on he lets all streams take records."""
        self._is_over = True

    def why(self) -> str:
        """The part that is not well yet; empty: all is."""
        catalog = self.cluster.metadata.catalog
        if closed := [info.incarnation for info in self._fit() if info.paused or info.read_only]:
            return f"{', '.join(closed)} take nothing"
        if catalog.deleted or any(catalog.cluster.leftovers.values()):
            return f"folders of {', '.join(catalog.deleted)} are left: {catalog.cluster.leftovers}"
        for each in self.cluster.brokers.values():
            broker = cast("Broker", each)
            if left := [name for name in broker.replicas if place_of(name)[0] in self.deleted_ms]:
                return f"{broker.name} has {', '.join(left)}, which were deleted"
        return ""

    def _fit(self) -> list[StreamInfo]:
        return [info for info in self.cluster.metadata.catalog.streams.values() if not info.internal]

    def _settle(self) -> None:
        for info in self._fit():
            if info.paused:
                self._ask("resume", info)
                return
            if info.read_only:
                self._ask("read_only", info, read_only=False)
                return

    def _settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {"retention_records": self.rng.choice((None, 5, 40))}
        if self.rng.random() < 0.3:
            found["min_insync_replicas"] = self.rng.choice((1, 2, 2))
        if self.cluster.rewrites:
            found["cleanup"] = self.rng.choice(("delete", "delete", "compact", "compact", "both"))
        return found

    def _create(self, name: str) -> None:
        self._ask_for(
            "create",
            name,
            {
                "name": name,
                **FORMED,
                **(captured(name) if self.cluster.nats is not None else {}),
                **({"cleanup": self.rng.choice(("delete", "compact"))} if self.cluster.rewrites else {}),
                "partitions": self.rng.choice((1, 1, 2)),
                "replication_factor": 3,
                "min_insync_replicas": self.rng.choice((1, 2)),
            },
        )

    def _ask(self, kind: str, info: StreamInfo, **body: Any) -> None:
        self._ask_for(kind, info.name, body)

    def _ask_for(self, kind: str, name: str, body: Mapping[str, Any]) -> None:
        cluster, network = self.cluster, self.cluster.network
        running = [broker for broker in cluster.brokers.values() if broker.is_running]
        able = [broker for broker in running if broker.has_session and self.rng.random() < 0.9] or running
        if not able:
            return
        broker = cast("Broker", self.rng.choice(able))
        self._asked += 1
        self._is_waiting, number, version = True, self._asked, self._versions.get(name, 0)
        self.world.note("operator", f"asks {broker.name}: {kind} {name} {dict(body)}")
        self.world.saw(f"asked for: {kind}")

        def answered(said: Mapping[str, Any], error: LiftlogError | None) -> None:
            if error is None:
                self._is_shown(broker, kind, name, body, said, version)
            network.send(broker.name, "client", self._answered, number, version, kind, name, said, error)

        network.send("client", broker.name, broker.asked, kind, name, body, answered)
        self.world.after(PATIENCE_MS, self._gone, number)

    def _is_shown(
        self,
        broker: Broker,
        kind: str,
        name: str,
        body: Mapping[str, Any],
        said: Mapping[str, Any],
        version: int,
    ) -> None:
        """HOLDS. A broker is about to answer: it knows of the change itself, and says so."""
        if self._versions.get(name, 0) > version + 1:
            return  # somebody else has changed it, too
        known = broker.catalog.streams.get(name)
        match kind:
            case "delete":
                is_so = known is None
            case "pause" | "resume":
                is_so = said["paused"] is (kind == "pause")
            case "read_only":
                is_so = said["read_only"] is body["read_only"]
            case "alter":
                is_so = said["settings"]["retention_records"] == body["retention_records"]
            case "grow":
                is_so = said["settings"]["partitions"] == body["partitions"] or "being made" in "".join(
                    said["warnings"]
                )
            case _:
                is_so = known is not None and known.incarnation == said["incarnation"]
        if not is_so:
            self.cluster.checker.fail(f"HOLDS: {name}: {broker.name} answers {kind}, and does not know of it")

    def _gone(self, number: int) -> None:
        if self._is_waiting and number == self._asked:
            self._is_waiting = False
            self.world.saw("change without an answer")

    def _answered(
        self, number: int, version: int, kind: str, name: str, said: Mapping[str, Any], error: LiftlogError | None
    ) -> None:
        if number != self._asked or not self._is_waiting:
            return
        self._is_waiting = False
        if error is not None:
            self.world.note("operator", f"{kind} {name}: {error}")
            self.world.saw(f"change refused: {type(error).__name__}")
            return
        self.world.saw(f"answered: {kind}")
        self.world.note("operator", f"{kind} {name}: done {list(said.get('warnings', ()))}")
        info = self.cluster.metadata.catalog.streams.get(name)
        if kind == "delete" or info is None or said["incarnation"] != info.incarnation:
            return
        is_known = not any("no leader has said" in each for each in said["warnings"])
        terms = said["settings"], said["paused"], said["read_only"]
        is_so = terms == (info.settings.as_dict(), info.paused, info.read_only)
        if is_known and is_so and self._versions.get(name, 0) <= version + 1:
            self.world.saw("change holds")
            self.held[info.incarnation] = info
            if self.cluster.nats is not None and info.paused:
                self.cluster.nats.delivered.is_paused(info)

    # -- the catalog

    def carried_out(self) -> None:
        """A command was committed: see what has become of the streams."""
        streams = self.cluster.metadata.catalog.streams
        before, self._before = self._before, dict(streams)
        for name in sorted({*before, *streams}):
            was, info = before.get(name), streams.get(name)
            if was is info:
                continue
            self._versions[name] = self._versions.get(name, 0) + 1
            if was is not None:
                self.held.pop(was.incarnation, None)
                if info is None or info.incarnation != was.incarnation:
                    self._deleted(was)
            if info is not None:
                self._names[info.incarnation] = name
                self.cluster.checker.is_of(info)
                if name in self._missing:
                    self.world.saw("stream made anew")
                    self.world.note("catalog", f"{name} is made anew: {info.incarnation}")
                    self._missing.remove(name)

    def _deleted(self, info: StreamInfo) -> None:
        self.world.saw("stream deleted")
        self.world.note("catalog", f"{info.incarnation}: is deleted")
        self.deleted_ms[info.incarnation] = self.world.now_ms
        self._missing.append(info.name)
        cluster = self.cluster
        for name in [name for name in cluster.metadata.states if place_of(name)[0] == info.incarnation]:
            del cluster.metadata.states[name]
            cluster.checker.known[name].is_lost = True  # nothing is promised of it any more
        for publisher in cluster.publishers:
            if place_of(publisher.partition)[0] == info.incarnation:
                self.world.after(LATE_MS, publisher.end)

    # -- rules

    def took(self, seen: Seen, partition: Partition, sorted_by: int) -> None:
        """An append has been accepted, in this moment."""
        held, name, who = self.held.get(seen.at[0]), seen.name, seen.broker.name
        info = partition.info
        fail = self.cluster.checker.fail
        if held is not None:
            if held.paused or held.read_only:
                fail(f"HOLDS: {name}: {who} takes records, and it was answered that nothing is taken")
            if info.settings != held.settings:
                fail(f"HOLDS: {name}: {who} takes records by other settings than it was answered")
        in_force = self._count(seen)
        if not sorted_by or in_force is None:
            return
        if sorted_by > in_force or seen.at[1] >= in_force:
            fail(f"GROW: {name}: {who} takes what was sorted by {sorted_by} partitions, and {in_force} are in force")
        known, epoch = seen.checker.known[name], partition.leader_epoch
        if known.counts.setdefault(epoch, sorted_by) != sorted_by:
            fail(f"GROW: {name}: {who} takes by {known.counts[epoch]} and {sorted_by} partitions in epoch {epoch}")

    def acked(self, seen: Seen, sorted_by: int) -> None:
        """Somebody is told that his records are stored, under `all`."""
        in_force = self._count(seen)
        if sorted_by and in_force is not None and sorted_by != in_force:
            who = f"GROW: {seen.name}: {seen.broker.name}"
            self.cluster.checker.fail(
                f"{who} acks what was sorted by {sorted_by} partitions, and {in_force} are in force"
            )

    def refused(self, seen: Seen, error: LiftlogError) -> None:
        """An append has been refused, in this moment."""
        held = self.held.get(seen.at[0])
        partition = seen.partition
        if held is not None and type(error).__name__ in CLOSED and partition is not None and partition.serves:
            is_so = held.paused if isinstance(error, StreamPaused) else held.read_only
            if not is_so:
                self.cluster.checker.fail(
                    f"HOLDS: {seen.name}: {seen.broker.name} refuses, and it was resumed: {error}"
                )

    def serves(self, seen: Seen, what: str) -> None:
        """Somebody is answered about a partition."""
        since_ms = self.deleted_ms.get(seen.at[0])
        late_ms = 0.0 if since_ms is None else self.world.now_ms - since_ms
        if late_ms > lapse_ms(SESSION_MS) and seen.checker.clocks_are_even:
            who = f"FORMER: {seen.name}: {seen.broker.name}"
            seen.checker.fail(f"{who} answers {what} of a stream that was deleted {late_ms:.0f} ms ago")

    def compacts(self, seen: Seen, partition: Partition) -> None:
        """A pass of compaction begins."""
        held, who = self.held.get(seen.at[0]), seen.broker.name
        if held is not None and held.settings.cleanup == "delete" and partition.serves:
            seen.checker.fail(f"HOLDS: {seen.name}: {who} compacts, and it was answered that nothing is compacted")

    def lets_go(self, seen: Seen, partition: Partition) -> None:
        """A round of the cleaner's retention. As `Checker.retained`."""
        log, held = partition.log, self.held.get(seen.at[0])
        before = log.state.log_start_offset
        partition.replica.apply_retention(seen.broker.elapsed_us, seen.broker.wall_us)
        start = log.state.log_start_offset
        if start == before or seen.is_of_before:
            return
        self.world.saw("retention lets go")
        least = partition.settings.retention_records if partition.settings.cleanup != "compact" else None
        who = f"KEPT: {seen.name}: {seen.broker.name} lets go of [{before}, {start})"
        if least is None or start > log.state.high_watermark - least:
            seen.checker.fail(f"{who}; it is to keep {least}, and committed is up to {log.state.high_watermark}")
        if held is not None and partition.settings != held.settings and partition.serves:
            seen.checker.fail(f"{who} by other settings than it was answered")
        seen.checker.trim_asked(cast(Any, seen), start)

    def all_is_well(self) -> None:
        """At the end: no stream has a record of another one."""
        for name, state in self.cluster.metadata.states.items():
            if self.cluster.checker.known[name].is_lost:
                continue
            replica = self.cluster.brokers[state.leader or ""].replicas[name]
            assert replica.log is not None
            for message in cast(Any, replica)._read(0, replica.log.state.high_watermark, 1 << 24):
                for offset, (_, value) in records_of(message):
                    of_name = f"{self.name(place_of(name)[0])}:"  # over NATS
                    if value is not None and not value.startswith((f"{name}.".encode(), of_name.encode())):
                        self.cluster.checker.fail(f"FORMER: {name}: {value[:20]!r} is there, at {offset}")

    def _count(self, seen: Seen) -> int | None:
        """So many partitions are in force; None: of a stream that was deleted."""
        return None if seen.is_of_before else self.cluster.metadata.count_of(seen.at[0])


def whereabouts(broker: Broker, name: str) -> Partition | str:
    """What a client finds who names the stream and the partition; or why there is none."""
    changes = broker.cluster.changes
    incarnation, number = place_of(name)
    assert changes is not None
    assert broker.http is not None
    try:
        found = broker.http.streams.partition(changes.name(incarnation), number)
    except LiftlogError as error:
        return type(error).__name__
    if found.incarnation != incarnation:
        return NotLeader.__name__  # as `StaleIncarnation`: it names the one that it means
    return cast(Partition, found)
