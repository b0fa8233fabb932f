"""The catalog of a simulated cluster over the real pysyncobj: one Raft node in each broker's process, on a disk of its
own, with the broker's clock, and messages over the same links.

    broker ── submit ──► its node ──► the leader's node: judged, logged, applied ──► answer, in the same process
    controller's core ── lead ──► its own node only
    node has applied ──► its broker learns of it a little later, as of any change

R8 is checked while it runs: what is applied at an index is the same wherever it is applied, and has the same result as
in a catalog that stands outside; no command that was answered is missing at the end; nodes that are equally far hold
the same bytes, and so does what their broker has made of them.

In two of four seeds (`DAMAGING`) one broker at a time loses its journal, or a bit or the end of it, and all that is in
its log of partitions stays: it registers with another folder's id, hears the group without a vote, and the controller
gives its vote to the new id, as the broker's driver does (`voting.py`).

What a leader has put in its log goes out with its next tick, which comes soon (`core.A13`), as brokers have it; in one
of four seeds when a time is up.

These are not tried here: a rescue, brokers that join or leave for good, and damaged files of records.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pysyncobj.syncobj as library
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from broker.api.errors import LiftlogError
from broker.metadata.voting import VOTERS_MAX, next_change
from broker.raft import node as node_module
from broker.raft import snapshots
from broker.raft.core import Core
from broker.raft.node import BARRIER, CHANGE_VOTERS, RaftNode, configuration
from broker.raft.wire import Codec, guarded
from tests.sim.metadata import COMPARED_EVERY, Answered, Metadata, text_of
from tests.sim.raft.world import PATH, PIECE_BYTES, SimNode, connect_observers
from tests.sim.world import Violation
from tests.support.simdisk import SimDisk

if TYPE_CHECKING:
    from tests.sim.driven.node import Broker

TICK_MS = 50
SOON_MS = 3
"""Until the tick of a node to which a command has come, mostly."""
WATCH_MS = 50
FORM_MS_MAX = 30_000
VOTES_MS = 500
CLUSTER = "sim"
DAMAGING = (2, 3)
"""In these of four seeds journals are damaged. Ids are as the broker's own then, so that votes can be told by them."""


class Peer(Transport):  # type: ignore[misc]
    """A broker's end of the links."""

    def __init__(self, core: Core, me: Node | None, others: Any) -> None:
        super().__init__(core, me, others)
        assert Seat.current is not None
        self.seat = Seat.current

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self.seat.plane.post(self.seat, str(node.id), Codec.dumps(message))
        return True


GuardedPeer = guarded(Peer)


class Watched(RaftNode):
    """Tells what it applies, before anybody hears of the result."""

    seat: Seat

    def _apply(self, command: Mapping[str, Any]) -> Any:
        result = super()._apply(command)
        assert Seat.current is not None
        if command.get("kind") != BARRIER:
            Seat.current.plane.applied_at(self.core.raftLastApplied + 1, Seat.current, command, result)
        return result


class Seat:
    """One broker's node and journal. `node`: None: its process does not run."""

    current: Seat | None = None

    def __init__(self, plane: RaftPlane, name: str) -> None:
        self.plane = plane
        self.name = name
        self.node_id = f"{name}{'.' * plane.damages}1@{name}"
        self.disk = SimDisk(seed=plane.world.rng.randrange(1 << 30))
        self.disk.makedirs("/raft")
        self.node: RaftNode | None = None
        self.lives = 0
        self.is_woken = False

    @property
    def now_s(self) -> float:
        """Its broker's monotonic clock."""
        broker = self.plane.brokers.get(self.name)
        return 1_000.0 + (self.plane.world.now_ms if broker is None else broker.clock.now_ms) / 1_000

    def do(self, act: Callable[[], Any]) -> Any:
        """With pysyncobj's clock and luck being those of this seat. What is due then has a tick soon."""
        before, Seat.current = Seat.current, self
        try:
            return act()
        finally:
            Seat.current = before
            if before is not self and self.node is not None and self.node.core._is_due:
                self.plane.wake(self)

    def start(self) -> None:
        self.lives += 1
        self.is_woken = False
        self.do(self._open)

    def _open(self) -> None:
        journal, is_sound = node_module.open_journal(
            self.disk, PATH, new_id=lambda: f"{self.name}.{self.lives}@{self.name}", cluster_id=CLUSTER
        )
        self.node_id = journal.base.node_id
        if not is_sound:
            if self.plane.damaged != self.name:
                raise Violation(f"R8: {self.name} has lost its Raft journal, and no fault did that")
            self.plane.world.note(self.name, f"has lost its Raft journal, and is {self.node_id} from now on")
        self.node = Watched(
            journal,
            transport=GuardedPeer,
            node=SimNode,
            conf=configuration(
                appendEntriesUseBatch=self.plane.is_timed, logCompactionMinEntries=12, logCompactionMinTime=40
            ),
            clock=lambda: self.now_s,
            life=f"{self.name}{self.lives}",
            seeds=tuple(each.node_id for each in self.plane.seats.values() if each is not self),
            on_applied=lambda _: self.plane.applied_by(self),
        )

    def stop(self, mode: str) -> None:
        seed = self.plane.world.rng.randrange(1 << 30)
        self.disk = self.disk.after_kill() if mode == "kill" else self.disk.after_crash(mode, seed=seed)  # type: ignore[arg-type]
        self.node = None

    def tick(self) -> None:
        node = self.node
        if node is not None:
            self.do(lambda: self._tick(node))

    def _tick(self, node: RaftNode) -> None:
        for other in sorted(node.core.otherNodes, key=lambda each: str(each.id)):
            if not node.core.isNodeConnected(other):
                node.core._SyncObj__transport._onNodeConnected(other)
        if self.plane.damages:
            others = [each.node for each in self.plane.seats.values() if each is not self]
            connect_observers(node, [each for each in others if each is not None])
        node.tick()

    def take(self, source: str, target: str, data: bytes) -> None:
        node, sender = self.node, SimNode(source)
        if node is None or target.rpartition("/")[2] != node.node_id:
            return
        if sender not in node.core.otherNodes:
            sender = SimNode(f"observer/{source}")
        if sender in node.core.otherNodes or sender in node.core.readonlyNodes:
            message = Codec.loads(data)
            self.do(lambda: node.core._SyncObj__transport._onMessageReceived(sender, message))


class RaftPlane(Metadata):
    """See the module. The list of what is committed grows when the first node applies it.

    Attributes:
        damaged: The broker whose journal was, until its new id has a vote everywhere.
    """

    seats: dict[str, Seat]
    damaged: str | None = None

    def form(self, names: Sequence[str], commands: Sequence[Mapping[str, Any]]) -> None:
        """Let a group of all brokers elect, and carry these out; then all of them stop."""
        self._indexes: list[int] = []
        self._asked = 0
        self._answered_ok: dict[str, Any] = {}
        self._free_ms: dict[tuple[str, str], float] = {}
        self.seats = {name: Seat(self, name) for name in names}
        ids = tuple(seat.node_id for seat in self.seats.values())
        for seat in self.seats.values():
            node_module.form(seat.disk, PATH, node_id=seat.node_id, voters=ids, cluster_id=CLUSTER).close()
            seat.start()
            self._tick_alone(seat)
        for command in commands:
            self._carry_out_first(dict(command))
        self._until(lambda: {self._applied(seat) for seat in self.seats.values()} == {len(self.log)})
        for seat in self.seats.values():
            seat.stop("kill")
        self.controller = None

    def _tick_alone(self, seat: Seat) -> None:
        if seat.name not in self.brokers and seat.node is not None:
            seat.tick()
            self.world.after(TICK_MS, self._tick_alone, seat)

    def _until(self, is_done: Callable[[], bool]) -> None:
        end_ms = self.world.now_ms + FORM_MS_MAX
        while not is_done():
            assert self.world.now_ms < end_ms, "the cluster does not form"
            self.world.run(self.world.now_ms + 10)

    def _carry_out_first(self, command: dict[str, Any]) -> None:
        told: list[dict[str, Any]] = []
        asked_ms = -1e9

        def is_done() -> bool:
            nonlocal asked_ms
            if self.controller is not None and self.world.now_ms - asked_ms > 6_000:
                asked_ms = self.world.now_ms
                self.submit(self.controller, command, lambda result, _: told.append(result))
            return any("ok" in result for result in told)

        self._until(is_done)

    # -- links

    def post(self, seat: Seat, target_id: str, data: bytes) -> None:
        """In order, as by TCP; some are lost, as if the connection had been another one since."""
        world, network = self.world, self.network
        source, target, source_id = seat.name, target_id.rpartition("@")[2], seat.node_id
        weather = network.weather
        if (source, target) in network.cut or world.chance(weather.lost):
            world.saw("message of Raft lost")
            return
        delay = world.rng.expovariate(1 / weather.delay_ms)
        if world.chance(weather.late):
            delay += world.rng.uniform(0, weather.late_ms)
        if source in network.slow or target in network.slow:
            delay += world.rng.uniform(20, 400)
        at = max(world.now_ms + delay, self._free_ms.get((source, target), 0.0) + 0.01)
        self._free_ms[source, target] = at
        for again_ms in (0.0, world.rng.uniform(1, weather.kept_ms)) if world.chance(weather.kept) else (0.0,):
            world.after(at - world.now_ms + again_ms, self._arrives, source_id, target, target_id, data)

    def _arrives(self, source_id: str, target: str, target_id: str, data: bytes) -> None:
        broker = self.brokers.get(target)
        if broker is None:
            self.seats[target].take(source_id, target_id, data)
        elif broker.process:
            broker._do(broker.process, self.seats[target].take, (source_id, target_id, data))

    # -- a broker's part

    def begun(self, broker: Broker) -> tuple[int, str]:
        seat = self.seats[broker.name]
        seat.start()
        if self._applied(seat):
            self.world.saw("catalog restored from a snapshot")
        broker.after(TICK_MS * self.world.rng.random(), self._tick, broker)
        if self.damages:
            broker.after(VOTES_MS, self._look_at_votes, broker)
        assert seat.node is not None
        return self._applied(seat), text_of(seat.node.catalog)

    def wake(self, seat: Seat) -> None:
        """As the thread of a broker is woken."""
        if not seat.is_woken:
            seat.is_woken = True
            broker, soon_ms = self.brokers.get(seat.name), self.world.rng.expovariate(1 / SOON_MS)
            if broker is None:
                self.world.after(soon_ms, self._woken, seat)
            elif broker.process:
                broker.after(soon_ms, self._woken, seat)

    def _woken(self, seat: Seat) -> None:
        seat.is_woken = False
        if seat.name in self.brokers:
            self._look_after(self.brokers[seat.name])
        else:
            seat.tick()

    def _tick(self, broker: Broker) -> None:
        broker.after(TICK_MS, self._tick, broker)
        self._look_after(broker)

    def _look_after(self, broker: Broker) -> None:
        try:
            self.seats[broker.name].tick()
        except LiftlogError as error:
            broker.note(f"the Raft journal has failed: {error}")
            broker.exits()

    def _look_at_votes(self, broker: Broker) -> None:
        """The controller changes them, one at a time."""
        seat = self.seats[broker.name]
        node = seat.node
        if node is not None and node.has_begun:
            change = next_change(node.catalog.cluster, node.voters(), node.node_id)
            if change is not None:
                self.world.saw(f"vote: {change[0]}")
                self.world.note("catalog", f"{broker.name} asks for a change of votes: {change[0]} {change[1]}")
                command = {"kind": CHANGE_VOTERS, "change": change[0], "node_id": change[1]}
                seat.do(lambda: node.lead(command, lambda _: None))
        broker.after(VOTES_MS, self._look_at_votes, broker)

    def folder_of(self, broker: Broker) -> str:
        return self.seats[broker.name].node_id

    @property
    def is_whole(self) -> bool:  # type: ignore[override]
        """Whether all that have a vote have it under their present id, as many as may, and all brokers agree on it."""
        ids = {seat.node_id for seat in self.seats.values()}
        nodes = [seat.node for seat in self.seats.values() if seat.node is not None]
        votes = {frozenset(node.voters()) for node in nodes}
        if len(nodes) < len(ids) or len(votes) > 1:
            return False
        [voters] = votes
        return voters <= ids and len(voters) >= min(len(ids) - (len(ids) % 2 == 0), VOTERS_MAX)

    def damage(self, name: str, how: str = "") -> None:
        """`how`: `flip`, `cut` or `all`; else one of them."""
        seat, rng = self.seats[name], self.world.rng
        inode, how = seat.disk.names[PATH], how or rng.choice(("flip", "cut", "all"))
        size = len(inode.content)
        if how == "flip":
            seat.disk.flip(
                PATH, rng.choice((rng.randrange(size), rng.randrange(min(200, size)))) * 8 + rng.randrange(8)
            )
        elif how == "cut":
            end = rng.choice((0, rng.randrange(size)))
            for content in (inode.content, inode.durable):
                del content[end:]
            inode.pending.clear()
        else:
            seat.disk.remove_tree("/raft")
            seat.disk.makedirs("/raft")
        self.world.note(name, f"its Raft journal is damaged ({how}, of {size} bytes)")
        self.damaged = name
        self.world.saw("journal damaged")

    def why(self) -> str:
        return "" if not self.damages or self.is_whole else f"{self.damaged or 'somebody'} has no vote"

    def ended(self, broker: Broker, mode: str) -> None:
        self.seats[broker.name].stop(mode)

    def _applied(self, seat: Seat) -> int:
        """So many commands are in its catalog."""
        return 0 if seat.node is None else bisect_right(self._indexes, seat.node.core.raftLastApplied)

    def reaches(self, broker: str) -> bool:
        return self.seats[broker].node is not None

    def known_to(self, broker: str) -> int:
        return self._applied(self.seats[broker])

    def heard(self, broker: str) -> tuple[int, str | None] | None:
        node = self.seats[broker].node
        if node is None:
            return None
        leader = node.controller
        return node.term, None if leader is None else leader.rpartition("@")[2]

    def may_control(self, broker: Broker, known: tuple[int, str | None]) -> bool:
        node = self.seats[broker.name].node
        return (
            node is not None
            and node.has_begun
            and known == (node.term, broker.name)
            and broker.applied == self._applied(self.seats[broker.name])
        )

    # -- commands

    def submit(self, broker: str, command: Mapping[str, Any], answered: Answered | None = None) -> None:
        seat = self.seats.get(broker)
        if seat is None or seat.node is None:
            return
        node, whole = seat.node, self._numbered(command)
        if command["kind"] == self.depose_at and self.controller is not None:
            self.depose_at = ""
            self.world.note("catalog", f"somebody else stands for election, {command['kind']} is under way")
            self.world.after(self.world.rng.uniform(0, 20), self.depose)
        seat.do(lambda: node.submit(whole, lambda result: self._told(whole, result, answered)))

    def submit_own(self, term: int, broker: str, command: Mapping[str, Any], answered: Answered) -> None:
        seat = self.seats[broker]
        if seat.node is None or seat.node.term != term or not seat.node.is_controller:
            self.world.saw("command of a controller that is none any more")
            return
        node, whole = seat.node, self._numbered(command)
        seat.do(lambda: node.lead(whole, lambda result: self._told(whole, result, answered)))

    def _numbered(self, command: Mapping[str, Any]) -> dict[str, Any]:
        self._asked += 1
        return {"v": 1, "request_id": f"asked {self._asked}", **command}

    def _told(self, command: Mapping[str, Any], result: Any, answered: Answered | None) -> None:
        if not isinstance(result, dict):
            self.world.saw("command without an answer")
            return  # it is not known what becomes of it
        if "ok" in result:
            self._answered_ok[command["request_id"]] = result
        else:
            self.world.saw("command refused")
        if answered is not None:
            answered(result, len(self.log))

    def applied_at(self, index: int, seat: Seat, command: Mapping[str, Any], result: Any) -> None:
        """A node applies what stands at an index."""
        at = bisect_right(self._indexes, index) - 1
        if not self._indexes or self._indexes[at] < index:
            if at + 1 < len(self._indexes):
                raise Violation(f"R8: {seat.name} applies {command} at {index}, others nothing")
            self._indexes.append(index)
            self.carry_out(command)
            at += 1
        known, told = self.log[at]
        if (known, told) != (dict(command), result):
            raise Violation(f"R8: {seat.name} applies {command} at {index}: {result}; others {known}: {told}")

    def applied_by(self, seat: Seat) -> None:
        """Its broker learns of it a little later."""
        broker = self.brokers.get(seat.name)
        if broker is not None and broker.process:
            late_ms = self.world.rng.uniform(0, 700) if self.world.chance(0.05) else 0
            broker.after(self.world.rng.expovariate(1 / 5) + late_ms, self._learn, broker)

    def _learn(self, broker: Broker) -> None:
        broker.learn(self._applied(self.seats[broker.name]))

    def compare(self, broker: Broker, result: dict[str, Any]) -> None:
        super().compare(broker, result)
        seat = self.seats[broker.name]
        if broker.applied % COMPARED_EVERY == 0 and broker.applied == self._applied(seat) and seat.node is not None:
            self._same(seat, text_of(broker.catalog), "its broker")

    def _same(self, seat: Seat, text: str, whose: str) -> None:
        self.world.saw("catalogs compared")
        if seat.node is not None and text_of(seat.node.catalog) != text:
            raise Violation(f"R8: the node of {seat.name} has another catalog than {whose}")

    def all_is_well(self) -> None:
        """At the end: no command that was answered is missing, and all that are equally far have the same catalog."""
        has = {command.get("request_id"): result for command, result in self.log}
        for request_id, result in self._answered_ok.items():
            if has.get(request_id) != result:
                raise Violation(f"R8: {request_id} was answered {result}, and stands there as {has.get(request_id)}")
        text = text_of(self.catalog)
        for seat in self.seats.values():
            if self._applied(seat) == len(self.log):
                self._same(seat, text, "one that has applied the same")

    # -- the controllership

    def depose(self) -> None:
        """Another one stands for election at once."""
        able = [seat for name, seat in self.seats.items() if name != self.controller and seat.node is not None]
        if able and self.brokers:
            node = self.world.rng.choice(able).node
            assert node is not None
            node.core._SyncObj__raftElectionDeadline = 0

    def _round(self) -> None:
        """Find the leader of the newest term, as it takes itself for it."""
        self.world.after(WATCH_MS, self._round)
        leads = [
            (seat.node.term, name)
            for name, seat in getattr(self, "seats", {}).items()
            if seat.node is not None and seat.node.is_controller
        ]
        if not leads:
            self.controller = None
        elif max(leads) != (self.term, self.controller):
            self.term, self.controller = max(leads)
            self.began_at = len(self.log)
            self.world.saw("controller")
            self.world.note("catalog", f"{self.controller} is elected for term {self.term}")


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """pysyncobj's clock and luck are those of the seat that it runs on."""

    def now() -> float:
        return Seat.current.now_s if Seat.current is not None else 1_000.0

    class Fortune:
        @staticmethod
        def random() -> float:
            return Seat.current.plane.world.rng.random() if Seat.current is not None else 0.5

    pieces = patch.object(snapshots, "PIECE_BYTES", PIECE_BYTES)
    no_pipe = patch.object(library, "PIPE_NOTIFIER_ENABLED", False)  # nobody waits in a poller here
    with pieces, no_pipe, patch.object(library, "monotonicTime", now), patch.object(library, "random", Fortune):
        yield
