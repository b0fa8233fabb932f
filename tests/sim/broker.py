"""A broker: a process that comes and goes, on a machine with a disk and clocks of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.metadata.catalog import Catalog
from broker.metadata.partition import PartitionState
from broker.replication.messages import Message
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
        catalog: What it has applied; `applied`: so many commands.
        incarnation: The registration of this process, as that catalog has it; 0: none yet.
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
        self.catalog = Catalog()
        self.applied = 0
        self.replicas: dict[str, Replica] = {}
        self.paused_until_ms = 0.0
        self.clock_rate, self.clock_ms = 1.0, 0.0
        self.wall_jump_ms = 0
        self.sync_ms = 4.0
        self._heard_ms = 0.0
        self._beaten_ms = self._confirmed_ms = 0.0
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

    def guard(self, act: Callable[..., Any], *args: Any) -> Any:
        """What `act` returns. The power may go in the midst of it: None then."""
        try:
            return act(*args)
        except Crashed:
            self.world.saw("power cut in the midst of a change")
            for replica in self.replicas.values():
                replica.is_mid_change = True
            self.crash(self.world.rng.choice(("lost", "torn", "reordered", "zeros", "kept")))
            return None

    def start(self) -> None:
        """A process begins: opens what is there, registers that, and does nothing before it has learnt of it."""
        assert self.process == 0
        self.process = self.cluster.next_process()
        self.incarnation = 0
        self._restore()
        self.paused_until_ms = 0.0
        self._clock_last = int(self.clock_ms)
        self.note("starts")
        self.replicas = {}
        self.guard(self._start)

    def _restore(self) -> None:
        """What its own journal of Raft has, or the snapshot that it is sent: any that there was, and then the rest."""
        snapshots = self.cluster.metadata.snapshots
        self.applied = self.world.rng.choice(list(snapshots))
        self.catalog = Catalog.restore(json.loads(snapshots[self.applied]))
        if self.applied:
            self.world.saw("catalog restored from a snapshot")

    def _start(self) -> None:
        for name in self.cluster.metadata.states:
            replica = Replica(self, name)
            if replica.open():
                self.replicas[name] = replica
        self._register({name: [0] for name, replica in self.replicas.items() if replica.is_sound})
        self.after(TICK_MS * self.world.rng.random(), self._tick)

    def _register(self, folders: dict[str, list[int]]) -> None:
        """Again and again; `after` keeps what a former process of this broker had sent from coming after it."""
        if self.incarnation:
            return
        known = self.catalog.brokers.get(self.name)
        self.submit(
            {
                "kind": "register_broker",
                "broker_id": self.name,
                "incarnation": f"{self.process}",
                "http": f"{self.name}:9293",
                "grpc": f"{self.name}:9292",
                "rack": known.rack if known else "",
                "after": known.registration if known else 0,
                "sound": folders,
                "request_id": f"{self.process} after {known.registration if known else 0}",
            }
        )
        self.after(400, self._register, folders)

    def submit(self, command: dict[str, Any], answered: Callable[[dict[str, Any]], None] | None = None) -> None:
        """Ask the controller for something; the answer counts in this process only."""
        self.cluster.metadata.submit(self.name, command, answered)

    def post(self, to: str, partition: str, message: Message, data: bytes) -> None:
        """Tell the replica of another broker."""
        target = self.cluster.brokers[to]
        self.cluster.network.send(self.name, to, target.arrive, partition, self.name, message, data)

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

    def exits(self) -> None:
        """The process ends by itself; whoever watches over it starts another (once seed 1027: nobody did)."""
        self.crash("kill")
        self.world.after(self.world.rng.uniform(200, 1_500), self.start_if_gone)

    def start_if_gone(self) -> None:
        if self.process == 0:
            self.start()

    # -- time

    def _tick(self) -> None:
        self.after(TICK_MS / self.clock_rate, self._tick)
        metadata, now = self.cluster.metadata, self.world.now_ms
        if now - self._beaten_ms >= HEARTBEAT_MS and self.incarnation:
            self._beaten_ms = now
            metadata.heartbeat(self.name, self.incarnation)
            if metadata.reaches(self.name):
                self._heard_ms = now
        if metadata.reaches(self.name) and self.applied < len(metadata.log) and self.world.chance(0.5):
            self.learn(len(metadata.log))
        self._delete_left()
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
        metadata, process = self.cluster.metadata, self.process
        while self.applied < end and self.process == process:
            before = dict(self.catalog.cluster.partitions)
            command, _ = metadata.log[self.applied]
            result = self.catalog.apply(command)
            self.applied += 1
            metadata.compare(self, result)
            info = self.catalog.brokers.get(self.name)
            is_new = info is not None and info.incarnation == f"{process}" and info.registration != self.incarnation
            if is_new and info is not None:
                self.incarnation = info.registration
                self._heard_ms = self.world.now_ms
            for at, state in self.catalog.cluster.partitions.items():
                if is_new or before.get(at) is not state:
                    self._adopt(at[0], state)

    def _adopt(self, name: str, state: PartitionState) -> None:
        replica = self.replicas.get(name)
        if self.name in state.replicas:
            if replica is None:
                replica = self.replicas[name] = Replica(self, name)
            replica.adopt(state)
        elif replica is not None and self.incarnation:
            self.note(f"{name}: no replica of mine any more")
            replica._rest()
            replica.drop()
            del self.replicas[name]

    def _delete_left(self) -> None:
        """Folders of replicas that went elsewhere are deleted, and the catalog is told."""
        left = self.catalog.cluster.leftovers.get(self.name)
        if not left or not self.incarnation or self.world.now_ms - self._confirmed_ms < 400:
            return
        self._confirmed_ms = self.world.now_ms
        gone = [name for name, _ in sorted(left) if name not in self.replicas]
        for name in gone:
            self.disk.remove_tree(f"/data/{name}")
        if gone:
            self.world.saw("folder deleted")
            self.submit({"kind": "confirm_deleted", "broker_id": self.name, "partitions": {name: [0] for name in gone}})

    def step_out_answered(self, why: str, result: dict[str, Any]) -> None:
        """Replicas that are refused stay; an error is no answer."""
        for name, _ in result.get("ok", {}).get("refused", ()):
            if name in self.replicas:
                self.replicas[name].step_out_refused(why)

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
