"""The pages of a file that are on the disk, as Linux leaves them when writing fails: bytes alone, no I/O.

    written ──► dirty ──► syncing ──► durable            an fsync that succeeds
                             └──────► lost               one that fails: readable until they are evicted, then zeros

L1  A failed fsync makes the pages clean: the next fsync does not write them, and answers that all is well.
L2  The error is told once for each open file (errseq_t); a file that is opened later is told an error that nobody was
    told yet.
L3  A lost page that is written again is dirty again.

Not modelled: names (a rename or a new file is durable at once), and bytes that come back after a truncation.
Source: fs/sync.c, mm/filemap.c and lib/errseq.c of Linux.
"""

from __future__ import annotations

END = 1 << 62


class Ranges:
    """Half-open ranges of bytes, sorted and apart from each other."""

    def __init__(self) -> None:
        self.items: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self.items)

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        if self.items and self.items[-1][0] <= start <= self.items[-1][1]:  # appended: nearly always
            self.items[-1] = (self.items[-1][0], max(end, self.items[-1][1]))
            return
        apart = [item for item in self.items if item[1] < start or item[0] > end]
        joined = [item for item in self.items if not (item[1] < start or item[0] > end)]
        start = min([start, *(item[0] for item in joined)])
        end = max([end, *(item[1] for item in joined)])
        self.items = sorted([*apart, (start, end)])

    def remove(self, start: int, end: int) -> None:
        kept = []
        for low, high in self.items:
            kept += [(low, min(high, start)), (max(low, end), high)]
        self.items = [(low, high) for low, high in kept if low < high]

    def update(self, other: Ranges) -> None:
        for start, end in other.items:
            self.add(start, end)


class Pages:
    """One file (an inode).

    Attributes:
        path: Its name, as it is now.
        allocated_bytes: So far a write takes no space.
        durable_bytes: Its length when it was last synced.
        error_count: Failed writebacks so far; `told_count`: of those somebody was told (L2).
        opened: Descriptors that refer to it.
    """

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.durable_bytes = size
        self.allocated_bytes = 0
        self.dirty = Ranges()
        self.lost = Ranges()
        self.syncing: list[Ranges] = []
        self.error_count = 0
        self.told_count = 0
        self.opened = 0

    def wrote(self, start: int, end: int) -> None:
        self.lost.remove(start, end)
        self.dirty.add(start, end)

    def truncated(self, size: int) -> int:
        """Returns how many bytes go that were not synced yet."""
        count = sum(max(0, end - max(start, size)) for start, end in self.dirty.items)
        for ranges in (self.dirty, self.lost, *self.syncing):
            ranges.remove(size, END)
        self.durable_bytes = min(self.durable_bytes, size)
        return count

    def sync_begins(self) -> Ranges:
        taken, self.dirty = self.dirty, Ranges()
        self.syncing.append(taken)
        return taken

    def sync_ends(self, taken: Ranges, size: int) -> None:
        self.syncing.remove(taken)
        self.durable_bytes = size

    def sync_fails(self, taken: Ranges) -> None:
        """L1."""
        self.syncing.remove(taken)
        for start, end in self.dirty.items:  # written again meanwhile: L3
            taken.remove(start, end)
        self.lost.update(taken)
        self.error_count += 1

    def unsure(self) -> Ranges:
        """The bytes that a power cut may take."""
        found = Ranges()
        for ranges in (self.dirty, self.lost, *self.syncing):
            found.update(ranges)
        return found
