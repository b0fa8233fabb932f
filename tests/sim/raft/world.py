"""A Raft group whose brokers are killed, lose power, their disk, or touch with each other; and who watches it.

Fault model. Messages are late, lost, doubled and in any order, until faults end. A process may be killed between any
two operations of its disk, in the middle of one, or lose power; all may at once. Disks keep what was synced, fail for
lack of room, and flip bits; one voter at a time may lose its disk, or have its journal damaged, while all others have
theirs.

What a leader has put in its log goes out with its next tick (`core.A13`), as brokers have it; in one of four seeds when
a time is up. Now and then several commands come to a process in one turn, with messages between them and the tick.

R8a  What was acknowledged is in the catalog of every broker that answers a later `read`, and in all at the end.
R8b  An entry of the log that was applied anywhere is the same wherever it is applied, and is applied once.
R8c  Of a term there is one leader.
R8d  Once faults end, commands are carried out again.
R8e  Who has applied equally much has the same catalog, byte for byte, whether from a snapshot or from commands. It is
     the one that a single catalog makes of the same commands, and answers them as they were answered. (With the
     commands of a real cluster, `workload.py`: in one of eight seeds, and in the scenarios.)
R8f  Within a process the catalog never goes back.
"""

from __future__ import annotations

import contextlib
import errno
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from unittest.mock import patch

import pysyncobj.syncobj as library
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from broker.api.errors import LiftlogError
from broker.metadata.catalog import Catalog
from broker.raft import node as node_module
from broker.raft import snapshots
from broker.raft.core import Core
from broker.raft.journal import Journal, decode
from broker.raft.journal_files import KEPT_BYTES
from broker.raft.node import BARRIER, RaftNode, configuration
from broker.raft.wire import Codec, guarded
from tests.sim.raft.workload import Workload, bytes_of
from tests.support.simdisk import MODES, Crashed, SimDisk

FOLDER = "/raft"
PATH = f"{FOLDER}/raft.log"
NAMES = ("a", "b", "c", "d", "e")
PIECE_BYTES = 1500
"""The size of a snapshot's pieces, so that it takes several messages."""
CLUSTER = "sim"


class Violation(AssertionError):
    """A rule does not hold."""


class SimNode(Node):  # type: ignore[misc]
    """Its hash is the same in every process: pysyncobj goes through sets of nodes."""

    def __hash__(self) -> int:
        return zlib.crc32(self.id.encode())


def connect_observers(node: RaftNode, running: Iterable[RaftNode]) -> None:
    """Observers among them come to a voter under a name of their own; who is none any more goes."""
    transport = node.core._SyncObj__transport
    observers = {f"observer/{each.node_id}" for each in running if not each.is_voter} if node.is_voter else set()
    for known in sorted(node.core.readonlyNodes, key=lambda each: str(each.id)):
        if known.id not in observers:
            transport._onReadonlyNodeDisconnected(known)
    for name in sorted(observers):
        if SimNode(name) not in node.core.readonlyNodes:
            transport._onReadonlyNodeConnected(SimNode(name))


class Peer(Transport):  # type: ignore[misc]
    """A broker's end of the network."""

    def __init__(self, core: Core, me: Node | None, others: Any) -> None:
        super().__init__(core, me, others)
        self.core_id = core.journal.base.node_id
        self.world = World.current
        assert self.world is not None

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        assert self.world is not None
        return self.world.post(self.core_id, node.id, Codec.dumps(message))


GuardedPeer = guarded(Peer)


class Watched(RaftNode):
    """Tells what it applies."""

    def _apply(self, command: Mapping[str, Any]) -> Any:
        world, index = World.current, self.core.raftLastApplied + 1
        assert world is not None
        if world.history.setdefault(index, command) != command:
            raise Violation(f"R8b: {command} was applied at {index}, and elsewhere {world.history[index]}")
        return super()._apply(command)


class Machine:
    """One broker: its disk, and its process, if it runs."""

    def __init__(self, name: str, disk: SimDisk) -> None:
        self.name = name
        self.disk = disk
        self.node: RaftNode | None = None
        self.lives = 0
        self.node_id = f"{name}1@{name}"


class World:
    """See the module."""

    current: World | None = None

    def __init__(self, seed: int, *, real: bool = False) -> None:
        self.rng = random.Random(seed)
        self.now_s = 1000.0
        self.story: list[str] = []
        self.seen: Counter[str] = Counter()
        self.net: list[tuple[str, str, bytes]] = []
        self.cut: set[tuple[str, str]] = set()
        self.applied: dict[int, tuple[bytes, int]] = {}
        self.history: dict[int, Any] = {}  # what was applied, where it stands
        self.checked: dict[str, tuple[Any, int]] = {}
        self.shown: dict[str, tuple[RaftNode, int]] = {}
        self.leaders: dict[int, str] = {}
        self.acked: set[str] = set()
        self.is_timed = seed % 4 == 1
        self.workload = Workload(self.rng) if real or seed % 8 == 6 else None
        self.is_real = self.workload is not None
        self.told: dict[str, Any] = {}  # what was answered to the commands of a real cluster
        self.commands = 0
        self.healing = False
        self.before_health = 0
        self.names = NAMES if seed % 4 == 3 else NAMES[:3]
        self.machines = {name: Machine(name, SimDisk(seed=seed)) for name in self.names}
        self.late: list[tuple[float, tuple[str, str, bytes]]] = []
        self.held: dict[str, float] = {}  # who stays down until when
        self.is_coup = False
        self.recovering: str | None = None  # whose disk was lost, until its new id has a vote
        self.quiet = self.rng.choice((0.05, 0.15, 0.4, 1.0))
        self.room_bytes = KEPT_BYTES + 4_000 if seed % 3 == 2 else 0
        World.current = self
        ids = tuple(f"{name}1@{name}" for name in self.names)
        for machine, node_id in zip(self.machines.values(), ids, strict=True):
            machine.disk.makedirs(FOLDER)
            node_module.form(machine.disk, PATH, node_id=node_id, voters=ids, cluster_id=CLUSTER).close()
            self.start(machine)

    # -- processes ----------------------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        self.story.append(f"{self.now_s - 1000:8.2f}  {text}")

    def start(self, machine: Machine) -> None:
        machine.lives += 1
        fresh = f"{machine.name}{machine.lives + 1}@{machine.name}"
        try:
            journal, is_sound = node_module.open_journal(
                machine.disk, PATH, new_id=lambda: fresh, cluster_id=CLUSTER, room_bytes=self.room_bytes
            )
            seeds = tuple(other.node_id for other in self.machines.values() if other is not machine)
            machine.node = Watched(
                journal,
                transport=GuardedPeer,
                node=SimNode,
                conf=configuration(
                    appendEntriesUseBatch=self.is_timed,
                    logCompactionMinEntries=12,
                    logCompactionMinTime=40,
                ),
                clock=lambda: self.now_s,
                life=f"{machine.name}{machine.lives}",
                seeds=seeds,
            )
        except (Crashed, LiftlogError) as error:
            machine.node = None
            machine.disk = machine.disk.after_kill()
            machine.disk.heal()
            self.tell(f"{machine.name} does not start: {error!r}")
            return
        if not is_sound:
            self.seen["came back under another id"] += 1
            if self.recovering != machine.name:
                raise Violation(f"R8a: {machine.name} has lost its journal, and no fault did that")
        machine.node_id = journal.base.node_id
        self.tell(f"{machine.name} starts as {journal.base.node_id}{'' if is_sound else ', new'}")

    def stop(self, machine: Machine, how: str) -> None:
        """The process is gone; its disk is what a kill or a power cut leaves."""
        if machine.node is None and how == "kill":
            return
        machine.node = None
        machine.disk.heal()
        if how == "power":
            machine.disk = machine.disk.after_crash(self.rng.choice(MODES), seed=self.rng.randrange(1 << 30))
        else:
            machine.disk = machine.disk.after_kill()
        machine.disk.crash_at = None
        self.seen[how] += 1
        self.tell(f"{machine.name}: {how}")

    def run(self, machine: Machine, what: Any) -> None:
        """Let a process do something, which may be the last that it does."""
        try:
            what()
        except Crashed:
            self.stop(machine, self.rng.choice(("kill", "power")))
            self.seen["in the middle of a disk operation"] += 1
        except LiftlogError as error:
            self.tell(f"{machine.name} fails: {error}")
            self.seen["journal failed"] += 1
            self.stop(machine, "kill")
        except AssertionError as error:
            if isinstance(error, Violation):
                raise
            raise Violation(f"{machine.name}: {error!r}") from error

    # -- network ------------------------------------------------------------------------------------------------

    def post(self, source: str, target: str, data: bytes) -> bool:
        if (source.rpartition("@")[2], target.rpartition("@")[2]) in self.cut:
            return True
        self.net.append((source, target, data))
        if len(self.net) > 60:
            self.net.pop(self.rng.randrange(30))
        return True

    def deliver(self, to: Machine | None = None) -> None:
        """A message; to one of them, if there is one to it."""
        places = [at for at, message in enumerate(self.net) if to is None or message[1].endswith(f"@{to.name}")]
        if not places:
            return
        at = places[0] if self.rng.random() < 0.7 else self.rng.choice(places)
        if self.healing:  # of one connection they come in order, as by TCP; a snapshot is many of them
            link = self.net[at][:2]
            at = next(i for i, message in enumerate(self.net) if message[:2] == link)
        source, target, data = self.net[at]
        if self.healing or self.rng.random() > 0.08:
            del self.net[at]
        if not self.healing and self.rng.random() < 0.05:
            return
        if not self.healing and self.rng.random() < 0.03:
            self.late.append((self.now_s + self.rng.uniform(0.2, 4), (source, target, data)))
        machine = self.machines[target.rpartition("@")[2]]
        node = machine.node
        if node is None or target.rpartition("/")[2] != node.node_id:
            return
        sender = SimNode(source)
        if sender not in node.core.otherNodes:  # an observer, whom the library knows by another name
            sender = SimNode(f"observer/{source}")
            if not node.is_voter:
                return
            if sender not in node.core.readonlyNodes:
                return
        message = Codec.loads(data)
        self.run(machine, lambda: node.core._SyncObj__transport._onMessageReceived(sender, message))

    def connect(self) -> None:
        """Everybody has connections to whom he knows; observers come to voters under a name of their own."""
        up = [machine.node for machine in self.machines.values() if machine.node is not None]
        for node in up:
            transport = node.core._SyncObj__transport
            for other in sorted(node.core.otherNodes, key=lambda n: str(n.id)):
                if not node.core.isNodeConnected(other):
                    transport._onNodeConnected(other)
            connect_observers(node, up)

    # -- what happens -------------------------------------------------------------------------------------------

    def step(self) -> None:
        rng = self.rng
        self.connect()
        kinds = {"tick": 30, "deliver": 60, "read": 1.0}
        if not self.healing:
            kinds |= {
                "submit": 6,
                "turn": 2,
                "start": 8,
                "kill": 0.9 * self.quiet,
                "power": 0.6 * self.quiet,
                "power_all": 0.15 * self.quiet,
                "mid_operation": 0.9 * self.quiet,
                "no_room": 0.15 * self.quiet,
                "partition": 0.5 * self.quiet,
                "mend": 0.8,
                "compact": 1.2,
                "wipe": 0.4 * self.quiet,
                "flip": 0.4 * self.quiet,
                "elect": 1.0 * self.quiet,
                "rejoin": 1,
            }
        if self.is_real and self.healing:  # its snapshots are larger, and come in more pieces
            for _ in range(8):
                self.deliver()
        before = self.journals()
        [kind] = rng.choices(list(kinds), list(kinds.values()))
        getattr(self, f"do_{kind}")()
        if self.is_coup:
            self.is_coup = False
            self.coup()
        for name, (journal, end, first) in self.journals().items():
            if name in before and before[name][0] is journal:
                self.seen["log cut"] += end < before[name][1]
                self.seen["snapshot taken"] += before[name][2] < first <= before[name][1]
                self.seen["snapshot installed"] += first > before[name][1] > 0
        self.check()

    def journals(self) -> dict[str, tuple[Journal, int, int]]:
        found = {}
        for name, machine in self.machines.items():
            if machine.node is not None and machine.node.journal.entries:
                entries = machine.node.journal.entries
                found[name] = (machine.node.journal, entries[-1][1], entries[0][1])
        return found

    def coup(self) -> None:
        """A command was acknowledged: the leader is gone for a while, all others lose power, and elect without it."""
        leaders = [machine for machine in self.machines.values() if machine.node and machine.node.is_controller]
        if self.recovering is None and len(leaders) == 1:
            self.seen["coup"] += 1
            for machine in self.machines.values():
                self.stop(machine, "power")
            self.held[leaders[0].name] = self.now_s + self.rng.uniform(1, 6)

    def pick(self) -> Machine:
        return self.machines[self.rng.choice(self.names)]

    def do_tick(self) -> None:
        self.now_s += self.rng.choice((0.0, 0.02, 0.1, 0.1))
        while self.late and min(self.late)[0] < self.now_s:
            self.late.remove(first := min(self.late))
            self.net.insert(0, first[1])
            self.seen["message comes again, late"] += 1
        machine = self.pick()
        if machine.node is not None:
            self.run(machine, machine.node.tick)

    def do_deliver(self) -> None:
        self.deliver()

    def do_turn(self) -> None:
        """Commands come to one process between two of its ticks, and messages after them. To a leader; if there are
        two, to the former one, which does not know yet."""
        leaders = [one for one in self.machines.values() if one.node is not None and one.node.is_controller]
        machine = min(leaders, key=lambda one: one.node.term if one.node else 0) if leaders else self.pick()
        for _ in range(self.rng.randint(2, 6)):
            self.do_submit(machine)
        for _ in range(self.rng.randrange(6)):
            self.deliver(machine)
        if machine.node is not None:
            self.seen["several commands in a turn"] += 1
            self.run(machine, machine.node.tick)

    def do_submit(self, machine: Machine | None = None) -> None:
        machine = machine or self.pick()
        node = machine.node
        if node is None:
            return
        if self.workload is not None and self.rng.random() < 0.8:
            self.submit_real(machine, node, self.workload)
            return
        self.commands += 1
        name = f"p{self.commands}"
        command = {"v": 1, "kind": "register_producer", "name": name, "request_id": name}

        def done(result: Any) -> None:
            if isinstance(result, dict) and "ok" in result:
                self.acked.add(name)
                self.seen["acknowledged"] += 1
                self.is_coup = not self.healing and self.rng.random() < 0.04

        self.run(machine, lambda: node.submit(command, done))

    def submit_real(self, machine: Machine, node: RaftNode, workload: Workload) -> None:
        command = workload.command(node.catalog)
        kind = command["kind"]

        def done(result: Any) -> None:
            if isinstance(result, dict) and "ok" in result:
                self.told[command["request_id"]] = result
                self.seen[f"{kind} answered"] += 1

        self.run(machine, lambda: node.submit(command, done))

    def do_read(self) -> None:
        machine = self.pick()
        node = machine.node
        if node is None:
            return
        before = set(self.acked)

        def done(result: Any) -> None:
            if isinstance(result, dict) and "ok" in result:
                self.seen["read"] += 1
                missing = before - node.catalog.producers.keys()
                if missing:
                    raise Violation(f"R8a: {machine.name} has read, and lacks {sorted(missing)[:5]}")

        self.run(machine, lambda: node.read(done))

    def do_start(self) -> None:
        machine = self.pick()
        if machine.node is None and self.held.get(machine.name, 0.0) <= self.now_s:
            self.start(machine)

    def do_kill(self) -> None:
        self.stop(self.pick(), "kill")

    def do_power(self) -> None:
        self.stop(self.pick(), "power")

    def do_power_all(self) -> None:
        for machine in self.machines.values():
            self.stop(machine, "power")
        self.seen["power of all"] += 1

    def do_mid_operation(self) -> None:
        machine = self.pick()
        if machine.node is not None:
            machine.disk.crash_at = machine.disk.steps + self.rng.randint(1, 12)
            if self.rng.random() < 0.5:
                machine.node.core.forceLogCompaction()
                self.run(machine, machine.node.tick)

    def do_no_room(self) -> None:
        machine = self.pick()
        if machine.node is not None:
            call = self.rng.choice(("write", "sync", "rename", "sync_dir"))
            code = self.rng.choice((errno.ENOSPC, errno.EIO))
            machine.disk.fail(call, code, short=self.rng.randint(0, 40))
            self.seen[f"{call} fails"] += 1

    def do_partition(self) -> None:
        one, other = self.rng.sample(self.names, 2)
        self.cut.add((one, other))
        if self.rng.random() < 0.7:
            self.cut.add((other, one))
        self.seen["link cut"] += 1

    def do_mend(self) -> None:
        self.cut.clear()

    def do_compact(self) -> None:
        machine = self.pick()
        if machine.node is not None:
            machine.node.core.forceLogCompaction()

    def do_elect(self) -> None:
        machine = self.pick()
        if machine.node is not None:
            machine.node.core._SyncObj__raftElectionDeadline = 0

    def is_whole(self) -> bool:
        """Whether every disk is as its voter left it, so that one may be lost."""
        return self.recovering is None and all(
            machine.node is not None and machine.node.is_voter and len(machine.node.voters()) == len(self.names)
            for machine in self.machines.values()
        )

    def do_wipe(self) -> None:
        if self.is_whole():
            machine = self.pick()
            self.stop(machine, "kill")
            machine.disk = SimDisk(seed=self.rng.randrange(1 << 30))
            machine.disk.makedirs(FOLDER)
            self.recovering = machine.name
            self.seen["disk lost"] += 1
            self.tell(f"{machine.name} loses its disk")

    def do_flip(self) -> None:
        if self.is_whole():
            machine = self.pick()
            self.stop(machine, "kill")
            size = decode(machine.disk.read_file(PATH))[1]  # behind it there is room
            at = self.rng.choice((size - 1 - self.rng.randrange(min(size, 60)), self.rng.randrange(size)))
            machine.disk.flip(PATH, at * 8 + self.rng.randrange(8))
            self.recovering = machine.name
            self.seen["bit flipped"] += 1
            self.tell(f"{machine.name}: a bit of byte {at} of {size} flips")

    def do_rejoin(self) -> None:
        """After a lost journal the old id goes, then the new one gets a vote."""
        machine = self.machines[self.recovering] if self.recovering else None
        if machine is None or machine.node is None:
            return
        node = machine.node
        if node.is_voter and node.node_id in node.voters():
            if all(
                other.node is not None and {*other.node.voters()} == {*node.voters()}
                for other in self.machines.values()
            ):
                self.recovering = None
                self.seen["has a vote again"] += 1
            return
        if not any(node.catalog.producers) and self.acked:
            return  # it has nothing yet
        old = [voter for voter in node.voters() if voter.rpartition("@")[2] == machine.name and voter != node.node_id]
        if old:
            self.run(machine, lambda: node.change_voters("rem", old[0], lambda _: None))
        else:
            self.run(machine, lambda: node.change_voters("add", node.node_id, lambda _: None))

    # -- what is watched ----------------------------------------------------------------------------------------

    def check(self) -> None:
        for machine in self.machines.values():
            node = machine.node
            if node is None:
                continue
            core = node.core
            self.check_applied(machine, node)
            if core._isLeader() and core.failure is None:
                self.seen["leaders"] += core.raftCurrentTerm not in self.leaders
                leader = self.leaders.setdefault(core.raftCurrentTerm, node.node_id)
                if leader != node.node_id:
                    raise Violation(f"R8c: {leader} and {node.node_id} lead term {core.raftCurrentTerm}")

    def check_applied(self, machine: Machine, node: RaftNode) -> None:
        key, upto = self.checked.get(machine.name, (None, 0))
        now = node.core.raftLastApplied
        before, shown = self.shown.get(machine.name, (node, 0))
        if before is node and now < shown:
            raise Violation(f"R8f: the catalog of {machine.name} goes back from {shown} to {now}")
        self.shown[machine.name] = (node, now)
        if key is not node.core:
            upto = 0
        for index in range(max(upto + 1, node.journal.entries[0][1] if node.journal.entries else 1), now + 1):
            entry = node.journal.entry_at(index)
            if entry is None:
                continue
            known = self.applied.setdefault(index, (entry[0], entry[2]))
            if known != (entry[0], entry[2]):
                raise Violation(f"R8b: {machine.name} has applied {entry} at {index}, somebody else {known}")
        self.checked[machine.name] = (node.core, now)

    def heal(self) -> None:
        """No more faults: everything has to be there, everywhere."""
        self.healing, self.before_health, self.workload = True, self.commands, None
        self.cut.clear()
        self.tell("all is well from now on")
        for machine in self.machines.values():
            machine.disk.heal()
            machine.disk.crash_at = None
        last = ""
        for turn in range(6000):
            for machine in self.machines.values():
                if machine.node is None:
                    self.start(machine)
            self.step()
            if turn % 40 == 0:
                self.do_rejoin()
            if turn % 100 == 0 and turn > 300:
                nodes = [machine.node for machine in self.machines.values()]
                last = self.unfinished([node for node in nodes if node is not None])
                if not last:
                    return
        raise Violation(f"R8d: {last}")

    def unfinished(self, nodes: list[RaftNode]) -> str:
        if len(nodes) < len(self.names) or self.recovering:
            return f"{self.recovering or 'somebody'} is not back"
        if self.commands == self.before_health or f"p{self.commands}" not in self.acked:
            self.do_submit()
            return "no command is acknowledged"
        ends = {node.core.raftLastApplied for node in nodes}
        if len(ends) > 1:
            return f"applied up to {sorted(ends)}"
        self.compare(nodes, ends.pop())
        missing = self.acked - nodes[0].catalog.producers.keys()
        if missing:
            raise Violation(f"R8a: {sorted(missing)[:5]} were acknowledged and are gone, of {len(self.acked)}")
        return ""

    def compare(self, nodes: list[RaftNode], end: int) -> None:
        """R8e, at the end."""
        found = {bytes_of(node.catalog) for node in nodes}
        if len(found) > 1:
            raise Violation("R8e: catalogs differ")
        single, answers = Catalog(), {}
        for index in sorted(index for index in self.history if index <= end):
            command = self.history[index]
            if command.get("kind") != BARRIER:
                answers[command.get("request_id")] = single.apply(command)
        if {bytes_of(single)} != found:
            raise Violation("R8e: the same commands give another catalog")
        for request_id, result in self.told.items():
            if answers.get(request_id) != result:
                raise Violation(
                    f"R8e: {request_id} was answered {result}, and stands there as {answers.get(request_id)}"
                )
        self.seen["history replayed"] += 1


@contextlib.contextmanager
def clockwork() -> Iterator[None]:
    """pysyncobj's clock and luck are those of the world that runs."""

    def now() -> float:
        return World.current.now_s if World.current is not None else 1000.0

    class Fortune:
        @staticmethod
        def random() -> float:
            return World.current.rng.random() if World.current is not None and hasattr(World.current, "rng") else 0.5

    pieces = patch.object(snapshots, "PIECE_BYTES", PIECE_BYTES)
    no_pipe = patch.object(library, "PIPE_NOTIFIER_ENABLED", False)  # nobody waits in a poller here
    with pieces, no_pipe, patch.object(library, "monotonicTime", now), patch.object(library, "random", Fortune):
        yield


def run(seed: int, steps: int = 1200) -> World:
    """One group through `steps` steps and back to health. Raises Violation, which has the world as `world`."""
    with clockwork():
        world = World(seed)
        try:
            for _ in range(steps):
                world.step()
            world.heal()
        except Violation as violation:
            violation.world = world  # type: ignore[attr-defined]
            raise
        finally:
            World.current = None
    return world
