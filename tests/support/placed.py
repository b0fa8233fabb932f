"""Broker `a` of three with its replicas: real logs, a real disk, real threads, the real catalog; others are made up."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker.api.errors import from_problem
from broker.common.elapsed import MACHINE, elapsed_us
from broker.common.looping import ThreadLoop
from broker.common.waiting import ThreadWaits
from broker.metadata.catalog import Catalog, StreamInfo
from broker.metadata.cluster import Touched
from broker.metadata.partition import PartitionState, Place
from broker.node.folders import Folders
from broker.node.log_ends import LogEnds
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncPool
from broker.node.partitions.watch import ChangeHub
from broker.node.placed import PlacedReplica
from broker.node.replicas import FoundReplicas, Replicas
from broker.node.wiring import Capture, Host
from broker.replication.events import Send
from broker.replication.messages import AskRange, HeldRange, Incarnation
from broker.storage.disk import OsDisk
from broker.storage.disk.osfile import OsFile
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.processes import eventually

US, OTHERS = "a", ("b", "c")


class ScriptedCatalog:
    """The catalog, and what commands were sent to it by the replicas.

    Attributes:
        goes: Cleared: the controller does not answer.
    """

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.sent: list[dict[str, Any]] = []
        self.goes = threading.Event()
        self.goes.set()
        self.callbacks: list[Callable[[], None]] = []
        self.touched: Touched | None = None
        self._lock = threading.RLock()

    def execute(self, command: Mapping[str, Any], **_: object) -> Any:
        self.sent.append(dict(command))
        assert self.goes.wait(60)
        return self.apply(**command)

    def apply(self, **command: Any) -> Any:
        """As the controller does it for anybody."""
        with self._lock:
            result = self.catalog.apply({"v": 1, **command})
            self.touched = self.catalog.take_touched()
            for callback in self.callbacks:
                callback()
        if "error" in result:
            raise from_problem(result["error"])
        return result["ok"]

    def subscribe(self, callback: Callable[[], None]) -> None:
        with self._lock:
            self.callbacks.append(callback)
        self.call_again(callback)

    def call_again(self, callback: Callable[[], None]) -> None:
        with self._lock:
            self.touched = None
            callback()

    def state(self, at: Place) -> PartitionState:
        return self.catalog.cluster.partitions[at]

    def put(self, at: Place, state: PartitionState) -> None:
        """As no command does it. The next command tells of it."""
        self.catalog.cluster.partitions[at] = state
        self.catalog.cluster.touched.places.add(at)

    def kinds(self) -> list[str]:
        return [command["kind"] for command in self.sent]


class Recorded:
    """Follower, Followers and Capture that note what they are asked for, of one partition or of all."""

    agreed_epoch = -1

    def __init__(self, story: list[Any], what: object = "") -> None:
        self.story, self.what = story, what
        self.may_begin = threading.Event()
        self.may_begin.set()
        self.begun: list[Future[None]] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.ended: list[Future[None]] = []
        self.told = (7, 9)

    def follow(self, epoch: int, leader: str, incarnation: Incarnation) -> None:
        self.story.append(("follow", epoch, leader, incarnation))

    def rest(self) -> None:
        pass

    def tick(self, now_ms: int) -> None:
        pass

    def marks(self) -> tuple[int, int]:
        return self.told

    def compacted(self) -> int:
        self.story.append(("compacted", self.what))
        return 0

    def close(self) -> None:
        pass

    def send(self, effect: Send) -> None:
        self.story.append(effect)

    def begin(self, info: StreamInfo, partition: Partition) -> Future[None]:
        self.story.append(("capture", str(partition), partition.leader_epoch))
        done: Future[None] = Future()
        self.begun.append(done)
        if self.may_begin.is_set():
            done.set_result(None)
        return done

    def end(self, partition: Partition, *, with_sent: bool = False) -> Future[None]:
        self.story.append(("no capture", str(partition)))
        done: Future[None] = Future()
        self.ended.append(done)
        if self.may_end.is_set():
            done.set_result(None)
        return done


class FailingFile(OsFile):
    """One whose fsync fails while its disk is to fail."""

    __slots__ = ("disk",)
    disk: FailingDisk

    def sync(self) -> None:
        if self.disk.fails:
            raise OSError(5, "made to fail")
        super().sync()


class FailingDisk(OsDisk):
    fails = False

    def open(self, path: str, *, create: bool = False, readonly: bool = False, ahead: int = 0) -> OsFile:
        if readonly or not path.endswith(".arrows"):
            return super().open(path, create=create, readonly=readonly, ahead=ahead)
        flags = os.O_CLOEXEC | os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
        file = FailingFile(os.open(path, flags, 0o644), path)
        file.disk = self
        return file


class Node:
    """A process of broker `a` over a folder.

    Attributes:
        story: The calls that followers and capture got.
        has_session: Whether this process has one.
        halted: Why the process was to end.
    """

    def __init__(
        self,
        path: Path,
        service: ScriptedCatalog,
        process: str,
        capture: Capture | None = None,
        *,
        has_others: bool = True,
    ) -> None:
        self.service, self.process = service, process
        self.disk = FailingDisk()
        self.story: list[Any] = []
        self.has_session = True
        self.halted: list[str] = []
        self.recorded = Recorded(self.story)
        self.root = f"{path}/streams"
        self._loop = asyncio.new_event_loop()
        self._pool = SyncPool(2)
        self._executors = [ThreadPoolExecutor(count) for count in (2, 2, 2, 2, 1)]
        appender, workers, commands, step_outs, mending = self._executors
        hub = self.hub = ChangeHub(self._loop)
        self.host = Host(
            me=US,
            folders=Folders(
                self.disk, self.root, "c", "boot", LogSettings(), LogEnds(self.disk, f"{path}/ends"), elapsed_us
            ),
            service=service,
            has_session=lambda: self.has_session,
            wiring=self,
            capture=capture or self.recorded,
            make_replica=lambda info, number, log: Replica(
                info, number, log, appender=appender, hub=hub, clocks=MACHINE
            ),
            sync_pool=self._pool,
            appender=appender,
            workers=workers,
            commands=commands,
            step_outs=step_outs,
            mending=mending,
            make_loop=ThreadLoop,
            waits=ThreadWaits(),
            halt=self.halted.append,
            now_ms=lambda: time.monotonic_ns() // 1_000_000,
            has_others=has_others,
        )
        self.replicas = Replicas(self.host, process)

    def follower(self, at: Place, partition: Partition, step_out: Callable[[str], None]) -> Recorded:
        return Recorded(self.story, at)

    def followers(self, at: Place, partition: Partition) -> Recorded:
        return Recorded(self.story, at)

    def ask_range(self, to: str, at: Place, question: AskRange, take: Callable[[HeldRange, bytes], None]) -> bool:
        self.story.append(("ask range", to, question))
        return False

    def forget_range(self, to: str, at: Place) -> None:
        pass

    def start(self) -> FoundReplicas:
        found = self.replicas.open_found()
        known = self.service.catalog.brokers.get(US)
        self.replicas.start()
        self.service.apply(
            kind="register_broker",
            broker_id=US,
            incarnation=self.process,
            http="a:9293",
            grpc="g",
            after=known.registration if known else 0,
            sound=found.sound,
            behind=found.behind,
            epoch_seen=found.epoch_seen,
        )
        return found

    def stop(self) -> None:
        self.replicas.stop()
        for executor in self._executors:
            executor.shutdown()
        self._pool.close()
        self._loop.close()

    def placed(self, at: Place) -> PlacedReplica:
        found = eventually(lambda: self.replicas.replica(at), what=f"{at} to be here")
        assert found is not None
        return found

    def partition(self, at: Place) -> Partition:
        found = eventually(lambda: self.replicas.partition(at), what=f"{at} to be open")
        assert found is not None
        return found

    def leading(self, at: Place) -> Partition:
        eventually(lambda: self.partition(at).serves, what=f"{at} to be led and served")
        return self.partition(at)

    def log(self, at: Place) -> PartitionLog:
        return self.partition(at).log


@contextmanager
def node(
    path: Path, service: ScriptedCatalog, process: str, capture: Capture | None = None, *, has_others: bool = True
) -> Iterator[Node]:
    one = Node(path, service, process, capture, has_others=has_others)
    try:
        yield one
    finally:
        service.goes.set()
        service.callbacks.clear()
        one.stop()


class Cluster(ScriptedCatalog):
    """`b` and `c` are registered, and have opened what they are to keep. Stream `s` is preferred by `a`."""

    def register(self, broker: str, **values: Any) -> None:
        known = self.catalog.brokers.get(broker)
        sound: dict[str, list[int]] = {}
        for (stream, number), state in sorted(self.catalog.cluster.partitions.items()):
            if broker in state.opened:
                sound.setdefault(stream, []).append(number)
        self.apply(
            kind="register_broker",
            broker_id=broker,
            incarnation=f"{broker}{len(self.sent)}",
            http=f"{broker}:9293",
            grpc="g",
            after=known.registration if known else 0,
            sound=sound,
            **values,
        )

    def create(self, name: str, partitions: int = 1, **settings: Any) -> list[Place]:
        self.apply(
            kind="create_stream",
            name=name,
            incarnation=f"i-{name}",
            created_us=1,
            settings={"subject": None, "partitions": partitions, **settings},
            replication_factor=3,
            min_insync_replicas=2,
        )
        for number in range(partitions):
            self.opened((f"i-{name}", number), *OTHERS)
        return [(f"i-{name}", number) for number in range(partitions)]

    def opened(self, at: Place, *brokers: str) -> None:
        for broker in brokers:
            registration = self.catalog.brokers[broker].registration
            replicas = [[*at, self.state(at).step_outs_of(broker)]]
            self.apply(kind="report_opened", broker_id=broker, registration=registration, replicas=replicas)

    def renew(self, *brokers: str) -> None:
        """They live, and say so, as they do twice a second."""
        renewals = {broker: self.catalog.brokers[broker].registration for broker in brokers}
        self.apply(kind="renew_sessions", renewals=renewals)

    def fail(self, broker: str) -> None:
        """Its session lapses: the next renewal brings it back."""
        info = self.catalog.brokers[broker]
        self.apply(kind="fail_broker", broker_id=broker, registration=info.registration, renewal=info.renewal)

    def join(self, at: Place, broker: str) -> None:
        """The leader asks it in."""
        state = self.state(at)
        info = self.catalog.brokers[broker]
        self.apply(
            kind="alter_isr",
            broker_id=state.leader,
            stream=at[0],
            partition=at[1],
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            add=[broker, info.registration, state.step_outs_of(broker)],
        )
