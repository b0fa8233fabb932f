"""Which segments a log may let go. Arithmetic only.

Whole sealed segments, oldest first, never one that holds records at or above the high watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from broker.storage.checkpoint import LogSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One segment, as retention sees it. The last one may still be appended to."""

    base_offset: int
    bytes: int
    max_timestamp_us: int


def retained_from(segments: Sequence[Kept], *, end_offset: int, settings: LogSettings, now_us: int) -> int:
    """Return how many segments go, counted from the oldest.

    Args:
        segments: All segments of a log, oldest first. The last one stays, whatever the limits say.
        end_offset: The high watermark: nothing at or above it goes.
        settings: The limits; None is no limit.
        now_us: Records older than `now_us - retention_ms` may go.
    """
    total_bytes = sum(segment.bytes for segment in segments)
    for gone, (segment, after) in enumerate(pairwise(segments)):
        expired = settings.retention_ms is not None and is_expired(segment.max_timestamp_us, settings, now_us)
        too_large = settings.retention_bytes is not None and total_bytes - segment.bytes >= settings.retention_bytes
        too_many = (
            settings.retention_records is not None and end_offset - after.base_offset >= settings.retention_records
        )
        if after.base_offset > end_offset or not (expired or too_large or too_many):
            return gone
        total_bytes -= segment.bytes
    return max(0, len(segments) - 1)


def is_expired(max_timestamp_us: int, settings: LogSettings, now_us: int) -> bool:
    """Whether a segment whose newest record has that timestamp is older than the limit by age."""
    return settings.retention_ms is not None and max_timestamp_us < now_us - settings.retention_ms * 1_000
