"""A read plan with some columns of each batch only.

    stored     | header | offset | timestamp | subject | key | value | headers | reply |   CRCs: remembered
    made       | header | offset |           | subject |          by broker/api/columns.py, in a file in memory

Y1  The answer has either the chosen columns of each batch, or all columns of each. It has all where that saves little,
    and where its first batch cannot be read: the reader then meets what is damaged, and says so, as in any read.
    A plan of which records were left out has always the chosen columns (`selected_from`).
Y2  A batch whose columns are not known is read and verified once as a whole (`column_crcs.py`). Of one that is known
    the header and the chosen columns are read, and it is the reader that checks them, against the stored CRC.
Y3  An answer ends before a batch that cannot be sent so, and once it holds or has read so much; the plan goes on there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from broker.api.batch import message_bytes, read_header
from broker.api.checked import begun
from broker.api.columns import ADDED, Columns, Spans, head_bytes, spans_of
from broker.api.compression import PACKED_HEADER_BYTES
from broker.api.errors import BadBatch, DiskFull, Overloaded, StorageFailed
from broker.api.schema import SCHEMA
from broker.storage.column_crcs import CRCS_OF_COLUMNS, Known
from broker.storage.disk import disk_errors, storage_error
from broker.storage.made import COPIES, Block, MadeRun
from broker.storage.read import FileRange, ReadPlan

MEAN_BYTES_MIN: Final = 8 << 10
"""Smaller batches are sent whole: to look at each costs more than its bytes."""
CHOSEN_SHARE: Final = 0.5
"""A greater share of the bytes is sent with all others, by sendfile."""
SAMPLED_BATCHES: Final = 8
"""That share is the one of the first batches."""
HELD_BYTES_MAX: Final = 8 << 20
"""An answer of chosen columns."""
WHOLE_BYTES_MAX: Final = 64 << 20
"""So much is read and verified for one answer: bounds the time until it begins."""

Room = Callable[[int], memoryview]
"""Memory for a message of so many bytes."""


def project(
    plan: ReadPlan, columns: Columns, reserve: Callable[[int], None], *, selected_from: int | None = None
) -> None:
    """Leave the chosen columns in the plan (`plan.columns`), or leave it as it is (Y1).

    Args:
        reserve: Takes so many bytes of memory in all. Without room for its first batch the plan stays as it is.
        selected_from: Not None: the plan has batches in which other columns are blank (`select.V7`), so it does not
            stay. The offset that the reader asked for.
    Raises:
        BadBatch, StorageFailed: the first batch cannot be sent so, it is at `selected_from`, and the plan cannot stay.
        DiskFull, Overloaded: there is no room for the first batch, and the plan cannot stay.
    """
    if selected_from is None and (
        plan.bytes < MEAN_BYTES_MIN * plan.batch_count or not _is_worth(plan.ranges, columns)
    ):
        return
    made, block = MadeRun(plan), Block()
    whole_bytes = reserved = 0
    ends_early = False
    try:
        for batch in _batches(plan.ranges):
            if made.size >= HELD_BYTES_MAX or whole_bytes >= WHOLE_BYTES_MAX:
                ends_early = True
                break
            needed = made.held + COPIES * batch.length
            if needed > reserved:
                reserve(needed)
                reserved = needed
            known = CRCS_OF_COLUMNS.of(batch.head)
            if known is not None:
                message = chosen_columns(batch, known, columns, made.room)
            else:
                whole_bytes += batch.length
                message = _chosen_of_all(batch, columns, block, made.room)
            made.add(message, batch.head)
        made.write()
    except (BadBatch, DiskFull, StorageFailed, Overloaded) as error:
        ends_early = True
        with suppress(DiskFull, StorageFailed):
            made.write()
        if not made.head:
            if selected_from is None:
                return
            if isinstance(error, DiskFull | Overloaded) or plan.first_offset <= selected_from:
                raise
    if ends_early:  # without any batch the reader comes to stand where the damage is (`select.V6`)
        plan.next_offset = read_header(made.head).next_offset if made.head else plan.first_offset
    plan.columns = columns
    plan.ranges[:] = made.ranges()
    plan.bytes = sum(part.length for part in plan.ranges)


@dataclass(slots=True)
class BatchAt:
    """A stored batch by its header, of which only the frame was looked at."""

    part: FileRange
    at: int
    length: int
    head: bytes

    @property
    def where(self) -> str:
        return f"{self.part.path} at {self.at}: "


def _batches(ranges: Sequence[FileRange]) -> Iterator[BatchAt]:
    """Raises BadBatch, StorageFailed."""
    for part in ranges:
        at, stop = part.position, part.position + part.length
        with disk_errors(f"read {part.path}"):
            while at < stop:
                head = os.pread(part.fd, PACKED_HEADER_BYTES, at)
                where = f"{part.path} at {at}: "
                length = message_bytes(head, where=where)
                if at + length > stop:
                    raise BadBatch(f"{where}a batch of {length} bytes, {stop - at} are there")
                yield BatchAt(part, at, length, head[: head_bytes(head)])
                at += length


def _is_worth(ranges: Sequence[FileRange], columns: Columns) -> bool:
    """Whether the columns are a small share of the first batches."""
    stored = chosen = 0
    try:
        for batch in islice(_batches(ranges), SAMPLED_BATCHES):
            spans = spans_of(batch.head)
            if spans is None:
                break
            stored += batch.length
            chosen += _size(batch.head, spans, columns)
    except (BadBatch, StorageFailed):
        pass  # the share is that of those before
    return chosen < CHOSEN_SHARE * stored


def _size(head: bytes, spans: Spans, columns: Columns) -> int:
    """Bytes of the message that is sent."""
    taken = (end - start for name, (start, end) in zip(SCHEMA.names, spans, strict=True) if name in columns)
    return 2 * len(head) + ADDED.size + sum(taken)


def chosen_columns(batch: BatchAt, known: Known, columns: Columns, room: Room) -> memoryview:
    """The message, of a batch whose columns are known: nothing else of it is read. Raises BadBatch, StorageFailed."""
    message, at, runs = _begun(batch, known, columns, room)
    body = batch.at + len(batch.head)
    try:
        for start, end in runs:
            count = os.preadv(batch.part.fd, [message[at : at + end - start]], body + start)
            if count != end - start:
                raise BadBatch(f"{batch.where}{count} bytes of {end - start} are there")
            at += count
    except OSError as error:
        raise storage_error(error, f"read {batch.part.path}") from error
    return message


def _chosen_of_all(batch: BatchAt, columns: Columns, block: Block, room: Room) -> memoryview:
    """The message, of a batch that is read and verified as a whole. Raises BadBatch, StorageFailed."""
    stored = block.read(batch.part, batch.length, batch.at)
    _, known = CRCS_OF_COLUMNS.verify(stored, where=batch.where)
    if known is None:
        raise BadBatch(f"{batch.where}its columns do not lie one after the other")
    message, at, runs = _begun(batch, known, columns, room)
    body = len(batch.head)
    for start, end in runs:
        message[at : at + end - start] = stored[body + start : body + end]
        at += end - start
    return message


def _begun(batch: BatchAt, known: Known, columns: Columns, room: Room) -> tuple[memoryview, int, Spans]:
    """The message without its columns, where they begin, and what they are in the stored body."""
    begins, runs = begun(batch.head, known, columns)
    at = len(begins)
    message = room(at + sum([end - start for start, end in runs]))
    message[:at] = begins
    return message, at, runs
