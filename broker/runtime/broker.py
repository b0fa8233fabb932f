"""One broker: everything assembled, and run until a signal.

    control loop (main thread)   streams: create, alter, delete; signals
    data plane (thread, loop)    HTTP
    intake (thread, loop)        NATS
    fsync pool, appenders, cleaner (threads)

Start: data folder, catalog, a port, partitions, registration, HTTP, intake. Stop: the other way round, so that what
publishers were promised is durable before anything closes, and a clean mark spares the next start its scan.

B1  The leader epoch is what the catalog answered to the registration, and it is durable there before anything is
    appended, served or finished under it: no two lives of a broker use the same one, wherever the first was cut off.
    The registration names the address; so the port is bound before, and listened on after it.

What is open stands in `streams.py`, what changes it in `control.py`.

Design: docs/explain/architecture.md.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import broker
from broker.api.http import host_port
from broker.api.stream import COMMITS_STREAM, OFFSETS_STREAM
from broker.metadata.catalog import COMMAND_VERSION, StreamInfo
from broker.runtime import metrics
from broker.runtime.background.cleaner import Cleaner
from broker.runtime.background.compactor import Compactor
from broker.runtime.background.disk_reserve import Room
from broker.runtime.background.expiry import expire_offsets
from broker.runtime.background.scrubber import Scrubber
from broker.runtime.config.configuration import Config, describe
from broker.runtime.config.nats_options import checked_options
from broker.runtime.dataplane import DataPlane
from broker.runtime.intake.driver import IntakeDriver
from broker.runtime.metrics import Sample
from broker.runtime.partitions.catalog_store import CatalogStore, spare_bytes
from broker.runtime.partitions.consumers import Consumers
from broker.runtime.partitions.control import Control, forget_command
from broker.runtime.partitions.open_logs import OpenLogs, connections_within, files_within, raise_limit
from broker.runtime.partitions.orphans import remove_orphans, require_catalog
from broker.runtime.partitions.streams import Streams
from broker.runtime.partitions.sync import SyncPool
from broker.runtime.partitions.watch import ChangeHub
from broker.runtime.sinks.service import SinkService
from broker.runtime.sinks.stage_log import StageLog, is_staged
from broker.runtime.sinks.stages import StageLimits
from broker.serving.http.app import build_app
from broker.serving.http.connections import ConnectionLimits
from broker.storage.disk import OsDisk
from broker.storage.disk.spare_files import Spares, sizes_with
from broker.storage.folder import STREAMS_FOLDER, DataFolder

log = logging.getLogger(__name__)

APPENDER_THREADS = 2
DRAIN_TIMEOUT_S = 20.0


class Broker:
    """The backend that the HTTP API serves (`broker.serving.contract.backend.Backend`)."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.version = broker.__version__
        self.broker_id = config.broker_id
        if config.intake.enabled:
            checked_options(config.nats)  # an error here, not in a log line at each try to connect
        self._folder = DataFolder.open(config.data_dir, broker_id=config.broker_id)
        catalog = str(Path(config.data_dir) / "catalog.log")
        self._disk = OsDisk(Spares(self._folder.path, sizes=sizes_with(spare_bytes(catalog))))
        self.cluster_id = self._folder.cluster_id
        require_catalog(self._disk, catalog, f"{config.data_dir}/{STREAMS_FOLDER}")
        store = CatalogStore(self._disk, catalog)
        self._finish_deletions(store)
        self._pool = SyncPool(config.fsync.threads)
        self._appender = ThreadPoolExecutor(APPENDER_THREADS, thread_name_prefix="append")
        self._dataplane = DataPlane()
        self._hub = ChangeHub(self._dataplane.loop, version=time.time_ns() // 1000)
        self._intake = IntakeDriver(config, self._pool) if config.intake.enabled else None
        self._room = Room(config.data_dir, config.limits.disk_reserve_bytes)
        files = raise_limit()
        self._connections_max = connections_within(config.http.connections_max, files)
        self._streams = Streams(
            config,
            self._disk,
            self._folder,
            store,
            pool=self._pool,
            appender=self._appender,
            hub=self._hub,
            room=self._room,
            open_logs=OpenLogs(files_within(config.limits.open_files_max, files - self._connections_max), self._pool),
        )
        self._control = Control(
            config,
            self._streams,
            self._intake,
            self._hub,
            take_in=lambda partitions: self.sinks.take_in(partitions),
            on_removed=lambda gone: self.sinks.forget(gone),
        )
        # Most of what the HTTP API asks is answered by these two.
        streams, control = self._streams, self._control
        self.streams, self.stream = streams.infos, streams.info
        self.partitions, self.partition = streams.partitions, streams.partition
        self.delete_stream, self.trim_stream = control.delete_stream, control.trim_stream
        self.set_stream_state, self.add_partitions = control.set_stream_state, control.add_partitions
        self.register_producer = control.register_producer
        self._cleaner = Cleaner(config, self._streams.all_partitions, moved=self._hub.take_moved, also=self._each_round)
        self._compactor = Compactor(config, self._streams.chores, also=self._expire_offsets)
        self._scrubber = Scrubber(
            config, self._disk, self._streams.all_partitions, stages=lambda partition: self.sinks.staged_in(partition)
        )
        self._started = False
        self._threads: list[Callable[[], None]] = []  # how those are stopped that have begun
        self.http_address = ""

    # --- start and stop -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything; returns when requests are answered. (NATS may come later: /readyz tells.)"""
        begun = time.monotonic()
        port = await asyncio.to_thread(self._bind)
        self.http_address = self.config.http.advertised or host_port(self.config.http.host, port)
        await asyncio.to_thread(self._streams.open_all)
        await asyncio.to_thread(self._register)
        self.offsets = Consumers(self._streams.by_name[OFFSETS_STREAM][0])
        self.sinks = SinkService(
            self._disk,
            self._streams.by_name[COMMITS_STREAM][0],
            self.partition,
            self._streams.incarnation_of,
            limits=StageLimits(**asdict(self.config.sinks)),
            boot_id=self._folder.boot_id(),
        )
        await asyncio.to_thread(self.sinks.start, self._streams.all_partitions())
        await asyncio.to_thread(self._dataplane.serve)
        if self._intake is not None:
            self._intake.start()
            self._threads.append(partial(self._intake.stop, DRAIN_TIMEOUT_S))
            captured = [
                (info, self._streams.by_name[info.name])
                for info in self.streams()
                if info.name in self._streams.by_name and not info.paused
            ]
            await asyncio.wrap_future(self._intake.attach(captured))
        for background in (self._compactor, self._scrubber, self._cleaner):
            background.start()
            self._threads.append(background.stop)
        self._started = True
        self._control.begin()
        log.info(
            "broker.started id=%s http=%s streams=%d partitions=%d intake=%s start_ms=%d",
            self.broker_id,
            self.http_address,
            len(self._streams.by_name),
            len(self._streams.all_partitions()),
            self._intake.implementation if self._intake else "off",
            (time.monotonic() - begun) * 1000,
        )

    def _finish_deletions(self, store: CatalogStore) -> None:
        gone = remove_orphans(
            self._disk,
            str(Path(self.config.data_dir) / STREAMS_FOLDER),
            cluster_id=self.cluster_id,
            known={(info.name, info.incarnation) for info in store.catalog.streams.values()},
            deleted={(name, incarnation) for incarnation, name in store.catalog.deleted.items()},
        )
        if gone:
            store.execute(forget_command([incarnation for _, incarnation in gone]))

    def _bind(self) -> int:
        http = self.config.http
        limits = ConnectionLimits(
            connections_max=self._connections_max,
            header_timeout_s=http.header_timeout_ms / 1000,
            body_timeout_s=http.body_timeout_ms / 1000,
            idle_timeout_s=http.idle_timeout_ms / 1000,
        )
        app = build_app(self, body_bytes_max=http.body_bytes_max, limits=limits)
        return self._dataplane.bind(app, http.host, http.port)

    def _register(self) -> None:
        """Become the leader of all partitions (B1)."""
        grpc = self.config.grpc
        stages = [
            StageLog(self._disk, main, boot_id=self._folder.boot_id(), clock=lambda: time.time_ns() // 1000)
            for main in self._streams.all_partitions()
            if is_staged(self._disk, main)
        ]
        registered = self._streams.store.execute(
            {
                "v": COMMAND_VERSION,
                "kind": "register_broker",
                "broker_id": self.broker_id,
                "incarnation": uuid.uuid4().hex,
                "http": self.http_address,
                "grpc": f"{grpc.host}:{grpc.port}",
                "epoch_seen": max([self._streams.epoch_seen(), *(hidden.epoch_seen() for hidden in stages)]),
            }
        )
        self._streams.lead(registered["leader_epoch"])

    async def stop(self) -> None:
        """Drain, make durable, mark clean, close. A step that fails is told, and the next one taken."""
        log.info("broker.stopping id=%s", self.broker_id)
        await self._control.close()
        for step in (
            *self._threads,
            self._dataplane.stop,
            *([self.sinks.close] if hasattr(self, "sinks") else []),
            self._appender.shutdown,
            self._pool.close,
            self._streams.close,
            self._folder.close,
        ):
            try:
                await asyncio.to_thread(step)
            except Exception:
                log.exception("broker.stop_failed step=%s", step)
        log.info("broker.stopped id=%s", self.broker_id)

    # --- what the HTTP API reads ----------------------------------------------------------------------------

    @property
    def version_now(self) -> int:
        """Counts every change of a high watermark, a log start or the set of streams."""
        return self._hub.version

    async def wait_for_change(self, since: int, timeout_s: float) -> int:
        """Return the version as soon as it is past `since` (a version of the future counts as past), or at time-out."""
        if since <= self._hub.version:
            await self._hub.wait(self._hub.ANY, lambda: self._hub.version > since, timeout_s)
        return self._hub.version

    def check_producer(self, producer_id: int, epoch: int) -> None:
        """Raises UnknownProducer, ProducerFenced."""
        self._streams.store.catalog.check_producer(producer_id, epoch)

    def brokers(self) -> list[dict[str, Any]]:
        """The registered brokers."""
        known = self._streams.store.catalog.brokers
        return [{"id": b.broker_id, "http": b.http, "grpc": b.grpc} for _, b in sorted(known.items())]

    def ready(self) -> tuple[bool, dict[str, str]]:
        """Whether all works, and what does not."""
        missing = {} if self._started else {"broker": "starting"}
        if self._intake is not None and self._intake.state != "connected":
            missing["nats"] = self._intake.state
        missing |= {f"stream {name}": str(error) for name, error in self._streams.offline.items()}
        return not missing, missing

    def metrics(self) -> bytes:
        """Prometheus text."""
        return metrics.render(self._samples() if self._started else ())

    # --- what the HTTP API changes ----------------------------------------------------------------------------

    async def create_stream(self, name: str, values: Mapping[str, Any]) -> tuple[StreamInfo, bool]:
        """Create a stream, or find that it exists with the same settings."""
        try:
            return await self._control.create_stream(name, values)
        finally:
            self._cleaner.syncs.look()

    async def alter_stream(self, name: str, values: Mapping[str, Any]) -> StreamInfo:
        """Change settings of a live stream."""
        try:
            return await self._control.alter_stream(name, values)
        finally:
            self._cleaner.syncs.look()

    # --- in the background ------------------------------------------------------------------------------------

    def _each_round(self) -> None:
        self._control.retry_offline()
        self.sinks.sweep()

    def _expire_offsets(self) -> None:
        before_us = time.time_ns() // 1000 - self.config.cleaner.offsets_retention_ms * 1000
        expire_offsets(self.offsets, self._streams, self._dataplane.loop, before_us=before_us)

    def _samples(self) -> Iterable[Sample]:
        from broker.runtime.samples import broker_samples

        yield from broker_samples(
            self._streams.by_name,
            self._intake,
            self.offsets,
            self.sinks.sinks.counts,
            started=self._started,
            offline=len(self._streams.offline),
        )
        yield from self._compactor.samples()
        yield from self._scrubber.samples()
        yield from self._room.samples()


@contextmanager
def _without_collector() -> Iterator[None]:
    """No search for reference cycles meanwhile: of what a start makes nearly all stays, and is gone through again and
    again. With 10,000 partitions that took a third of the start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _serve(config: Config) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if (
            number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        ):  # nohup wants it to outlive a terminal
            loop.add_signal_handler(number, stopping.set)
    node = Broker(config)
    try:
        with _without_collector():
            await node.start()
        await stopping.wait()
    finally:
        await node.stop()
    return 0


def run(config: Config) -> int:
    """Run a broker until SIGTERM, SIGINT or SIGHUP. Returns the exit code.

    Raises:
        LiftlogError: it cannot start: port in use, folder in use, of another broker, damaged …
    """
    sys.setswitchinterval(0.0005)  # an ack waits for at most this long for a busy thread
    os.umask(0o077)
    log.info("broker.starting version=%s config=%s", broker.__version__, json.dumps(describe(config)))
    return asyncio.run(_serve(config))
