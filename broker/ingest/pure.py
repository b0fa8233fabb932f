"""NATS bytes to record batches in Python: the slow twin, and the one to read.

    AT_LINE ──control line──► (header block) ──► (cookie) ──► fate (rules.py) ──► payload ──► CR LF ──► row, or answer
       ▲                                             └──► envelope ──► fate ─────────────────────┘           │
       └─────────────────────────────────────────────────────────────────────────────────────────────────────┘

A message may be split anywhere. The bytes of a part that have arrived wait in one bytearray and are not
looked at again; a payload that will not be stored is skipped as it arrives.

I1  A builder changes only when a message is complete, its closing CR LF included.
I2  The fate of a message is decided once, by the settings that its builder has then: when its header block is complete
    (or at its control line if it has none, or none that is looked at) and the bytes of its payload are there that tell
    an envelope; if they do, when its payload is complete. A change of settings or routes while the rest arrives changes
    neither its builder nor how it is answered.
I3  Fed whole or in any pieces, the results are the same.
I4  A subscription that ends amid a message, or amid a control line, ends behind it: what is half read is stored or
    answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final

from broker.ingest import rules
from broker.ingest.answers import Refusal, publish, refusal_body
from broker.ingest.control import ControlLine, begins_operation, read_control_line, read_operation
from broker.ingest.envelope import COOKIE, UNKNOWN, is_publishable, open_envelope
from broker.ingest.errors import EXCERPT_BYTES_MAX, IntakeProtocolError
from broker.ingest.pure_batch import Builder, PendingBatch, Row, publish_ack
from broker.ingest.pure_fate import PendingMessage, Route, decide
from broker.ingest.settings import check_intake, check_route

IMPLEMENTATION: Final = "pure"
MISSING_END: Final = "a message that does not end in CR LF where it should"

__all__ = ["IMPLEMENTATION", "Builder", "Intake", "PendingBatch"]


class _State(Enum):
    AT_LINE = auto()
    IN_HEADERS = auto()
    IN_COOKIE = auto()
    IN_ENVELOPE = auto()
    IN_VALUE = auto()
    IN_SKIPPED = auto()
    AT_END = auto()


class Intake:
    """Parses the bytes of one NATS connection into the builders that its subscriptions are routed to.

    Belongs to one thread, with all builders routed to it.

    Args:
        control_line_max: The server's `max_control_line`, bytes.
        payload_max: A message over this is a protocol error; the server's `max_payload` is below it.
        reply_prefixes: Only reply subjects that begin with one of these are answered.
    """

    def __init__(
        self,
        *,
        control_line_max: int = 4096,
        payload_max: int = 64 << 20,
        reply_prefixes: Sequence[bytes] = (b"",),
    ) -> None:
        check_intake(control_line_max, payload_max, reply_prefixes)
        self._reply_prefixes = tuple(reply_prefixes)
        self._line_max = control_line_max + rules.CONTROL_LINE_SLACK
        self._reply_size_max = control_line_max - rules.ANSWER_ARGUMENT_BYTES
        self._payload_max = payload_max
        self._routes: dict[int, Route] = {}
        self._ending: set[int] = set()  # subscriptions whose routes go behind what is half read (I4)
        self._dirty: dict[int, Builder] = {}
        self._touches = 0
        self._counters = dict.fromkeys(rules.COUNTERS, 0)
        self._answers: list[bytes] = []
        self._position = 0
        self._state = _State.AT_LINE
        self._part = bytearray()  # of a control line, a header block or the cookie
        self._missing = 0
        self._message: PendingMessage | None = None
        self._problem: tuple[str, int, bytes] | None = None

    @property
    def counters(self) -> dict[str, int]:
        """Counts of messages, by their fate: see COUNTERS of rules.py."""
        return dict(self._counters)

    # Routes

    def route(self, sid: int, builders: Sequence[Builder], *, partition_by: str, envelopes: bool = True) -> None:
        """Send the messages of a subscription to builders of one stream.

        Args:
            sid: Subscription id; routed before: the new builders replace the old.
            builders: With `partition_by="subject_suffix"` exactly one, which gets everything. Otherwise
                those partitions of the stream that are led here; a message is kept if it hashes to one.
                They belong to this Intake now, with the records that are in them.
            envelopes: Liftbridge's envelopes are opened (`rules.R8`).
        Raises:
            ValueError: the builders are not of one stream, or do not fit `partition_by`.
        """
        by, token = check_route(builders, partition_by)
        lead = builders[0]
        led = {b.partition: b for b in builders}
        self._routes[sid] = Route(by, token, lead.partition_count, lead, led, opens_envelopes=envelopes)
        self._ending.discard(sid)
        for builder in builders:
            is_new = builder._owner is not self
            builder._owner = self
            builder._on_first_record = self._touch
            if builder.record_count and (is_new or id(builder) not in self._dirty):
                self._touch(builder)

    def unroute(self, sid: int) -> None:
        """Forget a subscription, behind what is half read (I4). `dirty` still lists its builders."""
        message = self._message
        if self._part if message is None else message.line.sid == sid:
            self._ending.add(sid)
        else:
            self._routes.pop(sid, None)

    def _end_routes(self) -> None:
        for sid in self._ending:
            self._routes.pop(sid, None)
        self._ending.clear()

    def _drop_message(self, message: PendingMessage) -> None:
        """The rest of the current message is skipped, and counts as unrouted."""
        message.fate = "unrouted"
        message.builder = None
        message.value = bytearray()
        if self._state is _State.IN_VALUE:
            self._state = _State.IN_SKIPPED

    def _drop_message_for_others(self) -> None:
        """Another Intake may have taken over the builder of a message in part."""
        message = self._message
        if message is not None and message.builder is not None and message.builder._owner is not self:
            self._drop_message(message)

    def _touch(self, builder: Builder) -> None:
        self._touches += 1
        builder._touched = self._touches
        self._dirty[id(builder)] = builder

    # Feeding

    def feed(self, data: Any, now_us: int) -> list[tuple[Any, ...]]:
        """Parse the next bytes of the connection.

        Args:
            data: Any buffer of bytes; it is not kept.
            now_us: Timestamp of the records that are complete now, microseconds since 1970.
        Returns:
            Control operations in order: ("PING",), ("PONG",), ("OK",), ("ERR", text), ("INFO", JSON bytes).
        Raises:
            IntakeProtocolError: not the NATS protocol; again at every feed until `reset`.
        """
        events: list[tuple[Any, ...]] = []
        if self._problem is None:
            self._drop_message_for_others()
            chunk = bytes(data)
            at = 0
            while at < len(chunk) and self._problem is None:
                at = self._step(chunk, at, now_us, events)
            self._position += len(chunk)
        if self._problem is not None:
            raise IntakeProtocolError(*self._problem, events)
        return events

    def reset(self) -> None:
        """A new connection begins: drop a half-read message and a protocol error. Records stay."""
        self._state = _State.AT_LINE
        self._message = None
        self._part = bytearray()
        self._problem = None
        self._position = 0
        self._end_routes()

    def _step(self, chunk: bytes, at: int, now_us: int, events: list[tuple[Any, ...]]) -> int:
        """Take in what belongs together from `at` on; return where to go on."""
        if self._state is _State.AT_LINE:
            if self._ending and not self._part:
                self._end_routes()
            return self._at_line(chunk, at, events)
        if self._state is _State.AT_END:
            return self._at_end(chunk, at, now_us)
        is_cookie = self._state is _State.IN_COOKIE
        part = chunk[at : at + (len(COOKIE) - len(self._part) if is_cookie else self._missing)]
        self._missing -= len(part)
        if is_cookie:
            self._part += part
            if len(self._part) == len(COOKIE):
                begun, self._part = bytes(self._part), bytearray()
                self._after_cookie(begun)
        elif self._state is _State.IN_HEADERS:
            self._part += part
            if not self._missing:
                block, self._part = bytes(self._part), bytearray()
                self._after_headers(block)
        else:
            if self._state in (_State.IN_VALUE, _State.IN_ENVELOPE):
                assert self._message is not None
                self._message.value += part
            if not self._missing:
                if self._state is _State.IN_ENVELOPE:
                    self._after_envelope()
                self._expect_end()
        return at + len(part)

    def _at_line(self, chunk: bytes, at: int, events: list[tuple[Any, ...]]) -> int:
        begun = len(self._part)
        first = self._part[0] if begun else chunk[at]
        line_at = self._position + at - begun
        newline = chunk.find(b"\n", at)
        end = len(chunk) if newline < 0 else newline
        line_max = rules.INFO_LINE_BYTES_MAX if first in b"Ii" else self._line_max
        if not begins_operation(first):
            return self._fail("an unknown operation", line_at, chunk[at:])
        if begun + end - at > line_max + 1:
            return self._fail("a control line too long", line_at, bytes(self._part) or chunk[at:])
        self._part += chunk[at:end]
        if newline < 0:
            return end
        line, self._part = bytes(self._part), bytearray()
        if not line.endswith(b"\r"):
            return self._fail("a control line that does not end in CR LF", line_at, line)
        found = read_control_line(line[:-1], self._payload_max) or read_operation(line[:-1])
        if isinstance(found, str):
            return self._fail(found, line_at, line)
        if isinstance(found, ControlLine):
            self._begin(found)
        else:
            events.append(found)
        return end + 1

    def _at_end(self, chunk: bytes, at: int, now_us: int) -> int:
        expected = b"\r\n"[-self._missing :]
        got = chunk[at : at + self._missing]
        for i, byte in enumerate(got):
            if byte != expected[i]:
                return self._fail(MISSING_END, self._position + at + i, chunk[at + i :])
        self._missing -= len(got)
        if not self._missing:
            self._finish(now_us)
        return at + len(got)

    def _fail(self, problem: str, position: int, excerpt: bytes) -> int:
        self._problem = (problem, position, excerpt[:EXCERPT_BYTES_MAX])
        self._message = None
        return 0

    # One message

    def _begin(self, line: ControlLine) -> None:
        """A control line is here: is the header block wanted?"""
        self._message = message = PendingMessage(line)
        route = self._routes.get(line.sid)
        peek = line.header_size is not None and line.header_size <= rules.HEADER_PEEK_BYTES_MAX
        if line.header_size is not None and route is not None and (peek or not message.is_oversize(route.lead)):
            self._state = _State.IN_HEADERS
            self._missing = line.header_size
            if not self._missing:
                self._after_headers(b"")
        else:
            self._after_headers(None)

    def _after_headers(self, block: bytes | None) -> None:
        """The payload comes; `block` None: no header block, or skipped with the payload."""
        message = self._message
        assert message is not None
        message.block = block
        self._missing = message.line.size - (0 if block is None else len(block))
        route = self._routes.get(message.line.sid)
        if route is not None and route.opens_envelopes and message.may_have_envelope(route.lead):
            self._state = _State.IN_COOKIE
        else:
            self._decide()

    def _after_cookie(self, begun: bytes) -> None:
        message = self._message
        assert message is not None
        if begun == COOKIE:
            self._state = _State.IN_ENVELOPE
            message.value += begun
            return
        self._decide()
        if self._state is _State.IN_VALUE:
            message.value += begun

    def _after_envelope(self) -> None:
        message = self._message
        assert message is not None
        message.envelope = open_envelope(bytes(message.value))
        self._decide()
        if message.envelope is not None:
            message.value = bytearray(message.envelope.value)

    def _decide(self) -> None:
        """The fate can be known."""
        message = self._message
        assert message is not None
        decide(message, message.block, self._routes.get(message.line.sid), self)
        stored = message.fate == "stored" and not message.tombstone
        self._state = _State.IN_VALUE if stored else _State.IN_SKIPPED
        if not self._missing:
            self._expect_end()

    def _expect_end(self) -> None:
        self._state = _State.AT_END
        self._missing = 2

    def _finish(self, now_us: int) -> None:
        """The message is complete: count it, and store or answer it."""
        message = self._message
        assert message is not None
        self._message = None
        self._state = _State.AT_LINE
        fate, line, builder = message.fate, message.line, message.builder
        self._counters["messages"] += 1
        self._counters["bytes"] += line.size
        self._counters[fate.counter if isinstance(fate, Refusal) else fate] += 1
        inbox = message.inbox
        asks = inbox is not None or (message.reply_acks and bool(line.reply))
        answerable = self._may_be_acked(message) if inbox is not None else self._may_be_told(line.reply)
        if isinstance(fate, Refusal):
            assert builder is not None
            if asks and not answerable:
                self._counters["unanswerable"] += 1
            elif asks and (inbox is None or fate.ack_error != UNKNOWN):
                self._answers.append(self._refuse(message, fate, now_us))
        elif fate == "stored":
            assert builder is not None
            if message.awaits and not answerable:
                self._counters["unanswerable"] += 1
            builder._add(
                Row(
                    timestamp_us=now_us,
                    subject=line.subject,
                    key=message.key,
                    value=None if message.tombstone else bytes(message.value),
                    headers=message.headers,
                    reply=line.reply or None,
                    awaits=message.awaits if answerable else rules.AWAITS_NONE,
                    may_be_told=asks and answerable,
                    msg_id=message.msg_id,
                    expected_id=message.expected_id,
                    expected_sequence=message.expected_sequence,
                    expected_subject_sequence=message.expected_subject_sequence,
                    fence=message.fence,
                    wire_bytes=message.wire_bytes,
                    inbox=inbox,
                )
            )

    def _may_be_told(self, subject: bytes) -> bool:
        """Whether an answer may go to a subject (`rules.R5`)."""
        is_own = subject.startswith(self._reply_prefixes) and not subject.startswith(rules.SYSTEM)
        return is_own and len(subject) <= self._reply_size_max

    def _may_be_acked(self, message: PendingMessage) -> bool:
        """Whether the ack inbox of an envelope may be told (`rules.R9`)."""
        builder, asked = message.builder, message.inbox
        if builder is None or asked is None:
            return False
        texts = (builder.stream.encode(), builder.subject.encode(), message.line.subject, asked.correlation_id)
        size = sum(map(len, texts)) + len(asked.ack_inbox)
        is_short = size <= rules.ACK_TEXTS_BYTES_MAX
        return is_short and is_publishable(asked.ack_inbox) and self._may_be_told(asked.ack_inbox)

    def _refuse(self, message: PendingMessage, refusal: Refusal, now_us: int) -> bytes:
        """The answer to a refused message."""
        builder, line, asked = message.builder, message.line, message.inbox
        assert builder is not None
        if asked is not None:
            return publish_ack(
                builder.stream, builder.subject, line.subject, asked, now_us, 0, offset=0, error=refusal.ack_error
            )
        body = refusal_body(refusal, builder.stream, size=message.wire_bytes, limit=message.record_bytes_max)
        return publish(line.reply, body)

    # Results

    def dirty(self) -> list[Builder]:
        """Builders with records, in the order in which their first record came."""
        self._dirty = {
            key: builder for key, builder in self._dirty.items() if builder.record_count and builder._owner is self
        }
        return sorted(self._dirty.values(), key=lambda builder: builder._touched)

    def full(self) -> bool:
        """Is some builder full? Then flush now; feeding may go on."""
        return any(builder._owner is self and builder._is_full() for builder in self._dirty.values())

    def refusals(self) -> bytes:
        """Answers to messages refused since the last call, as one blob of PUBs; b"" if none."""
        blob = b"".join(self._answers)
        self._answers.clear()
        return blob
