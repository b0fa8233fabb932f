from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Head(_message.Message):
    __slots__ = ("hello", "challenge", "proof", "welcome", "asked", "answered", "ended")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    challenge: Challenge
    proof: Proof
    welcome: Welcome
    asked: Asked
    answered: Answered
    ended: Ended
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., challenge: _Optional[_Union[Challenge, _Mapping]] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., asked: _Optional[_Union[Asked, _Mapping]] = ..., answered: _Optional[_Union[Answered, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "cluster_id", "broker_id", "registration", "to", "nonce")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster_id: str
    broker_id: str
    registration: int
    to: str
    nonce: bytes
    def __init__(self, version: _Optional[int] = ..., cluster_id: _Optional[str] = ..., broker_id: _Optional[str] = ..., registration: _Optional[int] = ..., to: _Optional[str] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("proof",)
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    def __init__(self, proof: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("proof", "answers_ranges")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_RANGES_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    answers_ranges: bool
    def __init__(self, proof: _Optional[bytes] = ..., answers_ranges: _Optional[bool] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("status", "text")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    status: str
    text: str
    def __init__(self, status: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("incarnation", "partition")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    partition: int
    def __init__(self, incarnation: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class Asked(_message.Message):
    __slots__ = ("place", "fetch", "ask_end", "ask_state", "ask_range", "takes_bulk")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    ASK_END_FIELD_NUMBER: _ClassVar[int]
    ASK_STATE_FIELD_NUMBER: _ClassVar[int]
    ASK_RANGE_FIELD_NUMBER: _ClassVar[int]
    TAKES_BULK_FIELD_NUMBER: _ClassVar[int]
    place: Place
    fetch: Fetch
    ask_end: AskEnd
    ask_state: AskState
    ask_range: AskRange
    takes_bulk: bool
    def __init__(self, place: _Optional[_Union[Place, _Mapping]] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ..., ask_end: _Optional[_Union[AskEnd, _Mapping]] = ..., ask_state: _Optional[_Union[AskState, _Mapping]] = ..., ask_range: _Optional[_Union[AskRange, _Mapping]] = ..., takes_bulk: _Optional[bool] = ...) -> None: ...

class Answered(_message.Message):
    __slots__ = ("place", "records", "inside", "state", "end", "diverged", "starts_above", "fenced", "range", "bulk")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    INSIDE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    STARTS_ABOVE_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    BULK_FIELD_NUMBER: _ClassVar[int]
    place: Place
    records: Records
    inside: Inside
    state: State
    end: End
    diverged: Diverged
    starts_above: StartsAbove
    fenced: Fenced
    range: HeldRange
    bulk: Bulk
    def __init__(self, place: _Optional[_Union[Place, _Mapping]] = ..., records: _Optional[_Union[Records, _Mapping]] = ..., inside: _Optional[_Union[Inside, _Mapping]] = ..., state: _Optional[_Union[State, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., diverged: _Optional[_Union[Diverged, _Mapping]] = ..., starts_above: _Optional[_Union[StartsAbove, _Mapping]] = ..., fenced: _Optional[_Union[Fenced, _Mapping]] = ..., range: _Optional[_Union[HeldRange, _Mapping]] = ..., bulk: _Optional[_Union[Bulk, _Mapping]] = ...) -> None: ...

class Bulk(_message.Message):
    __slots__ = ("ticket", "byte_count", "port")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    byte_count: int
    port: int
    def __init__(self, ticket: _Optional[bytes] = ..., byte_count: _Optional[int] = ..., port: _Optional[int] = ...) -> None: ...

class Incarnation(_message.Message):
    __slots__ = ("registration", "step_outs")
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    STEP_OUTS_FIELD_NUMBER: _ClassVar[int]
    registration: int
    step_outs: int
    def __init__(self, registration: _Optional[int] = ..., step_outs: _Optional[int] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("follower", "incarnation", "epoch", "offset", "last_epoch", "durable_end", "log_start", "lacks_state", "number", "compacted_to", "waits_to", "lacks_room")
    FOLLOWER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DURABLE_END_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    LACKS_STATE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_TO_FIELD_NUMBER: _ClassVar[int]
    WAITS_TO_FIELD_NUMBER: _ClassVar[int]
    LACKS_ROOM_FIELD_NUMBER: _ClassVar[int]
    follower: str
    incarnation: Incarnation
    epoch: int
    offset: int
    last_epoch: int
    durable_end: int
    log_start: int
    lacks_state: bool
    number: int
    compacted_to: int
    waits_to: int
    lacks_room: bool
    def __init__(self, follower: _Optional[str] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., durable_end: _Optional[int] = ..., log_start: _Optional[int] = ..., lacks_state: _Optional[bool] = ..., number: _Optional[int] = ..., compacted_to: _Optional[int] = ..., waits_to: _Optional[int] = ..., lacks_room: _Optional[bool] = ...) -> None: ...

class AskEnd(_message.Message):
    __slots__ = ("follower", "incarnation", "epoch", "request", "last_epoch")
    FOLLOWER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    follower: str
    incarnation: Incarnation
    epoch: int
    request: int
    last_epoch: int
    def __init__(self, follower: _Optional[str] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ..., epoch: _Optional[int] = ..., request: _Optional[int] = ..., last_epoch: _Optional[int] = ...) -> None: ...

class AskState(_message.Message):
    __slots__ = ("follower", "incarnation", "epoch", "offset", "at")
    FOLLOWER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    follower: str
    incarnation: Incarnation
    epoch: int
    offset: int
    at: int
    def __init__(self, follower: _Optional[str] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., at: _Optional[int] = ...) -> None: ...

class AskRange(_message.Message):
    __slots__ = ("follower", "incarnation", "epoch", "request", "start", "end", "compacted_to", "takes_aside", "number")
    FOLLOWER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_TO_FIELD_NUMBER: _ClassVar[int]
    TAKES_ASIDE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    follower: str
    incarnation: Incarnation
    epoch: int
    request: int
    start: int
    end: int
    compacted_to: int
    takes_aside: bool
    number: int
    def __init__(self, follower: _Optional[str] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ..., epoch: _Optional[int] = ..., request: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., compacted_to: _Optional[int] = ..., takes_aside: _Optional[bool] = ..., number: _Optional[int] = ...) -> None: ...

class Records(_message.Message):
    __slots__ = ("epoch", "incarnation", "offset", "high_watermark", "log_start", "rewritten_to", "state_offset", "number", "tombstones_below", "compact_to", "superseded_to", "superseded_epoch")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    REWRITTEN_TO_FIELD_NUMBER: _ClassVar[int]
    STATE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_BELOW_FIELD_NUMBER: _ClassVar[int]
    COMPACT_TO_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_TO_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    incarnation: Incarnation
    offset: int
    high_watermark: int
    log_start: int
    rewritten_to: int
    state_offset: int
    number: int
    tombstones_below: int
    compact_to: int
    superseded_to: int
    superseded_epoch: int
    def __init__(self, epoch: _Optional[int] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ..., offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_start: _Optional[int] = ..., rewritten_to: _Optional[int] = ..., state_offset: _Optional[int] = ..., number: _Optional[int] = ..., tombstones_below: _Optional[int] = ..., compact_to: _Optional[int] = ..., superseded_to: _Optional[int] = ..., superseded_epoch: _Optional[int] = ...) -> None: ...

class Inside(_message.Message):
    __slots__ = ("epoch", "incarnation", "offset", "number", "batch_start", "start_epoch")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BATCH_START_FIELD_NUMBER: _ClassVar[int]
    START_EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    incarnation: Incarnation
    offset: int
    number: int
    batch_start: int
    start_epoch: int
    def __init__(self, epoch: _Optional[int] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ..., offset: _Optional[int] = ..., number: _Optional[int] = ..., batch_start: _Optional[int] = ..., start_epoch: _Optional[int] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("epoch", "incarnation", "offset", "at", "length", "size")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    incarnation: Incarnation
    offset: int
    at: int
    length: int
    size: int
    def __init__(self, epoch: _Optional[int] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ..., offset: _Optional[int] = ..., at: _Optional[int] = ..., length: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class HeldRange(_message.Message):
    __slots__ = ("epoch", "incarnation", "request", "start", "end", "is_damaged", "log_start", "superseded_to", "superseded_epoch")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    IS_DAMAGED_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_TO_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    incarnation: Incarnation
    request: int
    start: int
    end: int
    is_damaged: bool
    log_start: int
    superseded_to: int
    superseded_epoch: int
    def __init__(self, epoch: _Optional[int] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ..., request: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., is_damaged: _Optional[bool] = ..., log_start: _Optional[int] = ..., superseded_to: _Optional[int] = ..., superseded_epoch: _Optional[int] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("epoch", "incarnation", "request", "found_epoch", "end", "log_start", "start_epoch")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    FOUND_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    START_EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    incarnation: Incarnation
    request: int
    found_epoch: int
    end: int
    log_start: int
    start_epoch: int
    def __init__(self, epoch: _Optional[int] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ..., request: _Optional[int] = ..., found_epoch: _Optional[int] = ..., end: _Optional[int] = ..., log_start: _Optional[int] = ..., start_epoch: _Optional[int] = ...) -> None: ...

class Diverged(_message.Message):
    __slots__ = ("epoch", "incarnation")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    incarnation: Incarnation
    def __init__(self, epoch: _Optional[int] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ...) -> None: ...

class StartsAbove(_message.Message):
    __slots__ = ("epoch", "incarnation", "log_start", "start_epoch")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    START_EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    incarnation: Incarnation
    log_start: int
    start_epoch: int
    def __init__(self, epoch: _Optional[int] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ..., log_start: _Optional[int] = ..., start_epoch: _Optional[int] = ...) -> None: ...

class Fenced(_message.Message):
    __slots__ = ("epoch", "incarnation")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    incarnation: Incarnation
    def __init__(self, epoch: _Optional[int] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ...) -> None: ...
