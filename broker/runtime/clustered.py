"""One broker, alone or of several, assembled.

    data folder ─► HTTP answers (/readyz says what is waited for) ─► replica port, NATS ─► the group, the catalog
               ─► logs that are there ─► registration: it names what is sound ─► roles ─► a session

Stop: leaderships are handed over first; then what was taken in is made durable, the catalog is told that this broker is
gone, and everything closes.

Y1  Nothing is led, followed or answered before the registration: until then every partition is "not ready".
Y2  A process that may not act under its id any more ends at once, without a clean mark (`halt`). The next start
    looks at the disk.
Y3  The stream of consumer offsets is made once as many brokers are there as it is to have replicas (`own_streams.py`).

Design: docs/explain/architecture.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from broker.api.errors import LiftlogError, NotReady, Retryable
from broker.api.http import host_port
from broker.api.placements import Vote
from broker.api.stream import ACTIVITY_STREAM, AUDIT_STREAM, COMMITS_STREAM, OFFSETS_STREAM
from broker.background.expiry import expire_offsets
from broker.common.disk_reserve import Account
from broker.common.elapsed import MACHINE, elapsed_us
from broker.common.looping import ThreadLoop
from broker.common.metrics import Sample
from broker.common.stopping import end_process
from broker.common.waiting import ThreadWaits
from broker.config.configuration import Config
from broker.config.master_keys import load_keyring
from broker.control.auth_modes import AuthModes
from broker.control.operating.admin import ClusterAdmin
from broker.control.operating.alone import AloneAdmin
from broker.control.operating.changes import PlacedControl
from broker.control.others import Addresses, Home, Others, Tell
from broker.intake.driver import IntakeDriver
from broker.metadata.catalog import Catalog, StreamInfo
from broker.metadata.cluster import ACTIVE, AUDITED
from broker.node.folders import Folders
from broker.node.log_ends import FILE as ENDS_FILE
from broker.node.log_ends import LogEnds
from broker.node.offsets import PlacedConsumers
from broker.node.own_settings import (
    AUDIT_RETENTION,
    COMMITS_SETTINGS,
    OFFSETS_SETTINGS,
    activity_settings,
    audit_settings,
)
from broker.node.own_streams import OwnStream
from broker.node.partitions.replica import Replica
from broker.node.replicas import Replicas
from broker.node.sinks.service import PlacedSinks, Runners
from broker.node.sinks.stage_log import epoch_staged
from broker.node.sinks.stages import StageLimits
from broker.node.streams import PlacedStreams
from broker.node.wiring import Host
from broker.runtime.activity_log import ActivityLog
from broker.runtime.assembled import Assembled
from broker.runtime.audit_log import AuditLog
from broker.runtime.cluster_samples import cluster_samples
from broker.runtime.samples import consumer_samples, group_samples, sink_samples
from broker.serving.threads import CallThreads, Threads
from broker.storage.folder import STREAMS_FOLDER
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
LOOK_SERVED_S: Final = 0.002
CAUGHT_UP_S: Final = 0.1
LOOKING: Final = 2
"""Names that nobody knows are looked for by so many at a time."""
STATUS_S: Final = 0.5
"""So long /metrics waits for the Raft thread."""
CATCH_UP_S: Final = 0.3
"""So long a broker that stops takes nothing more and leads on, until its followers have what it took."""
WORKERS: Final = 8
STEP_OUTS: Final = 2
OWN_SINCE: Final = {AUDIT_STREAM: AUDITED, ACTIVITY_STREAM: ACTIVE}
"""Streams of its own by the feature level that they came with; their retention follows the configuration."""
OFFSETS_KEPT: Final = ("cleanup",)
"""Settings of `__offsets` that an earlier release made otherwise."""
COMMANDS: Final = 16
"""Questions to the catalog that may be under way at the same time; each may take as long as the controller does."""


class ClusterBroker(Assembled):
    """See the module."""

    offsets: PlacedConsumers
    sinks: PlacedSinks

    def __init__(self, config: Config, others: Callable[[Config, Tell], Others]) -> None:
        self._others = others(config, lambda *found: self._kept_out(*found))
        self.is_alone, self._certificate = self._others.is_alone, self._others.certificate
        super().__init__(config, cluster_id=self._others.cluster_id, secret=self._others.secret)
        self._others.check_folder(self._disk, self._folder.path)
        home = Home(
            disk=self._disk,
            folder=self._folder.path,
            cluster_id=self.cluster_id,
            halt=halt,
            session_changed=self._session_changed,
            controller_changed=lambda: self._link.hurry(),
            waits_for=self._told,
        )
        self._plane = plane = self._others.plane(home)
        self._workers = CallThreads(WORKERS, name="role")
        self._commands = Threads(COMMANDS, name="command")
        self._link = self._others.link(plane, home, self._pool, config.replication)
        ours, keyring = config.producers, load_keyring(config.encryption)
        host = Host(
            me=config.broker_id,
            folders=Folders(
                self._disk,
                f"{self._folder.path}/{STREAMS_FOLDER}",
                self.cluster_id,
                self._folder.boot_id(),
                LogSettings(producer_id_expiry_ms=ours.id_expiry_ms, producer_ids_max=ours.ids_max, keyring=keyring),
                LogEnds(self._disk, f"{self._folder.path}/{ENDS_FILE}"),
                elapsed_us,
                may_make=lambda info: self._account(info).check_followed(again=True),
                epoch_beside=partial(epoch_staged, self._disk, boot_id=self._folder.boot_id()),
            ),
            service=plane.service,
            has_session=plane.has_session,
            wiring=self._link,
            capture=self._intake,
            make_replica=self._make_replica,
            sync_pool=self._pool,
            appender=self._appender,
            workers=self._workers,
            commands=self._commands,
            step_outs=Threads(STEP_OUTS, name="step-out"),
            mending=Threads(1, name="mender"),
            make_loop=ThreadLoop,
            waits=ThreadWaits(),
            halt=halt,
            now_ms=lambda: time.monotonic_ns() // 1_000_000,
            has_others=not self.is_alone,
            closing=lambda partition: self.sinks.forget(partition),
        )
        self._replicas = Replicas(host, plane.process)
        self._streams = PlacedStreams(
            config.broker_id, lambda: plane.service.catalog, self._replicas, has_session=plane.has_session
        )
        self._control = PlacedControl(
            config,
            plane.service,
            self._streams,
            loop=self._dataplane.loop,
            on_change=self._catalog_changed,
            may_change=plane.has_session,
            check_disk=self._room.users.check,
            logs=self._replicas,
            has_master_key=keyring is not None,
        )
        own = {OFFSETS_STREAM: OFFSETS_SETTINGS, COMMITS_STREAM: COMMITS_SETTINGS}
        if config.audit.enabled:
            own[AUDIT_STREAM] = audit_settings(config.audit)
        if config.activity.enabled:
            own[ACTIVITY_STREAM] = activity_settings(config.activity)
        self._own = {
            name: OwnStream(
                plane.service,
                name,
                settings,
                voters=self._others.voters,
                executor=self._commands,
                clock_s=time.monotonic,
                since=OWN_SINCE.get(name, 0),
                kept=AUDIT_RETENTION if name in OWN_SINCE else OFFSETS_KEPT if name == OFFSETS_STREAM else (),
            )
            for name, settings in own.items()
        }
        self._modes = AuthModes(
            config.broker_id,
            plane.process,
            config.auth.mode,
            plane.service,
            executor=self._commands,
            clock_s=time.monotonic,
        )
        self.offsets = PlacedConsumers(self._streams.partition, self._commands, self._own[OFFSETS_STREAM].why_missing)
        audit = self._own.get(AUDIT_STREAM)
        self.audit = AuditLog(
            self._streams.partition,
            (lambda: f"stream {AUDIT_STREAM} is not made yet") if audit is None else audit.why_missing,
        )
        self._activity = ActivityLog(
            lambda: plane.service.catalog, self._streams.partition, partial(plane.service.execute, timeout_s=5.0)
        )
        self.admin = (
            AloneAdmin(config.broker_id, self._streams.led_in)
            if self.is_alone
            else ClusterAdmin(
                config.broker_id, plane.service, open_here=self._replicas.partitions, may_change=plane.has_session
            )
        )
        self._waits_for, self._is_interrupted = "its start", False
        self._next_look: asyncio.Future[None] | None = None
        self._one_look, self._looked_s = asyncio.Lock(), -CAUGHT_UP_S
        self._looking = asyncio.Semaphore(LOOKING)
        self._assemble(
            self._streams, self._control, scrub_stages=lambda each: self.sinks.staged_in(each), keyring=keyring
        )
        boot_id, clock = self._folder.boot_id(), self._clock.now_us
        stages = self._others.stages(plane, home, self._replicas.partition, boot_id=boot_id, clock=clock)
        self.sinks = PlacedSinks(
            config.broker_id,
            self._streams,
            plane.service,
            stages,
            loop=self._dataplane.loop,
            limits=StageLimits(**asdict(config.sinks)),
            clock=clock,
            sweep_s=config.cleaner.interval_ms / 1000,
            why_missing=self._own[COMMITS_STREAM].why_missing,
            runners=Runners.of_threads(),
            tls=self._tls,
            peer_key=self._auth_rules.peer_key,
            tell=partial(self._kept_out, "http"),
        )
        self._floor = self.sinks.floor  # one for all replicas

    def _made_intake(self) -> IntakeDriver:
        return IntakeDriver(self.config, self._pool, tell=partial(self._kept_out, "nats"), takes_all=self.is_alone)

    def _make_replica(self, info: StreamInfo, number: int, opened: PartitionLog) -> Replica:
        replica = Replica(
            info,
            number,
            opened,
            appender=self._appender,
            hub=self._hub,
            clocks=MACHINE,
            room=self._account(info),
            open_logs=self._open_logs,
        )
        if not info.internal:
            replica.floor = partial(self._floor, info.incarnation, number)
        return replica

    def _account(self, info: StreamInfo) -> Account:
        return self._room.own if info.internal else self._room.users

    @property
    def _catalog(self) -> Catalog:
        catalog: Catalog = self._plane.service.catalog
        return catalog

    # --- start and stop -------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Y1."""
        grpc = self.config.grpc
        if self._certificate is not None:
            self._certificate.start()
            self._threads.append(self._certificate.stop)
        await asyncio.to_thread(self._dataplane.serve)
        port = await asyncio.to_thread(self._link.start, grpc.host, grpc.port)
        self._start_intake()
        self._waits_for = "the other brokers: a majority of the voters has to be there"
        await asyncio.to_thread(self._plane.start)
        self._waits_for = "its logs"
        found = await asyncio.to_thread(self._replicas.open_found)
        self._replicas.start()
        self._control.begin()
        self._waits_for = "its registration"
        addresses = Addresses(
            http=self.http_address,
            grpc=grpc.advertised or host_port(grpc.host, port),
            rack=self.config.cluster.rack or "",
        )
        await asyncio.to_thread(
            self._plane.register, addresses, sound=found.sound, behind=found.behind, epoch_seen=found.epoch_seen
        )
        for own in self._own.values():
            own.begin()
        self._modes.begin()
        if self.is_alone:
            self._waits_for = "its streams"
            await asyncio.to_thread(self._wait_served)
        self._plane.service.subscribe(self._activity.look)
        self._threads.append(self._activity.stop)
        self.sinks.start()
        self._waits_for = ""

    def _wait_served(self) -> None:
        """The start of a broker that is alone ends when it serves all that it can.

        Raises:
            NotReady: it was stopped meanwhile.
        """
        for own in self._own.values():
            self._wait_until(lambda own=own: own.is_settled)  # type: ignore[misc]
        for at in list(self._catalog.cluster.partitions):
            self._wait_until(partial(self._replicas.is_settled, at))
        self.offsets.begin()

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if self._is_interrupted or not self._plane.has_session():
                raise NotReady("the broker is stopping")
            time.sleep(LOOK_SERVED_S)

    def _told(self, waits_for: str) -> None:
        self._waits_for = waits_for

    def interrupt(self) -> None:
        """Let a start end that waits for other brokers, or for what is to be served. Who is alone keeps the session:
        what it has taken in by then is appended as at each stop."""
        self._is_interrupted = True
        if not (self.is_alone and self._plane.has_session()):
            self._plane.stop()

    def _leaving(self) -> tuple[Callable[[], None], ...]:
        """Hand over. None of it is needed for a stop (`plane.P3`)."""
        if not self._started or self.is_alone:
            return ()
        return (
            partial(self._replicas.hand_over, CATCH_UP_S),
            self._plane.hand_over,
            self._replicas.leave,
            lambda: self._dataplane.call(self.sinks.end_asking()).result(),
        )

    def _closing(self) -> tuple[Callable[[], None], ...]:
        return (
            self.sinks.close,
            self._plane.leave,
            self._replicas.stop,
            self._link.stop,
            self._plane.stop,
            lambda: self._commands.shutdown(cancel_futures=True),
            self._workers.shutdown,
            self._appender.shutdown,
            self._pool.close,
        )

    def _session_changed(self, is_open: bool) -> None:
        """On the Raft thread."""
        self._replicas.look()
        self._hub.note(self._hub.ALL)

    def _catalog_changed(self) -> None:
        """On the Raft thread. A change of a group is nothing to those whom it does not concern."""
        group = self._plane.service.of_group
        self._hub.note(*((self._hub.ALL,) if group is None else self._catalog.groups.told(group)))

    # --- what the HTTP API reads ------------------------------------------------------------------------------

    async def look_for(self, stream: str) -> None:
        """A stream that is not known here may have been made by another broker just now: then the catalog is asked to
        have all that was acknowledged before. Where nobody can tell, `PlacedStreams.info` says that."""
        if self.is_alone or stream in self._catalog.streams or not self._plane.has_session():
            return
        async with self._looking:
            if stream not in self._catalog.streams:
                with suppress(LiftlogError):
                    await asyncio.to_thread(self._plane.service.read, timeout_s=LOOK_S)

    async def catch_up(self) -> None:
        """As `Backend.catch_up`. Whoever asks while one look is under way shares the next one: strangers can make
        brokers look, and so they do it at most every `CAUGHT_UP_S`."""
        if self.is_alone:
            return
        if self._next_look is None:
            self._next_look = asyncio.ensure_future(self._look_next())
            self._next_look.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait
        await asyncio.shield(self._next_look)

    async def position(self) -> int:
        """As `Backend.position`."""
        if self.is_alone:
            return 0
        return await asyncio.wrap_future(self._plane.service.position())

    async def _look_next(self) -> None:
        async with self._one_look:
            await asyncio.sleep(self._looked_s + CAUGHT_UP_S - time.monotonic())
            self._next_look, self._looked_s = None, time.monotonic()
            self._streams.check_session()
            try:
                await asyncio.to_thread(self._plane.service.read, timeout_s=LOOK_S)
            except LiftlogError as error:
                raise NotReady(f"this broker cannot find out whether it knows all of the catalog: {error}") from error

    def check_session(self) -> None:
        """As `PlacedStreams.check_session`."""
        self._streams.check_session()

    async def controller(self) -> str | None:
        """As this broker knows."""
        try:
            found = (await asyncio.to_thread(self._plane.status))["controller"]
        except NotReady:
            return None
        return None if found is None else str(found)

    async def votes(self) -> list[Vote]:
        """As this broker knows; none while its Raft thread gives no answer."""
        try:
            found = (await asyncio.to_thread(self._plane.status))["voters"]
        except NotReady:
            return []
        return [
            Vote(broker=each["broker_id"], valid=each["is_registered"], live=each["is_live"] and each["is_registered"])
            for each in found
        ]

    def check_producer(self, producer_id: int, epoch: int) -> None:
        """As `Assembled.check_producer`; one that another broker has just given out is not known here yet. Nor is the
        epoch of one that has just registered again under its name."""
        catalog = self._catalog
        if not self.is_alone and producer_id > 0 and not catalog.producer_names.knows(producer_id, epoch):
            raise NotReady(f"producer {producer_id}, epoch {epoch} is not known here yet")
        catalog.producer_names.check(producer_id, epoch)
        self._used_producers.used(catalog, producer_id)

    def member_heard(self, group: str, member: str, session: int) -> None:
        """As `Backend.member_heard`."""
        self._plane.member_heard(group, member, session)

    def warnings(self) -> dict[str, str]:
        """As `Backend.warnings`."""
        warnings, weaker, shut = (
            super().warnings(),
            self._modes.weaker(),
            sorted(map(str, self._replicas.shut().values())),
        )
        if weaker:
            told = ", ".join(f"{broker} ({mode})" for broker, mode in sorted(weaker.items()))
            warnings["auth"] = f"brokers whose auth.mode is weaker than {self.config.auth.mode}: {told}"
        if refusals := [each.refusal for each in self._own.values() if each.refusal]:
            warnings["streams"] = "; ".join(refusals)
        if shut and not self.is_alone:  # else `_missing` tells of it
            warnings["keys"] = f"{len(shut)} replicas here are kept shut, the first: {shut[0]}"
        if faults := self._replicas.faults():
            warnings["faults"] = f"{len(faults)} replicas here are not as they are to be, the first: {faults[0]}"
        return warnings

    def _missing(self) -> dict[str, str]:
        """This broker needs one thing of the others to serve: a session, and for that a majority. Alone it says which
        of its own streams it does not serve."""
        if not self._waits_for and self._plane.has_session():
            return self._replicas.unserved() if self.is_alone else {}
        missing = f"waits for {self._waits_for}" if self._waits_for else "no session with the controller"
        return {"cluster": ": ".join(each for each in (missing, self._plane.obstacle()) if each)}

    # --- in the background ------------------------------------------------------------------------------------

    def _each_round(self) -> None:
        """As far as the logs are by now."""
        self._replicas.note_ends()
        self._replicas.open_again()
        self._modes.look()
        for own in self._own.values():
            own.look()

    def _expire_offsets(self) -> None:
        """Where the stream of offsets is led."""
        before_us = self._clock.now_us() - self.config.cleaner.offsets_retention_ms * 1000
        with suppress(Retryable):  # another broker leads it, or fewer are in sync than must be: there is time
            expire_offsets(self.offsets.here(), self._streams.look, self._dataplane.loop, before_us=before_us)

    def _samples(self) -> Iterable[Sample]:
        if self._certificate is not None:
            yield from self._certificate.samples()
        yield from cluster_samples(
            self.config.broker_id,
            self._catalog,
            self._streams,
            self._intake,
            started=self._started,
            has_session=self._plane.has_session(),
            connections=self._link.counts,
            refused=dict(self._link.refused),
            bulk_bytes=self._link.bulk_bytes,
            raft_refused=self._plane.refusals,
            group=self._group(),
            weaker=len(self._modes.weaker()),
            shut=self._replicas.shut().keys(),
        )
        yield from sink_samples(self.sinks.counts)
        with suppress(Retryable):
            offsets, now_us = self.offsets.here(), self._clock.now_us()
            yield from consumer_samples(offsets, self._streams.look, now_us=now_us)
            yield from group_samples(offsets, self.groups, self._streams.look, now_us=now_us)

    def _group(self) -> dict[str, Any] | None:
        """The Raft thread's word on the group; None: it says nothing in time, or has not begun."""
        try:
            return self._plane.status(timeout_s=STATUS_S) if self._started else None
        except NotReady:
            return None


def halt(reason: str) -> Any:
    """Y2."""
    log.critical("broker.halted reason=%s", reason)
    end_process()
