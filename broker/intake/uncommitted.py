"""Bounds on batches that are durable here and wait for followers: a partition that waits long holds up nobody else.

    read ─► appended ───────► durable here ─► committed: answered
            └ under way (flush.N2) ┘ └ uncommitted ┘

U1  Only batches whose publishers await an answer count: of the others nothing is kept in memory.
U2  A partition may have as much uncommitted as is left for all: one that waits for ever ends at a half, two at a third
    each, and so on. There is always as much left for one more.
U3  Over that its publishers are told to come again (`overloaded`), at once. Nobody stops reading for that.
U4  One batch each partition may always have: with very many that wait, those bytes come on top.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from broker.api.errors import Overloaded


class Waiting(Protocol):
    """A partition's place, which counts its own."""

    uncommitted_bytes: int


class Uncommitted:
    """The count of all partitions. On the intake thread alone.

    Args:
        bytes_max: U2.

    Attributes:
        byte_count: So much there is.
        none: Set while nobody waits for followers.
    """

    def __init__(self, bytes_max: int) -> None:
        self.byte_count = 0
        self.none = asyncio.Event()
        self.none.set()
        self._bytes_max = bytes_max
        self._batch_count = 0

    def check(self, place: Waiting) -> None:
        """Whether one more batch may be appended there. Raises Overloaded (U2, U3)."""
        left = max(0, self._bytes_max - self.byte_count)
        if place.uncommitted_bytes and place.uncommitted_bytes >= left:
            raise Overloaded(
                f"{place.uncommitted_bytes} bytes wait for followers already, try again", limit=self._bytes_max
            )

    def add(self, place: Waiting, byte_count: int) -> None:
        """A batch is durable here, and not committed yet."""
        self.byte_count += byte_count
        place.uncommitted_bytes += byte_count
        self._batch_count += 1
        self.none.clear()

    def remove(self, place: Waiting, byte_count: int) -> None:
        """It is committed, or its publishers were told why not."""
        self.byte_count -= byte_count
        place.uncommitted_bytes -= byte_count
        self._batch_count -= 1
        if not self._batch_count:
            self.none.set()
