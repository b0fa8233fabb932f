"""A read plan without the records that a reader does not want.

    stored     [ batch ][ batch ][ batch ][ batch ]
    wanted       all      none      some     all
    plan       [ batch ]         [ some  ][ batch ]     the one between is made anew, the others are the log's

V1  A batch of which all rows are wanted stays where it is, and goes by sendfile. Of others the wanted rows are encoded
    under the stored header, as compaction would leave them.
V2  Each batch is verified before it is judged.
V3  The plan goes on behind all that was judged (`next_offset`), so a reader that finds nothing comes further.
V4  One plan judges `JUDGED_BYTES_MAX` of stored bytes at most, or one batch, and holds about as much.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from broker.api.batch import HEADER_BYTES, decode_batch, encode_batch, message_bytes, read_header
from broker.api.conditions import Conditions
from broker.api.errors import BadBatch
from broker.storage.disk import disk_errors
from broker.storage.read import FileRange, ReadPlan

if TYPE_CHECKING:
    from broker.storage.log import PartitionLog

JUDGED_BYTES_MAX: Final = 8 << 20
"""So many stored bytes are looked at for one answer: bounds its memory and the time until it begins."""
COPIES: Final = 2
"""So many times a batch is held while it is judged."""


def after_older(log: PartitionLog, offset: int, end: int | None, wanted: Conditions) -> int:
    """Where a read may begin: `offset`, or behind records that are all too old, by the index.

    What is lost here is not passed over: another replica may have it, and it may be wanted.
    """
    stop = log.high_watermark
    if wanted.since_us is None or not log.log_start_offset <= offset < stop:
        return offset
    found = log.offset_for_time(wanted.since_us)
    stop = min(each for each in (stop, found, end) if each is not None)
    is_lost = any(first < stop and offset < last for first, last in log.lost_ranges)
    return offset if is_lost else max(offset, stop)


def select(plan: ReadPlan, wanted: Conditions, reserve: Callable[[int], None]) -> None:
    """Leave in the plan what is wanted.

    Args:
        reserve: Takes so many bytes of memory in all.
    Raises:
        BadBatch: stored bytes are damaged.
        StorageFailed: they cannot be read, or there is no room for what is made anew.
        Overloaded: as `reserve`.
    """
    made = _Made(plan)
    ranges: list[FileRange] = []
    for part in plan.ranges:
        at, stop = part.position, part.position + part.length
        while at < stop:
            where = f"{part.path} at {at}: "
            length = message_bytes(_pread(part, HEADER_BYTES, at), where=where)
            if at + length > stop:
                raise BadBatch(f"{where}a batch of {length} bytes, {stop - at} are there")
            held = made.size + COPIES * length
            reserve(held)
            message = _pread(part, length, at)
            rows = decode_batch(message, where=where, reserve=lambda size, held=held: reserve(held + size))  # type: ignore[misc]
            mask = wanted.mask(rows)
            count = pc.sum(mask).as_py() or 0
            if count == rows.num_rows:
                ranges.append(FileRange(part.fd, at, length, part.path))
            elif count:
                ranges.append(made.add(encode_batch(rows.filter(mask), read_header(message, where=where))))
            at += length
    plan.ranges[:] = _joined(ranges)
    plan.bytes = sum(part.length for part in ranges)
    reserve(made.size)


class _Made:
    """A file in memory, or a temporary one, for batches that are made anew. The plan closes it."""

    path = "selected records"

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._fd: int | None = None
        self.size = 0

    def add(self, message: bytearray) -> FileRange:
        with disk_errors("keep selected records"):
            if self._fd is None:
                self._fd = self._open()
            at = self.size
            while self.size < at + len(message):
                self.size += os.pwrite(self._fd, memoryview(message)[self.size - at :], self.size)
        return FileRange(self._fd, at, len(message), self.path)

    def _open(self) -> int:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("liftlog-selected", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        self._plan.own_fd(fd)
        return fd


def _joined(ranges: list[FileRange]) -> list[FileRange]:
    """Neighbours as one."""
    found: list[FileRange] = []
    for part in ranges:
        last = found[-1] if found else None
        if last is not None and last.fd == part.fd and last.position + last.length == part.position:
            found[-1] = FileRange(last.fd, last.position, last.length + part.length, last.path)
        else:
            found.append(part)
    return found


def _pread(part: FileRange, size: int, position: int) -> bytes:
    with disk_errors(f"read {part.path}"):
        return os.pread(part.fd, size, position)
