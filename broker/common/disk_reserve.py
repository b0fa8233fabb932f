"""Room on the disk: what is kept free, for whom, and who stops first as it goes.

    |------------- used -------------|------------ free -------------|
                                      records | followers | own      | small files
                                              8           6     4  3 |          0     eighths of the reserve are free

A disk that is full to the last block takes no checkpoint and no command: streams could not even be trimmed to make
room. So whoever grows stops while something is left for those who make room. The reserve is
`limits.disk_reserve_bytes`, but never more than `SHARE` of the file system, so that a small one is of use too.

E1  Asking is cheap: the system is asked at most once in `LOOK_S`, and what was written since counts as used.
E2  Nothing has to be restarted: when space comes back, the next look says so.
E3  A follower stops after a leader on a disk like its own would: so where the disks are alike nobody leaves the in-sync
    replicas. It begins again where a leader may: so it does not leave and join with each segment that goes.
E4  The broker's own streams stop too, later: who commits offsets in a loop would use up what a trim needs.
E5  What is about to be written counts: one body of 64 MiB, or 16 MiB in bulk, would use up what is kept.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final

from broker.api.errors import DiskFull
from broker.common.metrics import Sample

log = logging.getLogger(__name__)

LOOK_S: Final = 0.1
SHARE: Final = 16
"""At most this part of the file system, one sixteenth, is kept free."""


class Budget(Enum):
    """Who appends; and so many eighths of the reserve stay free of it."""

    RECORDS = 8
    """Records of users, where they are led; what sinks stage; what is written anew."""
    FOLLOWED = 6
    """Records of users, where they are followed."""
    OWN = 4
    """The broker's own streams, `__offsets`, `__commits` and `__audit`, where they are led."""
    OWN_FOLLOWED = 3
    """And where they are followed."""


def free_and_total(path: str) -> tuple[int, int]:
    """Bytes that this user may still write on the file system of `path`, and its size."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


class Room:
    """Asked before each append. Thread-safe.

    Args:
        path: A folder on the file system.
        reserve_bytes: As configured; 0: nothing is kept free.
        look: (free, total) in bytes.
        clock: Seconds.

    Attributes:
        users, own: For a stream of users, and for one of the broker's own.
        is_short: Records of users are refused.
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
        self._free = 0  # when it was last looked
        self._left = 0  # less what was written since
        self.reserve_bytes = 0
        self.is_short = False
        self.users = Account(self, Budget.RECORDS, Budget.FOLLOWED)
        self.own = Account(self, Budget.OWN, Budget.OWN_FOLLOWED)

    def check(self, budget: Budget = Budget.RECORDS, size: int = 0) -> None:
        """Raise DiskFull while there is no room for `size` bytes but what this budget leaves (E5)."""
        if not self._wanted:
            return
        if self._left - size <= self._kept(budget) or self._clock() - self._looked_s >= LOOK_S:
            self._look_again(budget, size)
        if self._free - size <= (kept := self._kept(budget)):
            more = f", and {size} are to be written" if self._free > kept else ""
            raise DiskFull(
                f"{self._free} bytes are free on the disk of {self._path}, {kept} of them are kept for the broker"
                f" itself (limits.disk_reserve_bytes){more}",
                free_bytes=self._free,
                limit=kept,
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

    def _kept(self, budget: Budget) -> int:
        return self.reserve_bytes * budget.value // Budget.RECORDS.value

    def _look_again(self, budget: Budget, size: int) -> None:
        with self._lock:
            kept = self._kept(budget) + size
            if self._clock() - self._looked_s < LOOK_S and (self._free <= kept or self._left > kept):
                return  # somebody else has just looked
            try:
                self._free, total = self._look(self._path)
            except OSError as error:  # then the writes themselves will tell
                log.warning("disk.unknown path=%s error=%s", self._path, error)
                self._looked_s, self._free, self._left, self.is_short = self._clock(), 1 << 62, 1 << 62, False
                return
            self.reserve_bytes = min(self._wanted, total // SHARE)
            self._looked_s = self._clock()
            self._left = self._free
            was_short, self.is_short = self.is_short, self._free <= self.reserve_bytes
        if self.is_short and not was_short:
            log.error("disk.reserve_reached free_bytes=%d reserve_bytes=%d", self._free, self.reserve_bytes)
        elif was_short and not self.is_short:
            log.info("disk.reserve_restored free_bytes=%d reserve_bytes=%d", self._free, self.reserve_bytes)


class Account:
    """The room for one kind of streams. Thread-safe."""

    __slots__ = ("_follows", "_leads", "_room")

    def __init__(self, room: Room, leads: Budget, follows: Budget) -> None:
        self._room = room
        self._leads, self._follows = leads, follows

    def check(self, size: int = 0) -> None:
        """Raise DiskFull while a leader has no room to append, stage, or write anew so many bytes."""
        self._room.check(self._leads, size)

    def check_followed(self, size: int = 0, *, again: bool = False) -> None:
        """Raise DiskFull while a follower has no room for so many; `again`: to begin again after it had none (E3)."""
        self._room.check(self._leads if again else self._follows, size)

    def took(self, count: int) -> None:
        """As `Room.took`."""
        self._room.took(count)
