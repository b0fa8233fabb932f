"""What sinks publish: drivers that write batches, as a streaming query does, and what must hold of the records.

    open ─► stages, over the partitions ─► commit, again until it is answered ─► the next batch
                 ▲                            │
                 └── stage_lost, another run ─┘   the same rows under new stages: another attempt

A run dies every now and then: the next one repeats its batch, spread otherwise, also one that was answered. The one
before may go on beside it for a while. Each record says of which attempt it is; the oracle sees what is committed in
the partitions, and what drivers were answered, and asks no broker.

EARLY  no record of an attempt is committed before a commit of that attempt was asked for
ONCE   each row of a batch is committed once, in the partition that it was staged for, and all are of one attempt
DONE   when a commit is answered each row of its batch is committed; none of the next batch is before
WHOLE  in a partition the records of a batch stand together, in the order of stages and parts
R6     at the end each driver has its last batch answered
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from broker.api.errors import (
    LiftlogError,
    Retryable,
    SinkBatchRegressed,
    SinkFenced,
    SinkRowsDiffer,
    StageLost,
    UnknownSink,
)
from broker.api.stream import COMMITS_STREAM, OFFSETS_STREAM, stages_of
from broker.metadata.partition import Place
from broker.node.own_settings import COMMITS_SETTINGS, OFFSETS_SETTINGS
from broker.sinks.ledger import CommitRequest, NamedStage
from broker.storage.log import PartitionLog
from tests.sim.driven.offsets import OFFSETS, Committing
from tests.sim.metadata import name_of
from tests.sim.rewritten import records_of

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.driven.node import Broker
    from tests.sim.driven.seen import Seen

PUBLISHING: Final = (8, 9, 11)
"""Sinks write to the streams in these of sixteen seeds of driven clusters."""
COMMITS: Final[Place] = ("commits", 0)
OWN: Final[dict[Place, tuple[str, dict[str, Any]]]] = {
    COMMITS: (COMMITS_STREAM, COMMITS_SETTINGS),
    OFFSETS: (OFFSETS_STREAM, OFFSETS_SETTINGS),
}
"""The brokers' own streams in these seeds."""
LEASES_MS: Final = (24 * 3_600_000, 24 * 3_600_000, 4_000)
"""A stage is kept for so long that nobody commits: one of these, by the seed."""
PATIENCE_MS: Final = 1_500
AGAIN_MS: Final = 150
DIES: Final = 0.07
"""So likely a run dies at a step."""
BESIDE_MS: Final = 5_000
"""A run that is taken for dead goes on for so long at most."""
STRAY: Final = 0.1
AMID: Final = {
    **{"kill": 2.0, "isolate": 5.0, "pause": 4.0, "stop": 2.0},
    **{"elect": 4.0, "power": 1.0, "fsync": 2.0, "slow": 2.0},
}
"""What goes wrong amid a commit, so much later, and so often: one of these, by the seed."""
AMID_MS: Final = 15.0
BACK: Final = ("isolate", "pause", "slow")
"""Leaderships go back to a process that was away, and has not ended."""
ZEALS: Final = (0.05, 0.15, 0.3)
PATIENCE_S: Final = (0.2, 1.5, 60.0)
ABORTS: Final = 0.6
DIES_AMID: Final = 0.15


@dataclass
class Attempt:
    """A batch as one run has staged it: the rows of each stage, part by part.

    Attributes:
        rows: Where each value is to be, in order.
        is_asked: Somebody may have been asked to commit it.
    """

    sink: str
    batch: int
    number: int
    stages: dict[str, tuple[tuple[str, int], list[list[bytes]]]] = field(default_factory=dict)
    is_asked: bool = False

    def named(self) -> list[NamedStage]:
        return [
            NamedStage(stream=stream, partition=partition, stage=stage, parts=len(parts))
            for stage, ((stream, partition), parts) in self.stages.items()
        ]

    def rows(self) -> dict[tuple[str, int], list[bytes]]:
        found: dict[tuple[str, int], list[bytes]] = {}
        for place, parts in self.stages.values():
            found.setdefault(place, []).extend(value for part in parts for value in part)
        return found


@dataclass
class Batch:
    """What is committed of a batch: by partition the offset of each value."""

    attempt: Attempt
    found: dict[tuple[str, int], dict[bytes, int]] = field(default_factory=dict)

    def lacks(self) -> list[bytes]:
        rows = self.attempt.rows()
        return [value for place in rows for value in rows[place] if value not in self.found.get(place, {})]


class Published:
    """See the module: the oracle.

    Attributes:
        lease_ms: As `[sinks] stage_lease_ms` of all brokers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.rng = random.Random(f"sinks of {cluster.seed}")
        self.lease_ms = self.rng.choice(LEASES_MS)
        self.attempts: list[Attempt] = []
        self.batches: dict[tuple[str, int], Batch] = {}
        self.consumers = [Committing(cluster, f"c{number}") for number in range(2)]
        self.queries = [Query(self, f"q{number}") for number in range(self.rng.choice((1, 2, 3)))]
        self._ends: dict[str, int] = {}
        self._zeal = self.rng.choice(ZEALS)
        self._ids = 0

    def new_id(self) -> str:
        """Of a companion."""
        self._ids += 1
        return f"s{self._ids}"

    def companions(self) -> list[str]:
        """Streams of stages, by incarnation."""
        streams = self.cluster.metadata.catalog.streams
        return [info.incarnation for name, info in streams.items() if name.startswith(stages_of(""))]

    def patience_s(self) -> float:
        """Of one process: so long it waits for others."""
        return self.rng.choice(PATIENCE_S)

    def places(self) -> list[tuple[str, int]]:
        """Partitions that drivers write to."""
        infos = [info for info in self.cluster.metadata.catalog.streams.values() if not info.internal]
        return [(info.name, number) for info in infos for number in range(info.settings.partitions)]

    def state_of(self, stream: str, partition: int) -> Any:
        """By the catalog."""
        info = self.cluster.metadata.catalog.streams[stream]
        return self.cluster.metadata.states.get(name_of((info.incarnation, partition)))

    @property
    def is_void(self) -> bool:
        """Disks were lost that had something which was promised."""
        known = self.cluster.checker.known.values()
        return any(each.is_lost or each.is_orphaned or each.unclean_epoch or each.given_up for each in known)

    def fail(self, what: str) -> None:
        if not self.is_void:
            self.cluster.checker.fail(what)

    # -- what is seen

    def committed(self, seen: Seen, log: PartitionLog) -> None:
        """The high watermark of somebody has moved."""
        name, incarnation, number = seen.name, *seen.at
        info = next(i for i in self.cluster.metadata.catalog.streams.values() if i.incarnation == incarnation)
        end = self._ends.get(name, 0)
        if log.state.high_watermark <= end:
            return
        if info.internal:
            self._ends[name] = log.state.high_watermark
            if seen.at != OFFSETS:
                self._strikes()
            return
        for message in seen._messages(log, end, log.state.high_watermark, 1 << 24):
            for offset, (_, value) in records_of(message):
                if offset >= end and value is not None and value.startswith(b"sink:"):
                    self._found(seen.broker.name, (info.name, number), offset, value)
        self._ends[name] = log.state.high_watermark

    def _strikes(self) -> None:
        """Something of a commit was just committed: now is the time for something to go wrong."""
        if not self.cluster.faults.is_over and self.rng.random() < self._zeal:
            [kind] = self.rng.choices(list(AMID), list(AMID.values()))
            self.world.after(self.rng.expovariate(1 / AMID_MS), self._strike, kind)

    def _strike(self, kind: str) -> None:
        states = [self.state_of(*place) for place in self.places()]
        leaders = [state.leader for state in (*states, self.cluster.metadata.states[name_of(COMMITS)])]
        able = [who for who in leaders if who is not None and self.cluster.brokers[who].is_running]
        if able and not self.cluster.faults.is_over:
            self.world.saw("fault amid a commit")
            self.cluster.faults.inject(kind, self.cluster.brokers[self.rng.choice(able)])
            if kind in BACK:
                self.world.after(self.rng.uniform(1_500, 4_000), self._strike, "elect")

    def _found(self, who: str, place: tuple[str, int], offset: int, value: bytes) -> None:
        attempt = self.attempts[int(value.split(b":")[1])]
        sink, batch = attempt.sink, attempt.batch
        at = f"{place[0]}/{place[1]}: {who} has committed {value!r} at {offset}"
        if not attempt.is_asked:
            self.fail(f"EARLY: {at}, and nobody asked for that")
        if value not in attempt.rows().get(place, ()):
            self.fail(f"ONCE: {at}, and it was not staged there")
        known = self.batches.setdefault((sink, batch), Batch(attempt))
        if known.attempt is not attempt:
            self.fail(f"ONCE: {at}, and the batch is there by attempt {known.attempt.number}")
        there = known.found.setdefault(place, {})
        if there.setdefault(value, offset) != offset:
            self.fail(f"ONCE: {at}, and it is there at {there[value]}")
        before = self.batches.get((sink, batch - 1))
        if batch and (before is None or before.lacks()):
            self.fail(f"DONE: {at}, and batch {batch - 1} is not complete")
        self.world.saw("row published")

    def answered(self, broker: Broker, sink: str, batch: int, said: int, *, is_done: bool) -> None:
        """A coordinator is about to answer a commit."""
        for each in self.cluster.brokers.values():
            cast("Broker", each).look()
        known, who = self.batches.get((sink, batch)), f"{sink}: {broker.name} answers a commit of batch {batch}"
        if said != batch or not is_done:
            self.fail(f"DONE: {who}, and says batch {said}, done: {is_done}")
        if known is None or (lacks := known.lacks()):
            self.fail(f"DONE: {who}, and {'nothing is there' if known is None else lacks} ")

    # -- at the end

    def why(self) -> str:
        """Who waits; empty: nobody."""
        if self.is_void:
            return ""
        return next((f"sink {query.sink} waits for batch {query.batch}" for query in self.queries if query.waits), "")

    def stop(self) -> None:
        """Drivers end with the batch that they are at."""
        for query in self.queries:
            query.is_stopped = True

    def all_is_well(self) -> None:
        """All over again, from the logs of the leaders."""
        if self.is_void:
            return
        for consumer in self.consumers:
            consumer.all_is_well()
        found: dict[bytes, list[tuple[tuple[str, int], int]]] = {}
        starts: dict[tuple[str, int], int] = {}
        for place in self.places():
            state = self.state_of(*place)
            incarnation = self.cluster.metadata.catalog.streams[place[0]].incarnation
            seen: Any = self.cluster.brokers[state.leader].replicas[name_of((incarnation, place[1]))]
            starts[place] = seen.log.state.log_start_offset
            for message in seen._read(0, seen.log.state.high_watermark, 1 << 24):
                for offset, (_, value) in records_of(message):
                    if value is not None and value.startswith(b"sink:"):
                        found.setdefault(value, []).append((place, offset))
        for (sink, number), batch in sorted(self.batches.items()):
            if lacks := batch.lacks():
                self.fail(f"DONE: {sink}: {lacks} of batch {number} are nowhere")
            for place, rows in batch.attempt.rows().items():
                offsets = [batch.found[place][value] for value in rows]
                if offsets != list(range(offsets[0], offsets[0] + len(rows))):
                    self.fail(f"WHOLE: {sink}: batch {number} stands in {place} at {offsets}")
                for value, offset in batch.found[place].items():
                    there = found.pop(value, [])
                    if offset >= starts[place] and there != [(place, offset)]:
                        self.fail(f"ONCE: {sink}: {value!r} was committed in {place} at {offset}, it is at {there}")
        if found:
            self.fail(f"ONCE: {sorted(found)} are there, and nobody has committed them")
        self.world.saw("sinks are well")


class Query:
    """A streaming query: run after run, batch after batch. `waits`: its last batch was not answered yet."""

    def __init__(self, published: Published, sink: str) -> None:
        self.published = published
        self.sink = sink
        self.batch = 0
        self.is_stopped = False
        self.run: Run | None = None
        self.runs = 0
        self.counts: dict[int, int] = {}  # rows of each batch
        self.waits = True
        published.world.after(published.rng.uniform(800, 2_500), self.next_run)

    def next_run(self) -> None:
        """The one before is over, or is taken for dead."""
        self.runs += 1
        self.run = Run(self, f"{self.sink}-{self.runs}")

    def rows(self, batch: int) -> int:
        return self.counts.setdefault(batch, self.published.rng.choice((1, 3, 6)))

    def done(self, run: Run, batch: int) -> None:
        """A commit of a run was answered."""
        rng = self.published.rng
        if run is not self.run or batch != self.batch:
            return
        self.published.world.saw("batch answered")
        if rng.random() < DIES and not self.is_stopped:  # before it has noted that: the batch comes again
            self.published.world.saw("batch repeated after its answer")
            self.next_run()
            return
        self.batch += 1
        if self.is_stopped:
            self.waits = False
            self.run = None
            return
        run.begin()


class Run:
    """One run of a query: an owner of the sink. It is over when another one is the query's, soon or after a while."""

    def __init__(self, query: Query, owner: str) -> None:
        self.query, self.owner = query, owner
        self.published = query.published
        self.world, self.rng = self.published.world, self.published.rng
        self.epoch: int | None = None
        self.batch = query.batch
        self.attempt: Attempt | None = None
        self.is_over = False
        self._asked = 0
        self._open: dict[int, tuple[str, tuple[str, int] | None, Mapping[str, Any]]] = {}  # that wait for an answer
        self._tries: Counter[int] = Counter()
        self._ask("open", None, {"sink": query.sink, "owner": owner})

    # -- steps

    def begin(self) -> None:
        """The next batch, or this one again, under new stages."""
        published, query = self.published, self.query
        self.batch = query.batch
        self.attempt = attempt = Attempt(query.sink, self.batch, len(published.attempts))
        published.attempts.append(attempt)
        places = published.places()
        tasks = [(self.rng.choice(places), f"{self.rng.getrandbits(128) | 1:032x}") for _ in range(3)]
        for row in range(query.rows(self.batch)):
            place, stage = self.rng.choice(tasks)
            _, parts = attempt.stages.setdefault(stage, (place, [[]]))
            if parts[-1] and self.rng.random() < 0.3:
                parts.append([])
            value = f"sink:{attempt.number}:{query.sink}:{self.batch}:{row}:".encode()
            parts[-1].append(value.ljust(self.rng.choice((24, 60, 600)), b"."))
        self.world.note(self.owner, f"stages batch {self.batch} as attempt {attempt.number}")
        for stage, (place, parts) in attempt.stages.items():
            for part, values in enumerate(parts):
                args = {"stream": place[0], "partition": place[1], "values": values, "sink": query.sink}
                args |= {"epoch": self.epoch, "stage": stage, "part": part, "is_last": part == len(parts) - 1}
                self._ask("stage", place, args)

    def _commit(self) -> None:
        attempt = self.attempt
        assert attempt is not None
        assert self.epoch is not None
        rows = self.query.rows(self.batch)
        asked = CommitRequest(
            owner=self.owner,
            epoch=self.epoch,
            batch_id=self.batch,
            rows=rows,
            digest=f"rows:{self.batch}",
            follows=self.batch - 1 if self.batch else None,
        )
        attempt.is_asked = True
        self.world.note(self.owner, f"commits batch {self.batch} by attempt {attempt.number}")
        self._ask("commit", None, {"sink": self.query.sink, "asked": asked, "stages": attempt.named()})
        if self.rng.random() < DIES_AMID:
            self.world.after(self.rng.expovariate(1 / AMID_MS), self._dies_amid)

    def _dies_amid(self) -> None:
        """Before it has heard. Whoever ends it aborts what it has staged."""
        if self.query.run is self and self._open and not self.is_over:
            self.world.saw("run died amid a commit")
            self.world.note(self.owner, "dies")
            self.is_over = True
            self._abort()
            self.query.next_run()

    def _abort(self) -> None:
        """Nobody waits for the answer."""
        if self.attempt is not None and self.rng.random() < ABORTS:
            self.world.saw("stages aborted")
            self._send(0, "abort", None, {"sink": self.query.sink, "stages": self.attempt.named()})

    def _dies(self) -> bool:
        """It may, here. Or somebody thinks so, and it goes on beside the next one."""
        query = self.query
        if self.is_over:
            return True
        if query.run is self and self.rng.random() < DIES:
            self.world.saw("run died")
            if self.rng.random() < 0.5:
                self.is_over = True
                self.world.note(self.owner, "dies")
            else:
                self.world.saw("run goes on beside the next one")
                self.world.note(self.owner, "is taken for dead")
                self.world.after(BESIDE_MS, self._ends)
            query.next_run()
        return self.is_over

    def _ends(self) -> None:
        self.is_over = True

    # -- questions

    def _ask(self, what: str, place: tuple[str, int] | None, args: Mapping[str, Any]) -> None:
        self._asked += 1
        self._open[self._asked] = what, place, args
        self._try(self._asked)

    def _try(self, number: int, before: int = 0) -> None:
        """Again, unless that was done since."""
        if number in self._open and not self.is_over and self._tries[number] == before:
            self._tries[number] += 1
            self._send(number, *self._open[number])
            self.world.after(PATIENCE_MS, self._try, number, self._tries[number])

    def _send(self, number: int, what: str, place: tuple[str, int] | None, args: Mapping[str, Any]) -> None:
        """To the leader of a partition, or the coordinator; or astray."""
        cluster = self.published.cluster
        state = self.published.state_of(*place) if place is not None else cluster.metadata.states[name_of(COMMITS)]
        target = state.leader
        if target is None or self.rng.random() < STRAY:
            target = self.rng.choice(list(cluster.brokers))
        this = self._tries[number]
        network, to = cluster.network, cast("Broker", cluster.brokers[target])

        def answered(said: Any, error: LiftlogError | None) -> None:
            network.send(to.name, "client", self._answered, number, this, said, error)

        network.send("client", to.name, to.asked_of_sinks, what, args, answered)

    def _answered(self, number: int, this: int, said: Any, error: LiftlogError | None) -> None:
        if self.is_over or number not in self._open:
            return
        what, _, args = self._open[number]
        if error is not None:
            self.world.saw(f"sink: {what} refused: {type(error).__name__}")
            self._refused(number, this, what, error)
            return
        del self._open[number]
        if self._dies():
            return
        match what:
            case "open":
                self.epoch = said
                self.begin()
            case "stage" if not self._open:
                self._commit()
            case "commit":
                self.world.note(self.owner, f"has batch {args['asked'].batch_id} committed")
                self.world.saw("batch committed" if said["is_new"] else "batch done already")
                self.query.done(self, args["asked"].batch_id)

    def _refused(self, number: int, this: int, what: str, error: LiftlogError) -> None:
        query = self.query
        if isinstance(error, StageLost):
            self.world.note(self.owner, f"{what}: {error}")
            self._open.clear()
            self._abort()
            self.begin()
        elif isinstance(error, SinkFenced | UnknownSink | SinkBatchRegressed):
            self.world.note(self.owner, f"{what}: {error}")
            self.is_over = True
            if query.run is self:
                if isinstance(error, SinkBatchRegressed):
                    self.published.fail(f"DONE: {query.sink}: {error}")
                self._abort()
                query.next_run()
        elif isinstance(error, SinkRowsDiffer) or not isinstance(error, Retryable):
            self.published.fail(f"DONE: {query.sink}: {what} is refused: {error!r}")
        else:
            self.world.after(self.rng.expovariate(1 / AGAIN_MS), self._try, number, this)
