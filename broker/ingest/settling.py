"""Settle messages with an id or expectations, when their batch is about to be appended.

    Nats-Msg-Id                   known within the window: not stored, acked with the first offset, `duplicate` true
    Liftlog-Fence                 must be the partition's, as the append lock has it
    Nats-Expected-Last-Sequence   must be that of the record before it in the log, 0 for none
    Nats-Expected-Last-Msg-Id     must be the id of the record before it in the log
    Nats-Expected-Last-Subject-Sequence     must be that of the last record on its subject, 0 for none

The log calls this under its append lock, with the offset that the batch will get; so what is decided here holds,
whoever else appends to the partition. Records are settled in order, each after those before it in its batch.

G1  First the id, then the fence, then the sequence, then that of the subject, then the id before it, then the room for
    a new id. (As clustered JetStream does it: a publisher that repeats a conditional message whose ack was lost is told
    that it is stored, not that it comes too late.)
G2  A record that is dropped changes nothing: no offset, no id, no last record of its subject.
G3  The answer on a dropped record is true once all below the batch's offset is durable, and is given then.
G4  A repeat is acked if the record would be; `Liftlog-Ack: none` silences that, and no refusal.
G5  A window ends when a repeat was read, and it may have waited since: its timestamp says how long, but not what time
    it is. A timestamp of the future, or of more than `WAITED_US` ago, is of a clock that was set meanwhile.

Source: nats-server, server/stream.go and server/jetstream_batching.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from broker.ingest import envelope
from broker.ingest.answers import (
    IDS_FULL,
    IDS_OFF,
    SUBJECTS_FULL,
    SUBJECTS_NOT_READY,
    SUBJECTS_OFF,
    WRONG_FENCE,
    WRONG_MSG_ID,
    WRONG_SEQUENCE,
    ack_head,
    ack_tail,
    error_body,
)

if TYPE_CHECKING:
    from broker.ingest.pure_batch import Row

DUPLICATE: Final = 1
WRONG: Final = 2
FULL: Final = 3
UNSURE: Final = 4
WAITED_US: Final = 60_000_000
"""As `broker.storage.memory.memory.WAITED_US`."""


class Ids(Protocol):
    """The part of `broker.storage.memory.ids.IdTable` that settling needs; the compiled twin works on its arrays."""

    entries: Any
    index: Any
    places: Any
    key: bytes
    last_id: bytes

    def __len__(self) -> int: ...
    def find(self, text: bytes, since_us: int) -> int: ...
    def add(self, text: bytes, offset: int, time_us: int) -> None: ...
    def expire(self, since_us: int) -> None: ...
    def reserve(self, count: int, fill: Any = None) -> None: ...


class Subjects(Protocol):
    """The part of `broker.storage.memory.subjects.SubjectTable` that settling needs; the twin works on its arrays."""

    slots: Any
    counts: Any
    key: bytes

    def find(self, text: bytes) -> int: ...
    def takes(self, text: bytes) -> bool: ...
    def put(self, text: bytes, sequence: int) -> int: ...
    def put_back(self, text: bytes, before: int) -> None: ...
    def end_take_back(self, missed_end: int) -> None: ...
    @property
    def missed_end(self) -> int: ...
    def make_room(self, fill: Any = None) -> None: ...


class LogFacts(NamedTuple):
    """Facts of the log that settling is told.

    Attributes:
        ids, subjects, next_offset, now_us, wall_us, window_us, ids_max, subjects_max, fence: See `Conditional.settle`.
    """

    ids: Ids | None
    subjects: Subjects | None
    next_offset: int
    now_us: int
    wall_us: int
    window_us: int
    ids_max: int
    subjects_max: int
    fence: int


class Dropped(NamedTuple):
    """Why a record is not stored.

    Attributes:
        kind: DUPLICATE, WRONG, FULL or UNSURE.
        offset: DUPLICATE: of the record that is there.
        error: Else: code, err_code, description.
    """

    kind: int
    offset: int = -1
    error: tuple[int, int, str] = (0, 0, "")


def settle(
    rows: Sequence[Row], log: LogFacts, puts: list[tuple[bytes, int]]
) -> tuple[list[Row], list[tuple[Row, Dropped]]]:
    """Split rows into those to be stored, which are in the tables now, and those that are not, and why.

    Args:
        puts: Gets what the table of subjects had before, in order.
    """
    kept: list[Row] = []
    dropped: list[tuple[Row, Dropped]] = []
    ids, last_id = log.ids, b""
    if ids is not None:
        last_id = ids.last_id
    for row in rows:
        offset = log.next_offset + len(kept)
        verdict = _judge(row, log, offset, last_id)
        if verdict is not None:
            dropped.append((row, verdict))
            continue
        if row.msg_id and ids is not None:
            ids.add(row.msg_id, offset, log.now_us)
        if log.subjects is not None:
            puts.append((row.subject, log.subjects.put(row.subject, offset + 1)))
        kept.append(row)
        last_id = row.msg_id
    return kept, dropped


def _judge(row: Row, log: LogFacts, offset: int, last_id: bytes) -> Dropped | None:
    """None: it is stored at `offset`."""
    ids = log.ids
    if row.msg_id and ids is not None:
        read_us = log.now_us - waited_us(log.wall_us, row.timestamp_us)
        found = ids.find(row.msg_id, read_us - log.window_us)
        if found >= 0:
            return Dropped(DUPLICATE, found)
    if row.fence >= 0 and row.fence != log.fence:
        return Dropped(WRONG, error=_filled(WRONG_FENCE, log.fence))
    if row.expected_sequence >= 0 and row.expected_sequence != offset:  # that of the record before: offset - 1 + 1
        return Dropped(WRONG, error=_filled(WRONG_SEQUENCE, offset))
    if row.expected_subject_sequence >= 0:
        verdict = _judge_subject(row, log)
        if verdict is not None:
            return verdict
    if row.expected_id:
        if ids is None:
            return Dropped(WRONG, error=IDS_OFF)
        if row.expected_id != last_id:
            return Dropped(WRONG, error=_filled(WRONG_MSG_ID, last_id.decode(errors="replace")))
    if row.msg_id and ids is not None and len(ids) >= log.ids_max:
        return Dropped(FULL, error=_filled(IDS_FULL, log.ids_max))
    return None


def waited_us(wall_us: int, timestamp_us: int) -> int:
    """G5."""
    return min(max(0, wall_us - timestamp_us), WAITED_US)


def _judge_subject(row: Row, log: LogFacts) -> Dropped | None:
    subjects = log.subjects
    if not log.subjects_max:
        return Dropped(WRONG, error=SUBJECTS_OFF)
    if subjects is None:
        return Dropped(UNSURE, error=SUBJECTS_NOT_READY)
    last = subjects.find(row.subject)
    if last >= 0 and last != row.expected_subject_sequence:
        return Dropped(WRONG, error=_filled(WRONG_SEQUENCE, last))
    if last < 0 or not subjects.takes(row.subject):
        return Dropped(UNSURE, error=_filled(SUBJECTS_FULL, log.subjects_max))
    return None


def _filled(error: tuple[int, int, str], value: object) -> tuple[int, int, str]:
    code, err_code, description = error
    return code, err_code, description.replace("{}", str(value))


def is_told(row: Row, verdict: Dropped) -> bool:
    """Whether the publisher of a dropped record gets an answer (G4)."""
    if row.inbox is not None and verdict_ack_error(verdict) == envelope.UNKNOWN:
        return False
    return row.awaited if verdict.kind == DUPLICATE else row.may_be_told


def verdict_ack_error(verdict: Dropped) -> int:
    """What the ack of an envelope says of a dropped record."""
    if verdict.kind == DUPLICATE:
        return envelope.OK
    wrong = (WRONG_SEQUENCE[1], WRONG_MSG_ID[1])
    return envelope.INCORRECT_OFFSET if verdict.error[1] in wrong else envelope.UNKNOWN


def verdict_body(stream: str, partition: int, verdict: Dropped) -> bytes:
    """The answer to the publisher of a dropped record."""
    if verdict.kind != DUPLICATE:
        return error_body(stream, *verdict.error)
    tail = ack_tail(partition, duplicate=True)
    return b"%b%d%b" % (ack_head(stream), verdict.offset + 1, tail)
