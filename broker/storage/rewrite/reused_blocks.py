"""The stored messages of a log in turn, each in the memory of the one before it: for those who copy gigabytes.

Fresh memory costs more than reading: a machine may have to find each page of it first. One message of a megabyte also
stays in the processor's cache from the read over the check to the write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from broker.api.batch import HEADER_BYTES, BatchHeader, read_header, verify_batch
from broker.api.errors import BadBatch, CorruptLog
from broker.storage.disk import File, storage_error
from broker.storage.encrypted.message import stored_bytes
from broker.storage.read import FileRange, InOrder, LogView, ReadPlan, plan_read
from broker.storage.segments.segment import Segment

if TYPE_CHECKING:
    from broker.storage.encrypted.vault import Vault

T = TypeVar("T")
Turn = tuple[BatchHeader, memoryview]


def messages_in_turn(
    ask: Callable[[Callable[[LogView], ReadPlan]], ReadPlan],
    repair: Callable[[Segment], None],
    offset: int,
    end: int,
    vault: Vault | None = None,
) -> Iterator[Turn]:
    """The verified messages that hold [offset, min(end, high watermark)), in order, with their headers.

    Each is the caller's to change, and gone when the next is asked for. Damaged ones do not come.

    Args:
        ask: The log's function that answers a question to a view of it.
        repair: The log's function that scans a segment anew, and notes what is lost.
        vault: Opens what is encrypted.
    Raises:
        OffsetOutOfRange: as `PartitionLog.read`.
        StorageFailed: the disk cannot read.
        CorruptLog: scanning anew did not help.
    """
    block = _Block(vault)
    repaired = -1
    while True:
        damaged: Segment | None = None
        with ask(lambda view, at=offset: plan_read(view, at, end=end, max_bytes=None)) as plan:  # type: ignore[misc]
            order = None if vault is None else InOrder(plan)
            for place, (segment, file) in zip(plan.ranges, plan.sources, strict=True):
                turns = block.messages(file, place)
                try:
                    for header, message in turns:
                        if order is not None:
                            order.check(header, f"{place.path}: ")
                        yield header, message
                        offset = header.next_offset
                    if order is not None and place is plan.ranges[-1]:
                        order.check_end(f"{place.path}: ")
                except BadBatch:
                    damaged = segment
                    break
                except OSError as error:
                    raise storage_error(error, f"read {place.path}") from error
            if damaged is None:
                if not plan.ranges and plan.next_offset <= offset:
                    return
                offset = plan.next_offset
        if damaged is not None:
            if repaired == offset:
                raise CorruptLog(f"{damaged.path}: damaged, and a second scan did not help", path=damaged.path)
            repaired = offset
            repair(damaged)


class _Block:
    """Memory for one message; it grows to the longest."""

    def __init__(self, vault: Vault | None) -> None:
        self._memory = bytearray()
        self._vault = vault

    def messages(self, file: File, place: FileRange) -> Iterator[Turn]:
        """The messages of a range. Raises BadBatch: one is damaged."""
        where, at, end = f"{place.path}: ", place.position, place.position + place.length
        while at < end:
            length = stored_bytes(file.pread(min(HEADER_BYTES, end - at), at), where=where)
            if length > end - at:
                raise BadBatch(f"{where}a batch of {length} bytes at {at} runs past the end at {end}")
            if length > len(self._memory):
                self._memory = bytearray(length)
            message = memoryview(self._memory)[:length]
            message = message[: file.pread_into(message, at)]
            if self._vault is None:
                yield verify_batch(message, where=where), message
            else:
                message = self._vault.open_message(message, where=where)
                yield read_header(message), message
            at += length
