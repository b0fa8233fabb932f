"""The commit group of a decision, as it is read from the hidden log while it is appended to the partition.

    stage A: part 0 (large)               -> its batches, as they are           `restamp`
    stage B: part 0 | stage C: part 0     -> one batch                          `plain_join`

J1  The records stand stage by stage in the order of the decision, and part by part within a stage.
J2  Neighbours of one small batch each are joined, as far as the stream's `batch_bytes` and `batch_records` allow: 200
    tasks leave 200 such parts in each partition, and a reader would meet each of them.
J3  A part that does not have all of its rows ends the group (CorruptLog).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from broker.api.batch import FIELDS, VALUE_AT, decode_batch
from broker.api.encodable import Encodable
from broker.api.plain_join import joined
from broker.api.stream import StreamSettings
from broker.sinks.restamp import RestampedBatch, StampedBatch
from broker.sinks.stages import Part
from broker.storage.log import PartitionLog
from broker.storage.rows import RowBatch

SMALL_BYTES: Final = 64 << 10
"""A part of one batch that is no larger, with its note, is joined with its neighbours."""
_FIRST_OFFSET: Final = slice(
    VALUE_AT + FIELDS["format_version"] + FIELDS["flags"],
    VALUE_AT + FIELDS["format_version"] + FIELDS["flags"] + FIELDS["first_offset"],
)


class Damaged(Exception):
    """Not all rows of a part are there. `stage`: of the given ones; `rows`: so many are."""

    def __init__(self, stage: int, rows: int) -> None:
        super().__init__(stage, rows)
        self.stage, self.rows = stage, rows


class PartOfStage(NamedTuple):
    """A part that has rows. `stage`: whose, of the given ones."""

    stage: int
    part: Part


def runs_of(stages: Sequence[Sequence[Part]], settings: StreamSettings) -> list[list[PartOfStage]]:
    """The parts of stages in their order; those that are to be joined are together (J1, J2)."""
    runs: list[list[PartOfStage]] = []
    rows = size = 0
    goes_on = False
    for number, parts in enumerate(stages):
        for part in parts:
            if not part.batch_count:
                continue
            is_small = part.batch_count == 1 and part.byte_count <= SMALL_BYTES
            rows, size = rows + part.rows, size + part.byte_count
            if goes_on and is_small and rows <= settings.batch_records and size <= settings.batch_bytes:
                runs[-1].append(PartOfStage(number, part))
            else:
                runs.append([PartOfStage(number, part)])
                rows, size = part.rows, part.byte_count
            goes_on = is_small
    return runs


def batches_of(run: Sequence[PartOfStage], hidden: PartitionLog, decision: int) -> Iterator[Encodable]:
    """The batches of a run: one, or those of its only part. Raises Damaged."""
    if len(run) > 1:
        yield StampedBatch(_joined(run, hidden), decision)
        return
    ((stage, part),) = run
    rows = 0
    for header, message in hidden.reader.batches_in_turn(part.first_offset, part.next_offset):
        if header.group_index > 0:  # behind the note
            batch = RestampedBatch(message, header, decision)
            rows += batch.record_count
            yield batch
    if rows != part.rows:
        raise Damaged(stage, rows)


def batch_count(run: Sequence[PartOfStage]) -> int:
    """So many batches come of a run."""
    return 1 if len(run) > 1 else run[0].part.batch_count


def _joined(run: Sequence[PartOfStage], hidden: PartitionLog) -> Encodable:
    found: dict[int, memoryview] = {}
    for start, end in _ranges([piece.part for piece in run]):
        for message in hidden.reader.batches(start, end):
            found[int(bytes(message[_FIRST_OFFSET]), 16)] = message
    messages = []
    for stage, part in run:
        if (at := part.first_offset + 1) not in found:  # behind the note, a record of its own
            raise Damaged(stage, 0)
        messages.append(found[at])
    batch = joined(messages) or RowBatch(pa.concat_batches([decode_batch(message) for message in messages]))
    if batch.record_count != sum(piece.part.rows for piece in run):
        raise Damaged(run[0].stage, 0)
    return batch


def _ranges(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Where they stand, neighbours together."""
    found: list[tuple[int, int]] = []
    for start, end in sorted((part.first_offset, part.next_offset) for part in parts):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found
