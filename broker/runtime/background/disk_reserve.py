"""Room on the disk: what is kept free for the broker's own small files, and who has to stop for that.

    |------------- used -------------|---- free ----|-- reserve --|
                                      records go on   here they are refused, with DiskFull; catalog, checkpoints,
                                                      offsets of consumers and decisions of sinks are still written

A disk that is full to the last block takes no checkpoint and no command: streams could not even be trimmed to make
room. The reserve is `limits.disk_reserve_bytes`, but never more than `SHARE` of the file system, so that a small one
is of use too.

E1  Asking is cheap: the system is asked at most once in `LOOK_S`, and what was written since counts as used.
E2  Nothing has to be restarted: when space comes back, the next look says so.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from broker.api.errors import DiskFull
from broker.runtime.metrics import Sample

log = logging.getLogger(__name__)

LOOK_S: Final = 0.1
SHARE: Final = 16
"""At most this part of the file system, one sixteenth, is kept free."""


def free_and_total(path: str) -> tuple[int, int]:
    """Bytes that this user may still write on the file system of `path`, and its size."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


class Room:
    """Asked before each append to a stream. Thread-safe.

    Args:
        path: A folder on the file system.
        reserve_bytes: As configured; 0: nothing is kept free.
        look: (free, total) in bytes.
        clock: Seconds.
    """

    def __init__(
        self,
        path: str,
        reserve_bytes: int,
        *,
        look: Callable[[str], tuple[int, int]] = free_and_total,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._look = look
        self._clock = clock
        self._lock = threading.Lock()
        self._wanted = reserve_bytes
        self._looked_s = float("-inf")
        self._left = 0  # free beyond the reserve when it was last looked, less what was written since
        self._free = 0
        self.reserve_bytes = 0
        self.is_short = False

    def check(self) -> None:
        """Raise DiskFull while there is no room but the reserve."""
        if self._wanted and (self._left <= 0 or self._clock() - self._looked_s >= LOOK_S):
            self._look_again()
        if self.is_short:
            raise DiskFull(
                f"{self._free} bytes are free on the disk of {self._path}, {self.reserve_bytes} of them are kept for"
                " the broker itself (limits.disk_reserve_bytes)",
                free_bytes=self._free,
                limit=self.reserve_bytes,
            )

    def took(self, count: int) -> None:
        """So many bytes were written."""
        self._left -= count  # not under the lock: a lost update is put right by the next look

    def samples(self) -> Iterator[Sample]:
        """For /metrics; -1 free where the system does not say."""
        try:
            free, _ = self._look(self._path)
        except OSError:
            free = -1
        yield "liftlog_disk_free_bytes", "Free on the disk of the data folder", (), (), free
        yield "liftlog_disk_reserve_reached", "1 while records are refused to keep room", (), (), float(self.is_short)

    def _look_again(self) -> None:
        with self._lock:
            if self._clock() - self._looked_s < LOOK_S and (self.is_short or self._left > 0):
                return  # somebody else has just looked
            try:
                self._free, total = self._look(self._path)
            except OSError as error:  # then the writes themselves will tell
                log.warning("disk.unknown path=%s error=%s", self._path, error)
                self._looked_s, self._left, self.is_short = self._clock(), 1 << 62, False
                return
            self.reserve_bytes = min(self._wanted, total // SHARE)
            self._looked_s = self._clock()
            self._left = self._free - self.reserve_bytes
            was_short, self.is_short = self.is_short, self._left <= 0
        if self.is_short and not was_short:
            log.error("disk.reserve_reached free_bytes=%d reserve_bytes=%d", self._free, self.reserve_bytes)
        elif was_short and not self.is_short:
            log.info("disk.reserve_restored free_bytes=%d reserve_bytes=%d", self._free, self.reserve_bytes)
