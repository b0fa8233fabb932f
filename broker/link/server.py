"""The leader's side of the link: one connection of each broker that follows something here.

    let in by the door ─► handshake ─► this thread reads questions ─► the partition's `Answering`
                                       another one says answers ◄─ outbox ◄─ slots that have something to say

E1  Each broker has one stream. A new one ends the old one, which may be of a connection that nobody is at any more.
    Its threads may be at a disk that hangs: `STREAMS_EACH_MAX` connections of a broker are served, those included.
E2  A stream of a process that the catalog does not have any more ends with its next question (`handshake.K2`). A
    question under another registration than the stream's is passed over: a greater one would be taken for a later life
    of the replica, and shut the present one out.
E3  A caller that is not let in is counted, told why, and logged at a limited rate. What it takes is bounded by the door
    (`door.D1`). Questions are small as well.
E4  A question is looked into when it is read. While that waits for a disk, what else was asked on that stream waits in
    the connection. The last question about a partition that is not open here waits until it is: one for
    each partition that the catalog may give to this broker.
E5  A stream on which nothing is to be said says so: nobody need ask for each partition whether this broker is there.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from broker.link.answering import Answering, FollowerSlot
from broker.link.codec import HEARTBEAT, Asked, BadFrame, Ended, LinkFrame, Question, decode, encode
from broker.link.directory import Directory
from broker.link.door import Door, Visitor
from broker.link.framed import LINGER_S, Framed, FrameTooLarge
from broker.link.handshake import GREETING_BYTES_MAX, NONCE_BYTES, Doorkeeper, Peer, Refused
from broker.link.outbox import Outbox
from broker.link.tls import LinkTls
from broker.metadata.partition import Place
from broker.replication.messages import AskRange
from broker.serving.http.meters import RateLimitedLog

log = logging.getLogger(__name__)

PURPOSE: Final = b"llq3"
"""What a caller says first who comes to ask."""
HEARTBEAT_S: Final = 0.25
EARLY_MAX: Final = 20_000
"""Questions of one broker about partitions that are not open here; another one is passed over, and asked again."""
QUESTION_BYTES_MAX: Final = 16 << 10
QUESTION_S: Final = 5.0
"""A question that has begun is whole by then. If its length was changed on its way, it would be put together of those
that come after it, which nobody answers."""
STREAMS_EACH_MAX: Final = 8
"""Connections of one broker, those included whose threads are at a disk that hangs (E1)."""


class FollowerStream:
    """The stream of one broker that follows.

    Attributes:
        ended: Why it has ended, if this side ended it: a status and a text.
        has_read: The other side has said its last.
    """

    def __init__(self, peer: Peer, now_s: Callable[[], float]) -> None:
        self.peer = peer
        self.ended: tuple[str, str] | None = None
        self.outbox: Outbox[FollowerSlot] = Outbox(now_s)
        self.early: dict[Place, Question] = {}
        self.has_read = threading.Event()
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
        self._under_way: Counter[str] = Counter()
        self._is_stopping = False

    def stop(self) -> None:
        """End all streams, and take no others. Does not wait: their threads are the door's."""
        self._is_stopping = True
        for stream in self.streams():
            stream.end("UNAVAILABLE", "this broker stops")

    def streams(self) -> list[FollowerStream]:
        """The streams of the brokers that are let in."""
        with self._lock:
            return list(self._streams.values())

    # -- one stream (a thread of the door) -----------------------------------------------------------------------

    def exchange(self, door: Door, visitor: Visitor, framed: Framed) -> None:
        """As `door.Serve`."""
        try:
            peer, welcome = self._greet(visitor, framed)
            self._take_place(peer)
        except Refused as error:
            door.complain(error.reason, visitor, error.text)
            framed.farewell(encode(Ended(error.status, str(error))))
            return
        except TimeoutError:
            door.complain("greeting_timeout", visitor, "it greets only by halves")
            return
        try:
            door.let_in(visitor)
            self._serve(peer, framed, welcome)
        finally:
            with self._lock:
                self._under_way[peer.broker_id] -= 1

    def _take_place(self, peer: Peer) -> None:
        with self._lock:
            if self._under_way[peer.broker_id] >= STREAMS_EACH_MAX:
                text = f"{STREAMS_EACH_MAX} connections of {peer.broker_id} have not ended: does a disk hang here?"
                raise Refused("RESOURCE_EXHAUSTED", "busy", text)
            self._under_way[peer.broker_id] += 1

    def _serve(self, peer: Peer, framed: Framed, welcome: LinkFrame) -> None:
        stream = FollowerStream(peer, self._now_s)
        self.let_in(stream)  # before it is told so: a later one of this broker, which then begins, is to end this one
        try:
            framed.write(welcome)
        except BaseException:
            self.over(stream)
            raise
        sender = threading.Thread(
            target=self._say, args=(stream, framed), name=f"link-answers-{peer.broker_id}", daemon=True
        )
        try:
            sender.start()
        except RuntimeError as error:  # no more threads are allowed
            self.over(stream)
            framed.farewell(encode(Ended("RESOURCE_EXHAUSTED", str(error))))
            return
        try:
            self._listen(stream, framed)
        finally:
            stream.has_read.set()
            stream.outbox.close()
            sender.join()

    def _greet(self, visitor: Visitor, framed: Framed) -> tuple[Peer, LinkFrame]:
        """Who is there, and what it is told when it is let in (E3). Raises Refused, OSError."""
        door = Doorkeeper(
            self._me, self._cluster_id, self._key, self._directory.registration_of, os.urandom(NONCE_BYTES)
        )
        framed.write(door.hello(_next(framed, visitor)))
        peer, welcome = door.proof(_next(framed, visitor))
        if isinstance(visitor.socket, ssl.SSLSocket):
            assert self._tls is not None, "it speaks TLS"
            if why := self._tls.unfit(visitor.socket, peer.broker_id, visitor.who):
                raise Refused("PERMISSION_DENIED", "certificate", f"{peer.broker_id}: {why}")
        return peer, welcome

    def _say(self, stream: FollowerStream, framed: Framed) -> None:
        """The stream's sender."""
        try:
            while not (self._is_stopping or stream.outbox.is_closed):
                slot = stream.outbox.next(HEARTBEAT_S)
                if slot is not None:
                    for frame in slot.answering.compose(slot):
                        framed.write(frame)
                elif not stream.outbox.is_closed:
                    framed.write(HEARTBEAT)  # E5
        except OSError:  # it is gone, or stands still
            pass
        except Exception as error:
            log.exception("replica.link_bug to=%s", stream.broker)
            stream.end("INTERNAL", repr(error))
        finally:
            self.over(stream)
            with suppress(OSError):
                if stream.ended is not None:
                    framed.last(encode(Ended(*stream.ended)))
                    stream.has_read.wait(LINGER_S)
            framed.end()

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

    def _listen(self, stream: FollowerStream, framed: Framed) -> None:
        """The stream's reader."""
        try:
            while (frame := framed.read(QUESTION_BYTES_MAX, whole_s=QUESTION_S)) is not None:
                if not stream.is_over:  # else what comes is read until the other side has heard so
                    self._heard(stream, frame)
        except FrameTooLarge as error:
            self.refuse("bad_frame", stream.broker, error.message)
            stream.end("RESOURCE_EXHAUSTED", f"bad_frame: {error.message}")
            with suppress(OSError):
                framed.drain()
        except OSError:  # it is gone
            pass

    def _heard(self, stream: FollowerStream, frame: LinkFrame) -> None:
        try:
            self.take(stream, frame)
        except Refused as error:
            self.refuse(error.reason, stream.broker, error.text)
            stream.end(error.status, str(error))
        except Exception as error:
            log.exception("replica.link_bug from=%s", stream.broker)
            stream.end("INTERNAL", repr(error))

    def take(self, stream: FollowerStream, frame: LinkFrame) -> None:
        """A follower asks. Raises Refused: that stream is to end."""
        try:
            said = decode(frame)
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


def _next(framed: Framed, visitor: Visitor) -> LinkFrame:
    try:
        frame = framed.read(GREETING_BYTES_MAX, visitor.until_s)
    except FrameTooLarge as error:
        raise Refused("INVALID_ARGUMENT", "bad_greeting", error.message) from error
    if frame is None:
        raise ConnectionError("it ended amid the greeting")
    return frame
