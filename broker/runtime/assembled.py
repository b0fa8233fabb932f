"""The base of a broker: its folder, threads, HTTP and intake; how they start and stop.

    control loop (main thread)   streams: create, alter, delete; signals
    data plane (thread, loop)    HTTP
    intake (thread, loop)        NATS
    fsync pool, appenders, cleaner (threads)

`clustered.ClusterBroker`, alone or with others, opens the streams in between.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import broker
from broker.api.certificate_faults import Unbelieved
from broker.api.errors import DiskFull
from broker.api.http import host_port
from broker.api.placements import Vote
from broker.background.cleaner import Cleaner
from broker.background.compactor import Compactor
from broker.background.doubted_clock import kept_clock
from broker.background.master_keys import MasterKeys
from broker.background.scrubber import Scrubber
from broker.common import metrics, stopping
from broker.common.disk_reserve import Room
from broker.common.metrics import Sample
from broker.config.auth import auth_rules_of
from broker.config.certificates import certificates_of
from broker.config.configuration import Config
from broker.config.jwks import jwks_of
from broker.config.nats_options import checked_options
from broker.control.catalog_store import spare_bytes
from broker.control.used_producers import UsedProducers
from broker.intake.driver import IntakeDriver
from broker.intake.jetstream import overlap_with
from broker.metadata.access import Access
from broker.metadata.catalog import Catalog, StreamInfo
from broker.metadata.groups import Groups
from broker.metadata.producers import NamedProducer
from broker.node.chores import Chores
from broker.node.partitions.open_logs import OpenLogs, connections_within, files_within, raise_limit
from broker.node.partitions.partition import Partition
from broker.node.partitions.sync import SyncPool
from broker.node.partitions.watch import ChangeHub, StreamWatcher
from broker.runtime.dataplane import DataPlane
from broker.serving.contract.backend import (
    AdminView,
    AuditView,
    OffsetsView,
    PartitionHandle,
    SinksView,
    StreamChanges,
    Whereabouts,
)
from broker.serving.http.app import SERVING, build_app
from broker.serving.http.audit import Audit
from broker.serving.http.connections import ConnectionLimits
from broker.serving.http.origin import hosts_of
from broker.serving.http.tls import TlsContexts
from broker.serving.threads import Threads
from broker.storage.disk import OsDisk
from broker.storage.disk.spare_files import Spares, sizes_with
from broker.storage.folder import STREAMS_FOLDER, DataFolder

if TYPE_CHECKING:
    from broker.storage.encrypted.keys import Keyring

log = logging.getLogger(__name__)

APPENDER_THREADS = 2
DRAIN_TIMEOUT_S = 20.0


class Lookup(Protocol):
    """The streams, as this broker has them. Answers from memory."""

    def infos(self, *, internal: bool = False) -> list[StreamInfo]: ...

    def info(self, name: str) -> StreamInfo: ...

    def partition(self, stream: str, partition: int) -> Partition:
        """One that is led here. Raises UnknownStream, UnknownPartition, NotLeader, NotReady."""
        ...

    def partitions(self, stream: str) -> list[Partition]:
        """Those that are led here. Raises UnknownStream, or why the stream is offline."""
        ...

    def reader(self, stream: str, partition: int) -> PartitionHandle:
        """One whose records are handed out here. Raises as `partition`."""
        ...

    def near(self, stream: str, partition: int, rack: str) -> list[str]:
        """HTTP addresses of those that `Backend.nearest` chooses from."""
        ...

    def whereabouts(self, stream: str) -> list[Whereabouts]: ...

    def where(self, stream: str, partition: int) -> Whereabouts: ...

    def all_partitions(self) -> list[Partition]:
        """The partitions of all streams, led here or not."""
        ...

    def chores(self) -> Iterator[Chores]: ...


class Changes(StreamChanges, Protocol):
    """Changes streams, until it is told to end."""

    async def close(self) -> None: ...

    async def note_producers(self, names: Sequence[str], at_ms: int) -> None: ...


class Assembled:
    """The backend that the HTTP API serves (`broker.serving.contract.backend.Backend`). See the module.

    Args:
        cluster_id: As `DataFolder.open` takes it.
        secret: Of the cluster, by which its brokers know each other.
    """

    offsets: OffsetsView
    sinks: SinksView
    admin: AdminView
    audit: AuditView

    def __init__(self, config: Config, *, cluster_id: str | None = None, secret: str | None = None) -> None:
        self.config = config
        self._jwks = jwks_of(config.jwt, partial(self._kept_out, "jwt"))
        self._auth_rules = auth_rules_of(config.auth, secret, self._jwks)
        self.version = broker.__version__
        self.broker_id = config.broker_id
        if config.intake.enabled:
            checked_options(config.nats)  # an error here, not in a log line at each try to connect
        self._certificates = certificates_of(config.http, by_date=False)
        self._folder = DataFolder.open(config.data_dir, broker_id=config.broker_id, cluster_id=cluster_id)
        self._catalog_path = str(Path(config.data_dir) / "catalog.log")
        self._disk = OsDisk(Spares(self._folder.path, sizes=sizes_with(spare_bytes(self._catalog_path))))
        self.cluster_id = self._folder.cluster_id
        self._pool = SyncPool(config.fsync.threads)
        self._appender = Threads(APPENDER_THREADS, name="append")
        self._dataplane = DataPlane()
        self._hub = ChangeHub(self._dataplane.loop)
        self._intake = self._made_intake() if config.intake.enabled else None
        self._room = Room(config.data_dir, config.limits.disk_reserve_bytes)
        files = raise_limit()
        self._connections_max = connections_within(config.http.connections_max, files)
        self._open_logs = OpenLogs(
            files_within(config.limits.open_files_max, files - self._connections_max), self._pool
        )
        self._started = False
        self._threads: list[Callable[[], None]] = []  # how those are stopped that have begun
        self.http_address = self.liftbridge_address = ""
        self._http_audit: Audit | None = None  # from the moment on at which the port is bound

    def _assemble(
        self,
        streams: Lookup,
        control: Changes,
        *,
        scrub_stages: Callable[[Partition], Any],
        keyring: Keyring | None,
    ) -> None:
        """Answer what the HTTP API asks by these, and look after them in the background."""
        config = self.config
        self.streams, self.stream = streams.infos, streams.info
        self.partitions, self.partition = streams.partitions, streams.partition
        self.whereabouts, self.where = streams.whereabouts, streams.where
        self.reader, self._near = streams.reader, streams.near
        self.delete_stream, self.trim_stream = control.delete_stream, control.trim_stream
        self.set_stream_state, self.add_partitions = control.set_stream_state, control.add_partitions
        self.register_producer, self.forget_producer = control.register_producer, control.forget_producer
        self.change_access, self.raise_fence = control.change_access, control.raise_fence
        self.change_group = control.change_group
        self._used_producers = UsedProducers(config.producers, control.note_producers)
        self._changes = control
        self._clock = kept_clock(self._disk, self._folder.path, self._folder.boot_id())
        self._master_keys = MasterKeys(self._disk, f"{self._folder.path}/{STREAMS_FOLDER}", keyring)
        self._cleaner = Cleaner(
            config, streams.all_partitions, moved=self._hub.take_moved, also=self._round, clock=self._clock
        )
        self._compactor = Compactor(config, streams.chores, also=self._expire_offsets, clock=self._clock)
        self._scrubber = Scrubber(config, self._disk, streams.all_partitions, stages=scrub_stages)

    def nearest(self, stream: str, partition: int, rack: str) -> str | None:
        """As `Backend.nearest`: any of them, so that readers are shared out."""
        there = self._near(stream, partition, rack)
        return random.choice(there) if there else None

    # --- what a form of broker does by itself -----------------------------------------------------------------

    @property
    def _catalog(self) -> Catalog:
        """As known here."""
        raise NotImplementedError

    async def _open(self) -> None:
        """Open the streams; have them led and served."""
        raise NotImplementedError

    def _leaving(self) -> tuple[Callable[[], None], ...]:
        """Steps that a stop begins with, in order, while all works still."""
        return ()

    def _closing(self) -> tuple[Callable[[], None], ...]:
        """Steps that close things at the end, in order, before the data folder is closed."""
        raise NotImplementedError

    def _round(self) -> None:
        self._each_round()
        self._master_keys.look()

    def _each_round(self) -> None:
        """Done in each round of the cleaner."""
        raise NotImplementedError

    def _expire_offsets(self) -> None:
        """Before each round of the compactor."""
        raise NotImplementedError

    def member_heard(self, group: str, member: str, session: int) -> None:
        """As `Backend.member_heard`."""
        raise NotImplementedError

    def _samples(self) -> Iterable[Sample]:
        """For /metrics."""
        raise NotImplementedError

    def _missing(self) -> dict[str, str]:
        """Everything about the streams that does not work."""
        raise NotImplementedError

    # --- start and stop -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything; returns when requests are answered. (NATS may come later: /readyz tells.)"""
        begun = time.monotonic()
        port = await asyncio.to_thread(self._bind)
        self.http_address = self.config.http.advertised or host_port(self.config.http.host, port)
        if self._jwks is not None:
            self._jwks.start()
            self._threads.append(self._jwks.stop)
        await self._open()
        for background in (self._compactor, self._scrubber, self._cleaner, self._certificates):
            if background is not None:
                background.start()
                self._threads.append(background.stop)
        self._started = True
        log.info(
            "broker.started id=%s http=%s liftbridge=%s tls=%s streams=%d partitions=%d intake=%s start_ms=%d",
            self.broker_id,
            self.http_address,
            self.liftbridge_address or "off",
            "on" if self._certificates else "off",
            len(self._catalog.streams),
            sum(info.settings.partitions for info in list(self._catalog.streams.values())),
            self._intake.implementation if self._intake else "off",
            (time.monotonic() - begun) * 1000,
        )

    def _bind(self) -> int:
        http = self.config.http
        limits = ConnectionLimits(
            connections_max=self._connections_max,
            header_timeout_s=http.header_timeout_ms / 1000,
            body_timeout_s=http.body_timeout_ms / 1000,
            idle_timeout_s=http.idle_timeout_ms / 1000,
        )
        hosts = hosts_of((*http.hosts, http.host, http.advertised))
        app = build_app(
            self,
            body_bytes_max=http.body_bytes_max,
            limits=limits,
            caller_limits=self.config.limits.of_callers(self._connections_max),
            hosts=hosts,
            tls=self._tls,
            auth_rules=self._auth_rules,
            is_audited=self.config.audit.enabled,
        )
        self._http_audit = app[SERVING].audit
        port = self._dataplane.bind(app, http.host, http.port, self._tls)
        if (place := self.config.liftbridge.place) is not None:
            taken = self._dataplane.bind_liftbridge(app, *place, self._tls, self._liftbridge_here)
            self.liftbridge_address = host_port(*self._liftbridge_here(taken))
        return port

    def _liftbridge_here(self, port: int) -> tuple[str, int]:
        """Where clients of Liftbridge are told to find this broker, by the port that it has."""
        config, place = self.config, self.config.liftbridge.place
        if config.liftbridge.advertised is not None:
            host, _, number = config.liftbridge.advertised.rpartition(":")
            return host.strip("[]"), int(number)
        assert place is not None, "it is opened"
        is_any = place[0] in ("0.0.0.0", "::")
        if is_any and config.http.advertised is not None:
            return config.http.advertised.rpartition(":")[0].strip("[]"), port
        return place[0], port

    def _kept_out(self, port: str, address: str, found: Unbelieved) -> None:
        """The certificate of somebody at a port for brokers, or of whom this broker has called, is not believed: this
        belongs into the audit. From any thread; does not wait."""
        if self._http_audit is not None:
            self._http_audit.kept_out(port, address, found)

    @property
    def _tls(self) -> TlsContexts | None:
        return None if self._certificates is None else self._certificates.contexts

    def _made_intake(self) -> IntakeDriver:
        return IntakeDriver(self.config, self._pool, tell=partial(self._kept_out, "nats"))

    def _start_intake(self) -> None:
        if self._intake is not None:
            self._intake.start()
            self._threads.append(partial(self._intake.stop, DRAIN_TIMEOUT_S))

    def interrupt(self) -> None:
        """Let a start end that waits for others."""

    async def stop(self) -> bool:
        """Drain, make durable, mark clean, close. Returns whether all has ended: else the process has to, and the
        folder stays locked (`stopping`)."""
        log.info("broker.stopping id=%s", self.broker_id)
        log_count = sum(info.settings.partitions for info in list(self._catalog.streams.values()))
        steps = (*self._leaving(), *self._threads, self._dataplane.stop, *self._closing())
        has_ended = await stopping.take((self._changes.close, *steps), log_count=log_count)
        if has_ended:
            has_ended = await stopping.take((self._folder.close,), log_count=0)
        log.info("broker.stopped id=%s", self.broker_id)
        return has_ended

    def tell_inbox(self, inbox: str, ack: bytes) -> None:
        """As `Backend.tell_inbox`."""
        if self._intake is not None:
            self._intake.tell_inbox(inbox, ack)

    # --- what the HTTP API reads ----------------------------------------------------------------------------

    def watching(self) -> AbstractContextManager[StreamWatcher]:
        """As `Backend.watching`."""
        return self._hub.watching()

    async def look_for(self, stream: str) -> None:
        """Return when this broker knows of a stream, if the cluster does. Alone, it knows all."""

    async def catch_up(self) -> None:
        """As `Backend.catch_up`. Alone, it knows all."""

    async def position(self) -> int:
        """As `Backend.position`. Alone, it asks nobody."""
        return 0

    def check_session(self) -> None:
        """As `Backend.check_session`. Alone, it knows all."""

    async def controller(self) -> str | None:
        """The id of the broker that decides about streams: this one, where it is alone."""
        return self.broker_id

    @property
    def feature_level(self) -> int:
        """The level that all brokers of the cluster know."""
        return self._catalog.cluster.feature_level

    def knows(self, level: int) -> bool:
        """As `Backend.knows`."""
        return self._catalog.cluster.knows(level)

    async def votes(self) -> list[Vote]:
        """The votes of the brokers that keep the catalog: this one, where it is alone."""
        return [Vote(broker=self.broker_id, valid=True, live=True)]

    def note_elsewhere(self, streams: Iterable[str]) -> None:
        """These have changed at another broker: wake who watches them."""
        self._hub.note(*streams)

    def check_producer(self, producer_id: int, epoch: int) -> None:
        """Raises UnknownProducer, ProducerFenced."""
        catalog = self._catalog
        catalog.producer_names.check(producer_id, epoch)
        self._used_producers.used(catalog, producer_id)

    def producer_name(self, producer_id: int) -> str | None:
        """The name of a producer; None: it has none."""
        return self._catalog.producer_names.name_of(producer_id)

    @property
    def access(self) -> Access:
        """Tokens and grants, as this broker knows them now."""
        return self._catalog.access

    @property
    def groups(self) -> Groups:
        """Consumer groups, as this broker knows them now."""
        return self._catalog.groups

    def producers(self) -> dict[str, NamedProducer]:
        """Those that have names."""
        return dict(self._catalog.producers)

    def addresses(self) -> tuple[str, ...]:
        """Of the HTTP API of the registered brokers."""
        return tuple(b.http for _, b in sorted(dict(self._catalog.brokers).items()))

    def brokers(self) -> list[dict[str, Any]]:
        """The registered brokers."""
        known = dict(self._catalog.brokers)
        return [
            {
                "id": b.broker_id,
                "http": b.http,
                "grpc": b.grpc,
                "live": b.is_live,
                "rack": b.rack,
                "stopping": b.is_stopping,
                "session_ms": b.session_ms,
                "auth_mode": self.config.auth.mode if b.broker_id == self.broker_id else b.auth_mode,
            }
            for _, b in sorted(known.items())
        ]

    def ready(self) -> tuple[bool, dict[str, str]]:
        """Whether all works, and what does not."""
        missing = {} if self._started else {"broker": "starting"}
        if self._intake is not None and self._intake.state != "connected":
            missing["nats"] = self._intake.state
        missing |= self._missing()
        try:
            self._room.check()
        except DiskFull as error:
            missing["disk"] = str(error)
        return not missing, missing

    def warnings(self) -> dict[str, str]:
        """As `Backend.warnings`."""
        return {} if self._intake is None else self._intake.warnings()

    def uncaptured(self, info: StreamInfo) -> list[str]:
        """As `Backend.uncaptured`."""
        if self._intake is None or info.settings.subject is None or info.paused:
            return []
        return self._intake.uncaptured(info.name)

    def metrics(self) -> bytes:
        """Prometheus text."""
        return metrics.render(self._all_samples() if self._started else ())

    def _all_samples(self) -> Iterable[Sample]:
        yield from self._samples()
        yield from self._compactor.samples()
        yield from self._scrubber.samples()
        yield from self._room.samples()
        yield from self._master_keys.samples()
        if self._certificates is not None:
            yield from self._certificates.samples()
        if self._jwks is not None:
            yield from self._jwks.samples()

    # --- what the HTTP API changes ----------------------------------------------------------------------------

    async def create_stream(
        self, name: str, values: Mapping[str, Any], *, beside: Sequence[str] | None = None
    ) -> tuple[StreamInfo, bool]:
        """Create a stream, or find that it exists with the same settings."""
        try:
            info, is_new = await self._changes.create_stream(name, values, beside=beside)
        finally:
            self._cleaner.syncs.look()
        if is_new and self._intake is not None:
            advice = await overlap_with(self.config, info, partial(self._kept_out, "nats"))
            info = replace(info, warnings=(*info.warnings, *advice))
        return info, is_new

    async def alter_stream(self, name: str, values: Mapping[str, Any]) -> StreamInfo:
        """Change settings of a live stream."""
        try:
            return await self._changes.alter_stream(name, values)
        finally:
            self._cleaner.syncs.look()
