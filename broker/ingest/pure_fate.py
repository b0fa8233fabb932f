"""The rules of rules.py, applied to one message: stored, skipped or refused.

A function of the message, its header block and where its subscription is routed; it changes only the
message that it decides on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

from broker.api.partitioning import FIXED, hashed_part
from broker.ingest import answers, rules
from broker.ingest.answers import Refusal
from broker.ingest.control import ControlLine, parse_headers
from broker.ingest.envelope import HEADER_BYTES, Envelope
from broker.ingest.pure_batch import Builder, weight_of

Headers = list[tuple[bytes, bytes]]
_EXPECTATIONS = frozenset(
    {
        rules.EXPECTED_LAST_MSG_ID,
        rules.EXPECTED_LAST_SEQUENCE,
        rules.EXPECTED_LAST_SUBJECT,
        rules.EXPECTED_LAST_SUBJECT_SEQUENCE,
    }
)


@dataclass(frozen=True, slots=True)
class Route:
    """Where the messages of a subscription go.

    Attributes:
        by, token: How to partition: see partitioning.py.
        partition_count: How many partitions the stream has.
        lead: Any of the builders, for what is the same in all partitions.
        builders: By partition, those led here.
        opens_envelopes: Of the stream.
    """

    by: int
    token: int
    partition_count: int
    lead: Builder
    builders: dict[int, Builder]
    opens_envelopes: bool


@dataclass(slots=True)
class PendingMessage:
    """A message whose control line has arrived.

    Attributes:
        fate: A name in `rules.COUNTERS`, or a Refusal.
        builder: Where it goes, or who answers for it.
        reply_acks, record_bytes_max: The builder's, when the fate was decided.
        key, headers, tombstone, awaits: For its row, if its fate is "stored".
        msg_id, expected_id, expected_sequence, expected_subject_sequence, fence: Likewise, as in `Row`.
        block: Its header block; None: it has none, or it was not looked at (`rules.R3`).
        value: The part of it that has arrived, then; of its payload, while that may be an envelope.
        envelope: None: it has none.
    """

    line: ControlLine
    fate: str | Refusal = "unrouted"
    builder: Builder | None = None
    reply_acks: bool = False
    record_bytes_max: int = 0
    key: bytes | None = None
    headers: Headers | None = None
    tombstone: bool = False
    awaits: int = rules.AWAITS_NONE
    msg_id: bytes = b""
    expected_id: bytes = b""
    expected_sequence: int = -1
    expected_subject_sequence: int = -1
    fence: int = -1
    block: bytes | None = None
    value: bytearray = field(default_factory=bytearray)
    envelope: Envelope | None = None

    @property
    def inbox(self) -> Envelope | None:
        """The envelope that names the inbox where it is told, and nowhere else (`rules.R9`)."""
        return self.envelope if self.envelope is not None and self.envelope.ack_inbox else None

    @property
    def wire_bytes(self) -> int:
        """Its size (`rules.R2`)."""
        return len(self.line.subject) + len(self.line.reply) + self.line.size

    def is_oversize(self, builder: Builder) -> bool:
        return self.wire_bytes > builder._record_bytes_max

    def may_have_envelope(self, builder: Builder) -> bool:
        """Whether its payload is looked into (`rules.R8`)."""
        header_size = self.line.header_size or 0
        size = self.line.size - header_size
        if size < HEADER_BYTES:
            return False
        may_be_read = size <= rules.ENVELOPE_PEEK_BYTES_MAX and header_size <= rules.HEADER_PEEK_BYTES_MAX
        return may_be_read or not self.is_oversize(builder)


def decide(message: PendingMessage, block: bytes | None, route: Route | None, intake: object) -> None:
    """Set the fate of a message, and what is needed to store or answer it. Rules 1 and 2: is it ours at all?

    Args:
        block: As the message has it.
        route: None: nobody wants it.
        intake: Builders of another are not touched.
    """
    line = message.line
    if route is None:
        message.fate = "unrouted"
        return
    if line.subject.startswith(rules.INBOX):
        message.fate = "skipped_inbox"
        return
    if line.subject.startswith(rules.SYSTEM):
        message.fate = "skipped_system"
        return
    oversize = message.is_oversize(route.lead)
    if block is None or (oversize and len(block) > rules.HEADER_PEEK_BYTES_MAX):
        headers: Headers | None = []
    else:
        headers = parse_headers(block)
    envelope = message.envelope
    enclosed = list(envelope.headers) if envelope is not None else []
    options = dict(reversed([*(headers or []), *enclosed]))  # the first of each name (`rules.R1`)
    message.key = (envelope.key if envelope is not None else b"") or options.get(rules.KEY)
    builder: Builder | None = route.lead
    if route.by != FIXED:
        part = hashed_part(line.subject, message.key, route.by, route.token)
        builder = route.builders.get(crc32(part) % route.partition_count)
    if builder is None:
        message.fate = "skipped_other_partition"
        return
    if builder._owner is not intake:
        message.fate = "unrouted"
        return
    message.builder = builder
    message.reply_acks, message.record_bytes_max = builder._reply_acks, builder._record_bytes_max
    if headers is not None:
        headers += enclosed
    message.headers = headers if line.header_size is not None or enclosed else None
    message.fate = _judge(message, builder, headers, options, oversize=oversize)


def _judge(
    message: PendingMessage,
    builder: Builder,
    headers: Headers | None,
    options: Mapping[bytes, bytes],
    *,
    oversize: bool,
) -> str | Refusal:
    """Rules 3 to 10: stored, or why not."""
    if headers is None:
        return answers.BAD_HEADER
    names = [name for name, _ in headers]
    if not all(_is_utf8(text) for text in (message.line.subject, message.line.reply, *names)):
        return answers.BAD_UTF8
    message.msg_id = options.get(rules.MSG_ID, b"")
    if builder._reply_acks:
        if options.get(rules.EXPECTED_STREAM, b"") not in (b"", builder.stream.encode()):
            return answers.EXPECTED_STREAM
        expected = [name for name in names if name.startswith(rules.EXPECTED_LAST)]
        if expected and builder.partition_count > 1:
            return answers.EXPECTED_LAST_PARTITIONS
        if any(name not in _EXPECTATIONS for name in expected):
            return answers.EXPECTED_LAST_UNKNOWN
        named = options.get(rules.EXPECTED_LAST_SUBJECT, b"")
        if named not in (b"", message.line.subject):
            return answers.EXPECTED_LAST_OTHER_SUBJECT
        if named and not options.get(rules.EXPECTED_LAST_SUBJECT_SEQUENCE):
            return answers.EXPECTED_LAST_NO_SEQUENCE
        message.expected_id = options.get(rules.EXPECTED_LAST_MSG_ID, b"")
        message.expected_sequence = _sequence(options.get(rules.EXPECTED_LAST_SEQUENCE, b""))
        message.expected_subject_sequence = _sequence(options.get(rules.EXPECTED_LAST_SUBJECT_SEQUENCE, b""))
    if builder._expects_offsets and message.envelope is not None and message.expected_sequence < 0:
        offset = message.envelope.offset
        message.expected_sequence = rules.NO_SEQUENCE if offset < rules.NO_OFFSET else offset
    ack = options.get(rules.ACK)
    if ack is not None and ack not in rules.ACK_VALUES:
        return answers.BAD_ACK
    fence = options.get(rules.FENCE)
    if fence is not None and not _is_number(fence):
        return answers.BAD_FENCE
    if fence is not None and builder._reply_acks:
        message.fence = int(fence)
    tombstone = options.get(rules.TOMBSTONE)
    if tombstone is not None and tombstone not in rules.TOMBSTONE_VALUES:
        return answers.BAD_TOMBSTONE
    message.tombstone = tombstone is not None and rules.TOMBSTONE_VALUES[tombstone]
    if message.tombstone and message.key is None:
        return answers.TOMBSTONE_WITHOUT_KEY
    if oversize:
        return answers.TOO_LARGE
    weight = weight_of(message.wire_bytes, len(headers))
    if builder.record_count and builder._weight + weight > builder._batch_bytes_hard:
        return answers.BATCH_FULL
    if _is_awaited(message, builder, options):
        default = builder._awaits_by_default
        if message.envelope is not None:
            default = rules.POLICIES.get(message.envelope.ack_policy, rules.AWAITS_NONE)
        message.awaits = default if ack is None else rules.ACK_VALUES[ack]
    return "stored"


def _is_awaited(message: PendingMessage, builder: Builder, options: Mapping[bytes, bytes]) -> bool:
    """Whether an ack may be awaited: on the reply subject, or at the inbox of an envelope (`rules.R9`)."""
    if message.inbox is None:
        return builder._reply_acks and bool(message.line.reply)
    expects = bool(options.get(rules.EXPECTED_STREAM)) or rules.FENCE in options
    expects = expects or any(name.startswith(rules.EXPECTED_LAST) for name in options)
    return builder._reply_acks or not expects


def _sequence(text: bytes) -> int:
    """The number of `Nats-Expected-Last-*Sequence`; -1: there is none (`rules.R7`)."""
    if not text:
        return -1
    return int(text) if _is_number(text) else rules.NO_SEQUENCE


def _is_number(text: bytes) -> bool:
    return len(text) <= rules.SEQUENCE_DIGITS_MAX and text.isdigit()


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
