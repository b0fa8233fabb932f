"""A read plan whose messages are opened, in a file in memory: what comes after it sees plain messages.

    stored    | encrypted | encrypted | encrypted |      in segment files
    opened    | plain  | plain  | plain  |      each as long as it was

P1  Plain messages are nowhere but in memory: a machine without files in memory opens none.
P2  The plan ends before a message that cannot be opened, or is not the one that belongs there. If nothing of what was
    asked for lies before it, that is the error.
P3  The messages of at most `OPENED_BYTES_MAX` are opened for one plan, or a single one that is longer.
P4  What is taken is reserved before: what is opened already, the message as it is stored and as it is opened, each in
    memory as long as the longest so far, and its place among those that are opened. No memory is left for new before
    it is given back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from broker.api.batch import HEADER_BYTES, read_header
from broker.api.errors import BadBatch, NotSupported
from broker.storage.disk import File, disk_errors
from broker.storage.disk.osfile import OsFile
from broker.storage.encrypted.message import TAG_BYTES, stored_bytes
from broker.storage.encrypted.vault import Vault
from broker.storage.made import MadeFile
from broker.storage.read import FileRange, InOrder, ReadPlan

OPENED_BYTES_MAX: Final = 8 << 20
"""More is asked for again."""


def check_machine() -> None:
    """Raise NotSupported where there are no files in memory (P1)."""
    if not hasattr(os, "memfd_create"):
        raise NotSupported("encryption needs files in memory (memfd_create), which this system does not have")


def open_plan(plan: ReadPlan, vault: Vault, reserve: Callable[[int], None]) -> None:
    """Open the messages of a plan.

    Args:
        reserve: Takes so many bytes of memory in all.
    Raises:
        BadBatch: the first one cannot be opened, or belongs elsewhere.
        StorageFailed: it cannot be read; or there is no room.
        Overloaded: as `reserve`.
    """
    check_machine()
    made, block, plain = MadeFile(plan), bytearray(HEADER_BYTES + TAG_BYTES), bytearray()
    ranges: list[FileRange] = []
    sources = plan.sources
    plan.batch_count = plan.bytes = 0
    order, after = InOrder(plan), plan.next_offset
    try:
        for part, (_, stored) in zip(plan.ranges, sources, strict=True):
            at, stop, opened_at = part.position, part.position + part.length, made.size
            while at < stop:
                where = f"{part.path} at {at}: "
                length = stored_bytes(_read(stored, part, block, min(HEADER_BYTES, stop - at), at), where=where)
                if at + length > stop:
                    raise BadBatch(f"{where}a batch of {length} bytes, {stop - at} are there")
                if plan.bytes and plan.bytes + length > OPENED_BYTES_MAX:
                    plan.next_offset = after
                    break
                longest = max(length, len(plain))
                reserve(made.size + length + 2 * longest + TAG_BYTES + vault.taken_by(length))
                if length > len(plain):  # the memory of the one before is used again: fresh memory costs more
                    block = plain = bytearray()  # P4
                    block, plain = bytearray(length + TAG_BYTES), bytearray(length)
                if len(_read(stored, part, block, length, at)) < length:
                    raise BadBatch(f"{where}the file ends within a batch")
                message = vault.open_into(block, length, plain, where=where)
                header = read_header(message)
                order.check(header, where)
                place = made.write(message)
                after = header.next_offset
                message.release()  # P4
                if made.size - length == opened_at:
                    ranges.append(place)
                else:
                    last = ranges.pop()
                    ranges.append(FileRange(last.fd, last.position, last.length + length, last.path))
                at += length
                plan.bytes += length
                plan.batch_count += 1
            if at < stop:
                break
        else:
            order.check_end(f"{plan.ranges[-1].path}: " if plan.ranges else "")
    except BadBatch:
        if not ranges or after <= plan.asked:
            raise
        plan.next_offset = after
    plan.ranges[:] = ranges
    del plan.begins[len(ranges) :]
    file = OsFile(ranges[0].fd, ranges[0].path) if ranges else None  # the plan closes its descriptor
    plan.sources[:] = [(segment, file) for (segment, _), _ in zip(sources, ranges, strict=False) if file is not None]
    plan.is_opened = True
    reserve(made.size)


def _read(file: File, part: FileRange, block: bytearray, size: int, position: int) -> memoryview:
    """Stored bytes, at the beginning of the block."""
    with disk_errors(f"read {part.path}"):
        view = memoryview(block)[:size]
        return view[: file.pread_into(view, position)]
