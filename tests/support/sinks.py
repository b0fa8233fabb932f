"""The sink protocol in one process over any disk: two partitions, `__commits`, the coordinator, a driver like Spark.

The partitions are the real ones; their fsync pool does its work in the calling thread, so that a power cut of the fake
disk ends the call in which it happens, and every run is the same again.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from broker.api.batch import decode_batch, read_header
from broker.api.errors import LiftlogError, UnknownPartition
from broker.api.schema import HEADERS_TYPE, SCHEMA
from broker.api.stream import COMMITS_STREAM, settings_from
from broker.common.elapsed import MACHINE
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncTarget
from broker.node.partitions.watch import ChangeHub
from broker.node.sinks.coordinator import Sinks
from broker.node.sinks.rounds import SinkRounds
from broker.node.sinks.stage_log import StageLog
from broker.node.sinks.stages import StageLimits, StageStore
from broker.sinks.ledger import CommitRequest, CommitResult, NamedStage
from broker.storage.disk import Disk
from broker.storage.log import PartitionLog
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from tests.support.effort import seeded
from tests.support.led_alone import LedAlone

STREAM = "orders"
PARTITIONS = 2
SINK = "query-1"


class InlinePool:
    """An fsync pool without threads."""

    def submit(self, partition: SyncTarget) -> None:
        while partition.run_sync():
            pass


class Rig:
    """One broker's part in the protocol, made anew after each crash.

    Args:
        boot: Number of the start: gives leader epochs and boot id.
        is_interval: The stream's records are visible before they are durable (`fsync = interval`).
    """

    def __init__(
        self,
        disk: Disk,
        *,
        boot: int = 1,
        now_us: int = 1_000_000,
        limits: StageLimits | None = None,
        is_interval: bool = False,
    ) -> None:
        self.now_us = now_us
        self.ahead_us = 0  # so far its clock is
        self.loop = asyncio.new_event_loop()
        self._hub = ChangeHub(self.loop)
        self._disk = disk
        self._boot = boot
        self._limits = limits or StageLimits()
        fsync = "interval" if is_interval else "batch"
        self.partitions = [self._partition(STREAM, i, fsync) for i in range(PARTITIONS)]
        self.commits = self._partition(COMMITS_STREAM, 0)
        self._stores = [
            StageStore(
                p,
                StageLog(disk, p, boot_id=f"boot-{boot}", clock=lambda: self.now_us),
                self._limits,
                clock=lambda: self.now_us,
                elapsed=lambda: self.elapsed_us,
            )
            for p in self.partitions
        ]
        for partition, store in zip(self.partitions, self._stores, strict=True):
            partition.replica.floor = store.floor
        self.sinks = Sinks(
            self.commits, self, clock=lambda: self.now_us, elapsed=lambda: self.elapsed_us, limits=self._limits
        )
        self.rounds = SinkRounds(self.sinks)
        self.gone: set[str] = set()  # streams that the catalog has forgotten

    @property
    def elapsed_us(self) -> int:
        return self.now_us - self.ahead_us

    def _partition(self, stream: str, number: int, fsync: str = "batch") -> Partition:
        identity = LogIdentity(cluster_id="c", stream=stream, incarnation="i", partition=number)
        folder = f"/data/{stream}/{number}"
        settings = LogSettings(segment_bytes=1 << 20)
        if self._disk.exists(f"{folder}/partition.json"):
            log = PartitionLog.open(self._disk, folder, settings, boot_id=f"boot-{self._boot}", now_us=0)
            log.state.advance_high_watermark(log.syncer.sync())
        else:
            log = PartitionLog.create(self._disk, folder, identity, settings, now_us=0)
        info = StreamInfo(
            name=stream,
            incarnation="i",
            created_us=0,
            settings=settings_from({"fsync": fsync, "partitions": PARTITIONS}),
        )
        return LedAlone(
            info,
            Replica(info, number, log, appender=None, hub=self._hub, clocks=MACHINE),  # type: ignore[arg-type]
            leader_epoch=self._boot << 10,  # above all take-overs of the process before
            pool=InlinePool(),  # type: ignore[arg-type]
            appender=None,  # type: ignore[arg-type]
        )

    def store(self, stream: str, partition: int) -> StageStore:
        if not 0 <= partition < PARTITIONS:
            raise UnknownPartition(f"no partition {partition}")
        return self._stores[partition]

    def stores(self) -> Sequence[StageStore]:
        return [store for store in self._stores if store.exists]

    def is_gone(self, stream: str, incarnation: str) -> bool:
        return stream in self.gone or incarnation != "i"

    def take_over(self) -> None:
        """This broker becomes leader of everything once more."""
        for partition in [*self.partitions, self.commits]:
            partition.lead(partition.leader_epoch + 1)

    def drop(self) -> None:
        """Forget the process; the disk is what it is."""
        self.loop.close()

    def append(self, partition: int, value: bytes) -> None:
        """A record that has nothing to do with sinks."""
        self.partitions[partition].append_now([rows_of([value])], lambda *_: None)

    def visible(self, partition: int) -> list[tuple[int, list[bytes]]]:
        """The batches that consumers see: the decision in the header, and the values."""
        log = self.partitions[partition].log
        found: list[tuple[int, list[bytes]]] = []
        for message in log.reader.batches(log.state.log_start_offset):
            found.append((read_header(message).decision, decode_batch(message).column("value").to_pylist()))
        return found


def rows_of(values: Sequence[bytes]) -> RowBatch:
    n = len(values)
    columns = [
        pa.array([7] * n, pa.timestamp("us", "UTC")),
        pa.array(["orders.1"] * n),
        pa.nulls(n, pa.binary()),
        pa.array(values, pa.binary()),
        pa.nulls(n, HEADERS_TYPE),
        pa.nulls(n, pa.string()),
    ]
    return RowBatch(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names[1:]))


@dataclass
class Attempt:
    """One try to write a batch: its stages, with the rows of each.

    Attributes:
        plan: A replay has that of the batch; another one is a batch that was planned anew: as many rows, but others.
    """

    batch_id: int
    number: int
    plan: int = 0
    stages: dict[str, tuple[int, list[list[bytes]]]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The digest of its rows, wherever they were placed."""
        return f"{self.batch_id}.{self.plan}"

    def named(self) -> list[NamedStage]:
        return [
            NamedStage(stream=STREAM, partition=partition, stage=stage, parts=len(parts))
            for stage, (partition, parts) in self.stages.items()
        ]

    def rows_of(self, partition: int) -> list[bytes]:
        return [row for where, parts in self.stages.values() if where == partition for part in parts for row in part]


class World:
    """The world as outside observers know it: every attempt that was ever made, and which batches were acknowledged.

    Args:
        rows: How many rows a batch has: `batch/row/attempt`.
    """

    def __init__(self, *, rows: int = 5, seed: int = 0) -> None:
        self.rows = rows
        self.rng = random.Random(seeded(seed))
        self.attempts: list[Attempt] = []
        self.by_stage: dict[str, Attempt] = {}
        self.acked: set[int] = set()
        self.runs = 0

    def attempt(self, batch_id: int, plan: int = 0) -> Attempt:
        """The rows of a batch, spread over the partitions as no attempt before, under new stage ids."""
        made = Attempt(batch_id, len(self.attempts), plan)
        self.attempts.append(made)
        tasks: dict[int, list[bytes]] = {}
        for row in range(self.rows):
            tasks.setdefault(self.rng.randrange(3), []).append(b"%d/%d/%d" % (batch_id, row, made.number))
        for values in tasks.values():
            cut = self.rng.randint(0, len(values))
            stage = uuid.UUID(int=self.rng.getrandbits(128)).hex
            made.stages[stage] = (self.rng.randrange(PARTITIONS), [values[:cut], values[cut:]])
            self.by_stage[stage] = made
        return made

    def check(self, rig: Rig) -> None:
        """Nothing is visible that was not decided, nothing twice, no acknowledged batch is missing.

        Groups stand whole and alone: all rows of a decision in a partition, one batch behind the other.
        """
        decided = self.decided(rig)
        for partition in range(PARTITIONS):
            groups: dict[int, list[bytes]] = {}
            order: list[int] = []
            for decision, values in rig.visible(partition):
                if decision:
                    groups.setdefault(decision, []).extend(values)
                    order.append(decision)
            assert len(groups) == sum(a != b for a, b in zip(order, [0, *order], strict=False)), "a group is torn"
            for decision, values in groups.items():
                attempt = self.attempts[int(values[0].split(b"/")[2])]
                assert values_of(values) == values_of(attempt.rows_of(partition)), f"group {decision:x} is not whole"
        seen: Counter[tuple[int, int]] = Counter()
        attempts: dict[int, set[int]] = {}
        for partition in range(PARTITIONS):
            for decision, values in rig.visible(partition):
                for value in values if decision else ():
                    batch_id, row, attempt_number = (int(part) for part in value.split(b"/"))
                    seen[batch_id, row] += 1
                    attempts.setdefault(batch_id, set()).add(attempt_number)
        assert not [row for row, count in seen.items() if count > 1], f"twice: {seen}"
        for batch_id, numbers in attempts.items():
            assert len(numbers) == 1, f"batch {batch_id} is a mixture of attempts {numbers}"
            assert batch_id < decided[0] or (batch_id, numbers) == (decided[0], {decided[1]}), (
                f"batch {batch_id} of attempt {numbers} is visible, and {decided} was decided"
            )
        for batch_id in self.acked:
            assert all(seen[batch_id, row] == 1 for row in range(self.rows)), f"acked batch {batch_id} is not all there"

    def decided(self, rig: Rig) -> tuple[int, int]:
        """The last decided batch and its attempt; (-1, -1): none."""
        for state in rig.sinks.states():
            if state.sink == SINK and state.last is not None:
                stages = state.last.stages
                return state.last.batch_id, self.by_stage[stages[0].stage].number
        return -1, -1

    def check_complete(self, rig: Rig, batches: int) -> None:
        """After all is done: each batch is there once, and nothing is left over."""
        self.check(rig)
        seen = Counter(
            tuple(value.split(b"/")[:2])
            for partition in range(PARTITIONS)
            for decision, values in rig.visible(partition)
            for value in values
            if decision
        )
        assert seen == Counter((b"%d" % batch, b"%d" % row) for batch in range(batches) for row in range(self.rows))


def values_of(values: Sequence[bytes]) -> list[bytes]:
    return sorted(values)


class Driver:
    """A run of a query: opens the sink, then writes batch after batch from `next_batch` on.

    Args:
        repeat: It repeats uploads, opens and commits.
        bundles: It uploads in bundles: nothing is durable before its commit.
    """

    def __init__(
        self,
        world: World,
        rig: Rig,
        next_batch: int,
        *,
        repeat: bool = False,
        is_one_shot: bool = False,
        bundles: bool = False,
    ) -> None:
        self.world = world
        self.rig = rig
        self.next_batch = next_batch
        self.repeat = repeat
        self.bundles = bundles
        world.runs += 1
        self.owner = f"run-{world.runs}"
        self.epoch = rig.sinks.open(SINK, self.owner, is_one_shot=is_one_shot).epoch
        if repeat:
            assert rig.sinks.open(SINK, self.owner).epoch == self.epoch

    def stage(self, attempt: Attempt) -> None:
        """Upload every part, in any order; some twice."""
        uploads = [(stage, part) for stage, (_, parts) in attempt.stages.items() for part in range(len(parts))]
        self.world.rng.shuffle(uploads)
        uploads += uploads[:1] if self.repeat else []
        for stage, part in uploads:
            if self.bundles:  # the commit makes them durable
                self._put(attempt, stage, part)
            else:
                self.upload(attempt, stage, part)

    def upload(self, attempt: Attempt, stage: str, part: int) -> bool:
        store, (is_new, generation) = self._put(attempt, stage, part)
        store.make_durable(generation)
        return is_new

    def _put(self, attempt: Attempt, stage: str, part: int) -> tuple[StageStore, tuple[bool, int]]:
        partition, parts = attempt.stages[stage]
        values = parts[part]
        store = self.rig.store(STREAM, partition)
        return store, store.put(
            [rows_of([value]) for value in values],
            sink=SINK,
            epoch=self.epoch,
            stage=stage,
            part=part,
            is_last=part + 1 == len(parts),
            check=lambda: self.rig.sinks.check_stage(SINK, self.epoch),
        )

    def asked(self, attempt: Attempt) -> CommitRequest:
        """The request that `commit` makes, for tests that take its steps one by one."""
        return CommitRequest(
            owner=self.owner,
            epoch=self.epoch,
            batch_id=attempt.batch_id,
            rows=self.world.rows,
            digest=attempt.digest,
            follows=self.follows(attempt),
            checkpoint="/checkpoint",
        )

    def follows(self, attempt: Attempt) -> int | None:
        """The last batch that its checkpoint knows to be written."""
        return attempt.batch_id - 1 if attempt.batch_id - 1 in self.world.acked else None

    def commit(self, attempt: Attempt, *, keeps_first: bool = False) -> CommitResult:
        asked = replace(self.asked(attempt), keeps_first=keeps_first)
        answer = self.rig.sinks.commit(SINK, asked, attempt.named(), {"checkpoint": "/checkpoint"})
        last = answer.state.last
        assert last is not None
        assert keeps_first or last.digest == attempt.digest, f"{attempt.digest} is acknowledged, {last.digest} is there"
        self.world.acked.add(attempt.batch_id)
        self.next_batch = attempt.batch_id + 1
        return answer

    def write(self, *, keeps_first: bool = False) -> CommitResult:
        """Stage and commit the next batch."""
        attempt = self.world.attempt(self.next_batch)
        try:
            self.stage(attempt)
            answer = self.commit(attempt, keeps_first=keeps_first)
            if self.repeat:
                assert not self.commit(attempt).is_new
            return answer
        except LiftlogError:
            self.rig.sinks.abort(SINK, attempt.named())
            raise
