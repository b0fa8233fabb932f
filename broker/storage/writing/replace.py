"""Put a file that was written anew in the place of sealed segments. Readers are undisturbed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from broker.storage.disk import File
from broker.storage.rewrite.joining import announce, retract
from broker.storage.segments.index import Entries
from broker.storage.segments.segment import Segment
from broker.storage.writing.state import LogState


def sealed_segments(state: LogState) -> list[tuple[Segment, int]]:
    """The segments that nothing is appended to any more, each with the offset after it."""
    with state.lock:
        segments, tail, end = state.chain.segments, state.chain.tail, state.log_end_offset
    ends = [*(segment.base_offset for segment in segments[1:]), end]
    return [(segment, end) for segment, end in zip(segments, ends, strict=False) if segment is not tail]


def replace_segments(
    state: LogState,
    old: Sequence[Segment],
    staged: str,
    entries: Entries,
    size: int,
    *,
    cuts: int | None = None,
    is_whole: bool = False,
) -> bool:
    """Put the file `staged`, which is on disk, in the place of sealed segments, durably. Readers are undisturbed.

    Args:
        old: n >= 1 that follow one another.
        entries: Its index.
        size: Its bytes.
        cuts: The log's `cuts` from before the read that decided which records are left out.
        is_whole: It was written by indexes that were to name all batches. If something is lost by now, they may not
            have named a damaged one (`state.L11`): then its offsets would look as if their records had been removed.
    Returns:
        False: one of them is gone meanwhile, or records were taken back, or something is lost; then `staged` is gone
            too.
    Raises:
        StorageFailed, DiskFull: the log is failed, or the disk refuses; the old ones are there, or the new one,
            whole (`joining.J1`).
    """
    with state.checkpoint_lock:  # else a truncation may reuse the name of a segment that is still to be removed
        start = old[0].base_offset
        end = next((after for segment, after in sealed_segments(state) if segment is old[-1]), start)
        is_done = False
        replaced: File | None = None
        try:
            if end > start:
                state.check_writable()  # `state.L8`
                if len(old) > 1:
                    with state.guarded("join"):
                        announce(state.disk, state.folder, start, end)
                with suppress(OSError):  # held open, or the lock would wait until its blocks are freed
                    replaced = state.disk.open(old[0].path, readonly=True)
                with state.lock, state.guarded("replace"):
                    state.check_writable()
                    if (cuts is None or cuts == state.cuts) and not (
                        is_whole and (state.lost_ranges or state.tampered)
                    ):
                        is_done = state.chain.replace(old, staged, entries, size)
        finally:
            if replaced is not None:
                replaced.close()
            if not is_done:
                with suppress(OSError):
                    state.disk.unlink(staged)
        with state.guarded("replace"):
            state.disk.sync_dir(state.folder)
            if len(old) > 1 and end > start:
                for segment in old[1:] if is_done else ():
                    segment.unlink(state.disk)
                state.disk.sync_dir(state.folder)
                retract(state.disk, state.folder, start, end)
        return is_done
