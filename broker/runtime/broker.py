"""One broker: everything assembled, and run until a signal.

    control loop (main thread)   streams: create, alter, delete; signals
    data plane (thread, loop)    HTTP
    intake (thread, loop)        NATS
    fsync pool, appenders, cleaner (threads)

Start: data folder, catalog, partitions, HTTP, intake. Stop: the other way round, so that what publishers
were promised is durable before anything closes, and a clean mark spares the next start its scan.

Design: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import broker
from broker.api.errors import (
    InvalidRequest,
    LiftlogError,
    StorageFailed,
    UnknownPartition,
    UnknownStream,
)
from broker.api.stream import COMMITS_STREAM, OFFSETS_STREAM
from broker.metadata.catalog import COMMAND_VERSION, StreamInfo
from broker.metadata.overlap import subjects_of
from broker.runtime import metrics
from broker.runtime.catalog_store import CatalogStore
from broker.runtime.cleaner import Cleaner
from broker.runtime.compactor import Compacted, Compactor
from broker.runtime.config import Config, describe
from broker.runtime.consumers import Consumers
from broker.runtime.dataplane import DataPlane
from broker.runtime.intake import IntakeDriver
from broker.runtime.jetstream import jetstream_on
from broker.runtime.metrics import Sample
from broker.runtime.partition import Partition
from broker.runtime.sink_service import SinkService
from broker.runtime.stages import StageLimits
from broker.runtime.sync import SyncPool
from broker.runtime.watch import ChangeHub
from broker.serving.app import build_app
from broker.storage.checkpoint import PARTITION_FILE, LogIdentity, LogSettings
from broker.storage.compaction import CompactionSettings
from broker.storage.disk import OsDisk
from broker.storage.folder import DataFolder
from broker.storage.log import PartitionLog

log = logging.getLogger(__name__)
T = TypeVar("T")

APPENDER_THREADS = 2
DRAIN_TIMEOUT_S = 20.0
REMOVE_TRIES = 3
COMMITS_SETTINGS: dict[str, Any] = {
    "subject": None,
    "retention_ms": None,
    "retention_bytes": None,
    "retention_records": None,
    "segment_bytes": 16 << 20,
    "fsync": "batch",
}
OFFSETS_SETTINGS: dict[str, Any] = {
    "subject": None,
    "cleanup": "compact",
    "retention_ms": None,
    "segment_bytes": 16 << 20,
}
EXPIRE_TIMEOUT_S = 30.0


class Broker:
    """The backend that the HTTP API serves (`broker.serving.backend.Backend`)."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.version = broker.__version__
        self.broker_id = config.broker_id
        self._disk = OsDisk()
        self._folder = DataFolder.open(config.data_dir, broker_id=config.broker_id)
        self.cluster_id = self._folder.cluster_id
        self._root = Path(config.data_dir)
        self._store = CatalogStore(self._disk, str(self._root / "catalog.log"))
        self._partitions: dict[str, list[Partition]] = {}
        self._offline: dict[str, LiftlogError] = {}
        self._pool = SyncPool(config.fsync.threads)
        self._appender = ThreadPoolExecutor(APPENDER_THREADS, thread_name_prefix="append")
        self._dataplane = DataPlane()
        self._hub = ChangeHub(self._dataplane.loop, version=time.time_ns() // 1000)
        self._intake = IntakeDriver(config) if config.intake.enabled else None
        self._cleaner = Cleaner(config, self._all_partitions, also=lambda: self.sinks.sweep())
        self._compactor = Compactor(config, self._compacted, also=self._expire_offsets)
        self._changing = asyncio.Lock()
        self._control = asyncio.get_running_loop()
        self._leader_epoch = 0
        self._started = False
        self.http_address = ""

    # -- start and stop ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything; returns when requests are answered. (NATS may come later: /readyz tells.)"""
        begun = time.monotonic()
        http = self.config.http
        await asyncio.to_thread(self._open_all)
        self.offsets = Consumers(self._partitions[OFFSETS_STREAM][0])
        self.sinks = SinkService(
            self._disk,
            self._partitions[COMMITS_STREAM][0],
            self.partition,
            limits=StageLimits(**asdict(self.config.sinks)),
            boot_id=self._folder.boot_id(),
        )
        await asyncio.to_thread(self.sinks.start, list(self._all_partitions()))
        app = build_app(self, body_bytes_max=http.body_bytes_max)
        port = await asyncio.to_thread(self._dataplane.serve, app, http.host, http.port)
        self.http_address = http.advertised or f"{http.host}:{port}"
        self._register()
        if self._intake is not None:
            self._intake.start()
            captured = [
                (info, self._partitions[info.name])
                for info in self.streams()
                if info.name in self._partitions and not info.paused
            ]
            await asyncio.wrap_future(self._intake.attach(captured))
        self._cleaner.start()
        self._compactor.start()
        metrics.REGISTRY.register(metrics.SampleCollector(self._samples))
        self._started = True
        log.info(
            "broker.started id=%s http=%s streams=%d partitions=%d intake=%s start_ms=%d",
            self.broker_id,
            self.http_address,
            len(self._partitions),
            sum(1 for _ in self._all_partitions()),
            self._intake.implementation if self._intake else "off",
            (time.monotonic() - begun) * 1000,
        )

    def _open_all(self) -> None:
        self._leader_epoch = self._store.catalog.epoch_last + 1
        for name, settings in ((OFFSETS_STREAM, OFFSETS_SETTINGS), (COMMITS_STREAM, COMMITS_SETTINGS)):
            if name not in self._store.catalog.streams:
                command = self._create_command(name, settings, internal=True)
                self._make_folders(name, command["incarnation"], [0])
                self._store.execute(command)
        if self._store.catalog.streams[OFFSETS_STREAM].settings.cleanup != "compact":  # an earlier release made it
            values = {"cleanup": "compact"}
            self._store.execute(
                {"v": COMMAND_VERSION, "kind": "alter_stream", "name": OFFSETS_STREAM, "settings": values}
            )
        for info in self._store.catalog.streams.values():
            try:
                self._partitions[info.name] = self._open_stream(info)
            except (LiftlogError, OSError) as error:
                wrapped = error if isinstance(error, LiftlogError) else LiftlogError(str(error))
                self._offline[info.name] = wrapped
                log.error("stream.offline stream=%s reason=%s error=%s", info.name, wrapped.reason, wrapped)
        for name in (OFFSETS_STREAM, COMMITS_STREAM):
            if name in self._offline:
                raise self._offline[name]

    def _open_stream(self, info: StreamInfo) -> list[Partition]:
        return [self._open_partition(info, i) for i in range(info.settings.partitions)]

    def _open_partition(self, info: StreamInfo, number: int) -> Partition:
        opened = PartitionLog.open(
            self._disk,
            self._folder_of(info.name, info.incarnation, number),
            LogSettings.of(info.settings),
            boot_id=self._folder.boot_id(),
            now_us=time.time_ns() // 1000,
            expected=self._identity(info.name, info.incarnation, number),
        )
        report = opened.recovery
        if not report.clean:
            log.log(
                logging.ERROR if report.lost else logging.INFO,
                "partition.recovered partition=%s/%d scanned_bytes=%d cut_bytes=%d lost=%s rebuilt_indexes=%d notes=%s",
                info.name,
                number,
                report.scanned_bytes,
                report.cut_bytes,
                report.lost,
                len(report.rebuilt_indexes),
                report.notes,
            )
        if opened.high_watermark < opened.log_end_offset:
            # Acked before a crash, or about to be: the sole replica has it, so once synced it is committed.
            opened.advance_high_watermark(opened.sync())
        return Partition(
            info,
            number,
            opened,
            leader_epoch=self._leader_epoch,
            pool=self._pool,
            appender=self._appender,
            hub=self._hub,
        )

    def _register(self) -> None:
        grpc = self.config.grpc
        registered = self._store.execute(
            {
                "v": COMMAND_VERSION,
                "kind": "register_broker",
                "broker_id": self.broker_id,
                "incarnation": uuid.uuid4().hex,
                "http": self.http_address,
                "grpc": f"{grpc.host}:{grpc.port}",
            }
        )
        assert registered["leader_epoch"] == self._leader_epoch, "somebody else registered"

    async def stop(self) -> None:
        """Drain, make durable, mark clean, close."""
        log.info("broker.stopping id=%s", self.broker_id)
        if self._started:
            if self._intake is not None:
                await asyncio.to_thread(self._intake.stop, DRAIN_TIMEOUT_S)
            await asyncio.to_thread(self._compactor.stop)
            await asyncio.to_thread(self._cleaner.stop)
        await asyncio.to_thread(self._dataplane.stop)
        await asyncio.to_thread(self._close_logs)
        log.info("broker.stopped id=%s", self.broker_id)

    def _close_logs(self) -> None:
        if hasattr(self, "sinks"):
            self.sinks.close()
        self._appender.shutdown(wait=True)
        self._pool.close()
        for partition in self._all_partitions():
            try:
                partition.log.close(clean=True)
            except (LiftlogError, OSError) as error:
                log.error("partition.close_failed partition=%s error=%s", partition, error)
        self._store.close()
        self._folder.close()

    # -- what the HTTP API reads ---------------------------------------------------------------------

    @property
    def version_now(self) -> int:
        """Counts every change of a high watermark, a log start or the set of streams."""
        return self._hub.version

    async def wait_for_change(self, since: int, timeout_s: float) -> int:
        """Return the version as soon as it is past `since` (a version of the future counts as past), or at time-out."""
        if since <= self._hub.version:
            await self._hub.wait(self._hub.ANY, lambda: self._hub.version > since, timeout_s)
        return self._hub.version

    def streams(self, *, internal: bool = False) -> list[StreamInfo]:
        """All streams by name; internal ones only if asked for."""
        live = self._store.catalog.streams
        return [live[name] for name in sorted(live) if internal or not live[name].internal]

    def stream(self, name: str) -> StreamInfo:
        """One stream. Raises UnknownStream."""
        info = self._store.catalog.streams.get(name)
        if info is None:
            raise UnknownStream(f"no stream {name!r}", stream=name)
        return info

    def partitions(self, stream: str) -> list[Partition]:
        """The partitions of a stream. Raises UnknownStream, or why the stream is offline."""
        found = self._partitions.get(stream)
        if found is None:
            self.stream(stream)
            # A copy: raised again and again, one and the same error would keep the frames of all who met it.
            raise copy.copy(self._offline.get(stream, UnknownStream(f"stream {stream!r} is not open", stream=stream)))
        return found

    def partition(self, stream: str, partition: int) -> Partition:
        """One partition. Raises UnknownStream, UnknownPartition."""
        found = self.partitions(stream)
        if not 0 <= partition < len(found):
            raise UnknownPartition(
                f"stream {stream!r} has no partition {partition}, it has {len(found)}",
                stream=stream,
                partition=partition,
                partitions=len(found),
            )
        return found[partition]

    def brokers(self) -> list[dict[str, Any]]:
        """The registered brokers."""
        known = self._store.catalog.brokers
        return [{"id": b.broker_id, "http": b.http, "grpc": b.grpc} for _, b in sorted(known.items())]

    def ready(self) -> tuple[bool, dict[str, str]]:
        """Whether all works, and what does not."""
        missing = {} if self._started else {"broker": "starting"}
        if self._intake is not None and self._intake.state != "connected":
            missing["nats"] = self._intake.state
        missing |= {f"stream {name}": str(error) for name, error in self._offline.items()}
        return not missing, missing

    def metrics(self) -> bytes:
        """Prometheus text."""
        return metrics.render()

    # -- what changes the catalog: on the control loop -------------------------------------------------

    async def create_stream(self, name: str, values: Mapping[str, Any]) -> tuple[StreamInfo, bool]:
        """Create a stream, or find that it exists with the same settings.

        Raises:
            StreamExists: with other settings: `differences`.
        """
        return await self._on_control(self._create(name, values))

    async def alter_stream(self, name: str, values: Mapping[str, Any]) -> StreamInfo:
        """Change settings of a live stream."""
        return await self._on_control(self._alter(name, values))

    async def set_stream_state(
        self, name: str, *, paused: bool | None = None, read_only: bool | None = None
    ) -> StreamInfo:
        """Pause, resume, make read-only or writable; None leaves as it is. Raises UnknownStream."""
        return await self._on_control(self._set_state(name, paused, read_only))

    async def add_partitions(self, name: str, partitions: int) -> StreamInfo:
        """Raise the number of partitions. Raises InvalidSetting if there would be fewer."""
        return await self._on_control(self._add_partitions(name, partitions))

    async def trim_stream(self, name: str, incarnation: str, before: Mapping[int, int]) -> dict[int, int]:
        """Let go of the records below an offset of each named partition. Returns the new log starts.

        Whole segments go; records below the offset that share a segment with later ones are hidden.

        Raises:
            UnknownStream, UnknownPartition: not there.
            StaleIncarnation: the stream was deleted and re-created since the offsets were found.
            StorageFailed, DiskFull: the disk refused; some partitions may have been trimmed.
        """
        return await self._on_control(self._trim(name, incarnation, before))

    async def register_producer(self, name: str | None) -> tuple[int, int]:
        """An id and an epoch for an idempotent producer; under a name the same id again, and the next epoch."""
        return await self._on_control(self._register_producer(name))

    def check_producer(self, producer_id: int, epoch: int) -> None:
        """Raises UnknownProducer, ProducerFenced."""
        self._store.catalog.check_producer(producer_id, epoch)

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and its records."""
        await self._on_control(self._delete(name))

    async def _on_control(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._control))

    async def _create(self, name: str, values: Mapping[str, Any]) -> tuple[StreamInfo, bool]:
        async with self._changing:
            command = self._create_command(name, values, internal=False)
            if name not in self._store.catalog.streams:
                self._store.catalog.check(command)
                self._check_stream_limit()
                self._check_partition_limit(command["settings"]["partitions"])
                await asyncio.to_thread(
                    self._make_folders,
                    name,
                    command["incarnation"],
                    range(command["settings"]["partitions"]),
                )
            result = await asyncio.to_thread(self._store.execute, command)
            info = self.stream(name)
            if result["created"]:
                partitions = await asyncio.to_thread(self._open_stream, info)
                self._partitions[name] = partitions
                if self._intake is not None:
                    await asyncio.wrap_future(self._intake.attach([(info, partitions)]))
                    info = await self._warned_of_jetstream(info)
                self._hub.note(name)
                log.info(
                    "stream.created stream=%s subject=%s partitions=%d", name, info.settings.subject, len(partitions)
                )
            return info, bool(result["created"])

    async def _warned_of_jetstream(self, info: StreamInfo) -> StreamInfo:
        subjects = subjects_of(info.settings)
        if not subjects or not info.reply_acks_effective:
            return info
        others = await jetstream_on(self.config, subjects[0])
        if not others:
            return info
        text = f"JetStream captures {subjects[0]!r} too ({', '.join(others)}): publishers get two answers and see one"
        log.warning("stream.jetstream_overlap stream=%s jetstream=%s", info.name, ",".join(others))
        return replace(info, warnings=(*info.warnings, text))

    async def _alter(self, name: str, values: Mapping[str, Any]) -> StreamInfo:
        async with self._changing:
            command = {"v": COMMAND_VERSION, "kind": "alter_stream", "name": name, "settings": dict(values)}
            await asyncio.to_thread(self._store.execute, command)
            info = self.stream(name)
            for partition in self._partitions.get(name, ()):
                partition.alter(info)
            if self._intake is not None and name in self._partitions and info.settings.subject is not None:
                await asyncio.wrap_future(self._intake.alter(info))
            log.info("stream.altered stream=%s settings=%s", name, json.dumps(dict(values)))
            return info

    async def _set_state(self, name: str, paused: bool | None, read_only: bool | None) -> StreamInfo:
        async with self._changing:
            was = self.stream(name)
            command: dict[str, Any] = {"v": COMMAND_VERSION, "kind": "set_state", "name": name}
            command |= {} if paused is None else {"paused": paused}
            command |= {} if read_only is None else {"read_only": read_only}
            await asyncio.to_thread(self._store.execute, command)
            info = self.stream(name)
            partitions = self._partitions.get(name, [])
            if self._intake is not None and info.paused and not was.paused:
                await asyncio.wrap_future(self._intake.detach(name))  # what NATS has sent by now is still taken in
            for partition in partitions:
                partition.alter(info)
            if self._intake is not None and was.paused and not info.paused and partitions:
                await asyncio.wrap_future(self._intake.attach([(info, partitions)]))
            self._hub.note(name)
            log.info("stream.state stream=%s paused=%s read_only=%s", name, info.paused, info.read_only)
            return info

    async def _add_partitions(self, name: str, partitions: int) -> StreamInfo:
        async with self._changing:
            before = self.stream(name)
            had = self.partitions(name)
            command = {"v": COMMAND_VERSION, "kind": "add_partitions", "name": name, "partitions": partitions}
            self._store.catalog.check(command)
            self._check_partition_limit(partitions - len(had))
            numbers = range(len(had), partitions)
            await asyncio.to_thread(self._make_folders, name, before.incarnation, numbers)
            await asyncio.to_thread(self._store.execute, command)
            info = self.stream(name)
            if not numbers:
                return info
            added = await asyncio.to_thread(lambda: [self._open_partition(info, i) for i in numbers])
            self._partitions[name] = [*had, *added]
            if self._intake is not None and not info.paused:
                await asyncio.wrap_future(self._intake.extend(info, added))
            self._hub.note(name)
            log.info("stream.partitions_added stream=%s partitions=%d", name, partitions)
            return info

    async def _trim(self, name: str, incarnation: str, before: Mapping[int, int]) -> dict[int, int]:
        async with self._changing:  # so it is not deleted meanwhile
            partitions = {number: self.partition(name, number) for number in sorted(before)}
            self.stream(name).check_incarnation(incarnation)
            return {n: await asyncio.to_thread(self._trim_one, p, before[n]) for n, p in partitions.items()}

    def _trim_one(self, partition: Partition, before: int) -> int:
        was = partition.log.log_start_offset
        start = partition.trim(before)
        if start < before and partition.log.failure is not None:
            raise StorageFailed(f"{partition}: nothing is trimmed until the log has recovered")
        if start > was:
            partition.note_change()
            log.info("stream.trimmed partition=%s log_start_offset=%d records=%d", partition, start, start - was)
        return start

    async def _register_producer(self, name: str | None) -> tuple[int, int]:
        async with self._changing:
            command = {"v": COMMAND_VERSION, "kind": "register_producer", "name": name}
            registered = await asyncio.to_thread(self._store.execute, command)
        if name is not None:
            log.info("producer.registered name=%s epoch=%d", name, registered["epoch"])
        return registered["producer_id"], registered["epoch"]

    async def _delete(self, name: str) -> None:
        async with self._changing:
            info = self.stream(name)
            await asyncio.to_thread(self._store.execute, {"v": COMMAND_VERSION, "kind": "delete_stream", "name": name})
            partitions = self._partitions.pop(name, [])
            self._offline.pop(name, None)
            if self._intake is not None:
                await asyncio.wrap_future(self._intake.detach(name))
            self._hub.note(name)
            await asyncio.to_thread(self._remove, info, partitions)
            log.info("stream.deleted stream=%s incarnation=%s", name, info.incarnation)

    def _remove(self, info: StreamInfo, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            partition.note_removed()
        self.sinks.forget(partitions)
        for partition in partitions:
            try:
                partition.log.close(clean=True)
            except (LiftlogError, OSError) as error:  # it goes anyway
                log.info("partition.close_failed partition=%s error=%s", partition, error)
        folder = str(self._root / "streams" / info.name / info.incarnation)
        for left in range(REMOVE_TRIES - 1, -1, -1):  # a checkpoint under way may put a file into it once more
            try:
                self._disk.remove_tree(folder)
                return
            except OSError as error:
                if not left:
                    log.warning("stream.folder_left path=%s error=%s", folder, error)

    def _create_command(self, name: str, values: Mapping[str, Any], *, internal: bool) -> dict[str, Any]:
        defaults = {k: v for k, v in self.config.defaults.as_dict().items() if k not in ("subject", "group")}
        return {
            "v": COMMAND_VERSION,
            "kind": "create_stream",
            "name": name,
            "incarnation": uuid.uuid4().hex,
            "created_us": time.time_ns() // 1000,
            "settings": {**defaults, **values},
            "internal": internal,
        }

    def _check_stream_limit(self) -> None:
        limits = self.config.limits
        if len(self.streams()) >= limits.streams_max:
            raise InvalidRequest(f"limits.streams_max={limits.streams_max}: so many exist", limit=limits.streams_max)

    def _check_partition_limit(self, partitions: int) -> None:
        limits = self.config.limits
        total = sum(1 for _ in self._all_partitions()) + partitions
        if total > limits.partitions_max:
            raise InvalidRequest(
                f"limits.partitions_max={limits.partitions_max}: there would be {total}", limit=limits.partitions_max
            )

    def _make_folders(self, name: str, incarnation: str, numbers: Iterable[int]) -> None:
        """Before the catalog knows the partitions: a folder that is missing later was lost, not never made.

        One that is there already was made by an attempt that got no further; it is empty, and taken or finished.
        """
        settings = LogSettings.of(self.config.defaults)
        for number in numbers:
            if self._disk.exists(f"{self._folder_of(name, incarnation, number)}/{PARTITION_FILE}"):
                continue
            created = PartitionLog.create(
                self._disk,
                self._folder_of(name, incarnation, number),
                self._identity(name, incarnation, number),
                settings,
                boot_id=self._folder.boot_id(),
                now_us=time.time_ns() // 1000,
            )
            created.close(clean=True)

    def _folder_of(self, stream: str, incarnation: str, partition: int) -> str:
        return str(self._root / "streams" / stream / incarnation / str(partition))

    def _identity(self, stream: str, incarnation: str, partition: int) -> LogIdentity:
        return LogIdentity(cluster_id=self.cluster_id, stream=stream, incarnation=incarnation, partition=partition)

    def _all_partitions(self) -> Iterable[Partition]:
        return [p for partitions in list(self._partitions.values()) for p in partitions]

    def _compacted(self) -> Iterable[Compacted]:
        for info in list(self._store.catalog.streams.values()):
            settings = CompactionSettings.of(info.settings)
            if settings is not None:
                yield from ((partition, settings) for partition in self._partitions.get(info.name, ()))

    def _expire_offsets(self) -> None:
        """Forget consumers that leave records unread, and have committed nothing, for `offsets_retention_ms`."""
        before_us = time.time_ns() // 1000 - self.config.cleaner.offsets_retention_ms * 1000
        left = [name for name in self.offsets.silent(before_us) if self._leaves_unread(name, before_us)]
        if left:
            expired = asyncio.run_coroutine_threadsafe(self.offsets.expire(left, before_us), self._dataplane.loop)
            for name in expired.result(EXPIRE_TIMEOUT_S):
                log.info("offsets.expired consumer=%s", name)

    def _leaves_unread(self, consumer: str, before_us: int) -> bool:
        """Whether it left a record unread that was there before a time, or all that it read is deleted.

        A consumer of a stream in which nothing happens has nothing to commit, and is kept.
        """
        live = 0
        for row in self.offsets.get(consumer):
            partitions = self._partitions.get(row.stream, [])
            if row.partition >= len(partitions) or row.incarnation not in ("", partitions[row.partition].incarnation):
                continue
            live += 1
            found = partitions[row.partition].log
            later = found.offset_for_time(before_us)
            if row.offset < (found.high_watermark if later is None else later):
                return True
        return live == 0

    def _samples(self) -> Iterable[Sample]:
        from broker.runtime.samples import broker_samples

        yield from broker_samples(
            self._partitions, self._intake, self.offsets, self.sinks.sinks.counts, started=self._started
        )
        yield from self._compactor.samples()


async def _serve(config: Config) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    node = Broker(config)
    try:
        await node.start()
        await stopping.wait()
    finally:
        await node.stop()
    return 0


def run(config: Config) -> int:
    """Run a broker until SIGTERM or SIGINT. Returns the exit code.

    Raises:
        LiftlogError: it cannot start: port in use, folder in use, of another broker, damaged …
    """
    sys.setswitchinterval(0.0005)  # an ack waits for at most this long for a busy thread
    os.umask(0o077)
    log.info("broker.starting version=%s config=%s", broker.__version__, json.dumps(describe(config)))
    return asyncio.run(_serve(config))
