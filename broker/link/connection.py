"""The follower's side of the link: one connection to each broker that leads something for this one.

    somebody follows ─► connect, TLS ─► handshake ─► questions out, answers in ─► it breaks ─┐
          ▲                                                                                │
          └───────────── a pause: 0.05 s, twice as long each time, 1 s at most ◄──────────┘

N1  One attempt at a time. To connect takes `CONNECT_S` at most, to greet `GREETING_S`. A broker that registers anew, or
    elsewhere, is tried at once; and so is everybody when there is another controller, who has heard of nothing yet.
N2  Where nobody listens each follower is told so at once; so is one whose stream has been silent for `SILENT_S`, while
    questions were open and this side did listen.
N3  The last question of each partition is open until another one replaces it. A new stream begins with all of them.
N4  Silence counts only while this side listens: the time in which the reader is at work, for whichever partition,
    counts for nobody (`heard_to`). Nor does that in which more of a frame comes, at `SLOW_BYTES_PER_S` at least (a
    length that was changed on its way waits for heartbeats), nor that in which this process stood still, so that nobody
    looked at the clock for `STILL_S`.
N5  Bytes that an answer says to come in bulk are fetched beside this (`bulk_reader.py`).
N6  A damaged replica asks for a range once. A broker of an earlier release, whose welcome does not say that it answers
    such a question, is not asked: it would end the stream.
N9  Whoever asks writes the question himself, if the connection takes it at once: so an fsync is told without another
    thread. Else the sender does.
N7  A fault of ours in one follower ends no stream: others are answered on it. That one asks again.
N8  With many partitions a leader may be silent for longer (`session.slower`), as it may have a session for longer. To
    report it ends its leadership of each of them, and who works on that is silent.
N10  A catalog on the other side that does not have this registration yet is late, for `LATE_S`. Then it is an error.
"""

from __future__ import annotations

import logging
import os
import random
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar

from broker.api.tls_files import why_kept_out
from broker.link.bulk_reader import BulkReader
from broker.link.codec import (
    HEARTBEAT,
    Answered,
    Asked,
    BadFrame,
    Ended,
    LinkFrame,
    Question,
    decode,
    encode,
)
from broker.link.directory import Directory, Entry
from broker.link.door import GREETING_S
from broker.link.framed import Framed
from broker.link.handshake import GREETING_BYTES_MAX, NONCE_BYTES, Caller, Peer, Refused, SentAway
from broker.link.outbox import Outbox
from broker.link.server import PURPOSE
from broker.link.tls import LinkTls, connected, speaks_tls
from broker.metadata.partition import Place
from broker.replication.messages import AskRange, AskState, Fetch, HeldRange, Reply
from broker.serving.http.meters import RateLimitedLog
from broker.storage.segments.scan import MESSAGE_BYTES_MAX

log = logging.getLogger(__name__)

CONNECT_S: Final = 1.0
SILENT_S: Final = 2.5
"""Ten heartbeats. (A follower that waits for something is told by its own core, after a second.)"""
CUT_S: Final = 5.0
"""A stream that has been silent for so long is ended."""
STILL_S: Final = 0.5
"""Five looks at the clock (`link.CHECK_S`)."""
SLOW_BYTES_PER_S: Final = 10_000
PAUSE_FIRST_S, PAUSE_LAST_S = 0.05, 1.0
STEADY_S: Final = 5.0
"""A stream that has lasted for so long was a good one: the next pause is short."""
LATE_S: Final = 5.0
LATE: Final = ("registration: ", "unknown_broker: ")
"""What `handshake.Doorkeeper` answers by its catalog (N10)."""
ANSWER_BYTES_MAX: Final = MESSAGE_BYTES_MAX + (1 << 20)
T = TypeVar("T")
Key = tuple[Place, type | None]
"""A question: of which partition, and of which kind; None: the one that is open there of a follower."""
TakeRange = Callable[[HeldRange, bytes], None]
"""Takes the answer to a question for a range."""


class Asker(Protocol):
    """A follower of a partition over this stream."""

    def arrived(self, answer: Reply, data: bytes | memoryview) -> bool:
        """The leader has answered. The bytes are to be used before this returns. False: they are damaged."""
        ...

    def unreachable(self, leader: str) -> None:
        """This leader cannot be asked. It may be another one by now: many are told, one after the other."""
        ...

    def begun(self) -> None:
        """There is another stream: what was answered on the last one counts for nothing. Must not wait."""
        ...


class LeaderStream:
    """One attempt at a stream to a leader.

    Args:
        ends: Ends its connection; does not wait.
        says: Writes a question at once, if it can (`Framed.say`); None: its sender writes all.
        coming: As `Framed.coming`.

    Attributes:
        welcomed_s: When it was let in; 0: not yet.
        answers_ranges: See N6.
    """

    def __init__(
        self,
        entry: Entry,
        own: Peer,
        now_s: Callable[[], float],
        ends: Callable[[], None],
        says: Callable[[Callable[[], LinkFrame | None]], bool] | None = None,
        coming: Callable[[], int] = lambda: 0,
    ) -> None:
        self.entry = entry
        self.own = own
        self.begun_s = now_s()
        self.welcomed_s = 0.0
        self.answers_ranges = False
        self.ends, self.says, self.coming = ends, says, coming
        self.outbox: Outbox[Key] = Outbox(now_s)

    def end(self) -> None:
        """From any thread; does not wait."""
        self.outbox.close()
        self.ends()


class Connection:
    """The connection to one broker. Thread-safe.

    Args:
        to: Its name.
        counts: Counts what happens.
        now_s: A clock that never goes back.
        tls: None: it is called in plain text.

    Attributes:
        rested_s: How long the reader had nothing to do before the answer that it is at.
        bulk: Fetches what comes in bulk (N5).
    """

    def __init__(
        self,
        to: str,
        directory: Directory,
        *,
        cluster_id: str,
        key: bytes,
        counts: Counter[str],
        now_s: Callable[[], float],
        tls: LinkTls | None = None,
    ) -> None:
        self.to = to
        self._tls = tls
        self._directory = directory
        self._cluster_id = cluster_id
        self._key = key
        self._counts = counts
        self._now_s = now_s
        self._lock = threading.Condition()
        self._askers: dict[Place, Asker] = {}
        self._takers: dict[Place, TakeRange] = {}
        self._open: dict[Key, Question] = {}
        self._stream: LeaderStream | None = None
        self._is_closed = self._is_hurried = False
        self._log_lost, self._log_refused = RateLimitedLog(), RateLimitedLog()
        self._late_since_s: float | None = None  # N10
        self._heard_s = self._silence_told_s = now_s()
        self._looked = now_s(), 0.0  # when somebody looked at the clock last; how long it has not counted by then
        self._came = 0, now_s()  # so much of a frame when more of it had come last, by the clock of `_counted`
        self._busy_s = 0.0  # in all
        self._busy_since_s = 0.0  # 0: it listens
        self.rested_s = self._ended_s = 0.0
        self.bulk = BulkReader(to, self._hand_on, self._ask_again, counts, tls)
        self._thread = threading.Thread(target=self._run, name=f"link-to-{to}", daemon=True)

    def start(self) -> None:
        """Connect once somebody follows."""
        self._thread.start()

    # -- who follows -----------------------------------------------------------------------------------------

    def add(self, at: Place, asker: Asker) -> None:
        """Somebody follows."""
        with self._lock:
            self._askers[at] = asker
            self._lock.notify_all()

    def remove(self, at: Place, asker: Asker) -> None:
        """Not any more."""
        with self._lock:
            if self._askers.get(at) is asker:
                del self._askers[at]
                for kind in (None, AskState):
                    self._open.pop((at, kind), None)

    def ask(self, at: Place, question: Question) -> None:
        """Ask, now or when there is a stream; does not wait."""
        key = at, AskState if isinstance(question, AskState) else None
        with self._lock:
            self._open[key] = question
            stream = self._stream
        if stream is not None:
            self._ask_on(stream, key)

    def _ask_on(self, stream: LeaderStream, key: Key) -> None:
        """N9."""
        is_said = False
        if stream.welcomed_s and stream.says is not None:
            with suppress(OSError):  # which the reader hears, too
                is_said = stream.says(partial(self.question_of, stream, key))
        if not is_said:
            stream.outbox.ready(key)

    def ask_range(self, at: Place, question: AskRange, take: TakeRange) -> bool:
        """Ask for a range; another one of this partition is forgotten. Does not wait. Returns False if the other broker
        is known not to answer (N6)."""
        key = at, AskRange
        with self._lock:
            stream = self._stream
            if stream is not None and stream.welcomed_s and not stream.answers_ranges:
                return False
            self._open[key], self._takers[at] = question, take
            self._lock.notify_all()
        if stream is not None:
            stream.outbox.ready(key)
        return True

    def forget_range(self, at: Place) -> None:
        """Nobody waits for that answer any more."""
        with self._lock:
            self._takers.pop(at, None)
            self._open.pop((at, AskRange), None)

    @property
    def is_live(self) -> bool:
        """There is a stream, as far as is known."""
        stream = self._stream
        return stream is not None and stream.welcomed_s > 0

    def heard_to(self, now_s: float) -> float:
        """A clock that stands still while this side does not listen (N4)."""
        since_s, now_s = self._busy_since_s, self._counted(now_s)
        return now_s - self._busy_s - (max(0.0, now_s - since_s) if since_s else 0.0)

    def _counted(self, now_s: float) -> float:
        """That clock, but for the reader's work."""
        looked_s, uncounted_s = self._looked
        return min(now_s, looked_s + STILL_S) - uncounted_s

    def _look_at_clock(self, now_s: float, coming: int) -> None:
        looked_s, uncounted_s = self._looked
        uncounted_s += max(0.0, now_s - looked_s - STILL_S)
        before, came_s = self._came
        if coming < before:  # of another frame
            before = 0
        passed_s = max(0.0, now_s - uncounted_s - came_s)
        if not coming:
            self._came = 0, now_s - uncounted_s
        elif coming - before >= SLOW_BYTES_PER_S * passed_s:
            uncounted_s += passed_s
            self._came = coming, came_s
        else:
            self._came = before, came_s
        self._looked = now_s, uncounted_s

    def look(self) -> None:
        """A broker has come, gone, moved or registered anew, or there is another controller (N1). Does not wait."""
        with self._lock:
            stream = self._stream
            self._is_hurried = True
            self._lock.notify_all()
        if stream is not None and (stream.entry, stream.own) != (self._directory.entry(self.to), self._directory.own):
            stream.end()

    @property
    def slower(self) -> float:
        """N8."""
        return self._directory.slower

    def check(self, now_s: float) -> None:
        """Time passes (N1, N2, N4, N8)."""
        stream = self._stream
        self._look_at_clock(now_s, 0 if stream is None else stream.coming())
        if stream is None:
            return
        if not stream.welcomed_s:
            if now_s - stream.begun_s > GREETING_S:
                stream.end()
            return
        now_s = self.heard_to(now_s)
        silent_s = now_s - max(self._heard_s, self._silence_told_s)
        if not self._open or silent_s < self.slower * SILENT_S:
            return
        self._silence_told_s = now_s
        self._counts["silent"] += 1
        self.tell_unreachable()
        if now_s - self._heard_s > self.slower * CUT_S:
            stream.end()

    def close(self, timeout_s: float) -> bool:
        """For good. Returns whether its threads have ended: one may be at a disk that hangs."""
        with self._lock:
            self._is_closed = True
            stream = self._stream
            self._lock.notify_all()
        if stream is not None:
            stream.end()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return self.bulk.close(timeout_s) and not self._thread.is_alive()

    # -- a thread of its own ---------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = PAUSE_FIRST_S
        while self._waits_for_somebody():
            begun_s = self._now_s()
            try:
                self._attempt()
            except Exception:
                log.exception("replica.link_bug to=%s", self.to)
            if self._now_s() - begun_s > STEADY_S:
                pause_s = PAUSE_FIRST_S
            with self._lock:
                self._stream = None
                if not (self._is_closed or self._is_hurried):
                    self._lock.wait_for(lambda: self._is_closed or self._is_hurried, pause_s * random.uniform(0.8, 1.2))
                pause_s = PAUSE_FIRST_S if self._is_hurried else min(PAUSE_LAST_S, 2 * pause_s)
                self._is_hurried = False

    def _waits_for_somebody(self) -> bool:
        with self._lock:
            self._lock.wait_for(lambda: self._is_closed or self._askers or self._takers)
            return not self._is_closed

    def _attempt(self) -> None:
        entry, own = self._directory.entry(self.to), self._directory.own
        if entry is None or own is None:
            return
        self._counts["attempts"] += 1
        try:
            host, port = host_and_port(entry.address)
            framed = Framed(connected(host, port, self._tls, CONNECT_S, self.to))
        except Refused as error:
            self._not_let_in(error.reason, error.text)
            return
        except ConnectionRefusedError:
            self._lost(f"nobody listens at {entry.address}")
            self.tell_unreachable()  # N2
            return
        except (OSError, ValueError) as error:
            self._lost(f"{entry.address}: {error}")
            return
        stream = LeaderStream(entry, own, self._now_s, framed.end, framed.say, lambda: framed.coming)
        sender = threading.Thread(target=self._say, args=(stream, framed), name=f"link-asks-{self.to}", daemon=True)
        with self._lock:
            self._stream = stream
            if self._is_closed:
                stream.end()
        try:
            self._greet(stream, framed)
            sender.start()
            while (frame := framed.read(ANSWER_BYTES_MAX)) is not None:
                self.receive(stream, frame)
            raise ConnectionError("it has ended the connection")
        except SentAway as error:
            is_lost = stream.welcomed_s or error.status == "UNAVAILABLE" or self._is_late(error.text)
            (self._lost if is_lost else partial(self._not_let_in, error.reason))(f"{error.status}: {error.text}")
        except Refused as error:
            self._not_let_in(error.reason, error.text)
        except (OSError, BadFrame, RuntimeError) as error:  # RuntimeError: no more threads are allowed
            self._broken(stream, error)
        finally:
            stream.end()
            if sender.ident is not None:
                sender.join()
            framed.close()

    def _greet(self, stream: LeaderStream, framed: Framed) -> None:
        """Raises Refused, OSError."""
        caller = Caller(stream.own, self._cluster_id, self.to, self._key, os.urandom(NONCE_BYTES))
        until_s = time.monotonic() + GREETING_S
        framed.send(PURPOSE)
        framed.write(caller.hello())
        framed.write(caller.challenge(_next(framed, until_s)))
        welcome = caller.welcome(_next(framed, until_s))
        self.welcomed(stream, answers_ranges=welcome.answers_ranges)

    def _say(self, stream: LeaderStream, framed: Framed) -> None:
        """The stream's sender: each question, when the connection can take it."""
        try:
            while (key := stream.outbox.next()) is not None:
                framed.write_made(partial(self.question_of, stream, key))
        except OSError:  # it is gone, which the reader says
            pass
        except Exception:
            log.exception("replica.link_bug to=%s", self.to)
        finally:
            stream.end()

    def question_of(self, stream: LeaderStream, key: Key) -> LinkFrame | None:
        """The frame of a question that is open; None: it is not any more, or nobody there would answer."""
        question = self._open.get(key)
        if question is None or (isinstance(question, AskRange) and not stream.answers_ranges):  # N6
            return None
        takes_bulk = isinstance(question, Fetch) and not self.bulk.is_avoided
        return encode(Asked(key[0], question, takes_bulk))

    def welcomed(self, stream: LeaderStream, *, answers_ranges: bool) -> None:
        """The stream has let this side in."""
        now_s = self._now_s()
        with self._lock:
            self._busy_since_s = 0.0
            self._heard_s = self._silence_told_s = self.heard_to(now_s)
            stream.welcomed_s, stream.answers_ranges = now_s, answers_ranges
            self._late_since_s = None
        log.info("replica.stream_begun to=%s at=%s", self.to, stream.entry.address)
        self._begin(stream)

    def receive(self, stream: LeaderStream, frame: LinkFrame) -> None:
        """An answer, or a heartbeat. Raises Refused: it is neither, or the last one."""
        if frame == HEARTBEAT:
            self._heard_s = self.heard_to(self._now_s())
            return
        self._busy_since_s = begun_s = self._counted(self._now_s())
        self.rested_s = begun_s - self._ended_s
        try:
            self._take(stream, frame)
        finally:
            now_s = self._now_s()
            self._ended_s = ended_s = self._counted(now_s)
            self._busy_s, self._busy_since_s = self._busy_s + max(0.0, ended_s - begun_s), 0.0
            self._heard_s = self.heard_to(now_s)

    def _begin(self, stream: LeaderStream) -> None:
        with self._lock:
            keys, askers = list(self._open), list(self._askers.values())
        for asker in askers:
            self._guarded(asker.begun)
        for key in keys:  # N3
            stream.outbox.ready(key)

    def _take(self, stream: LeaderStream, frame: LinkFrame) -> None:
        try:
            said = decode(frame)
        except BadFrame as error:
            raise Refused("DATA_LOSS", "bad_frame", error.message) from error
        if isinstance(said, Ended):
            raise SentAway(said.status, said.status.lower(), said.text)
        if not isinstance(said, Answered):
            raise Refused("DATA_LOSS", "bad_frame", f"no answer: {type(said).__name__}")
        if isinstance(said.answer, HeldRange):
            with self._lock:
                take = self._takers.get(said.place)
            if take is not None:
                answer = said.answer
                self._guarded(lambda: take(answer, bytes(said.data)))
        elif said.bulk is None:
            self._hand_on(said, said.data)
        elif said.place in self._askers:  # N5
            self.bulk.take(host_and_port(stream.entry.address), said)

    def _hand_on(self, said: Answered, data: bytes | memoryview) -> bool:
        asker = self._askers.get(said.place)
        return asker is None or self._guarded(lambda: asker.arrived(said.answer, data)) is not False

    def _guarded(self, tell: Callable[[], T]) -> T | None:
        """N7."""
        try:
            return tell()
        except Exception:
            log.exception("replica.asker_bug to=%s", self.to)
            return None

    def _ask_again(self, at: Place) -> None:
        stream = self._stream
        if stream is not None:
            stream.outbox.ready((at, None))

    # -- what goes wrong -------------------------------------------------------------------------------------

    def tell_unreachable(self) -> None:
        """Nobody listens there, or says anything."""
        for asker in list(self._askers.values()):
            self._guarded(partial(asker.unreachable, self.to))

    def _is_late(self, why: str) -> bool:
        """N10."""
        now_s = self._now_s()
        with self._lock:
            if not why.startswith(LATE):
                self._late_since_s = None
            elif self._late_since_s is None:
                self._late_since_s = now_s
            return self._late_since_s is not None and now_s - self._late_since_s < LATE_S

    def _lost(self, why: str) -> None:
        self._counts["lost"] += 1
        count = self._log_lost.due()
        if count:
            log.warning("replica.stream_lost to=%s count=%d error=%s", self.to, count, why)

    def _not_let_in(self, reason: str, why: str) -> None:
        self._counts["refused"] += 1
        count = self._log_refused.due()
        if count:
            log.error("replica.not_let_in to=%s reason=%s count=%d error=%s", self.to, reason, count, why)

    def _broken(self, stream: LeaderStream, error: Exception) -> None:
        if self._is_closed:
            return
        is_unheard = not stream.welcomed_s and self._tls is None
        if is_unheard and speaks_tls(*host_and_port(stream.entry.address), CONNECT_S):
            lacks = "it has no cluster.tls_cert, or cluster.tls is accept"
            self._not_let_in("tls", f"TLS is spoken there, and not by this broker: {lacks}")
        elif not stream.welcomed_s and isinstance(error, ssl.SSLError):
            self._not_let_in("tls", why_kept_out(error))
        elif isinstance(error, BadFrame):
            self._not_let_in("bad_frame", error.message)
        else:
            self._lost(str(error))


def _next(framed: Framed, until_s: float) -> LinkFrame:
    frame = framed.read(GREETING_BYTES_MAX, until_s)
    if frame is None:
        raise ConnectionError("it ended amid the greeting")
    return frame


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port`, or `[address]:port`. Raises ValueError."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
