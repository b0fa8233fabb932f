"""A stored batch as the checker knows it, and the settings of the logs that hold them."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from broker.api.batch import VALUE_AT, VALUE_BYTES, read_header
from broker.storage.segments.checkpoint import LogSettings

SETTINGS = LogSettings(segment_bytes=7_000, is_sole_replica=False, dedup_window_ms=1_800_000)
"""Ids are known for longer than a run takes, and for less than wall clocks are apart, and jump."""


class Stored(NamedTuple):
    """A stored batch, as the checker knows it."""

    first: int
    next: int
    epoch: int
    crc: int
    ends_group: bool

    def __str__(self) -> str:
        rest = "" if self.ends_group else ", within its group"
        return f"[{self.first}, {self.next}) of epoch {self.epoch} (crc {self.crc:08x}{rest})"


_SEEN: dict[bytes, Stored] = {}
"""By what headers say: replicas, consumers and the checker meet the same ones again and again."""
_SEEN_MAX = 10_000


def stored_of(message: bytes | memoryview) -> Stored:
    value = bytes(message[VALUE_AT : VALUE_AT + VALUE_BYTES])
    found = _SEEN.get(value)
    if found is None:
        header = read_header(message)
        ends_group = header.group_index == header.group_count - 1
        found = Stored(header.first_offset, header.next_offset, header.leader_epoch, header.crc, ends_group)
        if len(_SEEN) >= _SEEN_MAX:
            _SEEN.clear()
        _SEEN[value] = found
    return found


def position_of(shadow: list[Stored], first: int) -> int:
    """Where the batch that begins at `first`, or the next one, stands."""
    return bisect_left(shadow, first, key=lambda one: one.first)
