"""One segment: a file of batches, its name, its index file, and what is known of both without reading.

    00000000000000004711.arrows     schema message, batch, batch, ... [end of stream]
    00000000000000004711.index      an entry per batch ... [footer]

The number is the offset of the first record that may be in it. A *sealed* segment never changes
again; the *tail* is the one that appends go to; a *resting* tail is one that nobody has open.
"""

from __future__ import annotations

import itertools
import re
from contextlib import suppress
from typing import Final

from broker.storage.disk import Disk
from broker.storage.segments.checkpoint import TailPoint
from broker.storage.segments.index import (
    ENTRY_BYTES,
    INDEX_CACHE,
    Entries,
    GrowingIndex,
    IndexView,
    counted_entries,
    footer_of,
    sealed_entries,
)

SEGMENT_ENDING: Final = ".arrows"
INDEX_ENDING: Final = ".index"
_NAME: Final = re.compile(r"([0-9]{20})(\.arrows|\.index)")
_SERIALS: Final = itertools.count()


def parse_name(name: str) -> tuple[int, str] | None:
    """Base offset and ending of a segment's or index's file name; None for any other name."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


class Segment:
    """One segment as a log keeps it in memory: a few hundred bytes, no descriptor.

    Attributes:
        base_offset: First offset that may be in it.
        live: The index while appends go on; None when it is read from its file.
        partial: (entries, CRC) that the index file holds of a tail; None when it has a footer.
        created_us: When the first batch of a tail was appended; 0 for sealed ones.
        is_replaced: Another file has its name now, or is about to: whoever opens that looks here afterwards.
    """

    __slots__ = (
        "_max_timestamp_us",
        "_size",
        "base_offset",
        "created_us",
        "index_path",
        "is_replaced",
        "live",
        "partial",
        "path",
        "serial",
    )

    def __init__(self, folder: str, base_offset: int) -> None:
        self.base_offset = base_offset
        self.path = f"{folder}/{base_offset:020d}{SEGMENT_ENDING}"
        self.index_path = f"{folder}/{base_offset:020d}{INDEX_ENDING}"
        self.serial = next(_SERIALS)
        self.live: GrowingIndex | None = None
        self.partial: tuple[int, int] | None = None
        self.created_us = 0
        self.is_replaced = False
        self._size = -1
        self._max_timestamp_us: int | None = None

    def size(self, disk: Disk) -> int:
        """Bytes of the segment file."""
        if self.live is not None:
            return self.live.end
        if self._size < 0:
            self._size = disk.size(self.path)
        return self._size

    def point(self, partial: tuple[int, int], disk: Disk) -> TailPoint:
        """The checkpoint's entry for a tail whose index file holds `partial`."""
        return TailPoint(
            base_offset=self.base_offset,
            created_us=self.created_us,
            entry_count=partial[0],
            entry_crc=partial[1],
            bytes=self.size(disk),
        )

    def index(self, disk: Disk) -> IndexView | None:
        """The index; None when the index file is missing or wrong and has to be rebuilt (`index.I1`)."""
        live = self.live
        if live is not None:
            return live.view()
        view = INDEX_CACHE.get(self.serial)
        if view is None:
            entries = self.stored_entries(disk)
            if entries is None:
                return None
            view = IndexView(entries)
            view.is_complete = False
            INDEX_CACHE.put(self.serial, view)
        return view

    def max_timestamp_us(self, disk: Disk) -> int | None:
        """Greatest timestamp of all batches; None when the index has to be rebuilt."""
        if self.live is not None:
            return self.live.max_timestamp_us
        if self._max_timestamp_us is None:
            view = self.index(disk)
            if view is None:
                return None
            self._max_timestamp_us = view.max_timestamp_us
        return self._max_timestamp_us

    def rest(self, view: IndexView | None, *, size: int, partial: tuple[int, int] | None) -> None:
        """Nobody appends any more: the index is read from its file from now on (or `view`, while it is cached)."""
        self._size = size
        self.partial = partial
        self._max_timestamp_us = None
        if view is None:
            INDEX_CACHE.drop(self.serial)
        else:
            INDEX_CACHE.put(self.serial, view)
            self._max_timestamp_us = view.max_timestamp_us
        self.live = None

    def write_index(self, disk: Disk, entries: Entries, *, have: int = 0, sealed: bool = True) -> None:
        """Write to the index file what it lacks beyond `have` entries, and the footer of a sealed segment.

        Not fsynced: an index is derivable, and one that did not survive is known by its CRC (`index.I1`).
        """
        file = disk.open(self.index_path, create=True)
        try:
            if file.size() != have * ENTRY_BYTES:
                file.truncate(have * ENTRY_BYTES)
            file.write(entries[have:].tobytes() + (footer_of(entries) if sealed else b""))
        finally:
            file.close()

    def unlink(self, disk: Disk) -> None:
        """Remove both files; readers that have them open are undisturbed."""
        INDEX_CACHE.drop(self.serial)
        for path in (self.path, self.index_path):
            with suppress(FileNotFoundError):
                disk.unlink(path)

    def stored_entries(self, disk: Disk) -> Entries | None:
        """The entries by the index file; None: it is missing or wrong."""
        try:
            data = disk.read_file(self.index_path)
        except FileNotFoundError:
            data = b""
        return sealed_entries(data) if self.partial is None else counted_entries(data, *self.partial)
