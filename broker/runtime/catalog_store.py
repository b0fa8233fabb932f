"""The catalog on this broker's disk: one file of lines, rewritten as one snapshot line at start.

K1  A command is on disk, fsynced, before it is applied and its result told.
K2  The rewrite replaces the file atomically, so a crash leaves the old or the new one whole.
K3  The rewrite forgets which streams were deleted since the last one; `before_rewrite` is told first.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.api.errors import CorruptLog, LiftlogError, StorageFailed, from_problem
from broker.metadata.catalog import Catalog
from broker.metadata.journal import decode_lines, encode_line
from broker.storage.disk import Disk

log = logging.getLogger(__name__)

Deleted = tuple[str, str]
"""Name and incarnation of a stream."""


class CatalogStore:
    """Loads the catalog and keeps it. `execute` may wait for the disk: not for the control loop's own thread.

    Args:
        disk: For the atomic rewrite.
        path: The file; need not exist.
        before_rewrite: Called with the catalog and the streams that were deleted since the last start (K3).
    Raises:
        CorruptLog: the file is damaged; nothing is changed then.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        before_rewrite: Callable[[Catalog, Sequence[Deleted]], None] = lambda catalog, deleted: None,
    ) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.catalog = Catalog()
        self._deleted: list[Deleted] = []
        if disk.exists(path):
            data = disk.read_file(path)
            lines, used = decode_lines(data, where=path)
            if used < len(data):
                log.warning("catalog.line_dropped path=%s bytes=%d", path, len(data) - used)
            for line in lines:
                self._replay(line)
        before_rewrite(self.catalog, self._deleted)
        disk.replace_file(path, encode_line({"snapshot": self.catalog.snapshot()}))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _replay(self, line: Mapping[str, Any]) -> None:
        if "snapshot" in line:
            try:
                self.catalog = Catalog.restore(line["snapshot"])
            except (LiftlogError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise CorruptLog(f"{self._path}: unreadable snapshot: {error}") from error
        else:
            result = self.catalog.apply(line)
            if line.get("kind") == "delete_stream" and "ok" in result:
                stream = result["ok"]["stream"]
                self._deleted.append((stream["name"], stream["incarnation"]))

    def execute(self, command: Mapping[str, Any]) -> Any:
        """Journal and apply one command; return its result.

        Raises:
            StorageFailed: the journal could not be written; nothing was applied.
            LiftlogError: what the catalog answered.
        """
        line = encode_line(command)
        with self._lock:
            size = os.fstat(self._file).st_size
            try:
                written = os.write(self._file, line)
                if written != len(line):
                    raise OSError(f"wrote {written} of {len(line)} bytes")
                os.fsync(self._file)
            except OSError as error:
                os.ftruncate(self._file, size)
                raise StorageFailed(f"{self._path}: {error}") from error
            result = self.catalog.apply(command)
        if "error" in result:
            raise from_problem(result["error"])
        return result["ok"]

    def close(self) -> None:
        """Close the file; there is nothing to flush."""
        os.close(self._file)
