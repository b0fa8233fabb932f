"""One broker that is alone: everything assembled, and run until a signal.

Start: data folder, catalog, a port, partitions, registration, HTTP, intake. Stop: the other way round, so that what
publishers were promised is durable before anything closes, and a clean mark spares the next start its scan.

B1  The leader epoch is what the catalog answered to the registration, and it is durable there before anything is
    appended, served or finished under it: no two lives of a broker use the same one, wherever the first was cut off.
    The registration names the address; so the port is bound before, and listened on after it.

`streams.py` has the open streams, `control.py` changes them, and `assembled.py` is the base of every broker.

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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import broker
from broker.api.errors import InvalidRequest, NotReady, WrongFolder
from broker.api.stream import AUDIT_STREAM, COMMITS_STREAM, OFFSETS_STREAM
from broker.metadata.catalog import COMMAND_VERSION, Catalog
from broker.runtime.activity_log import ActivityLog
from broker.runtime.alone import AloneAdmin
from broker.runtime.assembled import Assembled
from broker.runtime.audit_log import AuditLog
from broker.runtime.background.expiry import expire_offsets, look_alone
from broker.runtime.background.members import Members
from broker.runtime.config.configuration import Config, describe, open_doors
from broker.runtime.metrics import Sample
from broker.runtime.partitions.catalog_store import CatalogStore
from broker.runtime.partitions.consumers import Consumers
from broker.runtime.partitions.control import Control, forget_command
from broker.runtime.partitions.orphans import remove_orphans, require_catalog
from broker.runtime.partitions.streams import Streams
from broker.runtime.sinks.service import SinkService
from broker.runtime.sinks.stage_log import StageLog, is_staged
from broker.runtime.sinks.stages import StageLimits
from broker.runtime.stopping import end_process
from broker.serving.threads import Threads
from broker.storage.folder import GROUP_FILES, STREAMS_FOLDER

log = logging.getLogger(__name__)


class Broker(Assembled):
    """See the module."""

    offsets: Consumers
    sinks: SinkService

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if any(self._disk.exists(f"{self._folder.path}/{name}") for name in GROUP_FILES):
            raise WrongFolder(
                f"data folder {config.data_dir} is of a broker in a cluster: set cluster.id and cluster.voters",
                path=self._folder.path,
            )
        require_catalog(self._disk, self._catalog_path, f"{config.data_dir}/{STREAMS_FOLDER}")
        store = CatalogStore(self._disk, self._catalog_path)
        self._finish_deletions(store)
        self._streams = Streams(
            config,
            self._disk,
            self._folder,
            store,
            pool=self._pool,
            appender=self._appender,
            hub=self._hub,
            room=self._room,
            open_logs=self._open_logs,
        )
        self._control = Control(
            config,
            self._streams,
            self._intake,
            self._hub,
            take_in=lambda partitions: self.sinks.take_in(partitions),
            on_removed=lambda gone: self.sinks.forget(gone),
        )
        self.audit = AuditLog(self._streams.partition, lambda: f"stream {AUDIT_STREAM} could not be made at the start")
        store.on_applied = self._activity_log(store)
        self._members = Members(lambda: self.groups, self._control.change_group)
        self.admin = AloneAdmin(
            config.broker_id,
            lambda: ((each.stream, each.partition, each.leader_epoch) for each in self._streams.all_partitions()),
        )
        self._assemble(
            self._streams,
            self._control,
            scrub_stages=lambda partition: self.sinks.staged_in(partition),
            keyring=self._streams.keyring,
        )

    @property
    def _catalog(self) -> Catalog:
        return self._streams.store.catalog

    def _activity_log(self, store: CatalogStore) -> Callable[[], None]:
        written = ActivityLog(lambda: store.catalog, self._streams.partition, store.execute)
        self._threads.append(written.stop)
        return written.look

    async def start(self) -> None:
        """As `Assembled.start`."""
        await super().start()
        self._control.begin()

    async def _open(self) -> None:
        await asyncio.to_thread(self._streams.open_all)
        await asyncio.to_thread(self._register)
        if self.config.audit.enabled:
            await asyncio.to_thread(self._streams.bring_up_audit)
        self.offsets = Consumers(self._streams.by_name[OFFSETS_STREAM][0])
        self.sinks = SinkService(
            self._disk,
            self._streams.by_name[COMMITS_STREAM][0],
            self.partition,
            self._streams.incarnation_of,
            limits=StageLimits(**asdict(self.config.sinks)),
            boot_id=self._folder.boot_id(),
            clock=self._clock.now_us,
        )
        await asyncio.to_thread(self.sinks.start, self._streams.all_partitions())
        if self.config.activity.enabled:
            await asyncio.to_thread(self._streams.bring_up_activity)
        self._streams.store.on_applied()
        self._members.begin()
        self._threads.append(self._members.stop)
        await asyncio.to_thread(self._dataplane.serve)
        self._start_intake()
        if self._intake is not None:
            captured = [
                (info, self._streams.by_name[info.name])
                for info in self.streams()
                if info.name in self._streams.by_name and not info.paused
            ]
            await asyncio.wrap_future(self._intake.attach(captured))

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

    def _closing(self) -> tuple[Callable[[], None], ...]:
        sinks = [self.sinks.close] if hasattr(self, "sinks") else []
        return (*sinks, self._appender.shutdown, self._pool.close, self._streams.close)

    def member_heard(self, group: str, member: str, session: int) -> None:
        """As `Backend.member_heard`."""
        self._members.heard(group, member, session)

    # --- in the background ------------------------------------------------------------------------------------

    def _missing(self) -> dict[str, str]:
        return {f"stream {name}": str(error) for name, error in self._streams.offline.items()}

    def _each_round(self) -> None:
        self._control.retry_offline()
        self.sinks.sweep()

    def _expire_offsets(self) -> None:
        before_us = self._clock.now_us() - self.config.cleaner.offsets_retention_ms * 1000
        expire_offsets(self.offsets, look_alone(self._streams), self._dataplane.loop, before_us=before_us)

    def _samples(self) -> Iterable[Sample]:
        from broker.runtime.samples import broker_samples

        yield from broker_samples(
            self._streams.by_name,
            self._intake,
            self.offsets,
            self.groups,
            look_alone(self._streams),
            self.sinks.sinks.counts,
            started=self._started,
            offline=len(self._streams.offline),
            now_us=self._clock.now_us(),
        )


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
    loop.set_default_executor(Threads(None, name="loop-worker"))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if (
            number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        ):  # nohup wants it to outlive a terminal
            loop.add_signal_handler(number, stopping.set)
    node = _made(config)
    try:
        stop = asyncio.ensure_future(stopping.wait())
        with _without_collector():
            starting = asyncio.ensure_future(node.start())
            await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                await asyncio.to_thread(node.interrupt)
            try:
                await starting
            except NotReady:
                if not stopping.is_set():
                    raise
        await stop
    finally:
        if not await node.stop():
            end_process()
    return 0


def _made(config: Config) -> Assembled:
    """The form of broker that is configured. Alone, it loads nothing that only several need."""
    if not config.cluster.voters:
        return Broker(config)
    from broker.runtime.cluster.broker import ClusterBroker
    from broker.runtime.cluster.several import Several

    return ClusterBroker(config, Several)


def check_asserts(optimize: int) -> None:
    """Raise InvalidRequest where Python leaves out `assert`: what nobody may come through is checked by it
    (`wire.W1`), and a broker whose state is broken is to end."""
    if optimize:
        raise InvalidRequest(
            "this Python runs with -O (or PYTHONOPTIMIZE), which leaves out checks that a broker needs: start it"
            " without",
            value=optimize,
        )


def run(config: Config) -> int:
    """Run a broker until SIGTERM, SIGINT or SIGHUP. Returns the exit code.

    Raises:
        LiftlogError: it cannot start: port in use, folder in use, of another broker, damaged …
    """
    check_asserts(sys.flags.optimize)
    sys.setswitchinterval(0.0005)  # an ack waits for at most this long for a busy thread
    os.umask(0o077)
    log.info("broker.starting version=%s config=%s", broker.__version__, json.dumps(describe(config)))
    for key, missing in open_doors(config).items():
        log.warning("broker.insecure setting=%s missing=%s", key, missing)
    if config.auth.mode != "off" and not config.auth.admins and config.auth.admin_token_file is None:
        log.warning("auth.no_admin mode=%s", config.auth.mode)
    return asyncio.run(_serve(config))
