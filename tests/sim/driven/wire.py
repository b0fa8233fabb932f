"""Streams between brokers: `wiring.Wiring` of one process. The link's own code asks, answers and keeps the rules of a
stream (`Connection`, `Server`, `Following`, `Answering`, the codec). Simulated are connecting and what carries bytes.

    follower ─ questions ─► pipe ─► leader
             ◄─ pipe ─ answers, heartbeats ─

A pipe loses nothing and keeps the order, as TCP does. While its link is cut it holds everything up. A stream ends with
one of both processes, by what the link decides, or by luck; the other side learns of it when a packet can come through.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from broker.link.answering import Answering, FollowerSlot
from broker.link.codec import HEARTBEAT, Answered, LinkFrame, Question, decode, encode
from broker.link.connection import Connection, LeaderStream, TakeRange
from broker.link.directory import Directory
from broker.link.following import Following
from broker.link.handshake import Refused
from broker.link.outbox import Outbox
from broker.link.pace import Pace
from broker.link.server import FollowerStream, Server
from broker.metadata.partition import Place
from broker.node.partitions.partition import Partition
from broker.replication.messages import AskRange, Incarnation
from tests.sim.driven.running import FiberWaits
from tests.sim.metadata import name_of

if TYPE_CHECKING:
    from tests.sim.driven.node import Broker
    from tests.sim.driven.running import Process

HELD_MS = 20
CLOSED_LATE_MS = 4_000
"""A leader whose follower is gone, and cannot say so, notices by then (`KEEPALIVE_MS`)."""
HEARTBEAT_MS = 250
IN_FLIGHT = 4
GARBLED = 0.15
"""So likely the records of a range that another broker asks for are not what was read."""
BYTES_MAX = 3_000
WAIT_S = 0.2
T = TypeVar("T")


class Pipe:
    """One direction of a stream. `deliver` is called in the process that it leads to. `may_wait`: on a fiber."""

    def __init__(
        self,
        source: Broker,
        target: Broker,
        deliver: Callable[[LinkFrame], None],
        *,
        may_wait: bool = False,
    ) -> None:
        self.source, self.target = source, target
        self._deliver, self._may_wait = deliver, may_wait
        self._process = target.process
        self._queue: deque[tuple[float, LinkFrame]] = deque()
        self._last_ms = 0.0
        self.is_over = self._is_busy = False

    def __len__(self) -> int:
        return len(self._queue)

    def send(self, data: LinkFrame) -> None:
        world, network = self.source.world, self.source.cluster.network
        delay_ms = world.rng.expovariate(1 / network.weather.delay_ms)
        if world.chance(network.weather.late):
            delay_ms += world.rng.uniform(0, network.weather.late_ms)
        if self.source.name in network.slow or self.target.name in network.slow:
            delay_ms += world.rng.uniform(20, 400)
        self._last_ms = max(self._last_ms, world.now_ms + delay_ms)
        self._queue.append((self._last_ms, data))
        if len(self._queue) == 1 and not self._is_busy:
            world.after(delay_ms, self._move)

    def _move(self) -> None:
        world, target = self.source.world, self.target
        if self.is_over or target.process != self._process or self._is_busy:
            return
        if (self.source.name, target.name) in self.source.cluster.network.cut:
            world.after(HELD_MS, self._move)
        elif not target.is_running:
            world.after(target.paused_until_ms - world.now_ms + 0.01, self._move)
        else:
            _, data = self._queue.popleft()
            if self._may_wait:
                target.guard(target.work.run, lambda: self._read(data))
            else:
                target.guard(self._read, data)

    def _read(self, data: LinkFrame) -> None:
        """On the reader's thread."""
        self._is_busy = True
        try:
            self._deliver(data)
        finally:
            self._is_busy, world = False, self.source.world
            if self._queue:
                world.after(max(0.0, self._queue[0][0] - world.now_ms), self._move)


class PumpedOutbox(Outbox[T]):
    """Has whoever sends from it called when there may be something."""

    def __init__(self, process: Process, pump: Callable[[], None]) -> None:
        super().__init__(process.broker.now_s)
        self._process = process
        self._pump = pump

    def ready(self, source: T) -> None:
        super().ready(source)
        self._process.later(0.1, self._pump)

    def later(self, source: T, at_s: float) -> None:
        super().later(source, at_s)
        left_ms = max(0.0, at_s - self._process.broker.now_s()) * 1_000 / self._process.broker.clock.rate
        self._process.broker.after(left_ms + 0.01, self._pump)


class Link:
    """One stream, both of its ends."""

    def __init__(self, asker: AskingConnection, process: Process, leads: Wire) -> None:
        self.asker, self.leads = asker, leads
        self.here, self.there = process, leads.process
        here, there = process.broker, leads.process.broker
        entry, own = asker.directory.entry(asker.to), asker.directory.own
        assert entry is not None
        assert own is not None
        self.stream = LeaderStream(entry, own, here.now_s, self._ended_here)
        self.stream.outbox = PumpedOutbox(process, self._ask)
        self.follower = FollowerStream(own, there.now_s)
        self.follower.outbox = PumpedOutbox(leads.process, self._answer)
        self._questions = Pipe(here, there, self._asked, may_wait=True)
        self._answers = Pipe(there, here, self._answered)
        self._is_over_here = self._is_over_there = self._is_sending = False

    def begin(self) -> None:
        """It is let in."""
        self.leads.server.let_in(self.follower)
        self.leads.links.append(self)
        self.here.broker.after(0, self._begun)

    def _begun(self) -> None:
        if not self._is_over_here:
            self.asker.welcomed(self.stream, answers_ranges=True)

    # -- the follower's side

    def _ask(self) -> None:
        while not self._is_over_here and (key := self.stream.outbox.next(0)) is not None:
            if (data := self.asker.question_of(self.stream, key)) is not None:
                self._questions.send(data)

    def _answered(self, data: LinkFrame) -> None:
        if not self._is_over_here:
            try:
                self.asker.receive(self.stream, data)
            except Refused:
                self.stream.end()

    def _ended_here(self) -> None:
        """This side ends it."""
        if self._is_over_here:
            return
        self._is_over_here = self._answers.is_over = True
        self.asker.over(self.stream)
        world, there = self.here.broker.world, self.there.broker
        reaches = self.here.broker.cluster.network.connects(self.here.broker.name, there.name)
        world.after(5 if reaches else CLOSED_LATE_MS, self._end_there)

    # -- the leader's side

    def _asked(self, data: LinkFrame) -> None:
        if self._is_over_there:
            return
        try:
            self.leads.server.take(self.follower, data)
        except Refused as error:
            self.follower.end(error.status, str(error))
        self.look()

    def _answer(self) -> None:
        if not self._is_sending:
            self.there.run(self._send)

    def _send(self) -> None:
        """On the sender's thread."""
        self._is_sending = True
        try:
            while not (self._is_over_there or self.follower.is_over):
                if len(self._answers) >= IN_FLIGHT:
                    self.there.later(2, self._answer)
                    return
                slot: FollowerSlot | None = self.follower.outbox.next(0)
                if slot is None:
                    return
                for data in slot.answering.compose(slot):
                    self._answers.send(data)
        finally:
            self._is_sending = False

    def beat(self) -> None:
        """Nothing else may have been said for a while."""
        if not self._is_over_there and not len(self._answers):
            self._answers.send(HEARTBEAT)
        self.look()

    def look(self) -> None:
        """The leader's side may have ended it."""
        if self.follower.is_over and not self._is_over_there:
            self._end_there()
            self.here.broker.world.after(5, self._end_here)

    def _end_there(self) -> None:
        if not self._is_over_there:
            self._is_over_there = self._questions.is_over = True
            if self in self.leads.links:
                self.leads.links.remove(self)
            if not self.there.is_gone:
                self.there.broker.guard(self.leads.server.over, self.follower)

    def _end_here(self) -> None:
        """The other side has ended it, or its process has."""
        if self._is_over_here or self.here.is_gone:
            return
        if self.here.broker.cluster.network.connects(self.here.broker.name, self.there.broker.name):
            self.here.broker.after(0, self.stream.end)
        else:  # its silence tells
            self.here.broker.world.after(HELD_MS, self._end_here)

    def process_gone(self) -> None:
        """Of either side."""
        if self.there.is_gone:
            self._is_over_there = self._questions.is_over = True
            self.here.broker.world.after(2, self._end_here)
        if self.here.is_gone:
            self._is_over_here = self._answers.is_over = True
            self.here.broker.world.after(5, self._end_there)


class SeenFollowing(Following):
    """To begin takes time. Nobody is at its log when it has been closed."""

    process: Process

    def follow(self, epoch: int, leader: str, incarnation: Incarnation) -> None:
        self.process.preempt()
        super().follow(epoch, leader, incarnation)
        self.process.preempt()

    def close(self) -> None:
        if self._is_syncing:
            self.process.broker.world.saw("closed beside an fsync")
        super().close()
        if self._is_syncing:
            self.process.broker.cluster.checker.fail(f"CLOSED: {self}: somebody syncs its log")


class PausedAnswering(Answering):
    """To look into the log takes time, on the threads of a stream. Nobody does when it has been closed."""

    process: Process
    _is_garbled = False

    def _ask(self, slot: FollowerSlot, question: Question) -> None:
        self.process.preempt()
        super()._ask(slot, question)
        self.process.preempt()

    def _read(self, offset: int, is_repeat: bool) -> bytes:
        self.process.preempt(self.process.broker.sync_ms / 8)
        return super()._read(offset, is_repeat)

    def _range(self, ask: AskRange, noted: int) -> LinkFrame:
        self.process.preempt()
        said = decode(super()._range(ask, noted))
        assert isinstance(said, Answered)
        world, data = self.process.broker.world, bytearray(said.data)
        self._is_garbled = bool(data) and not self._is_garbled and world.chance(GARBLED)  # never twice in a row
        if self._is_garbled:
            world.saw("range garbled")
            bit = world.rng.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
        return encode(said._replace(data=bytes(data)))

    def close(self) -> None:
        if self._reading:
            self.process.broker.world.saw("closed beside an answer")
        super().close()
        if self._reading:
            self.process.broker.cluster.checker.fail(f"CLOSED: {self._partition}: somebody reads its log")


class AskingConnection(Connection):
    """The follower's side, without the thread that connects."""

    def __init__(self, wire: Wire, to: str) -> None:
        self._wire = wire
        self.directory = wire.directory
        self._is_trying = False
        self._pause_ms = 50.0
        super().__init__(
            to, wire.directory, cluster_id="c", key=b"", counts=wire.counts, now_s=wire.process.broker.now_s
        )

    def start(self) -> None:
        """No thread."""

    def add(self, at: Place, asker: Any) -> None:
        super().add(at, asker)
        self._try()

    def ask_range(self, at: Place, question: AskRange, take: TakeRange) -> bool:
        found = super().ask_range(at, question, take)
        self._try()
        return found

    def look(self) -> None:
        super().look()
        self._pause_ms = 50.0

    def _try(self) -> None:
        if self._stream is None and not self._is_trying:
            self._is_trying = True
            self._wire.process.later(1, self._connect)

    def _connect(self) -> None:
        self._is_trying = False
        process, to = self._wire.process, self._wire.process.broker.cluster.brokers[self.to]
        if self._stream is not None or not (self._askers or self._takers):
            return
        there = to.wire
        own, network = self.directory.own, process.broker.cluster.network
        is_known = own is not None and self.directory.entry(self.to) is not None
        if own is not None and is_known and network.connects(process.broker.name, to.name):
            if to.process == 0 or there is None:
                self.tell_unreachable()
            elif to.is_running and there.directory.registration_of(own.broker_id) == own.registration:
                self._stream = (link := Link(self, process, there)).stream
                process.broker.cluster.links.append(link)
                process.broker.world.after(2 * network.weather.delay_ms, self._let_in, link)
                return
        self._again()

    def _let_in(self, link: Link) -> None:
        there, process = link.leads.process, self._wire.process
        if there.is_gone or process.is_gone or self._stream is not link.stream:
            link.process_gone()
        elif there.broker.is_running:
            there.broker.guard(link.begin)
        else:
            there.broker.world.after(50, self._let_in, link)

    def _again(self) -> None:
        if not self._is_trying and (self._askers or self._takers):
            self._is_trying = True
            self._wire.process.broker.after(self._pause_ms, self._connect)
            self._pause_ms = min(1_000.0, 2 * self._pause_ms)

    def over(self, stream: LeaderStream) -> None:
        """It has ended: another one is tried."""
        if self._stream is stream:
            self._stream = None
            self._again()


class Wire:
    """See the module. `links`: those whose leader's side is here."""

    def __init__(self, process: Process, service: Any) -> None:
        self.process = process
        self.counts: Counter[str] = Counter()
        self.links: list[Link] = []
        broker = process.broker
        self._answering: dict[Place, Answering] = {}
        self._connections: dict[str, AskingConnection] = {}
        self._pace = Pace(64 << 20, broker.now_s)
        self.directory = Directory(service, broker.name, f"{process.number}")
        self.directory.subscribe(self._look)
        self.server = Server(
            self.directory, me=broker.name, cluster_id="c", key=b"", find=self._answering.get, now_s=broker.now_s
        )
        self._beat_ms = 0.0

    def follower(self, at: Place, partition: Partition, step_out: Callable[[str], None]) -> Following:
        broker = self.process.broker
        made = SeenFollowing(
            at,
            partition,
            me=broker.name,
            connect=self._connection,
            report=broker.report_silent,
            step_out=step_out,
            pool=broker.syncs,
            counts=self.counts,
            now_s=broker.now_s,
            waits=FiberWaits(self.process),
        )
        made.process = self.process
        return made

    def followers(self, at: Place, partition: Partition) -> Answering:
        def closed(made: Answering) -> None:
            if self._answering.get(at) is made:
                del self._answering[at]

        made = self._answering[at] = PausedAnswering(
            at,
            partition,
            bytes_max=BYTES_MAX,
            wait_s=WAIT_S,
            pace=self._pace,
            bulk=cast(Any, SimpleNamespace(has_room=lambda broker: False)),  # there is none here
            closed=closed,
            now_s=self.process.broker.now_s,
            waits=FiberWaits(self.process),
        )
        made.process = self.process
        self.server.opened(at)
        return made

    def ask_range(self, to: str, at: Place, question: AskRange, take: TakeRange) -> bool:
        seen = self.process.broker.replicas.get(name_of(at))
        if seen is not None:
            cast(Any, seen).asks(question)
        return self._connection(to).ask_range(at, question, take)

    def forget_range(self, to: str, at: Place) -> None:
        self._connection(to).forget_range(at)

    def _connection(self, to: str) -> AskingConnection:
        found = self._connections.get(to)
        if found is None:
            found = self._connections[to] = AskingConnection(self, to)
        return found

    def _look(self) -> None:
        for connection in list(self._connections.values()):
            connection.look()

    def tick(self) -> None:
        """Time passes."""
        now_s = self.process.broker.now_s()
        for connection in list(self._connections.values()):
            connection.check(now_s)
        if now_s * 1_000 - self._beat_ms >= HEARTBEAT_MS:
            self._beat_ms = now_s * 1_000
            for link in list(self.links):
                link.beat()
