"""A NATS server of a driven cluster, and connections to it. nats-py, the real one, is at their other end.

    publisher ─► server ─► each connection with a subscription ─► bytes, cut anywhere ─► asyncio's streams, nats-py
              ◄─ server ◄─ acks ◄───────────────────────────────────────────────────────────────────────────────┘

A connection keeps the order of what goes over it, both ways. It is lost every now and then, at a pace that the seed
chooses: what is on its way is gone then, acks too, and the broker notices at once or later. At times the server is away
altogether, or says that it closes a connection for good. What is published meanwhile is lost; who waits for an ack
publishes it again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import nats.aio.client

from tests.sim.driven.delivered import Delivered
from tests.sim.driven.loop import SteppedLoop
from tests.unit.ingest.wire import hmsg, msg

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.driven.running import Process

DELAY_MS: Final = 1.0
CUT: Final = 0.4
"""So likely a connection brings a part of what there is; the rest comes so much later."""
REST_MS: Final = (1.0, 30.0, 100.0)
LOSSES: Final = {"cut": 6.0, "away": 2.0, "close": 1.0}
"""A connection is lost; all are, and none can be made for a while; the server closes one for good."""
PACE_MS: Final = (600, 1_500, 5_000)
"""So often, about: one of these, by the seed."""
NOTICED_MS: Final = (0.5, 30.0, 700.0)
"""So much later a broker notices that a connection is lost."""
AWAY_MS: Final = (50, 400, 1_500)
LONG_MS: Final = 2_000
"""A connection that has lasted for so long has all subscriptions."""
INFO: Final = b'INFO {"server_id":"s","version":"2.12.1","headers":true,"max_payload":1048576}\r\n'


def _monotonic() -> float:
    """For nats-py: the time of a stepped loop, where one runs."""
    loop = asyncio._get_running_loop()
    return loop.time() if isinstance(loop, SteppedLoop) else time.monotonic()


nats.aio.client.time = SimpleNamespace(monotonic=_monotonic)  # type: ignore[attr-defined]


class Server:
    """See the module.

    Attributes:
        values: Of each message that is to be acknowledged, by the subject of its reply.
        delivered: What went to whom.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.links: list[Link] = []
        self.values: dict[bytes, bytes] = {}
        self.delivered = Delivered(self)
        self._publishers: dict[bytes, Callable[[bytes, bytes], None]] = {}
        self._replies = 0
        self._rng = random.Random(f"connections of {cluster.seed}")
        self._pace_ms = self._rng.choice(PACE_MS)
        self._back_ms = 0.0
        self._is_over = False
        self.world.after(self._rng.uniform(1_500, 4_000), self._next)

    def publish(self, subject: str, value: bytes, answered: Callable[[bytes, bytes], None] | None = None) -> None:
        """A message. `answered`: it has its value for an id, and this may be called with the value and the body of an
        ack; None: nobody waits, and it has no id.
        """
        reply = b""
        if answered is not None:
            self._replies += 1
            reply = b"_INBOX.%d" % self._replies
            self.values[reply] = value
            self._publishers[reply] = answered
        self.delivered.published.add(value)
        self.world.after(self._delay_ms(), self._route, subject, value, reply)

    def answer(self, reply: bytes, body: bytes) -> None:
        """A broker has answered."""
        self.world.after(self._delay_ms(), self._publishers[reply], self.values[reply], body)

    @property
    def is_away(self) -> bool:
        return self.world.now_ms < self._back_ms

    def accept(self, transport: Transport) -> Link:
        """A new connection. Raises ConnectionRefusedError: there is no server."""
        if self.is_away:
            self.world.saw("NATS connection refused")
            raise ConnectionRefusedError("nobody listens")
        link = Link(self, transport)
        self.links.append(link)
        link.send(INFO)
        return link

    def heal(self) -> None:
        """No more is lost."""
        self._is_over = True
        self._back_ms = 0.0

    def _route(self, subject: str, value: bytes, reply: bytes) -> None:
        if self.is_away:
            self.world.saw("message lost by NATS")
            return
        self.links = [link for link in self.links if not (link.is_over or link.process.is_gone)]
        for link in self.links:
            sids = [sid for sid, of in link.subscribed.items() if subject.startswith(of.removesuffix(">"))]
            if len(sids) > 1:
                who = link.process.broker.name
                self.cluster.checker.fail(f"ONCE: {who} is subscribed to {subject} more than once: {sids}")
            if not sids and self.world.now_ms - link.since_ms > LONG_MS:
                self.delivered.is_not_sent(link, subject)
            for sid in sids:
                self.delivered.sent(link, subject, value, reply)
                link.send(
                    hmsg(subject, value, ("Nats-Msg-Id", value.decode()), reply=reply, sid=sid)
                    if reply
                    else msg(subject, value, sid=sid)
                )

    def _delay_ms(self) -> float:
        return self.world.rng.expovariate(1 / DELAY_MS)

    # -- faults

    def _next(self) -> None:
        if self._is_over:
            return
        self.world.after(self._rng.expovariate(1 / self._pace_ms), self._next)
        links = [link for link in self.links if not (link.is_over or link.process.is_gone)]
        if not links:
            return
        [kind] = self._rng.choices(list(LOSSES), list(LOSSES.values()))
        self.world.saw(f"NATS: {kind}")
        match kind:
            case "cut":
                link = self._rng.choice(links)
                self.world.note("NATS", f"loses {link.process.broker.name}")
                link.lose(self._rng)
            case "away":
                self._back_ms = self.world.now_ms + self._rng.choice(AWAY_MS)
                self.world.note("NATS", f"is away until {self._back_ms / 1000:.3f}")
                for link in links:
                    link.lose(self._rng)
            case "close":
                link = self._rng.choice(links)
                self.world.note("NATS", f"closes the connection of {link.process.broker.name}")
                link.send(b"-ERR 'Maximum Connections Exceeded'\r\n")
                link.end()


class Link:
    """One connection, as the server has it.

    Attributes:
        subscribed: Subjects, by the number that the client gives them.
        is_over: It was lost, or closed.
        since_ms: When it was made.
    """

    def __init__(self, server: Server, transport: Transport) -> None:
        self.server = server
        self.process = transport.process
        self.subscribed: dict[int, str] = {}
        self.is_over = False
        self.since_ms = server.world.now_ms
        self._transport = transport
        self._down: deque[bytes] = deque()
        self._up = b""
        self._last_ms = 0.0
        self._is_moving = False

    def send(self, data: bytes) -> None:
        """The server sends something."""
        if not self.is_over:
            self._down.append(data)
            self._move()

    def lose(self, rng: random.Random) -> None:
        """It is lost, at the server first: of what is on its way a part arrives, and the client notices later."""
        data = b"".join(self._down)
        self.end()
        self._down.clear()
        if some := data[: rng.randrange(len(data) + 1)] if rng.random() < 0.5 else b"":
            self._transport.arrives(some)
        is_reset = rng.random() < 0.5
        self.process.later(
            rng.choice(NOTICED_MS), self._transport.ends, ConnectionResetError("lost") if is_reset else None
        )

    def end(self) -> None:
        """The server has it no more, and what it has sent still arrives."""
        self.is_over = True
        self.subscribed = {}
        self.server.delivered.over(self)

    # -- by the client

    def write(self, data: bytes) -> None:
        """Something goes to the server."""
        self._later(self._heard, data)

    def close(self) -> None:
        """The client closes it, behind what it has written."""
        self._later(lambda: self.is_over or self.end())

    def _later(self, act: Callable[..., object], *args: Any) -> None:
        world = self.server.world
        self._last_ms = max(self._last_ms, world.now_ms + world.rng.expovariate(1 / DELAY_MS))
        world.after(self._last_ms - world.now_ms, act, *args)

    def _heard(self, data: bytes) -> None:
        """By the server."""
        self._up += data
        while not self.is_over and (at := self._up.find(b"\r\n")) >= 0:
            operation, *words = self._up[:at].split(b" ")
            end = at + 2
            match operation:
                case b"PUB":
                    end += int(words[-1]) + 2
                    if len(self._up) < end:
                        return
                    self.server.answer(words[0], self._up[at + 2 : end - 2])
                case b"SUB":
                    self.subscribed[int(words[-1])] = words[0].decode()
                case b"UNSUB":
                    self.subscribed.pop(int(words[0]), None)
                case b"PING":
                    self.send(b"PONG\r\n")
            self._up = self._up[end:]

    def _move(self, mean_ms: float = DELAY_MS) -> None:
        if not self._is_moving and not self.process.is_gone:
            self._is_moving = True
            self.process.later(mean_ms, self._arrive)

    def _arrive(self) -> None:
        """At the client: some of what the server has sent."""
        self._is_moving = False
        if not self._down:
            return
        rng, data, rest_ms = self.server.world.rng, b"".join(self._down), DELAY_MS
        self._down.clear()
        if len(data) > 1 and self.server.world.chance(CUT):
            at = rng.randrange(1, len(data))
            self._down.append(data[at:])
            data, rest_ms = data[:at], rng.choice(REST_MS)
        self._transport.arrives(data)
        if self._down:
            self._move(rest_ms)


class Transport(asyncio.Transport):
    """A connection as asyncio hands it to a protocol, on the loop of one process."""

    def __init__(self, process: Process, loop: SteppedLoop, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.process = process
        self._stepped = loop
        self._protocol = protocol
        self._held: deque[bytes] = deque()
        self._is_paused = self._is_closing = self._is_lost = False
        self._link: Link | None = None

    def connect(self, server: Server) -> None:
        """Make the connection. Raises ConnectionRefusedError."""
        self._link = server.accept(self)
        self._protocol.connection_made(self)

    # -- from the server

    def arrives(self, data: bytes) -> None:
        """Some bytes are here."""
        self._stepped.call_soon(self._receive, data)

    def ends(self, error: Exception | None) -> None:
        """The connection was lost, with an error or without."""
        self._stepped.call_soon(self._lost, error)

    def _receive(self, data: bytes) -> None:
        if data:
            self._held.append(data)
        while self._held and not (self._is_paused or self._is_closing):
            self._take(self._held.popleft())

    def _take(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            room = protocol.get_buffer(-1)
            size = min(len(room), len(data))  # type: ignore[arg-type]
            room[:size] = data[:size]  # type: ignore[index]
            if data[size:]:
                self._held.appendleft(data[size:])
            protocol.buffer_updated(size)
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)

    def _lost(self, error: Exception | None) -> None:
        if self._is_closing:
            return
        protocol: Any = self._protocol
        if error is None:
            protocol.eof_received()
        self._over(error)

    def _over(self, error: Exception | None) -> None:
        self._is_closing = True
        if not self._is_lost:
            self._is_lost = True
            self._stepped.call_soon(lambda: self._protocol.connection_lost(error))

    # -- as of asyncio

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._link is not None and not self._is_closing:
            self._link.write(bytes(data))

    def close(self) -> None:
        if self._link is not None and not self._is_closing:
            self._link.close()
        self._over(None)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._stepped.call_soon(self._receive, b"")

    def get_write_buffer_size(self) -> int:
        return 0
