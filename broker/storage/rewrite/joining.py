"""Several segments become one: how that survives a crash at any step.

    before   0.arrows [0, 40)   40.arrows [40, 70)   70.arrows [70, 90)
    after    0.arrows [0, 90)

    1  the new file is written beside the first, and fsynced          `rewriting.W6`
    2  an empty file `join-<0>-<90>` is made, and its name fsynced     from here on an overlap is expected
    3  the new file is renamed over the first; the folder is fsynced   here it happens
    4  the other segments are removed; the folder is fsynced
    5  the empty file is removed

J1  At any moment either the old segments are all there, or the new one is, whole and durable.
J2  Only an overlap that an empty file of step 2 announces is resolved, and only in favour of a new file that was read
    and found whole. It is resolved before anything else looks at the folder.
J3  A new file that is announced, in its place and damaged (it was fsynced whole: the disk has changed it since) removes
    nothing. The old segments behind it stand; of it only what is whole and lies before them counts.

The name says it all, so that no content could be damaged.
"""

from __future__ import annotations

import re
from typing import Final

from broker.api.schema import SCHEMA_BYTES
from broker.storage.disk import Disk
from broker.storage.segments.scan import Check, scan
from broker.storage.segments.segment import SEGMENT_ENDING, Segment, parse_name

_NAME: Final = re.compile(r"join-([0-9]{20})-([0-9]{20})")


def announce(disk: Disk, folder: str, start: int, end: int) -> None:
    """Say that one segment of [start, end) is about to take the place of several (step 2). OSError passes through."""
    disk.open(_path(folder, start, end), create=True).close()
    disk.sync_dir(folder)


def retract(disk: Disk, folder: str, start: int, end: int) -> None:
    """It is done, or will not be (step 5)."""
    disk.unlink(_path(folder, start, end))


def finish_joins(disk: Disk, folder: str, notes: list[str], check: Check | None = None) -> None:
    """Finish or forget the joins that a crash has left (J2). Nothing to do costs one listing.

    Args:
        notes: Gets what was done, in words.
        check: As for `scan`: a batch that it refuses removes nothing, and its error is raised.
    Raises:
        UnknownFormatVersion: a batch of a later release; nothing was changed.
        OSError: the disk refuses; it is tried again at the next open.
    """
    names = disk.listdir(folder)
    found = sorted((int(m[1]), int(m[2])) for m in map(_NAME.fullmatch, names) if m)
    for start, end in found:
        parsed = filter(None, map(parse_name, disk.listdir(folder)))
        bases = sorted(base for base, ending in parsed if ending == SEGMENT_ENDING and start <= base < end)
        if len(bases) > 1 and bases[0] == start:
            _finish(disk, folder, bases, end, notes, check)
        retract(disk, folder, start, end)


def _finish(disk: Disk, folder: str, bases: list[int], end: int, notes: list[str], check: Check | None) -> None:
    first, others = Segment(folder, bases[0]), [Segment(folder, base) for base in bases[1:]]
    file = disk.open(first.path, readonly=True)
    try:
        found = scan(file, start=len(SCHEMA_BYTES), first_offset=first.base_offset, where=first.path, check=check)
    finally:
        file.close()
    begins, afters = found.batches["first_offset"].tolist(), found.batches["next_offset"].tolist()
    if not afters or afters[-1] <= bases[1]:
        return  # the rename never happened: the old segments stand
    is_whole = (
        found.schema_is_whole and not found.gaps and [first.base_offset, *afters[:-1]] == begins and afters[-1] >= end
    )
    if is_whole:
        for segment in others:
            segment.unlink(disk)
        what = "the segments that it replaces were removed"
    else:
        if disk.exists(first.index_path):
            disk.unlink(first.index_path)  # it lists what the others hold: whoever finds none scans anew
        what = "it is damaged, so they were kept"
    disk.sync_dir(folder)
    notes.append(f"{first.path}: an interrupted join of {len(bases)} segments up to offset {end}; {what}")


def _path(folder: str, start: int, end: int) -> str:
    return f"{folder}/join-{start:020d}-{end:020d}"
