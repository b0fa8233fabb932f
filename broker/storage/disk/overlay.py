"""A disk that changes nothing: reads come from the disk under it, what is written stays in memory.

    under    [ batch | batch | torn ]      as it is, only ever opened for reading
    overlay  [ batch | batch ]             what a recovery made of it; later reads see this

So the very code that recovers or reads a log tells what it would do, and nothing is touched:
`verify` asks it where a tail would be cut, `export` reads a log that was not closed. A file that is
only read is not copied; one that is cut costs a number; one that is written costs its new bytes.

O1  Nothing under it is ever written, made, renamed or removed.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

from broker.storage.disk import Disk, File, ReadableBuffer, WritableBuffer


@dataclass(slots=True)
class OverlayContent:
    """A file as the overlay has it: the first `kept` bytes of the file `source` under it, and `added` behind them."""

    source: str = ""
    kept: int = 0
    added: bytearray = field(default_factory=bytearray)

    @property
    def size(self) -> int:
        return self.kept + len(self.added)


class OverlayFile:
    """An open file of an `OverlayDisk`."""

    __slots__ = ("_content", "_under", "path")

    def __init__(self, content: OverlayContent, under: File | None, path: str) -> None:
        self._content = content
        self._under = under
        self.path = path

    def write(self, data: ReadableBuffer) -> None:
        self._content.added += data

    def pread(self, size: int, position: int) -> bytes:
        content, under = self._content, self._under
        data = b""
        if under is not None and position < content.kept:
            data = under.pread(min(size, content.kept - position), position)
        if len(data) < size:
            begin = max(0, position - content.kept)
            data += bytes(content.added[begin : begin + size - len(data)])
        return data

    def pread_cold(self, size: int, position: int) -> bytes:
        return self.pread(size, position)

    def pread_into(self, block: WritableBuffer, position: int) -> int:
        data = self.pread(len(block), position)
        block[: len(data)] = data
        return len(data)

    def start_writeback(self, size: int, position: int) -> None:
        """Nothing goes to a disk."""

    def forget(self, size: int, position: int) -> None:
        if self._under is not None:
            self._under.forget(size, position)

    def rewrite(self, size: int, position: int) -> None:
        """Nothing goes to a disk."""

    def size(self) -> int:
        return self._content.size

    def truncate(self, size: int) -> None:
        content = self._content
        del content.added[max(0, size - content.kept) :]
        content.kept = min(content.kept, size)

    def trim(self) -> None:
        """Nothing runs ahead."""

    def sync(self) -> None:
        """Nothing to make durable."""

    def close(self) -> None:
        if self._under is not None:
            self._under.close()
            self._under = None

    def fileno(self) -> int:
        """The descriptor of the file under it; -1 where there is none. It knows nothing of what was written here."""
        return -1 if self._under is None else self._under.fileno()


class OverlayDisk:
    """See the module."""

    def __init__(self, under: Disk) -> None:
        self.under = under
        self._files: dict[str, OverlayContent | None] = {}  # None: removed here

    def cut_of(self, path: str) -> int | None:
        """Where the file under that name was cut; None: nowhere."""
        content = self._files.get(path)
        return content.kept if content is not None and content.kept < self.under.size(path) else None

    def open(self, path: str, *, create: bool = False, readonly: bool = False, ahead: int = 0) -> File:
        if path not in self._files and readonly:
            return self.under.open(path, readonly=True)
        content = self._content(path, create=create)
        under = self.under.open(content.source, readonly=True) if content.kept else None
        return OverlayFile(content, under, path)

    def listdir(self, path: str) -> list[str]:
        names = set(self.under.listdir(path)) if self.under.exists(path) else set()
        for known, content in self._files.items():
            if os.path.dirname(known) == path:
                (names.discard if content is None else names.add)(os.path.basename(known))
        return sorted(names)

    def exists(self, path: str) -> bool:
        return self._files[path] is not None if path in self._files else self.under.exists(path)

    def size(self, path: str) -> int:
        return self._content(path).size if path in self._files else self.under.size(path)

    def makedirs(self, path: str) -> None:
        """Folders need not be there."""

    def rename(self, source: str, target: str) -> None:
        self._files[target] = self._content(source)
        self._files[source] = None

    def unlink(self, path: str) -> None:
        self._content(path)
        self._files[path] = None

    def sync_dir(self, path: str) -> None:
        """Nothing to make durable."""

    def read_file(self, path: str) -> bytes:
        if path not in self._files:
            return self.under.read_file(path)
        file = self.open(path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def replace_file(self, path: str, data: ReadableBuffer, *, frees: bool = False) -> None:
        self._files[path] = OverlayContent(added=bytearray(data))

    def remove_tree(self, path: str) -> None:
        for name in self.listdir(path):
            self._files[f"{path}/{name}"] = None

    remove_folder = remove_tree

    def _content(self, path: str, *, create: bool = False) -> OverlayContent:
        content = self._files.get(path)
        if content is None and path not in self._files and self.under.exists(path):
            content = OverlayContent(path, self.under.size(path))
        if content is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            content = OverlayContent()
        self._files[path] = content
        return content
