"""A NATS server of a driven cluster, and the real intake of each broker over it: captures, parser, flush, answers.

    publisher ─► server ─► each connection with a subscription ─► bytes, cut anywhere ─► the real parser ─► flush ─► log
              ◄─ server ◄─ acks ◄─────────────────────────────────────────────────────────────────────────────┘

A connection keeps the order of what goes over it, both ways, and is never lost while its process runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from broker.api.errors import LiftlogError
from broker.ingest import PendingBatch
from broker.metadata.catalog import StreamInfo
from broker.runtime.config.settings import Config
from broker.runtime.intake.driver import IntakeDriver
from broker.runtime.partitions.leader import Partition
from broker.runtime.partitions.replicated import Bookkeeping, ReplicatedPartition
from broker.runtime.partitions.sync import Outcome
from broker.storage.log import AppendResult
from tests.sim.driven.loop import SteppedLoop
from tests.sim.metadata import name_of
from tests.unit.ingest.wire import answers_in, hmsg

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.driven.running import Process
    from tests.sim.driven.seen import Seen

DELAY_MS: Final = 1.0
CUT: Final = 0.4
"""So likely a connection brings a part of what there is; the rest comes so much later."""
REST_MS: Final = (1.0, 30.0, 100.0)
SORTED_LATE_MS: Final = 1_500
"""So long after the first one messages may come that were sorted by a former number of partitions."""
DRAIN_S: Final = 2.0


class Server:
    """See the module. `values`: of each message, by the subject of its reply."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.clients: list[Client] = []
        self.values: dict[bytes, bytes] = {}
        self._publishers: dict[bytes, Callable[[bytes, bytes], None]] = {}
        self._replies = 0

    def publish(self, subject: str, value: bytes, answered: Callable[[bytes, bytes], None]) -> None:
        """A message with its value for an id. `answered`: may be called with the value and the body of an ack."""
        self._replies += 1
        reply = b"_INBOX.%d" % self._replies
        self.values[reply] = value
        self._publishers[reply] = answered
        self.world.after(self._delay_ms(), self._route, subject, value, reply)

    def answer(self, reply: bytes, body: bytes) -> None:
        """A broker has answered."""
        self.world.after(self._delay_ms(), self._publishers[reply], self.values[reply], body)

    def _route(self, subject: str, value: bytes, reply: bytes) -> None:
        self.clients = [client for client in self.clients if not client.process.is_gone]
        for client in self.clients:
            for sid, of in client.subscribed.items():
                if subject.startswith(of.removesuffix(">")):
                    client.deliver(hmsg(subject, value, ("Nats-Msg-Id", value.decode()), reply=reply, sid=sid))

    def _delay_ms(self) -> float:
        return self.world.rng.expovariate(1 / DELAY_MS)


class Client:
    """The connection of one process, as `IntakeDriver` uses a client of nats-py.

    Attributes:
        subscribed: As the server has it.
    """

    is_connected = True

    def __init__(self, process: Process, server: Server, take: Callable[[bytes], None]) -> None:
        self.process = process
        self.subscribed: dict[int, str] = {}
        self._server = server
        self._take = take
        self._sid = 0
        self._subs: dict[int, Any] = {}
        self._transport = SimpleNamespace(write=self._write)
        self._sent: deque[bytes | Future[None]] = deque()  # by the server
        self._last_ms = 0.0
        self._is_moving = False
        server.clients.append(self)

    # -- as of nats-py

    async def subscribe(self, subject: str, queue: str = "") -> Any:
        self._sid += 1
        sid = self._sid

        async def unsubscribe() -> None:
            self._subs.pop(sid, None)
            self._tell(lambda: self.subscribed.pop(sid, None))

        made = self._subs[sid] = SimpleNamespace(_id=sid, unsubscribe=unsubscribe)
        self._tell(lambda: self.subscribed.__setitem__(sid, subject))
        return made

    async def close(self) -> None:
        self.is_connected = False
        self.subscribed = {}

    def _write(self, blob: bytes) -> None:
        for reply, body in answers_in(blob):
            self._server.answer(reply, body)

    # -- the rest

    async def answered(self, loop: SteppedLoop) -> None:
        """A PING was answered: all that the server had sent before is taken in."""
        pong = loop.create_future()

        def ping() -> None:
            self._sent.append(cast(Any, pong))
            self._move()

        self._tell(ping)
        await pong

    def deliver(self, data: bytes) -> None:
        """The server sends something."""
        self._sent.append(data)
        self._move()

    def _tell(self, act: Callable[[], object]) -> None:
        """The server hears of it, in order."""
        world = self._server.world
        self._last_ms = max(self._last_ms, world.now_ms + world.rng.expovariate(1 / DELAY_MS))
        world.after(self._last_ms - world.now_ms, self._heard, act)

    def _heard(self, act: Callable[[], object]) -> None:
        if not self.process.is_gone:
            act()

    def _move(self, mean_ms: float = DELAY_MS) -> None:
        if not self._is_moving and not self.process.is_gone:
            self._is_moving = True
            self.process.later(mean_ms, self._arrive)

    def _arrive(self) -> None:
        """On the intake thread: some of what the server has sent."""
        self._is_moving = False
        rng, data, rest_ms = self._server.world.rng, b"", DELAY_MS
        while self._sent and isinstance(self._sent[0], bytes):
            data += cast(bytes, self._sent.popleft())
        if len(data) > 1 and self._server.world.chance(CUT):
            at = rng.randrange(1, len(data))
            self._sent.appendleft(data[at:])
            data, rest_ms = data[:at], rng.choice(REST_MS)
        if data:
            self._take(data)
        elif self._sent:
            cast(Any, self._sent.popleft()).set_result(None)
        if self._sent:
            self._move(rest_ms)


class SteppedIntake(IntakeDriver):
    """The intake of one process."""

    def __init__(self, process: Process, server: Server) -> None:
        self._process = process
        self._stepped = SteppedLoop(process)
        super().__init__(Config(), process.broker.syncs, loop=self._stepped)
        self._server = server
        self._nats = Client(process, server, lambda data: self._stepped.call_soon(self._read, data))
        self._client = cast(Any, self._nats)
        self._main = cast(Any, SimpleNamespace(cancel=lambda: None))
        self.state = "connected"

    def begin(self, info: StreamInfo, partition: Partition) -> Future[None]:
        if "append_now" not in partition.__dict__:
            partition.append_now = Watched(self._process, self._server, cast(ReplicatedPartition, partition))  # type: ignore[method-assign]
        return super().begin(info, partition)

    def drain(self) -> None:
        """On a fiber: as `stop`."""
        done = self._call(self._drain(DRAIN_S))
        while not done.done():
            self._process.pause(5)

    async def _until_answered(self, client: Any) -> None:
        await self._nats.answered(self._stepped)

    def _read(self, data: bytes) -> None:
        self._intake.feed(data, self._process.broker.wall_us)
        self._after_feed(len(data))


class Watched:
    """`append_now` of a partition as intake calls it: what it is told is what the checker hears."""

    def __init__(self, process: Process, server: Server, partition: ReplicatedPartition) -> None:
        self._process = process
        self._server = server
        self._partition = partition
        self._stale_ms: float | None = None  # since when nothing was taken, as it was sorted by another number

    def __call__(self, batches: Sequence[PendingBatch], on_durable: Any, *, sorted_by: int = 0, **options: Any) -> Any:
        partition, broker = self._partition, self._process.broker
        seen = cast("Seen", broker.replicas.get(name_of((partition.incarnation, partition.partition))))
        [pending] = batches
        changes, waiting, key = broker.cluster.changes, self._process.waiting, object()
        assert changes is not None

        def told(result: AppendResult, outcome: Outcome) -> None:
            if waiting.pop(key, None) is None:
                broker.cluster.checker.fail(f"TOLD: {seen.name}: {broker.name} tells intake twice: {outcome}")
            if isinstance(outcome, int):
                self._acked(seen, pending, result, sorted_by)
            on_durable(result, outcome)

        is_told = type(on_durable) is not Bookkeeping
        if is_told:
            waiting[key] = seen.name
        try:
            result = ReplicatedPartition.append_now(
                partition, batches, told if is_told else on_durable, sorted_by=sorted_by, **options
            )
        except LiftlogError as error:
            waiting.pop(key, None)
            changes.refused(seen, error)
            self._look_whether_sorted(seen, sorted_by)
            raise
        self._stale_ms = None
        changes.took(seen, partition, sorted_by)
        return result

    def _look_whether_sorted(self, seen: Seen, sorted_by: int) -> None:
        """What was half read, or had gathered, may be sorted by a former number. Then no more comes of that."""
        world, partition = self._server.world, self._partition
        if not partition.serves or sorted_by == partition.settings.partitions:
            return
        self._stale_ms = world.now_ms if self._stale_ms is None else self._stale_ms
        if world.now_ms - self._stale_ms > SORTED_LATE_MS:
            text = f"HOLDS: {seen.name}: {seen.broker.name} sorts by {sorted_by} partitions still"
            seen.checker.fail(f"{text}, and goes by {partition.settings.partitions}")

    def _acked(self, seen: Seen, pending: PendingBatch, result: AppendResult, sorted_by: int) -> None:
        seen.is_acked(sorted_by)
        self._server.world.saw("acked over NATS")
        if not seen.is_of_before:
            seen.look()
            seen.checker.acked_each(seen, seen.offsets_of(pending.acks(result.first_offset), self._server.values))
