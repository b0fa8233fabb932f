"""Which segments a log may let go.

Whole sealed segments, oldest first, never one that holds records at or above the high watermark. By age those of which
both is true: their timestamps are older than the limit, and they have been here for long enough (`old_end`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from broker.storage.read import LogView, greatest_timestamp
from broker.storage.segments.ages import DOUBT_MS, Ages
from broker.storage.segments.checkpoint import LogSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One segment, as retention sees it."""

    base_offset: int
    bytes: int
    max_timestamp_us: int


def segments_gone(
    segments: Sequence[Kept], *, end_offset: int, settings: LogSettings, now_us: int, old_end: int
) -> int:
    """Return how many segments go, counted from the oldest. Arithmetic only.

    Args:
        segments: All segments of a log, oldest first. The last one stays, whatever the limits say.
        end_offset: The high watermark: nothing at or above it goes.
        settings: The limits; None is no limit. At least `retention_bytes` and `retention_records` are kept.
        now_us: Segments whose newest record is older than `now_us - retention_ms` go,
        old_end: if all their records are below this.
    """
    bytes_left = sum(segment.bytes for segment in segments)
    gone = 0
    for segment, after in pairwise(segments):
        bytes_left -= segment.bytes
        records_left = end_offset - after.base_offset
        if records_left < 0 or not (
            (after.base_offset <= old_end and is_expired(segment.max_timestamp_us, settings, now_us))
            or (settings.retention_bytes is not None and bytes_left >= settings.retention_bytes)
            or (settings.retention_records is not None and records_left >= settings.retention_records)
        ):
            break
        gone += 1
    return gone


def is_expired(max_timestamp_us: int, settings: LogSettings, now_us: int) -> bool:
    """Whether a segment whose newest record has that timestamp is past the limit by age."""
    return settings.retention_ms is not None and max_timestamp_us < now_us - settings.retention_ms * 1_000


def old_end(ages: Ages, limit_ms: int | None) -> int:
    """Below it, records are old enough to go by their timestamps: here for so long, or for `DOUBT_MS` if that is less.

    By a clock that is wrong, or that was set, a timestamp may be of any age.
    """
    return 0 if limit_ms is None else ages.here_for(min(limit_ms, DOUBT_MS) * 1_000)


def log_start_for(view: LogView, *, settings: LogSettings, now_us: int, old_end: int) -> int:
    """Where the log should start by its settings; its present start when nothing is to go.

    Args:
        now_us, old_end: As `segments_gone` takes them.

    Raises:
        NeedsRepair: the index of a segment is gone.
    """
    segments = []
    for segment in view.segments:
        newest = greatest_timestamp(view, segment)
        segments.append(Kept(base_offset=segment.base_offset, bytes=segment.size(view.disk), max_timestamp_us=newest))
    if segments and view.segments[-1].live is None and view.segments[-1].partial is None:
        # The last one is sealed: it may go too, and the next one begins at the log end.
        segments.append(Kept(base_offset=view.log_end_offset, bytes=0, max_timestamp_us=now_us))
    gone = segments_gone(segments, end_offset=view.high_watermark, settings=settings, now_us=now_us, old_end=old_end)
    return segments[gone].base_offset if gone else view.log_start_offset
