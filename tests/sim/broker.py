"""A broker: a process that comes and goes, on a machine with a disk and clocks of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.api.errors import InvalidRequest
from broker.api.stream import StreamSettings
from broker.metadata.catalog import Catalog
from broker.metadata.heard import Heard
from broker.metadata.partition import PartitionState
from broker.metadata.session import Session
from broker.replication.messages import Message
from tests.sim.controlling import Sessions
from tests.sim.growing import Growing
from tests.sim.isr_asks import IsrAsks
from tests.sim.metadata import Answered, by_stream, name_of, place_of
from tests.sim.replica import Replica
from tests.support.simdisk import Crashed, SimDisk

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.world import World

TICK_MS = 100
SYNC_MS = 4.0
"""An fsync takes so long, about, where the disk is not slow."""
HOUR_MS = 3_600_000
WALL_MS = 1_700_000_000_000


class Clock:
    """A clock that may run otherwise than the world's, and jump ahead. `odd_ms`: when it did last, by the world's."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rate = 1.0
        self.odd_ms = -1e9
        self._at_ms = self._from_ms = 0.0

    @property
    def now_ms(self) -> float:
        return self._at_ms + (self.world.now_ms - self._from_ms) * self.rate

    @property
    def is_odd(self) -> bool:
        """It did not run as others do of late."""
        return self.rate != 1.0 or self.world.now_ms - self.odd_ms < 10_000

    def change(self, *, rate: float | None = None, ahead_ms: float = 0.0) -> None:
        """From now on it runs so."""
        self._at_ms, self._from_ms = self.now_ms + ahead_ms, self.world.now_ms
        self.rate, self.odd_ms = rate or self.rate, self.world.now_ms


class Broker(Sessions, Growing):
    """See the module.

    Attributes:
        process: A number of its own for each process; 0: none runs.
        catalog: The catalog that it has applied; `applied`: so many commands.
        incarnation: The registration of this process, as that catalog has it; 0: none yet.
        heard: Who has said something of late.
        isr_asks: How this process asks for changes of in-sync replicas.
        replicas: Replicas of partitions that the applied catalog, or a folder here, knows.
        paused_until_ms: Stopped until then.
        clock: Its monotonic one.
        sync_ms: How long an fsync takes, about.
        rack: Empty: none.
        is_scrapped: Its machine is gone.
    """

    def __init__(self, cluster: Cluster, name: str, disk: SimDisk, rack: str = "") -> None:
        Sessions.__init__(self)
        Growing.__init__(self)
        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.disk = disk
        self.rack = rack
        self.is_scrapped = False
        self.process = 0
        self.incarnation = 0
        self.heard = Heard()
        self.isr_asks = IsrAsks(self)
        self.catalog = Catalog()
        self.applied = 0
        self.replicas: dict[str, Replica] = {}
        self.paused_until_ms = 0.0
        self.clock = Clock(cluster.world)
        self.wall_jump_ms = 0
        self.sync_ms = SYNC_MS
        self._registering_ms = 0
        self._confirmed_ms = 0.0
        self.folder = self._folders_made = 1

    @property
    def is_running(self) -> bool:
        return self.process != 0 and self.world.now_ms >= self.paused_until_ms

    @property
    def now_ms(self) -> int:
        """Its monotonic clock."""
        return int(self.clock.now_ms)

    @property
    def elapsed_us(self) -> int:
        """As logs measure time: that of another broker counts from elsewhere."""
        return (self.now_ms + self._number * 1_000_000_000) * 1_000

    @property
    def wall_us(self) -> int:
        """Its wall clock: those of any two of three brokers are an hour or two apart, before anybody sets them."""
        return (WALL_MS + self.now_ms + self._number % 3 * HOUR_MS + self.wall_jump_ms) * 1_000

    @property
    def _number(self) -> int:
        return int(self.name[1:])

    @property
    def raft(self) -> str:
        """Its id in the Raft group, which is its folder's."""
        return self.cluster.metadata.folder_of(self)

    def replace_disk(self, disk: SimDisk) -> None:
        """The machine has another one, with nothing on it."""
        self.disk = disk
        self._folders_made += 1
        self.folder = self._folders_made

    def swap_disk(self, disk: SimDisk, folder: int) -> tuple[SimDisk, int]:
        """The machine, which does not run, gets one that it had before. Returns the one that it has now."""
        had = self.disk, self.folder
        self.disk, self.folder = disk, folder
        return had

    def folder_of(self, name: str) -> str:
        """The folder of a partition's log here."""
        return f"/data/{name}"

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
        """Returns what `act` returns. The power may go in the midst of it: None then."""
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
        self.isr_asks = IsrAsks(self)
        self._restore()
        self.paused_until_ms = 0.0
        self._registering_ms = self.now_ms
        self.note("starts")
        self.replicas = {}
        self.guard(self._start)

    def _restore(self) -> None:
        """A snapshot, and then the rest."""
        self.applied, text = self.cluster.metadata.begun(self)
        self.catalog = Catalog.restore(json.loads(text))

    def _start(self) -> None:
        for name in self.cluster.metadata.states:
            replica = Replica(self, name)
            if replica.open():
                self.replicas[name] = replica
        sound = [name for name, replica in self.replicas.items() if replica.is_sound]
        self._register(by_stream(sound), by_stream(name for name in sound if self.replicas[name].is_behind))
        self.after(TICK_MS * self.world.rng.random(), self._tick)

    def _register(self, sound: dict[str, list[int]], behind: dict[str, list[int]]) -> None:
        """Again and again; `after` keeps what a former process of this broker had sent from coming after it."""
        if self.incarnation:
            return
        known, process = self.catalog.brokers.get(self.name), self.process
        self.submit(
            {
                "kind": "register_broker",
                **({"raft": self.raft} if self.cluster.has_folders else {}),
                **self.cluster.level,
                "broker_id": self.name,
                "incarnation": f"{self.process}",
                "http": f"{self.name}:9293",
                "grpc": f"{self.name}:9292",
                "rack": known.rack if known else self.rack,
                "after": known.registration if known else 0,
                "sound": sound,
                "behind": behind,
                "epoch_seen": max([-1, *(each.log.epochs.latest for each in self.replicas.values() if each.log)]),
                "request_id": f"{self.process} after {known.registration if known else 0}",
            },
            (lambda result, _: self._refused(process, result)) if self.cluster.has_folders else None,
        )
        self.after(400, self._register, sound, behind)

    def _refused(self, process: int, result: dict[str, Any]) -> None:
        """The folder is that of a broker that was removed: the process ends."""
        error = result.get("error", {})
        if process == self.process and error.get("reason") == InvalidRequest.reason and "raft" in error:
            self.world.saw("removed broker refused")
            self.note("is refused: it was removed")
            self.crash("kill")
            if self.cluster.operator is not None:
                self.cluster.operator.refused.append(self)

    def submit(self, command: dict[str, Any], answered: Answered | None = None) -> None:
        """Ask the controller for something; the answer counts in this process only."""
        self.cluster.metadata.submit(self.name, command, answered)

    def leave(self) -> None:
        """It stops: its session is over, and it says so."""
        self.session = None
        self.submit({"kind": "fail_broker", "broker_id": self.name, "registration": self.incarnation})

    def tell(self, to: str, what: str, *values: Any) -> None:
        """Tell another broker, or this one, something of sessions."""
        target = self.cluster.brokers[to]
        if to == self.name:
            self.after(0, getattr(self, what), *values)
        else:
            self.cluster.network.send(self.name, to, target.told, what, values)

    def told(self, what: str, values: tuple[Any, ...]) -> None:
        """Another broker tells something of sessions."""
        if self.process:
            self._do(self.process, getattr(self, what), values)

    def post(self, to: str, partition: str, message: Message, data: bytes) -> None:
        """Tell the replica of another broker."""
        target = self.cluster.brokers[to]
        self.cluster.network.send(self.name, to, target.arrive, partition, self.name, message, data)

    def crash(self, mode: str) -> None:
        """The process is gone: killed, or its machine has lost power and keeps of the disk what `mode` says."""
        if self.process == 0:
            return
        self.process = 0
        self.cluster.metadata.ended(self, mode)
        self.forget_sessions()
        self.forget_stops()
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
        if self.process == 0 and not self.is_scrapped:
            self.start()

    # -- time

    def _tick(self) -> None:
        self.after(TICK_MS / self.clock.rate, self._tick)
        metadata = self.cluster.metadata
        self.tick_sessions()
        if self.applied < metadata.known_to(self.name) and self.world.chance(0.5):
            self.learn(metadata.known_to(self.name))
        if self.incarnation:
            self.heard.look(self.catalog.brokers, self.now_ms)
        self._delete_left()
        self._report_logs()
        self.grow()
        for replica in list(self.replicas.values()):
            replica.tick(self.now_ms)

    # -- the catalog

    def settings_of(self, name: str) -> StreamSettings:
        """The settings of a partition's stream, as this broker's catalog has them."""
        info = self.stream_of(name)
        return StreamSettings() if info is None else info.settings

    def compacts(self, name: str) -> bool:
        """Whether its replica of a partition is to be compacted."""
        if name not in self.cluster.compacted or not self.cluster.alters:
            return name in self.cluster.compacted
        return self.settings_of(name).cleanup != "delete"

    def learn(self, end: int) -> None:
        """Apply what is committed, in its order, up to there."""
        if self.process == 0:
            return
        if not self.is_running:
            return
        self.guard(self._learn, min(end, self.cluster.metadata.known_to(self.name)))

    def _learn(self, end: int) -> None:
        metadata, process = self.cluster.metadata, self.process
        while self.applied < end and self.process == process:
            before = dict(self.catalog.cluster.partitions)
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
            is_new = info is not None and info.incarnation == f"{process}" and info.registration != self.incarnation
            if is_new and info is not None:
                self.incarnation = info.registration
                self.heard = Heard()
                self.heard.look(self.catalog.brokers, self.now_ms)
                self.session = Session(info.registration, self._registering_ms)
            for at, state in self.catalog.cluster.partitions.items():
                if is_new or before.get(at) is not state:
                    self._adopt(name_of(at), state)
            for name in [name for name in self.replicas if place_of(name) not in self.catalog.cluster.partitions]:
                if self.incarnation:
                    self._leave(name)

    def _leave(self, name: str) -> None:
        self.note(f"{name}: no replica of mine any more")
        replica = self.replicas.pop(name)
        replica._rest()
        replica.drop()

    def _adopt(self, name: str, state: PartitionState) -> None:
        replica = self.replicas.get(name)
        if self.name in state.replicas:
            if replica is None:
                replica = self.replicas[name] = Replica(self, name)
            replica.adopt(state)
        elif replica is not None and self.incarnation:
            self._leave(name)

    def _delete_left(self) -> None:
        """Folders of replicas that went elsewhere are deleted, and the catalog is told."""
        left = self.catalog.cluster.leftovers.get(self.name)
        if not left or not self.incarnation or self.world.now_ms - self._confirmed_ms < 400:
            return
        self._confirmed_ms = self.world.now_ms
        gone = [name for name in map(name_of, sorted(left)) if name not in self.replicas]
        for name in gone:
            self.disk.remove_tree(f"/data/{name}")
        if gone:
            self.world.saw("folder deleted")
            self.submit({"kind": "confirm_deleted", "broker_id": self.name, "partitions": by_stream(gone)})

    def _report_logs(self) -> None:
        """For a rescue of the catalog: what the disk holds, of replicas that are sound."""
        rescue = self.catalog.cluster.rescue
        if rescue is None or not self.incarnation or self.name in rescue.logs or self.world.chance(0.8):
            return
        logs = [(each.name, each.log) for each in self.replicas.values() if each.log and not each.is_damaged]
        self.submit(
            {
                "kind": "report_logs",
                "broker_id": self.name,
                "registration": self.incarnation,
                "rescue": rescue.number,
                "epoch_seen": max([-1, *(log.epochs.latest for _, log in logs)]),
                "logs": [[*place_of(name), log.epochs.latest, log.state.log_end_offset] for name, log in logs],
            }
        )

    def step_out_answered(self, why: str, result: dict[str, Any]) -> None:
        """Replicas that are refused stay; an error is no answer."""
        for stream, number in result.get("ok", {}).get("refused", ()):
            if (name := name_of((stream, number))) in self.replicas:
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
