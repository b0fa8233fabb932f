"""A small broker behind the HTTP API: real logs on a temporary folder, the catalog, the fsync pool, no NATS.

The production backend (`broker.runtime.broker`) has more: NATS, its own threads for the loops, the journal of
the catalog. Tests of serving need none of that, and this one starts in milliseconds.
"""

from __future__ import annotations

import asyncio
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from broker.api.answers import LeaderAddress
from broker.api.errors import LiftlogError, UnknownPartition, from_problem
from broker.api.placements import Vote
from broker.api.stream import AUDIT_STREAM, COMMITS_STREAM, OFFSETS_STREAM
from broker.common.elapsed import MACHINE
from broker.config.settings import AuditConfig, ProducersConfig
from broker.control.operating.alone import AloneAdmin
from broker.control.service import Catalogs
from broker.control.used_producers import registration
from broker.metadata.access import Access
from broker.metadata.catalog import COMMAND_VERSION, Catalog, StreamInfo
from broker.metadata.groups import Groups
from broker.metadata.partition import PartitionState, Place
from broker.metadata.producers import NamedProducer
from broker.node.own_settings import audit_settings
from broker.node.partitions.consumers import Consumers
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncPool
from broker.node.partitions.watch import ChangeHub, StreamWatcher
from broker.node.sinks.here import StagesHere
from broker.node.sinks.service import PlacedSinks, Runners
from broker.node.sinks.stages import StageLimits
from broker.node.streams import PlacedStreams
from broker.runtime.audit_log import AuditLog
from broker.serving.contract.backend import PartitionHandle, Whereabouts
from broker.storage.disk import OsDisk
from broker.storage.log import LogIdentity, LogSettings, PartitionLog
from tests.support.led_alone import LedAlone, led_by


class LogBackend:
    """Implements `broker.serving.contract.backend.Backend`. Made on the loop that serves."""

    broker_id = "broker-0"
    cluster_id = "cluster-of-the-tests"
    version = "0.0.0"
    feature_level = 1

    def __init__(self, folder: Path) -> None:
        self.missing: dict[str, str] = {}
        self.inboxes: list[tuple[str, bytes]] = []
        self.offline: dict[str, LiftlogError] = {}
        self.unclean: dict[tuple[str, int], int] = {}
        self._folder = folder
        self._disk = OsDisk()
        self._catalog = Catalog()
        self._partitions: dict[str, list[Partition]] = {}
        self._pool = SyncPool(1)
        self._appender = ThreadPoolExecutor(1)
        self._hub = ChangeHub(asyncio.get_running_loop())
        self.http = "127.0.0.1:0"
        self._execute(
            {"kind": "register_broker", "broker_id": self.broker_id, "http": self.http, "grpc": "127.0.0.1:0"}
        )
        self._create(OFFSETS_STREAM, {}, internal=True)
        self.offsets = Consumers(self._partitions[OFFSETS_STREAM][0])
        self._create(COMMITS_STREAM, {"retention_ms": None}, internal=True)
        self._create(AUDIT_STREAM, audit_settings(AuditConfig()), internal=True)
        self.audit = AuditLog(self.partition, lambda: "there is none")
        self.admin = AloneAdmin(
            self.broker_id,
            lambda: [(p.stream, p.partition, p.leader_epoch) for parts in self._partitions.values() for p in parts],
        )
        self.sinks = self._made_sinks()

    def _made_sinks(self) -> PlacedSinks:
        """Its catalog places nothing: all is here."""
        clock = lambda: time.time_ns() // 1000  # noqa: E731
        service = SimpleNamespace(catalog=_Placed(self), read=lambda timeout_s: _Placed(self))
        streams = SimpleNamespace(
            info=self.stream, infos=self.streams, partition=self.partition, whereabouts=self.whereabouts
        )
        return PlacedSinks(
            self.broker_id,
            cast(PlacedStreams, streams),
            cast(Catalogs, service),
            StagesHere(self._disk, self._find, boot_id="", clock=clock),
            loop=asyncio.get_running_loop(),
            limits=StageLimits(),
            clock=clock,
            sweep_s=3_600.0,
            why_missing=str,
            runners=Runners.of_threads(),
        )

    def _find(self, at: Place) -> Partition | None:
        all_here = (each for partitions in list(self._partitions.values()) for each in partitions)
        return next((each for each in all_here if (each.incarnation, each.partition) == at), None)

    def knows(self, level: int) -> bool:
        """As `Backend.knows`, of a broker alone."""
        return True

    def close(self) -> None:
        self.sinks.close()
        self._appender.shutdown()
        self._pool.close()
        for partition in [p for partitions in self._partitions.values() for p in partitions]:
            partition.log.close()

    def _execute(self, command: dict[str, Any]) -> Any:
        result = self._catalog.apply({"v": COMMAND_VERSION, "incarnation": uuid.uuid4().hex, **command})
        if "error" in result:
            raise from_problem(result["error"])
        return result["ok"]

    def _create(
        self, name: str, values: Mapping[str, Any], *, internal: bool = False, beside: Sequence[str] | None = None
    ) -> tuple[StreamInfo, bool]:
        created: bool = self._execute(
            {
                "kind": "create_stream",
                "name": name,
                "created_us": time.time_ns() // 1000,
                "settings": dict(values),
                "internal": internal,
                **({} if beside is None else {"beside": [*beside]}),
            }
        )["created"]
        info = self._catalog.streams[name]
        if created:
            self._partitions[name] = [self._partition(info, i) for i in range(info.settings.partitions)]
            self._hub.note(ChangeHub.ALL)
        return info, created

    def _partition(self, info: StreamInfo, number: int) -> Partition:
        log = PartitionLog.create(
            self._disk,
            str(self._folder / info.name / info.incarnation / str(number)),
            LogIdentity(cluster_id=self.cluster_id, stream=info.name, incarnation=info.incarnation, partition=number),
            LogSettings.of(info.settings),
            now_us=time.time_ns() // 1000,
        )
        replica = Replica(info, number, log, appender=self._appender, hub=self._hub, clocks=MACHINE)
        if not info.internal:
            replica.floor = lambda: self.sinks.floor(info.incarnation, number)
        epoch = self._catalog.epoch_last
        return LedAlone(info, replica, pool=self._pool, appender=self._appender, leader_epoch=epoch, me=self.broker_id)

    def streams(self, *, internal: bool = False) -> list[StreamInfo]:
        return [info for _, info in sorted(self._catalog.streams.items()) if internal or not info.internal]

    def stream(self, name: str) -> StreamInfo:
        return self._catalog._live(name)

    def partitions(self, stream: str) -> Sequence[Partition]:
        if stream in self.offline:
            raise self.offline[stream]
        return self._partitions[self.stream(stream).name]

    def partition(self, stream: str, partition: int) -> Partition:
        found = self.partitions(stream)
        if partition >= len(found):
            raise UnknownPartition(f"{stream!r} has no partition {partition}", partitions=len(found))
        return found[partition]

    def reader(self, stream: str, partition: int) -> PartitionHandle:
        return self.partition(stream, partition)

    def nearest(self, stream: str, partition: int, rack: str) -> str | None:
        return None

    def whereabouts(self, stream: str) -> Sequence[Whereabouts]:
        leader = LeaderAddress(id=self.broker_id, http=self.http)
        ids = (self.broker_id,)
        return [
            Whereabouts(
                partition=p.partition,
                leader=leader,
                replicas=ids,
                isr=ids,
                leader_epoch=p.leader_epoch,
                unclean_epoch=self.unclean.get((stream, p.partition), 0),
            )
            for p in self.partitions(stream)
        ]

    def where(self, stream: str, partition: int) -> Whereabouts:
        self.stream(stream).check_partition(partition)
        return self.whereabouts(stream)[partition]

    async def create_stream(
        self, name: str, values: Mapping[str, Any], *, beside: Sequence[str] | None = None
    ) -> tuple[StreamInfo, bool]:
        return self._create(name, values, beside=beside)

    async def alter_stream(self, name: str, values: Mapping[str, Any]) -> StreamInfo:
        self._execute({"kind": "alter_stream", "name": name, "settings": dict(values)})
        info = self._catalog.streams[name]
        for partition in self._partitions[name]:
            partition.alter(info)
        return info

    async def delete_stream(self, name: str) -> None:
        self._execute({"kind": "delete_stream", "name": name, "incarnation": self.stream(name).incarnation})
        for partition in self._partitions.pop(name):
            partition.note_removed()
            partition.replica.note_closed()
            self.sinks.forget(partition)
            partition.log.close()
        self._hub.note(ChangeHub.ALL)
        shutil.rmtree(self._folder / name)

    async def set_stream_state(
        self, name: str, *, paused: bool | None = None, read_only: bool | None = None
    ) -> StreamInfo:
        given = {"paused": paused, "read_only": read_only}
        self._execute({"kind": "set_state", "name": name, **{k: v for k, v in given.items() if v is not None}})
        for partition in self._partitions[name]:
            partition.alter(self._catalog.streams[name])
        return self._catalog.streams[name]

    async def add_partitions(self, name: str, partitions: int) -> StreamInfo:
        self._execute({"kind": "add_partitions", "name": name, "partitions": partitions})
        info = self._catalog.streams[name]
        had = self._partitions[name]
        self._partitions[name] = [*had, *(self._partition(info, i) for i in range(len(had), partitions))]
        self._hub.note(ChangeHub.ALL)
        return info

    async def raise_fence(self, name: str, incarnation: str, partition: int, after: int) -> int:
        asked = {"name": name, "incarnation": incarnation, "partition": partition, "after": after}
        fence = int(self._execute({"kind": "raise_fence", **asked})["fence"])
        self._partitions[name][partition].alter(self._catalog.streams[name])
        return fence

    async def trim_stream(self, name: str, incarnation: str, before: Mapping[int, int]) -> dict[int, int]:
        self.stream(name).check_incarnation(incarnation)
        return {number: self.partition(name, number).log.trim(offset) for number, offset in before.items()}

    async def register_producer(self, name: str | None, owner: str | None = None) -> tuple[int, int]:
        fields = registration(ProducersConfig(), name, owner, can_tag=True)
        registered = self._execute({"kind": "register_producer", **fields})
        return registered["producer_id"], registered["epoch"]

    async def change_group(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = self._execute({"kind": kind, **values})
        self._hub.note(*self._catalog.groups.told(values["name"]))
        return result

    @property
    def groups(self) -> Groups:
        return self._catalog.groups

    def member_heard(self, group: str, member: str, session: int) -> None:
        self.heard = group, member, session

    def tell_inbox(self, inbox: str, ack: bytes) -> None:
        self.inboxes.append((inbox, ack))

    async def forget_producer(self, name: str) -> None:
        self._execute({"kind": "forget_producer", "name": name})

    def producer_name(self, producer_id: int) -> str | None:
        return self._catalog.producer_names.name_of(producer_id)

    @property
    def access(self) -> Access:
        return self._catalog.access

    async def change_access(self, kind: str, values: Mapping[str, Any]) -> int:
        return int(self._execute({"kind": kind, **values})["version"])

    def producers(self) -> dict[str, NamedProducer]:
        return dict(self._catalog.producers)

    def check_producer(self, producer_id: int, epoch: int) -> None:
        self._catalog.producer_names.check(producer_id, epoch)

    def watching(self) -> AbstractContextManager[StreamWatcher]:
        return self._hub.watching()

    async def look_for(self, stream: str) -> None:
        pass

    async def catch_up(self) -> None:
        pass

    async def position(self) -> int:
        return 0

    def check_session(self) -> None:
        pass

    async def controller(self) -> str | None:
        return self.broker_id

    async def votes(self) -> list[Vote]:
        return [Vote(broker=self.broker_id, valid=True, live=True)]

    def note_elsewhere(self, streams: Iterable[str]) -> None:
        self._hub.note(*streams)

    def addresses(self) -> tuple[str, ...]:
        return tuple(each["http"] for each in self.brokers())

    def brokers(self) -> list[dict[str, Any]]:
        return [
            {
                "id": self.broker_id,
                "http": self.http,
                "grpc": "",
                "live": True,
                "rack": "",
                "stopping": False,
                "session_ms": 2_000,
                "auth_mode": "off",
            }
        ]

    def ready(self) -> tuple[bool, dict[str, str]]:
        return not self.missing, self.missing

    def warnings(self) -> dict[str, str]:
        return {}

    def uncaptured(self, info: StreamInfo) -> list[str]:
        return []

    def metrics(self) -> bytes:
        return b"# HELP liftlog_up 1 once the broker has started\n# TYPE liftlog_up gauge\nliftlog_up 1.0\n"


class _Placed:
    """What sinks ask of a catalog, as if it placed each partition on this broker."""

    def __init__(self, backend: LogBackend) -> None:
        catalog = backend._catalog
        self.streams, self.brokers = catalog.streams, catalog.brokers
        self.cluster = SimpleNamespace(partitions=self)
        self._state = led_by(backend.broker_id, catalog.epoch_last)

    def get(self, at: Place) -> PartitionState:
        return self._state
