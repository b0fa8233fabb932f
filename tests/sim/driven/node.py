"""A broker whose replicas are the real ones: `Replicas`, and what it is handed (`wiring.Host`). Its sessions, its part
in the controllership and how commands reach the catalog are those of any simulated broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from broker.api.errors import DeadlineExceeded, LiftlogError, from_problem
from broker.common.elapsed import Clocks
from broker.control.service import Catalogs
from broker.groups.offsets import ConsumerOffset
from broker.metadata.catalog import Catalog, StreamInfo
from broker.metadata.heard import Heard
from broker.metadata.partition import PartitionState, Place
from broker.metadata.session import Session
from broker.node.log_ends import LogEnds
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.watch import ChangeHub
from broker.node.replicas import Replicas
from broker.node.wiring import Host
from broker.storage.folder import partition_folder
from broker.storage.log import PartitionLog
from tests.sim.driven.fibers import Fiber, Gone
from tests.sim.driven.http import Answered, Http
from tests.sim.driven.intake import SteppedIntake
from tests.sim.driven.offsets import SteppedOffsets
from tests.sim.driven.running import FiberWaits, PausedFolders, PausedReplica, Process, Stepped, Syncs, Threads
from tests.sim.driven.seen import Seen
from tests.sim.driven.sinks import SteppedSinks, read
from tests.sim.driven.wire import Wire
from tests.sim.machine import TICK_MS, Machine
from tests.sim.metadata import name_of, place_of

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.support.simdisk import SimDisk

ROOT = "/data/streams"
IN_DOUBT_MS = (600, 2_000, 5_000)
"""After one of these a command that was not answered is in doubt."""
CLEANER_MS, SCRUB_MS = 700, 1_200
CATCH_UP_S, HAND_OVER_MS = 0.3, 1_000
"""So long a stop waits for followers, and until others lead."""


class Service(Catalogs):
    """The catalog as the drivers of one process see it. A command goes as any; who waits for it is on a fiber."""

    def __init__(self, process: Process) -> None:
        thread = SimpleNamespace(do=lambda call, lost=None: process.broker.after(0, call, None))
        super().__init__(cast(Any, thread), clock=process.broker.now_s)
        self._process = process
        self._catalog = process.broker.catalog

    def execute(self, command: Mapping[str, Any], *, until_s: float | None = None, **_: Any) -> Any:
        fiber, process, broker = Fiber.current, self._process, self._process.broker
        assert fiber is not None, "who waits for the catalog holds up others"
        match command:
            case {"kind": "confirm_deleted", "partitions": partitions}:
                broker.check_deleted(partitions)
            case {"kind": "alter_isr" | "alter_isrs"}:
                for what in ("add", "remove"):
                    if command.get(what):
                        broker.world.saw(f"ISR asked to {'grow' if what == 'add' else 'shrink'}")
        answers: list[object] = []

        def answered(result: object) -> None:
            if not answers and not process.is_gone:  # another one of this broker may be there by now
                answers.append(result)
                process.go_on(fiber, result)

        doubt_ms = broker.world.rng.choice(IN_DOUBT_MS)
        broker.submit(dict(command), lambda result, _: broker.after(0, answered, result))
        broker.after(doubt_ms, answered, DeadlineExceeded("no answer", sent=True))
        result = fiber.wait()
        if until_s is not None and isinstance(result, DeadlineExceeded):
            broker.cluster.metadata.expired.add(command["request_id"])  # V5
        if "error" in result:
            raise from_problem(result["error"])
        return result["ok"]

    def read(self, *, timeout_s: float = 5.0) -> Catalog:
        read(self._process.broker, self._process, timeout_s)
        return self.catalog


class Broker(Machine):
    """See the module.

    Attributes:
        wire: None: no process runs.
        http: None: no process runs, or nobody changes streams in this run.
        sinks: None: no process runs, or there are none in this run.
    """

    work: Process
    syncs: Syncs
    service: Service
    driver: Replicas
    intake: SteppedIntake | None
    offsets: SteppedOffsets

    def __init__(self, cluster: Cluster, name: str, disk: SimDisk, rack: str = "") -> None:
        super().__init__(cluster, name, disk, rack)
        self.wire: Wire | None = None
        self.http: Http | None = None
        self.sinks: SteppedSinks | None = None
        self.is_stopping = self._had_session = False
        self._is_looking = False
        self._cleaned_ms = self._scrubbed_ms = 0

    def now_s(self) -> float:
        """Its monotonic clock. (It never says 0.)"""
        return self.clock.now_ms / 1_000 + 1

    def folder_of(self, name: str) -> str:
        stream, number = place_of(name)
        streams, changes = self.cluster.metadata.catalog.streams.values(), self.cluster.changes
        found = next((info.name for info in streams if info.incarnation == stream), None)
        if found is None and changes is not None:
            found = changes.name(stream)
        assert found is not None
        return partition_folder(ROOT, found, stream, number)

    # -- a process

    def _start(self) -> None:
        self.work = work = Process(self)
        self.is_stopping = False
        self.syncs = Syncs(work)
        self.service = Service(work)
        server = self.cluster.nats
        self.intake = None if server is None else SteppedIntake(work, server)
        wire = Wire(work, self.service)
        self.driver = Replicas(self._host(work, wire), f"{work.number}")
        self._had_session = False
        try:
            found = self.driver.open_found()
        except LiftlogError as error:  # G8
            self.note(f"cannot start: {type(error).__name__}")
            self.exits()
            return
        self.wire = wire
        self.http = Http(work) if self.cluster.changes is not None else None
        if self.cluster.published is not None:
            self.sinks = SteppedSinks(work)
            self.offsets = SteppedOffsets(self.sinks)
        self.look()
        self._register(found.sound, found.behind)
        self.driver.start()
        if self.sinks is not None:
            self.sinks.start()
        self.after(TICK_MS * self.world.rng.random(), self._tick)

    def _host(self, work: Process, wire: Wire) -> Host:
        clocks = Clocks(self.now_s, lambda: self.elapsed_us, lambda: self.wall_us)
        hub, appender = ChangeHub(cast(Any, None)), Threads(work, 2)
        patience_s = 60.0 if self.cluster.published is None else self.cluster.published.patience_s()

        def made(info: StreamInfo, number: int, opened: PartitionLog) -> Replica:
            waits = FiberWaits(work, patience_s)
            replica = PausedReplica(info, number, opened, appender=appender, hub=hub, clocks=clocks, waits=waits)
            replica.process = work
            if self.cluster.published is not None and not info.internal:
                replica.floor = lambda: None if self.sinks is None else self.sinks.floor(info.incarnation, number)
            return replica

        folders = PausedFolders(
            self.disk,
            ROOT,
            "c",
            "",
            self.cluster.log_settings,
            LogEnds(self.disk, "/data/ends"),
            lambda: self.elapsed_us,
            process=work,
        )
        return Host(
            me=self.name,
            folders=folders,
            service=self.service,
            has_session=lambda: self.has_session,
            wiring=wire,
            capture=cast(Any, self.intake),
            make_replica=made,
            sync_pool=self.syncs,
            appender=appender,
            workers=Threads(work, 8, waits=True, has_turns=True),
            commands=Threads(work, 16, waits=True),
            step_outs=Threads(work, 2, waits=True),
            mending=Threads(work, 1, waits=True),
            make_loop=lambda step, name: Stepped(work, step),
            waits=FiberWaits(work),
            halt=self._halt,
            now_ms=lambda: self.now_ms,
        )

    def stops(self) -> bool:
        """It is told to stop. Returns whether it was not, yet."""
        is_new, self.is_stopping = not self.is_stopping, True
        if is_new:
            self.note("is told to stop")
            self.work.run(self._stop, is_turn=True)
        return is_new

    def _stop(self) -> None:
        """As a broker of a cluster does (`_leaving` and `_closing` of `ClusterBroker`, `Plane.hand_over`, `leave`)."""
        driver, own = self.driver, {"broker_id": self.name, "registration": self.incarnation}
        driver.hand_over(CATCH_UP_S)
        with suppress(LiftlogError):
            self.service.execute({"kind": "stop_broker", **own})
            end_ms = self.now_ms + HAND_OVER_MS
            while self.now_ms < end_ms and any(state.leader == self.name for state in self._states()):
                self.work.pause(20)
        driver.leave()
        if self.intake is not None:
            self.intake.drain()
        if self.sinks is not None:
            self.sinks.close()
        self.session = None
        with suppress(LiftlogError):
            self.service.execute({"kind": "fail_broker", **own})
        if any(placed._turns._is_running for placed in driver.replicas()):
            self.world.saw("stopped beside a turn")
        driver.stop()
        self.world.saw("stopped")
        for opened in self.work.opened:
            if not opened.state.is_closed:
                self.cluster.checker.fail(f"CLOSED: {self.name} has stopped, and {opened.state.folder} is open")
        for placed in driver.replicas():
            if placed._turns._is_running:
                self.cluster.checker.fail(f"CLOSED: {self.name} has stopped, and {placed} is at work")
        self.exits()

    def _states(self) -> list[PartitionState]:
        return [state for state in self.catalog.cluster.partitions.values() if len(state.isr) > 1]

    def _halt(self, reason: str) -> None:
        self.note(f"halts: {reason}")
        self.world.saw("process halted")
        self.exits()
        raise Gone

    def asked(
        self, what: str, stream: str, body: Mapping[str, Any], answered: Answered, by: str = "", position: int = 0
    ) -> None:
        """A request over HTTP. `by`: of that broker, which is so far."""
        if self.process:
            self._do(self.process, self._asked, (what, stream, body, answered, by, position))

    def _asked(
        self, what: str, stream: str, body: Mapping[str, Any], answered: Answered, by: str, position: int
    ) -> None:
        if self.http is not None:
            self.http.handle(what, stream, body, answered, by=by, position=position)

    def asked_of_sinks(self, what: str, args: Mapping[str, Any], answered: Callable[..., None]) -> None:
        """A request over HTTP, of a driver or of another broker."""
        if self.process and self.sinks is not None:
            self._do(self.process, self.sinks.handle, (what, args, answered))

    def asked_of_offsets(self, consumer: str, offset: ConsumerOffset | None, done: Callable[..., None]) -> None:
        """A request over HTTP: a commit, or what is committed."""
        if self.process and self.sinks is not None:
            self._do(self.process, self.offsets.handle, (consumer, offset, done))

    def waiting(self) -> str:
        """A partition of somebody who has appended, and still waits; empty: there is nobody."""
        return next(iter(self.work.waiting.values()), "") if self.process else ""

    def check_deleted(self, partitions: Mapping[str, list[int]]) -> None:
        """It is about to say so: no power cut may bring a former folder back, and only a new one may be there."""
        disk = self.disk
        for incarnation, numbers in partitions.items():
            for number in numbers:
                placed = self.driver.replica((incarnation, number))
                is_fresh = placed is not None and placed.is_fresh
                ending = f"/{incarnation}/{number}"
                half_gone = [(path, None) for path in disk.half_gone]
                for path, inode in [*disk._durable_names.items(), *half_gone]:
                    if ending in path and not (is_fresh and disk.names.get(path) is inode):
                        self.cluster.checker.fail(f"GONE: {self.name} says that {path} is gone, and it may come back")

    def crash(self, mode: str) -> None:
        if self.process == 0:
            return
        for replica in self.replicas.values():
            cast(Any, replica).freeze()
        self.wire = self.http = self.sinks = None
        super().crash(mode)
        self.work.end()
        for link in [link for link in self.cluster.links if self.work in (link.here, link.there)]:
            self.cluster.links.remove(link)
            link.process_gone()

    def guard(self, act: Callable[..., Any], *args: Any) -> Any:
        """As of any broker; what somebody has seen to be wrong meanwhile ends the run."""
        found = None
        with suppress(Gone):
            found = super().guard(act, *args)
        if self.process:
            self.look()
        self.cluster.raise_bugs()
        return found

    def look(self) -> None:
        """The checker sees what has come of an event."""
        if self._is_looking or self.wire is None:
            return
        self._is_looking = True
        try:
            driver = self.driver
            at_all: dict[Place, None] = dict.fromkeys([*driver._found, *driver._replicas])
            for at in at_all:
                name = name_of(at)
                if name not in self.replicas:
                    self.replicas[name] = cast(Any, Seen(self, at))
                cast(Any, self.replicas[name]).look()
            for name in [name for name, one in self.replicas.items() if cast(Any, one).at not in at_all]:
                del self.replicas[name]
        finally:
            self._is_looking = False

    # -- time

    def _tick(self) -> None:
        self.after(TICK_MS / self.clock.rate, self._tick)
        metadata = self.cluster.metadata
        self.tick_sessions()
        if self.has_session != self._had_session:
            self._had_session = self.has_session
            self.driver.look()
        if self.applied < metadata.known_to(self.name) and self.world.chance(0.5):
            self.learn(metadata.known_to(self.name))
        if self.incarnation:
            self.heard.look(self.catalog.brokers, self.now_ms)
        if self.wire is not None:
            self.wire.tick()
        if self.now_ms - self._cleaned_ms > CLEANER_MS:
            self._cleaned_ms = self.now_ms
            self._clean()
        if self.wire is not None:
            for replica in list(self.replicas.values()):
                if self.cluster.rots:
                    cast(Any, replica).givers.watch()
                if (rewriting := cast(Any, replica).rewriting) is not None:
                    rewriting.tick()
        if self.cluster.rots and self.wire is not None and self.now_ms - self._scrubbed_ms > SCRUB_MS:
            self._scrubbed_ms = self.now_ms
            for replica in list(self.replicas.values()):
                cast(Any, replica).scrub()

    def _clean(self) -> None:
        """A round of the cleaner."""
        for partition in list(self.driver.partitions()):
            try:
                self._retain(partition)
                partition.replica.checkpoint(self.now_s())
                if self.world.chance(0.1):
                    partition.log.roll_if_due(self.elapsed_us)
            except LiftlogError:
                pass
        self.driver.note_ends()

    def _retain(self, partition: Partition) -> None:
        """Of streams whose settings are altered."""
        seen = self.replicas.get(name_of((partition.incarnation, partition.partition)))
        if self.cluster.changes is not None and seen is not None:
            self.cluster.changes.lets_go(cast(Any, seen), partition)

    # -- the catalog

    def _learn(self, end: int) -> None:
        metadata, process = self.cluster.metadata, self.process
        while self.applied < end and self.process == process:
            command, _ = metadata.log[self.applied]
            result = self.catalog.apply(command)
            self.applied += 1
            metadata.compare(self, result)
            if self.incarnation and self.name not in self.catalog.brokers:
                self.world.saw("removed broker hears of it")
                self.note("hears that it was removed")
                self.exits()
                return
            info = self.catalog.brokers.get(self.name)
            if info is not None and info.incarnation == f"{process}" and info.registration != self.incarnation:
                self.incarnation = info.registration
                self.heard = Heard()
                self.heard.look(self.catalog.brokers, self.now_ms)
                self.session = Session(info.registration, self._registering_ms)
            self.service.applied(self.catalog, command)

    def report_silent(self, at: Place, epoch: int, leader: str) -> None:
        """As `Plane.report_leader`."""
        self.world.saw("leader reported")
        self.note(f"{name_of(at)}: reports {leader}, who leads epoch {epoch}")
        self.tell_controller("report", self.incarnation, name_of(at), epoch)


class Bugs(logging.Handler):
    """Remembers what a driver has caught and logged as a fault of ours."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[BaseException] = []

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Within it."""
        loggers = [logging.getLogger(name) for name in ("broker", "concurrent.futures", "nats")]  # of callbacks
        before = [logger.propagate for logger in loggers]
        for logger in loggers:
            logger.propagate = False
            logger.addHandler(self)
        try:
            yield
        finally:
            for logger, propagates in zip(loggers, before, strict=True):
                logger.removeHandler(self)
                logger.propagate = propagates

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None and record.exc_info[1] is not None:
            self.found.append(record.exc_info[1])
