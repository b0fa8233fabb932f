"""A broker: a process that comes and goes, on a machine with a disk and clocks of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.replication.messages import Message
from tests.sim.catalog import Partition, Register, Renew
from tests.sim.replica import Replica
from tests.support.simdisk import Crashed, SimDisk

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster

TICK_MS = 100
HEARTBEAT_MS = 500
SESSION_MS = 2_000


class Broker:
    """See the module.

    Attributes:
        process: A number of its own for each process; 0: none runs.
        incarnation: As the applied catalog has it; 0: not registered yet.
        replicas: Of partitions that the applied catalog, or a folder here, knows.
        paused_until_ms: Stopped until then.
        clock_rate, clock_ms: How its clock runs, and by how much it has jumped.
        sync_ms: How long an fsync takes, about.
    """

    def __init__(self, cluster: Cluster, name: str, disk: SimDisk) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.disk = disk
        self.process = 0
        self.incarnation = 0
        self.applied = 0
        self.replicas: dict[str, Replica] = {}
        self.paused_until_ms = 0.0
        self.clock_rate, self.clock_ms = 1.0, 0.0
        self.wall_jump_ms = 0
        self.sync_ms = 4.0
        self._heard_ms = 0.0
        self._beaten_ms = 0.0
        self._clock_last = 0

    @property
    def is_running(self) -> bool:
        return self.process != 0 and self.world.now_ms >= self.paused_until_ms

    @property
    def now_ms(self) -> int:
        """Its monotonic clock."""
        self._clock_last = max(self._clock_last, int(self.world.now_ms * self.clock_rate + self.clock_ms))
        return self._clock_last

    @property
    def now_us(self) -> int:
        """Its wall clock."""
        return max(0, self.now_ms + self.wall_jump_ms + 1_000_000) * 1_000

    @property
    def has_session(self) -> bool:
        return self.world.now_ms - self._heard_ms <= SESSION_MS

    def note(self, text: str) -> None:
        self.world.note(self.name, text)

    # -- what happens to a process

    def after(self, delay_ms: float, act: Callable[..., Any], *args: Any) -> None:
        """Let this process do something later; a stopped one does it when it goes on."""
        self.world.after(delay_ms, self._do, self.process, act, args)

    def _do(self, process: int, act: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if process != self.process or process == 0:
            return
        if self.world.now_ms < self.paused_until_ms:
            self.world.after(self.paused_until_ms - self.world.now_ms + 0.01, self._do, process, act, args)
            return
        self.guard(act, *args)

    def guard(self, act: Callable[..., Any], *args: Any) -> None:
        """The power may go in the midst of it."""
        try:
            act(*args)
        except Crashed:
            self.world.saw("power cut in the midst of a change")
            for replica in self.replicas.values():
                replica.is_mid_change = True
            self.crash(self.world.rng.choice(("lost", "torn", "reordered", "zeros", "kept")))

    def start(self) -> None:
        """A process begins: opens what is there, registers that, and does nothing before it has learnt of it."""
        assert self.process == 0
        self.process = self.cluster.next_process()
        self.incarnation = self.applied = 0
        self.paused_until_ms = 0.0
        self._clock_last = int(self.clock_ms)
        self.note("starts")
        self.replicas = {}
        self.guard(self._start)

    def _start(self) -> None:
        for name, partition in self.cluster.metadata.catalog.partitions.items():
            replica = Replica(self, name, partition.number)
            if replica.open():
                self.replicas[name] = replica
        self._register(tuple(name for name, replica in self.replicas.items() if replica.is_sound))
        self.after(TICK_MS * self.world.rng.random(), self._tick)

    def _register(self, folders: tuple[str, ...]) -> None:
        if self.incarnation:
            return
        command = Register(broker=self.name, token=self.process, folders=folders)
        self.cluster.metadata.submit(self.name, command)
        self.after(400, self._register, folders)

    def crash(self, mode: str) -> None:
        """The process is gone: killed, or its machine has lost power and keeps of the disk what `mode` says."""
        if self.process == 0:
            return
        self.process = 0
        for replica in self.replicas.values():
            replica.remember()
        seed = self.world.rng.randrange(1 << 30)
        self.disk = self.disk.after_kill() if mode == "kill" else self.disk.after_crash(mode, seed=seed)  # type: ignore[arg-type]
        self.disk.has_descriptors = False
        self.note(f"is gone ({mode})")

    # -- time

    def _tick(self) -> None:
        self.after(TICK_MS / self.clock_rate, self._tick)
        metadata, now = self.cluster.metadata, self.world.now_ms
        if now - self._beaten_ms >= HEARTBEAT_MS and self.incarnation:
            self._beaten_ms = now
            metadata.heartbeat(self.name)
            if metadata.reaches(self.name):
                self._heard_ms = now
                if self.name not in metadata.catalog.live:
                    metadata.submit(self.name, Renew(broker=self.name, incarnation=self.incarnation))
        if metadata.reaches(self.name) and self.applied < len(metadata.history) and self.world.chance(0.5):
            self.learn(len(metadata.history))
        for replica in list(self.replicas.values()):
            replica.tick(self.now_ms)

    # -- the catalog

    def learn(self, end: int) -> None:
        """Apply what is committed, in its order, up to there."""
        if self.process == 0:
            return
        if not self.is_running or not self.cluster.metadata.reaches(self.name):
            return
        self.guard(self._learn, end)

    def _learn(self, end: int) -> None:
        while self.applied < end and self.process:
            changed, registered = self.cluster.metadata.history[self.applied]
            self.applied += 1
            if registered is not None and registered[0] == self.name and registered[2] == self.process:
                self.incarnation = registered[1]
                self._heard_ms = self.world.now_ms
            for partition in changed:
                self._adopt(partition)

    def _adopt(self, partition: Partition) -> None:
        replica = self.replicas.get(partition.name)
        if self.name not in partition.replicas:
            if replica is not None and self.incarnation:
                self.note(f"{partition.name}: no replica of mine any more")
                replica.drop()
                del self.replicas[partition.name]
            return
        if replica is None:
            replica = self.replicas[partition.name] = Replica(self, partition.name, partition.number)
        replica.adopt(partition)

    # -- others

    def arrive(self, partition: str, source: str, message: Message, data: bytes) -> None:
        """A message of another broker."""
        if self.process:
            self._do(self.process, self._arrived, (partition, source, message, data))

    def _arrived(self, partition: str, source: str, message: Message, data: bytes) -> None:
        replica = self.replicas.get(partition)
        if replica is not None:
            replica.arrived(source, message, data)

    def call(self, partition: str, method: str, answer: Callable[..., None], *args: Any) -> None:
        """A client asks. `answer` may never be called."""
        if not self.process:
            return
        replica = self.replicas.get(partition)
        reply: Callable[..., None] = lambda *values: self.cluster.network.send(self.name, "client", answer, *values)  # noqa: E731
        if replica is None:
            reply("not here")
        else:
            self._do(self.process, getattr(replica, method), (reply, *args))
