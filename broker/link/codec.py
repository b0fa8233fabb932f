"""Messages between replicas as frames of the wire, and back.

    frame = bytes of the head, CRC-32C of the head, bytes of data (each 32 bits, big-endian) │ head │ data

The head is a message of `broker/api/proto/replica.proto`. A frame without head and data is a heartbeat.

C1  `decode` gives a message of `broker.replication.messages` whose numbers are in their range, or `BadFrame`.
C2  A head stands under a CRC. TCP lets flipped bits through, and a high watermark, unlike a batch, has no other check.
C3  Stored bytes pass as they are: nothing here looks into them.
C4  A follower has room for all that an answer says to come in bulk.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from typing import Any, Final, NamedTuple, get_args

from crc32c import crc32c
from google.protobuf.message import DecodeError

from broker.api.errors import InvalidRequest
from broker.api.proto import replica_pb2 as pb
from broker.metadata.partition import Place
from broker.replication.messages import (
    AskEnd,
    AskRange,
    AskState,
    Diverged,
    End,
    Fenced,
    Fetch,
    HeldRange,
    Inside,
    Records,
    Reply,
    StartsAbove,
    State,
)

Question = Fetch | AskEnd | AskState | AskRange
PLACE_BYTES_MAX: Final = 256
"""Most bytes of the incarnation of a stream, and of a broker's name."""
NUMBER_MAX: Final = 1 << 62
TICKET_BYTES: Final = 32
BULK_BYTES_MAX: Final = 16 << 20
"""Most bytes that come in bulk for one answer (C4)."""

_QUESTIONS: Final = {"fetch": Fetch, "ask_end": AskEnd, "ask_state": AskState, "ask_range": AskRange}
_ANSWERS: Final = {
    "records": Records,
    "inside": Inside,
    "state": State,
    "range": HeldRange,
    "end": End,
    "diverged": Diverged,
    "starts_above": StartsAbove,
    "fenced": Fenced,
}
_NAMES: Final[dict[type, str]] = {cls: name for name, cls in (*_QUESTIONS.items(), *_ANSWERS.items())}
_FIELDS: Final = {cls: tuple(field.name for field in fields(cls)) for cls in _NAMES}
_MAY_BE_UNKNOWN: Final = frozenset(
    {"epoch", "last_epoch", "start_epoch", "found_epoch", "state_offset", "superseded_epoch"}
)
"""These may be -1."""
_FLAGS: Final = frozenset({"lacks_state", "lacks_room", "takes_aside", "is_damaged"})
assert {*get_args(Question), *get_args(Reply)} == _NAMES.keys()


PREAMBLE: Final = struct.Struct(">III")
"""What a frame begins with: bytes of the head, its CRC, bytes of data."""


class LinkFrame(NamedTuple):
    """What goes over the wire at once. The data are stored bytes, which may be a view of memory that is used again."""

    head: bytes
    head_crc: int
    data: bytes | memoryview = b""

    def preamble(self) -> bytes:
        """What goes before head and data."""
        return PREAMBLE.pack(len(self.head), self.head_crc, len(self.data))

    def to_bytes(self) -> bytes:
        """All of it."""
        return b"".join((self.preamble(), self.head, self.data))

    @staticmethod
    def of(data: bytes) -> LinkFrame:
        """The one that these bytes are. Raises BadFrame."""
        if len(data) < PREAMBLE.size:
            raise BadFrame("no frame")
        head_bytes, head_crc, data_bytes = PREAMBLE.unpack_from(data)
        end = PREAMBLE.size + head_bytes
        if len(data) != end + data_bytes:
            raise BadFrame(f"a frame says {head_bytes} and {data_bytes} bytes and has {len(data) - PREAMBLE.size}")
        return LinkFrame(data[PREAMBLE.size : end], head_crc, data[end:])


HEARTBEAT: Final = LinkFrame(b"", 0)
"""Says that somebody is there."""


class BadFrame(InvalidRequest):
    """Bytes that are no message between replicas. (Never told to a client: the connection that brought them ends.)"""


class Hello(NamedTuple):
    """As in the proto."""

    version: int
    cluster_id: str
    broker_id: str
    registration: int
    to: str
    nonce: bytes


class Challenge(NamedTuple):
    """As in the proto."""

    nonce: bytes


class Proof(NamedTuple):
    """As in the proto."""

    proof: bytes


class Welcome(NamedTuple):
    """As in the proto."""

    proof: bytes
    answers_ranges: bool = False


class Ended(NamedTuple):
    """Why this side ends the connection: one word, as of `handshake.Refused`, and a text. The last frame."""

    status: str
    text: str


class Asked(NamedTuple):
    """A question about a partition. `takes_bulk`: the answer's bytes may come in bulk."""

    place: Place
    question: Question
    takes_bulk: bool = False


class Bulk(NamedTuple):
    """Where the bytes of an answer are to be had, and how many they are: as in the proto."""

    ticket: bytes
    byte_count: int
    port: int


class Answered(NamedTuple):
    """An answer about a partition, and the bytes that come with it, or where they are."""

    place: Place
    answer: Reply
    data: bytes | memoryview = b""
    bulk: Bulk | None = None


Said = Hello | Challenge | Proof | Welcome | Ended | Asked | Answered


def encode(said: Said) -> LinkFrame:
    """As it travels (C2)."""
    head = pb.Head()
    data: bytes | memoryview = b""
    if isinstance(said, Asked):
        _put_place(head.asked.place, said.place)
        _put(getattr(head.asked, _NAMES[type(said.question)]), said.question)
        head.asked.takes_bulk = said.takes_bulk
    elif isinstance(said, Answered):
        _put_place(head.answered.place, said.place)
        _put(getattr(head.answered, _NAMES[type(said.answer)]), said.answer)
        data = said.data
        if said.bulk is not None:
            head.answered.bulk.MergeFrom(pb.Bulk(**said.bulk._asdict()))
    else:
        into = getattr(head, type(said).__name__.lower())
        into.SetInParent()
        for name, value in zip(said._fields, said, strict=True):
            setattr(into, name, value)
    text = head.SerializeToString()
    return LinkFrame(text, crc32c(text), data)


def decode(frame: LinkFrame) -> Said:
    """Decode a frame, and check it. Raises BadFrame (C1, C2)."""
    if crc32c(frame.head) != frame.head_crc:
        raise BadFrame("the CRC of a frame's head does not fit")
    head = pb.Head()
    try:
        head.ParseFromString(frame.head)
    except DecodeError as error:
        raise BadFrame("the head of a frame cannot be read") from error
    data = frame.data
    what = head.WhichOneof("what")
    if what == "answered":
        return _answered(head.answered, data)
    if data:
        raise BadFrame(f"no bytes go with {what}")
    match what:
        case "asked":
            name = head.asked.WhichOneof("question")
            if name is None:
                raise BadFrame("a question that this release does not know")
            question = _taken(_QUESTIONS[name], getattr(head.asked, name))
            return Asked(_place(head.asked), question, head.asked.takes_bulk)
        case "hello":
            hello = head.hello
            _check_text("cluster_id", hello.cluster_id)
            _check_text("broker_id", hello.broker_id)
            _check_text("to", hello.to)
            _check_number("registration", hello.registration, 0)
            return Hello(hello.version, hello.cluster_id, hello.broker_id, hello.registration, hello.to, hello.nonce)
        case "challenge":
            return Challenge(head.challenge.nonce)
        case "proof":
            return Proof(head.proof.proof)
        case "welcome":
            return Welcome(head.welcome.proof, head.welcome.answers_ranges)
        case "ended":
            _check_text("status", head.ended.status)
            return Ended(head.ended.status, head.ended.text)
    raise BadFrame("a frame that this release does not know")


def _answered(said: pb.Answered, data: bytes | memoryview) -> Answered:
    name = said.WhichOneof("answer")
    if name is None:
        raise BadFrame("an answer that this release does not know")
    answer: Any = _taken(_ANSWERS[name], getattr(said, name))
    if data and name not in ("records", "state", "range"):
        raise BadFrame(f"no bytes go with {name}")
    if name == "state" and answer.length != len(data):
        raise BadFrame(f"a piece of {answer.length} bytes came with {len(data)}")
    if name == "range" and bool(data) != (answer.start < answer.end):
        raise BadFrame(f"[{answer.start}, {answer.end}) came with {len(data)} bytes")
    return Answered(_place(said), answer, data, _bulk(name, said.bulk, data) if said.HasField("bulk") else None)


def _bulk(name: str, said: pb.Bulk, data: bytes | memoryview) -> Bulk:
    """C4."""
    if name != "records" or data:
        raise BadFrame(f"nothing comes in bulk with {name} and {len(data)} bytes")
    if len(said.ticket) != TICKET_BYTES:
        raise BadFrame(f"a ticket has {TICKET_BYTES} bytes, not {len(said.ticket)}")
    if not 0 < said.byte_count <= BULK_BYTES_MAX or not 0 <= said.port < 1 << 16:
        raise BadFrame(f"no {said.byte_count} bytes come in bulk, at port {said.port}")
    return Bulk(said.ticket, said.byte_count, said.port)


def _place(said: pb.Asked | pb.Answered) -> Place:
    _check_text("incarnation", said.place.incarnation)
    return said.place.incarnation, said.place.partition


def _put_place(into: pb.Place, place: Place) -> None:
    into.incarnation, into.partition = place


def _put(into: Any, message: Any) -> None:
    for name in _FIELDS[type(message)]:
        value = getattr(message, name)
        if name == "incarnation":
            into.incarnation.registration, into.incarnation.step_outs = value
        else:
            setattr(into, name, value)


def _taken(cls: type, said: Any) -> Any:
    """C1."""
    values: dict[str, Any] = {}
    for name in _FIELDS[cls]:
        value = getattr(said, name)
        if name == "incarnation":
            _check_number("registration", value.registration, -1)
            _check_number("step_outs", value.step_outs, 0)
            value = (value.registration, value.step_outs)
        elif name == "follower":
            _check_text(name, value)
        elif name not in _FLAGS:
            _check_number(name, value, -1 if name in _MAY_BE_UNKNOWN else 0)
        values[name] = value
    return cls(**values)


def _check_number(name: str, value: int, least: int) -> None:
    if not least <= value <= NUMBER_MAX:
        raise BadFrame(f"{name}={value} is outside [{least}, {NUMBER_MAX}]")


def _check_text(name: str, value: str) -> None:
    if not 0 < len(value.encode()) <= PLACE_BYTES_MAX:
        raise BadFrame(f"{name} has {len(value.encode())} bytes, not 1 to {PLACE_BYTES_MAX}")
