"""The leader's side of the link: one gRPC stream for each broker that follows something here.

    stream begins ─► handshake ─► a thread reads questions ─► the partition's `Answering`
                                  the call's own thread ◄─ outbox ◄─ slots that have something to say

E1  Each broker has one stream. A new one ends the old one, which may be of a connection that nobody is at any more.
E2  A stream of a process that the catalog does not have any more ends with its next question (`handshake.K2`). A
    question under another registration than the stream's is passed over: a greater one would be taken for a later life
    of the replica, and shut the present one out.
E3  A caller that is not let in is counted, told why, and logged at a limited rate. It takes little: a greeting is
    small, has to come within `GREETING_S`, and there are `STRANGERS_MAX` at a time. Another one ends the oldest, so
    that unfinished ones keep no follower out. Questions are small as well.
    So are connections on which nobody calls: one that is not greeted by HTTP/2 (over TLS: whose handshake is not over),
    or has no stream, is closed after `LONE_S`, and there are `CONNECTIONS_MAX` in all. gRPC keeps them for ever, and
    the process has no descriptor left for its logs.
    Where the system allows no more threads, a call waits for one that becomes free (`threads.Q2`). gRPC lets the error
    end its own thread: nobody is heard then, for good.
E4  A question is looked into when it is read. While that waits for a disk, what else was asked on that stream waits in
    the window of its connection. The last question about a partition that is not open here waits until it is: one for
    each partition that the catalog may give to this broker.
E5  A stream on which nothing is to be said says so: nobody need ask for each partition whether this broker is there.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from broker.api.errors import PortInUse
from broker.metadata.partition import Place
from broker.replication.messages import AskRange
from broker.runtime.cluster.codec import Asked, BadFrame, Question, decode_bytes
from broker.runtime.cluster.link.answering import Answering, FollowerSlot
from broker.runtime.cluster.link.both import Both
from broker.runtime.cluster.link.directory import Directory
from broker.runtime.cluster.link.handshake import NONCE_BYTES, Doorkeeper, Peer, Refused
from broker.runtime.cluster.link.outbox import Outbox
from broker.runtime.cluster.link.tls import LinkTls, add_port
from broker.serving.http.meters import RateLimitedLog
from broker.serving.threads import Threads

log = logging.getLogger(__name__)

SERVICE: Final = "liftlog.v1.Replica"
METHOD: Final = "Exchange"
GREETING_S: Final = 2.0
HEARTBEAT_S: Final = 0.25
HEARTBEAT: Final = b""
"""A frame without anything."""
STREAMS_MAX: Final = 64
"""Streams of brokers and strangers together."""
STRANGERS_MAX: Final = 16
CONNECTIONS_MAX: Final = 256
"""gRPC closes a new one beyond that, as it knows nothing of who is on the others."""
LONE_S: Final = 5.0
"""So long a connection without a stream is kept."""
EARLY_MAX: Final = 20_000
"""Questions of one broker about partitions that are not open here; another one is passed over, and asked again."""
QUESTION_BYTES_MAX: Final = 16 << 10
KEEPALIVE_MS: Final = 2_000
OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", QUESTION_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 200),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
    ("grpc.max_connection_idle_ms", round(LONE_S * 1000)),
    ("grpc.server_handshake_timeout_ms", round(LONE_S * 1000)),
)


class FollowerStream:
    """The stream of one broker that follows.

    Attributes:
        ended: Why it has ended, if this side ended it: a status and a text.
    """

    def __init__(self, peer: Peer, now_s: Callable[[], float]) -> None:
        self.peer = peer
        self.ended: tuple[str, str] | None = None
        self.outbox: Outbox[FollowerSlot] = Outbox(now_s)
        self.early: dict[Place, Question] = {}
        self._slots: set[FollowerSlot] | None = set()  # None: it is over, and nobody keeps them
        self._lock = threading.Lock()  # innermost

    @property
    def broker(self) -> str:
        """As `AnswerStream.broker`."""
        return self.peer.broker_id

    @property
    def is_over(self) -> bool:
        """As `AnswerStream.is_over`."""
        return self.outbox.is_closed

    def ready(self, slot: FollowerSlot) -> None:
        """As `AnswerStream.ready`."""
        self.outbox.ready(slot)

    def later(self, slot: FollowerSlot, at_s: float) -> None:
        """As `AnswerStream.later`."""
        self.outbox.later(slot, at_s)

    def keep(self, slot: FollowerSlot) -> bool:
        """As `AnswerStream.keep`."""
        with self._lock:
            if self._slots is not None:
                self._slots.add(slot)
            return self._slots is not None

    def forget(self, slot: FollowerSlot) -> None:
        """As `AnswerStream.forget`."""
        self.outbox.forget(slot)
        with self._lock:
            if self._slots is not None:
                self._slots.discard(slot)

    def take_slots(self) -> set[FollowerSlot]:
        """It is over: all that were kept."""
        with self._lock:
            slots, self._slots = self._slots, None
        return slots or set()

    def end(self, status: str, text: str) -> None:
        """Let the stream end."""
        if self.ended is None:
            self.ended = status, text
        self.outbox.close()


class Server:
    """See the module.

    Args:
        find: The `Answering` of a partition that is open here.
        now_s: A clock that never goes back.
        tls: None: it listens for plain text.

    Attributes:
        refused: How many were not let in, by reason.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        me: str,
        cluster_id: str,
        key: bytes,
        find: Callable[[Place], Answering | None],
        now_s: Callable[[], float],
        tls: LinkTls | None = None,
    ) -> None:
        self._directory = directory
        self._tls = tls
        self._me = me
        self._cluster_id = cluster_id
        self._key = key
        self._find = find
        self._now_s = now_s
        self.refused: Counter[str] = Counter()
        self._refused_log: dict[str, RateLimitedLog] = {}
        self._lock = threading.Lock()
        self._streams: dict[str, FollowerStream] = {}
        self._greetings: dict[Any, float] = {}  # calls, and when they have to be over
        self._is_stopping = False
        self._server: Any = None
        self._both: Both | None = None

    def start(self, host: str, port: int) -> int:
        """Listen. Returns the port.

        Raises:
            PortInUse: somebody else does.
        """
        pool = Threads(STREAMS_MAX, name="replica-link")
        server = grpc.server(pool, options=OPTIONS, maximum_concurrent_rpcs=STREAMS_MAX)
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)  # bytes: no (de)serializer
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        shown = f"[{host}]" if ":" in host else host
        try:
            if self._tls is not None and self._tls.takes_plain:
                self._both = both = Both(host, port, self.refuse)
                add_port(server, f"unix:{both.plain}", None)
                add_port(server, f"unix:{both.secured}", self._tls)
                bound = both.port
            else:
                bound = add_port(server, f"{shown}:{port}", self._tls)
        except (RuntimeError, OSError) as error:
            if self._both is not None:
                self._both.stop()
            raise PortInUse(f"grpc: cannot listen on {shown}:{port}: {error}", port=port) from error
        server.start()
        if self._both is not None:
            self._both.start()
        self._server = server
        return bound

    def stop(self, timeout_s: float) -> bool:
        """End all streams, and take no others. Returns whether all calls have ended: a disk may hang."""
        self._is_stopping = True
        if self._both is not None:
            self._both.close()
        for stream in self.streams():
            stream.end("UNAVAILABLE", "this broker stops")
        has_ended = self._server is None or bool(self._server.stop(0.5).wait(timeout_s))
        if self._both is not None:
            self._both.stop()
        return has_ended

    def _who(self, context: Any) -> str:
        """The address of a caller."""
        peer = str(context.peer())
        return peer if self._both is None else self._both.who(peer)

    def streams(self) -> list[FollowerStream]:
        """The streams of the brokers that are let in."""
        with self._lock:
            return list(self._streams.values())

    def check(self, now_s: float) -> None:
        """Time passes: end greetings that take too long (E3)."""
        for context, due_s in list(self._greetings.items()):
            if now_s > due_s and self._greetings.pop(context, None) is not None:
                self.refuse("greeting_timeout", "a stranger", f"no greeting within {GREETING_S} s")
                context.cancel()

    # -- one stream (a thread of the pool) ---------------------------------------------------------------------

    def _exchange(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        place = str(context.peer())
        try:
            peer = yield from self._greet(requests, context)
        except Refused as error:
            if not context.is_active():  # it is gone
                return
            self.refuse(error.reason, self._who(context), error.text)
            context.abort(grpc.StatusCode[error.status], str(error))
        except grpc.RpcError:  # it is gone
            return
        stream = FollowerStream(peer, self._now_s)
        self.let_in(stream)
        if self._both is not None:
            self._both.know(place, is_known=True)
        context.add_callback(stream.outbox.close)
        reader = threading.Thread(
            target=self._listen, args=(requests, stream), name=f"link-from-{peer.broker_id}", daemon=True
        )
        try:
            try:
                reader.start()
            except RuntimeError as error:  # no more threads are allowed
                stream.end("RESOURCE_EXHAUSTED", str(error))
            while not (self._is_stopping or stream.outbox.is_closed):
                slot = stream.outbox.next(HEARTBEAT_S)
                if slot is not None:
                    yield from slot.answering.compose(slot)
                elif not stream.outbox.is_closed:
                    yield HEARTBEAT  # E5
        finally:
            self.over(stream)
            if self._both is not None:
                self._both.know(place, is_known=False)
        if stream.ended is not None:
            context.abort(grpc.StatusCode[stream.ended[0]], stream.ended[1])

    def _greet(self, requests: Iterator[bytes], context: Any) -> Any:
        """A generator that returns who is there (E3)."""
        with self._lock:
            oldest = next(iter(self._greetings)) if len(self._greetings) >= STRANGERS_MAX else None
            self._greetings.pop(oldest, None)
            self._greetings[context] = self._now_s() + GREETING_S
        if oldest is not None:
            self.refuse("crowded", self._who(oldest), f"{STRANGERS_MAX} others are being greeted")
            oldest.cancel()
        try:
            door = Doorkeeper(
                self._me, self._cluster_id, self._key, self._directory.registration_of, os.urandom(NONCE_BYTES)
            )
            yield door.hello(_next(requests))
            peer, welcome = door.proof(_next(requests))
            if self._tls is not None and (why := self._tls.unfit_at(context, peer.broker_id)):
                raise Refused("PERMISSION_DENIED", "certificate", f"{peer.broker_id}: {why}")
            yield welcome
            return peer
        except Refused:
            if context not in self._greetings:  # it was sent away, which was counted
                raise grpc.RpcError from None
            raise
        finally:
            self._greetings.pop(context, None)

    def let_in(self, stream: FollowerStream) -> None:
        """It has begun."""
        with self._lock:
            before, self._streams[stream.broker] = self._streams.get(stream.broker), stream
        if before is not None:  # E1
            before.end("ABORTED", "another stream of this broker has begun")
        log.info("replica.stream_begun from=%s registration=%d", *stream.peer)

    def over(self, stream: FollowerStream) -> None:
        """It has ended."""
        stream.outbox.close()
        with self._lock:
            if self._streams.get(stream.broker) is stream:
                del self._streams[stream.broker]
        for slot in stream.take_slots():
            slot.answering.left(slot)
        log.info("replica.stream_over from=%s why=%s", stream.broker, stream.ended or "the other side")

    def _listen(self, requests: Iterator[bytes], stream: FollowerStream) -> None:
        """The stream's reader."""
        try:
            for data in requests:
                if stream.outbox.is_closed:
                    return
                self.take(stream, data)
        except Refused as error:
            self.refuse(error.reason, stream.broker, error.text)
            stream.end(error.status, str(error))
        except grpc.RpcError:
            pass
        except Exception as error:
            if not stream.outbox.is_closed:  # else that is why: gRPC raises a bare Exception
                log.exception("replica.link_bug from=%s", stream.broker)
                stream.end("INTERNAL", repr(error))
        finally:
            stream.outbox.close()

    def take(self, stream: FollowerStream, data: bytes) -> None:
        """A follower asks. Raises Refused: that stream is to end."""
        try:
            said = decode_bytes(data)
        except BadFrame as error:
            raise Refused("INVALID_ARGUMENT", "bad_frame", error.message) from error
        if not isinstance(said, Asked):
            raise Refused("INVALID_ARGUMENT", "bad_frame", f"no question: {type(said).__name__}")
        if self._directory.registration_of(stream.broker) != stream.peer.registration:  # E2
            raise Refused("ABORTED", "registration", f"{stream.broker} has registered anew")
        if said.question.follower != stream.broker:
            raise Refused("PERMISSION_DENIED", "other_name", f"{stream.broker} asks as {said.question.follower}")
        answering = self._find(said.place)
        if said.question.incarnation[0] != stream.peer.registration:  # E2
            self.refuse("registration", stream.broker, f"asks as registration {said.question.incarnation[0]}")
        elif answering is None:
            if not isinstance(said.question, AskRange):  # which is asked of others, and again
                self._keep(stream, said)
        else:
            answering.asked(stream, said.question, takes_bulk=said.takes_bulk)

    def _keep(self, stream: FollowerStream, asked: Asked) -> None:
        """E4."""
        with self._lock:
            if len(stream.early) < EARLY_MAX or asked.place in stream.early:
                stream.early[asked.place] = asked.question
        self.opened(asked.place)  # it may be since

    def opened(self, at: Place) -> None:
        """A partition is open here: what was asked about it before is asked now. Does not wait."""
        answering = self._find(at)
        if answering is None:
            return
        for stream in self.streams():
            with self._lock:
                question = stream.early.pop(at, None)
            if question is not None:
                answering.ask_early(stream, question)

    def refuse(self, reason: str, who: str, text: str) -> None:
        """Count and log, at a limited rate, who is not let in."""
        with self._lock:
            self.refused[reason] += 1
            limited = self._refused_log.setdefault(reason, RateLimitedLog())
            count = limited.due()
        if count:
            log.warning("replica.refused reason=%s from=%s count=%d error=%s", reason, who, count, text)


def _next(requests: Iterator[bytes]) -> bytes:
    data = next(requests, None)
    if data is None:
        raise Refused("INVALID_ARGUMENT", "bad_greeting", "the stream ended amid the greeting")
    return data
