"""Judge how much of the last segment stays, and where it is cut. No I/O: a scan in, a judgement out.

    kept_end    nothing below is cut: it was fsynced, or is proven to be committed (`recovery.R1`)
    evidence    for a sole replica a high watermark in the header of a later intact batch proves it, too

A gap at or above both is a torn tail, and all behind it goes, back to where its commit group began
(`recovery.R2`). A gap below is lost, and what is intact around it stays (`recovery.R3`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from broker.storage.segments.scan import Scan

Batches = npt.NDArray[np.void]


class TailJudgement(NamedTuple):
    """The batches that stay, where the file is cut (None: nowhere), and what is lost before that."""

    batches: Batches
    cut: int | None
    lost: list[tuple[int, int]]


def judge_tail(found: Scan, expected: int, kept_end: int, *, base_offset: int, is_sole: bool) -> TailJudgement:
    """Judge the last segment.

    Args:
        found: Its scan.
        expected: The offset that the scan begins with.
        base_offset: The segment's.
        is_sole: High watermarks in headers count as evidence.
    """
    batches = found.batches
    proven = int(batches["high_watermark"].max(initial=0)) if is_sole else 0
    if not found.schema_is_whole and max(kept_end, proven) <= base_offset:
        return TailJudgement(batches[:0], 0, [])  # it was made and never synced: it begins anew
    # evidence[i]: the greatest high watermark from batch i on
    evidence = np.maximum.accumulate(batches["high_watermark"][::-1])[::-1] * is_sole
    gaps, lost = [*found.gaps], []
    keep, cut = 0, None
    for keep, batch in enumerate(batches):
        first, position = int(batch["first_offset"]), int(batch["position"])
        gap = next((g for g in gaps if g[0] < position and g[1] <= position), None) if gaps else None
        if gap is not None:
            gaps = [g for g in gaps if g[0] >= position]
        if (gap is not None or first > expected) and expected >= max(kept_end, int(evidence[keep])):
            cut = gap[0] if gap is not None else position
            break
        lost.append((expected, first))
        expected = int(batch["next_offset"])
    else:
        keep = len(batches)
        if gaps and expected >= kept_end:
            cut = gaps[0][0]
    whole = _whole_groups(batches[:keep], kept_end)
    if whole < keep:
        cut = int(batches["position"][whole])
    return TailJudgement(batches[:whole], cut, lost)


def _whole_groups(batches: Batches, kept_end: int) -> int:
    """How many batches stay when an incomplete commit group at the end is taken off, unless it is below `kept_end`."""
    count = len(batches)
    if count == 0 or int(batches["group_index"][-1]) == int(batches["group_count"][-1]) - 1:
        return count
    begin = count - 1
    while begin > 0 and int(batches["group_index"][begin]) > 0:
        begin -= 1
    return begin if int(batches["first_offset"][begin]) >= kept_end else count
