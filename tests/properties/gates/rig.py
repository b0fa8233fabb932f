"""A broker in this process, between the disk with gates and the NATS server, and what must hold of it afterwards.

acked      in the log at its offset, after a restart too, unless the change let go of it
refused    not in the log
unknown    in the log once, or not
at rest    nobody waits: no bytes under way, no append in a queue, no task left; no fault of ours was logged
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pyarrow as pa

from broker.api.batch import decode_batch
from broker.config.configuration import load
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.partition import Partition
from broker.node.sinks.stages import StageStore
from broker.storage.disk import OsDisk
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.properties.gates.disk import Gates
from tests.properties.gates.nats import FakeNats
from tests.support.acks import offset_of
from tests.support.lone import lone_broker
from tests.support.waiting import DEADLINE_S, until

Fate = Literal["acked", "refused", "unknown"]
SETTINGS = {"partition_by": "key", "linger_ms": 0}
BEFORE = b"before"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to an append. `reason`: of a refusal; `offset`: of the first record that was acked."""

    fate: Fate
    values: Sequence[bytes]
    offset: int = -1
    reason: str = ""


class Rig:
    """See the module.

    Attributes:
        faults: Log lines of faults: with a traceback, or at ERROR that no test expects.
    """

    def __init__(self, folder: Path, gates: Gates) -> None:
        self.folder = folder
        self.gates = gates
        self.nats = FakeNats()
        self.faults: list[str] = []
        self.is_stopped = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._logged = _Faults(self.faults)

    async def start(self) -> Rig:
        self._tasks = asyncio.all_tasks()
        logging.getLogger("broker").addHandler(self._logged)
        url = await self.nats.start()
        settings = {"data_dir": str(self.folder), "http.port": 0, "nats.urls": [url]}
        self.broker = lone_broker(load(None, {}, settings))
        await self.broker.start()
        assert self.broker._intake is not None
        self.intake = self.broker._intake
        await until(lambda: self.intake.state == "connected", "no connection to NATS")
        self.http = aiohttp.ClientSession(f"http://{self.broker.http_address}")
        return self

    def expects_faults(self) -> None:
        """The disk will fail: an ERROR is no fault of ours, a traceback is."""
        self._logged.are_expected = True

    async def stop(self) -> None:
        if not self.is_stopped:
            self.is_stopped = True
            await self.broker.stop()

    async def abandon(self) -> None:
        """Stop it all, however it is."""
        try:
            await self.stop()
        finally:
            await self.http.close()
            await self.nats.stop()
            logging.getLogger("broker").removeHandler(self._logged)

    async def close(self) -> None:
        """Stop it all; nothing must be left."""
        await self.abandon()
        for _ in range(3):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - self._tasks - {asyncio.current_task()}
        assert not left, "a task is left"
        assert self.faults == []

    async def create(self, stream: str, **settings: Any) -> None:
        await self.broker.create_stream(stream, {"subject": f"{stream}.>", **SETTINGS, **settings})
        assert (await self.post(stream, BEFORE)).fate == "acked"

    async def served(self, info: StreamInfo) -> None:
        """Until each partition of a stream goes by what was changed, as HTTP waits for it."""
        await until(partial(self._is_served, info), f"{info.name} does not go by its change")

    def _is_served(self, info: StreamInfo) -> bool:
        found = self.broker.partitions(info.name)
        all_go_by = all(not each.is_changing and each.goes_by.settings == info.settings for each in found)
        return all_go_by and len(found) == info.settings.partitions

    def stores(self) -> list[StageStore]:
        """The stages of all partitions that are open."""
        return [store for known in list(self.broker.sinks._stores.values()) for store in known.values()]

    def partition(self, stream: str) -> Partition:
        return self.broker.partition(stream, 0)

    # --- appends --------------------------------------------------------------------------------------------

    async def post(self, stream: str, *values: bytes, partition: int = 0, **query: int | str) -> Outcome:
        """Over HTTP."""
        path = f"/v1/streams/{stream}/partitions/{partition}/records"
        try:
            async with self.http.post(path, params=query, data=arrow_of(values)) as answer:
                body = await answer.json()
        except aiohttp.ClientError as error:
            return Outcome("unknown", values, reason=repr(error))
        if answer.status == 200:
            return Outcome("acked", values, body["first_offset"])
        return Outcome("unknown" if body.get("sent") else "refused", values, reason=body["reason"])

    async def publish(self, stream: str, *values: bytes, replies: Sequence[int] = (0,)) -> Outcome:
        """From NATS, all in one piece; those whose numbers are in `replies` await an ack."""
        named = {i: f"_INBOX.{stream}.{values[i].hex()}" for i in replies}
        assert self.nats.publish(f"{stream}.x", *((value, named.get(i, "")) for i, value in enumerate(values)))
        await until(lambda: self.nats.answers().keys() >= set(named.values()), f"no answer about {values}")
        first = self.nats.answers()[named[replies[0]]]
        if "error" not in first:
            return Outcome("acked", values, offset_of(first) - replies[0])
        reason = first["error"]["description"].rpartition("[")[2].removesuffix("]")
        is_sure = reason in ("stream_paused", "read_only", "unknown_stream")
        return Outcome("refused" if is_sure else "unknown", values, reason=reason)

    # --- what must hold -------------------------------------------------------------------------------------

    async def rests(self, partitions: Sequence[Partition]) -> None:
        """Nobody waits for anything."""
        flusher = self.intake._flusher
        slots = [slot for attachment in self.intake._streams.values() for slot in attachment.slots]
        await until(lambda: flusher._pending_bytes == 0, "bytes are under way for good")
        for slot in slots:
            assert (slot.in_flight, slot.ticked, slot.idle.is_set()) == (0, 0, True), slot
        assert flusher._ticked_bytes == 0
        await until(self._counts_what_is_open, "the open files are not those that are counted")
        for partition in partitions:
            assert partition._queued._waiting == 0, partition
            assert not [*partition._core._for_all, *partition._core._for_leader], partition

    def _counts_what_is_open(self) -> bool:
        logs = {partition.log for partition in self.broker._streams.all_partitions()}
        return {log for log in logs if log.state.is_awake} <= set(self.broker._open_logs._order) <= logs

    def stored(self, stream: str) -> list[list[bytes]]:
        """The values of each partition of each incarnation that the folder has. The broker has stopped."""
        found = []
        for folder in sorted(self.folder.glob(f"streams/{stream}/*/*")):
            log = PartitionLog.open(OsDisk(), str(folder), LogSettings(), boot_id="", now_us=0)
            assert log.state.lost_ranges == ()
            log.state.advance_high_watermark(log.syncer.sync())
            found.append(values_of(log))
            log.close()
        return found


class _Faults(logging.Handler):
    """Collects what must not be logged."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.are_expected = False
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or (record.levelno >= logging.ERROR and not self.are_expected):
            self._found.append(self.format(record))


def values_of(log: PartitionLog) -> list[bytes]:
    """The values of a log from offset 0 on; b"" stands for what was let go."""
    rows = [
        row for message in log.reader.batches(log.state.log_start_offset) for row in decode_batch(message).to_pylist()
    ]
    found = [b""] * log.state.log_start_offset
    for row in rows:
        if row["offset"] >= log.state.log_start_offset:
            assert row["offset"] == len(found)
            found.append(row["value"])
    return found


def arrow_of(values: Sequence[bytes]) -> bytes:
    table = pa.table({"value": pa.array(values, pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


async def soon(task: asyncio.Future[Any]) -> Any:
    """Its result; it must not hang."""
    return await asyncio.wait_for(asyncio.shield(task), DEADLINE_S)
