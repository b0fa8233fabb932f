"""Notes in a hidden log on the stages of its partition: one record a note, key = the id, value = JSON.

    commit group of a part     PartStored | batch | batch | ...     the staged batches behind their note
    other commit groups        StagePinned ... | StageDropped ... | GroupFinished

The first batch of a commit group holds notes, the others hold rows; all of them name the stage in their header.
A note of another version stops the reading: a broker that cannot read it must not guess that a stage is free.

Format: docs/reference/storage.md, section "Stages".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypedDict

import pyarrow as pa

from broker.api.errors import CorruptLog, UnknownFormatVersion
from broker.api.plain import parse_json
from broker.api.plain_rows import PlainBatch, plain_batch
from broker.api.validation import build

NOTE_VERSION: Final = 1


class StagePart(TypedDict):
    """The arguments of a call that stores a part. The meaning of each: `PartStored`."""

    sink: str
    epoch: int
    stage: str
    part: int
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStored:
    """Part `part` (from 0) of a stage stands behind this note; `is_last` seals the stage."""

    stage: str
    sink: str
    epoch: int
    part: int
    is_last: bool
    rows: int
    stored_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePinned:
    """A decision for `batch_id` may name the stage from now on: it is kept until that is decided.

    A stage may be pinned again, by a newer epoch; the newest pin counts.

    Attributes:
        epoch: The epoch of the driver who commits. A decision of a lower epoch never names the stage.
        search_from: Where the decision's group is looked for: the partition's high watermark when
            the stage was pinned first. Records below it cannot be truncated, so no group can come
            to stand there later.
    """

    stage: str
    sink: str
    epoch: int
    batch_id: int
    search_from: int
    pinned_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDropped:
    """No decision names the stage, nor ever will."""

    stage: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFinished:
    """The rows of a decision are durable in the partition's log, at [first_offset, next_offset)."""

    decision: str
    sink: str
    stages: tuple[str, ...]
    first_offset: int
    next_offset: int


Note = PartStored | StagePinned | StageDropped | GroupFinished

_KINDS: Final[dict[str, type[Note]]] = {
    "part": PartStored,
    "pin": StagePinned,
    "drop": StageDropped,
    "finished": GroupFinished,
}
_NAMES: Final = {cls: kind for kind, cls in _KINDS.items()}
_FIELDS: Final = {cls: tuple(one.name for one in fields(cls)) for cls in _NAMES}


def key_of(note: Note) -> bytes:
    """The record's key: the decision of a finished group, else the stage."""
    return (note.decision if isinstance(note, GroupFinished) else note.stage).encode()


def encode_note(note: Note) -> bytes:
    """The record's value."""
    values = {name: getattr(note, name) for name in _FIELDS[type(note)]}
    value = {"v": NOTE_VERSION, "kind": _NAMES[type(note)], **values}
    return json.dumps(value, separators=(",", ":")).encode()


def decode_note(value: bytes) -> Note:
    """One record's value as a note.

    Raises:
        UnknownFormatVersion: a later release wrote it.
        CorruptLog: it is no note.
    """
    try:
        fields: dict[str, Any] = parse_json(value)
        version, kind = fields.pop("v"), fields.pop("kind")
        if version != NOTE_VERSION or str(kind) not in _KINDS:
            raise UnknownFormatVersion(f"a note {kind!r} of version {version}, this release reads {NOTE_VERSION}")
        return build(_KINDS[kind], fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptLog(f"not a note: {value[:200]!r}") from error


def note_batch(notes: Sequence[Note], *, subject: str, timestamp_us: int) -> PlainBatch:
    """Notes as a batch."""
    return plain_batch([(key_of(n), encode_note(n)) for n in notes], subject=subject, timestamp_us=timestamp_us)


def notes_in(batch: pa.RecordBatch) -> list[Note]:
    """The notes of one batch. Raises as `decode_note`."""
    return [decode_note(value) for value in batch.column("value").to_pylist()]
