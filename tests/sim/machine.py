"""The machine of a broker, with a disk and clocks of its own, and the processes that come and go on it. What they run
is `tests.sim.driven.node`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.api.errors import InvalidRequest
from broker.metadata.catalog import Catalog
from broker.metadata.heard import Heard
from tests.sim.controlling import Sessions
from tests.sim.metadata import Answered
from tests.support.simdisk import Crashed, SimDisk

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.driven.seen import Seen
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


class Machine(Sessions):
    """See the module.

    Attributes:
        process: A number of its own for each process; 0: none runs.
        catalog: The catalog that it has applied; `applied`: so many commands.
        incarnation: The registration of this process, as that catalog has it; 0: none yet.
        heard: Who has said something of late.
        replicas: Replicas of partitions that the applied catalog, or a folder here, knows.
        paused_until_ms: Stopped until then.
        clock: Its monotonic one.
        sync_ms: How long an fsync takes, about.
        rack: Empty: none.
        is_scrapped: Its machine is gone.
    """

    def __init__(self, cluster: Cluster, name: str, disk: SimDisk, rack: str = "") -> None:
        Sessions.__init__(self)
        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.disk = disk
        self.rack = rack
        self.is_scrapped = False
        self.process = 0
        self.incarnation = 0
        self.heard = Heard()
        self.catalog = Catalog()
        self.applied = 0
        self.replicas: dict[str, Seen] = {}
        self.paused_until_ms = 0.0
        self.clock = Clock(cluster.world)
        self.wall_jump_ms = 0
        self.sync_ms = SYNC_MS
        self._registering_ms = 0
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

    def crash(self, mode: str) -> None:
        """The process is gone: killed, or its machine has lost power and keeps of the disk what `mode` says."""
        if self.process == 0:
            return
        self.process = 0
        self.cluster.metadata.ended(self, mode)
        self.forget_sessions()
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

    # -- the catalog

    def learn(self, end: int) -> None:
        """Apply what is committed, in its order, up to there."""
        if self.process == 0:
            return
        if not self.is_running:
            return
        self.guard(self._learn, min(end, self.cluster.metadata.known_to(self.name)))

    # -- others

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
