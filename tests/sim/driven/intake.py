"""The real intake of a broker of a driven cluster: connections, captures, parser, flush and answers are its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, cast

from broker.api.errors import LiftlogError
from broker.common.elapsed import Clocks
from broker.config.settings import Config
from broker.ingest import PendingBatch
from broker.intake.driver import IntakeDriver
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.partition import Partition
from broker.node.partitions.sync import Outcome
from broker.replication.events import Acks
from broker.storage.log import AppendResult
from tests.sim.driven.loop import SteppedLoop
from tests.sim.driven.nats import Server, Transport
from tests.sim.metadata import name_of
from tests.sim.rewritten import records_of
from tests.unit.ingest.wire import answers_in

if TYPE_CHECKING:
    from tests.sim.driven.running import Process
    from tests.sim.driven.seen import Seen

SORTED_LATE_MS: Final = 1_500
"""So long after the first one messages may come that were sorted by a former number of partitions."""
DRAIN_S: Final = 2.0


class SteppedIntake(IntakeDriver):
    """The intake of one process.

    Attributes:
        captured: Partitions whose capture was confirmed and has not ended, by how many partitions it sorts.
        ends: How often the capture of one has ended for something else than a pause.
    """

    def __init__(self, process: Process, server: Server) -> None:
        self.captured: dict[Partition, int] = {}
        self.ends: Counter[Partition] = Counter()
        self._begun: dict[Partition, Future[None]] = {}
        self._process = process
        self._server = server
        self._stepped = loop = SteppedLoop(process, self._connected)
        broker = process.broker
        clocks = Clocks(loop.time, lambda: broker.elapsed_us, lambda: broker.wall_us)
        super().__init__(Config(), broker.syncs, loop=loop, clocks=clocks)
        self._main = loop.create_task(self._stay_connected())

    async def _connected(self, protocol: Any) -> Transport:
        transport = Transport(self._process, self._stepped, protocol)
        transport.connect(self._server)
        return transport

    def begin(self, info: StreamInfo, partition: Partition) -> Future[None]:
        if "append_now" not in partition.__dict__:
            partition.append_now = Watched(self._process, self._server, cast(Partition, partition))  # type: ignore[method-assign]
        count = info.settings.partitions
        if self.captured.get(partition) != count:
            self.captured.pop(partition, None)
        begun = self._begun[partition] = super().begin(info, partition)

        def confirmed(done: Future[None]) -> None:
            if self._begun.get(partition) is done:
                self.captured[partition] = count

        begun.add_done_callback(confirmed)
        return begun

    def end(self, partition: Partition, *, with_sent: bool = False) -> Future[None]:
        self._begun.pop(partition, None)
        self.captured.pop(partition, None)
        broker = self._process.broker
        info = broker.catalog.streams.get(partition.stream)
        is_pause = info is not None and info.incarnation == partition.incarnation and info.paused
        self.ends[partition] += not (is_pause and partition.leads and broker.has_session)  # type: ignore[attr-defined]
        return super().end(partition, with_sent=with_sent)

    def drain(self) -> None:
        """On a fiber: as `stop`."""
        done = self._call(self._drain(DRAIN_S))
        while not done.done():
            self._process.pause(5)

    def _send(self, blob: bytes) -> None:
        self._server.delivered.answered(self._process, [reply for reply, _ in answers_in(blob)])
        super()._send(blob)


class Watched:
    """`append_now` of a partition as intake calls it: what it is told is what the checker hears."""

    def __init__(self, process: Process, server: Server, partition: Partition) -> None:
        self._process = process
        self._server = server
        self._partition = partition
        self._stale_ms: float | None = None  # since when nothing was taken, as it was sorted by another number

    def __call__(self, batches: Sequence[PendingBatch], on_durable: Any, *, sorted_by: int = 0, **options: Any) -> Any:
        partition, broker = self._partition, self._process.broker
        seen = cast("Seen | None", broker.replicas.get(name_of((partition.incarnation, partition.partition))))
        [pending] = batches
        changes, waiting, key = broker.cluster.changes, self._process.waiting, object()
        assert changes is not None
        keys = self._keys(pending)  # before those go that are there

        def told(result: AppendResult, outcome: Outcome) -> None:
            if waiting.pop(key, None) is None:
                broker.cluster.checker.fail(f"TOLD: {seen.name}: {broker.name} tells intake twice: {outcome}")
            if isinstance(outcome, int) and seen is not None:
                self._acked(seen, pending, result, sorted_by)
            on_durable(result, outcome)

        is_told = options.get("acks") is not Acks.OWN
        if is_told:
            waiting[key] = seen.name
        try:
            result = Partition.append_now(
                partition, batches, told if is_told else on_durable, sorted_by=sorted_by, **options
            )
        except LiftlogError as error:
            waiting.pop(key, None)
            if seen is not None:  # else its log was given up
                changes.refused(seen, error)
                self._look_whether_sorted(seen, sorted_by)
            self._server.delivered.refused(self._process, keys, error)
            raise
        if seen is None:
            broker.cluster.checker.fail(f"CLOSED: {broker.name} takes records into {partition}, which it has given up")
            return result
        self._stale_ms = None
        changes.took(seen, partition, sorted_by)
        self._server.delivered.took(self._process, keys)
        return result

    def _keys(self, pending: PendingBatch) -> list[bytes]:
        """Of its messages, as `Delivered` knows them."""
        keys = [reply for reply, _ in answers_in(pending.errors(500, 1, ""))]
        if len(keys) < pending.record_count:
            awaited = {self._server.values[reply] for reply in keys}
            values = [
                value for _, (_, value) in records_of(pending.compose(first_offset=0, leader_epoch=0, high_watermark=0))
            ]
            keys += [value for value in values if value is not None and value not in awaited]
        return keys

    def _look_whether_sorted(self, seen: Seen, sorted_by: int) -> None:
        """What was half read, or had gathered, may be sorted by a former number. Then no more comes of that."""
        world, partition = self._server.world, self._partition
        if not partition.serves or sorted_by == partition.settings.partitions:
            return
        self._stale_ms = world.now_ms if self._stale_ms is None else self._stale_ms
        if world.now_ms - self._stale_ms > SORTED_LATE_MS:
            text = f"HOLDS: {seen.name}: {seen.broker.name} sorts by {sorted_by} partitions still"
            seen.checker.fail(f"{text}, and goes by {partition.settings.partitions}")

    def _acked(self, seen: Seen, pending: PendingBatch, result: AppendResult, sorted_by: int) -> None:
        seen.is_acked(sorted_by)
        self._server.world.saw("acked over NATS")
        if not seen.is_of_before:
            seen.look()
            seen.checker.acked_each(seen, seen.offsets_of(pending.acks(result.first_offset), self._server.values))
