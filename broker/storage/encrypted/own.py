"""What the recovery of an encrypted log goes by: batches that open. A header alone says what anybody may have written.

    CRC does not fit            torn, or rotten: as in any log
    CRC fits, and it opens      of this log, with these offsets, this epoch and group
    CRC fits, it does not open  a crash leaves no such bytes: somebody has written here who is not the broker

O1  By what does not open nothing is cut, removed, noted as lost or committed. The log is not opened, so whoever puts
    the file back as it was has lost nothing.
O2  A clean mark counts where the last batch opens, ends where the mark says, and ends the file. Else somebody could
    make an older mark fit, and what was appended behind it would be passed over.
O3  A log that is open goes on. What stands in the place of the batches that do not open is *tampered*: a read ends
    before it, one at it is `bad_batch`, and the segment is not read again to find that out. Of the only replica it is
    not lost, and is not written down: who puts the file back has lost nothing. Of several it is lost, and copied anew
    from the others.
    Each of its batches opens wherever somebody has put it. One that lies in a segment of others, or behind one that
    follows on it, is taken for none. Offsets that are missing between batches that touch are tampered with, too: rot
    leaves bytes, and this broker no such gap.
O4  Where bytes are missing at the end, or do not verify, it looks like a crash. Nothing here can tell.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from broker.api.batch import HEADER_BYTES, read_header
from broker.api.errors import BadBatch
from broker.api.schema import END_OF_STREAM
from broker.storage.disk import Disk
from broker.storage.encrypted.message import TAG_BYTES
from broker.storage.segments.checkpoint import Checkpoint
from broker.storage.segments.index import IndexView
from broker.storage.segments.scan import Check
from broker.storage.segments.segment import Segment

if TYPE_CHECKING:
    from broker.storage.encrypted.vault import Vault


class OwnBatches:
    """Opens one message after the other, each in the memory of the one before."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._block = bytearray()
        self._plain = bytearray()

    def open(self, message: memoryview, where: str) -> memoryview:
        """The plain message, until the next one is opened. Raises BadBatch."""
        length = len(message)
        if length > len(self._plain):
            self._block, self._plain = bytearray(length + TAG_BYTES), bytearray(length)
        self._block[:length] = message
        return self._vault.open_into(self._block, length, self._plain, where=where)

    def check(self, message: memoryview, path: str, position: int) -> bool:
        """True. Raises BadBatch, with the place: its CRC fits, and it is not this log's (O1)."""
        try:
            self.open(message, f"{path} at {position}: ")
        except BadBatch as error:
            text = f"{error.message}. Nothing is cut, and the log is not opened: put the file back as it was"
            raise BadBatch(text, path=path, position=position) from error
        return True


class ForeignBatches:
    """Where the scan of a segment has met batches whose CRC fits and that do not open, or belong elsewhere (O3), as
    `positions`, which rise. `check`: for `scan`.

    Args:
        start, end: The offsets of the segment; None: batches may come behind all others meanwhile.
    """

    def __init__(self, vault: Vault, start: int, end: int | None) -> None:
        self._own = OwnBatches(vault)
        self._next_offset, self._end = start, end
        self.positions: list[int] = []

    def check(self, message: memoryview, path: str, position: int) -> bool:
        """Whether a batch is this log's, and belongs there."""
        try:
            header = read_header(self._own.open(message, ""))
        except BadBatch:
            header = None
        end = self._end
        if header is None or header.first_offset < self._next_offset or (end is not None and header.next_offset > end):
            self.positions.append(position)
            return False
        self._next_offset = header.next_offset
        return True

    def within(self, start: int, end: int) -> bool:
        """Whether one lies in these bytes."""
        at = bisect_left(self.positions, start)
        return at < len(self.positions) and self.positions[at] < end


def check_of(vault: Vault | None) -> Check | None:
    """What the scans of a recovery check each batch by; None: it is not encrypted."""
    return None if vault is None else OwnBatches(vault).check


def is_end(disk: Disk, folder: str, checkpoint: Checkpoint, segments: list[Segment], vault: Vault) -> bool:
    """Whether a log ends where its clean mark says (O2). OSError passes through."""
    if not segments:
        return True
    last, point = Segment(folder, segments[-1].base_offset), checkpoint.tail
    if point is not None:
        last.partial = point.entry_count, point.entry_crc
    entries = last.stored_entries(disk)
    if entries is None:
        return False
    if disk.size(last.path) != IndexView(entries).end + (0 if point is not None else len(END_OF_STREAM)):
        return False
    if not len(entries):
        return checkpoint.recovery_point == last.base_offset
    position, length = int(entries["position"][-1]), int(entries["length"][-1])
    if length < HEADER_BYTES:
        return False
    file = disk.open(last.path, readonly=True)
    try:
        message = OwnBatches(vault).open(memoryview(file.pread(length, position)), "")
        return read_header(message).next_offset == checkpoint.recovery_point
    except BadBatch:
        return False
    finally:
        file.close()
