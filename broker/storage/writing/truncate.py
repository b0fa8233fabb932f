"""Take back records that a new leader does not have, and cut a commit group that is not whole.

Both may go below the recovery point and the high watermark. In this order, each step on disk before
the next: what a join has left; the mark `cleaned_to`; the checkpoint, lowered; the epochs; then the
segments from the newest on, and the end of the one that the cut is in. A log that begins anew keeps
the marks of compaction until its segments are gone (`L10`).

An unfinished join is finished as an open does it (`joining`). Where that keeps old segments, because
the joined one is damaged, the folder holds records that this log does not know: taken back from the
joined segment alone, they would stand in the old ones at the next open. So the log is failed, and
`recover` opens the folder as it is; after that it may be truncated.

L5  Records are taken back on disk first, in an order in which a crash leaves the log as it was, or
    shorter; and all of that is on disk before the next append.
L10  As long as a record is there, so is the mark that says for which records others may be gone
    (`clean_state`): no cut lowers it, and what is cut below it is copied again from a log that has
    those records, or the log begins anew (`follower.F10`).

The caller holds all three locks.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from broker.api.errors import StorageFailed
from broker.storage.recovery import list_segments
from broker.storage.rewrite.clean_state import CLEAN_STATE_FILE, CleanState, lower_clean_state, save_clean_state
from broker.storage.rewrite.joining import finish_joins
from broker.storage.segments.checkpoint import Checkpoint
from broker.storage.segments.epochs import EPOCHS_FILE, Epochs, write_epochs
from broker.storage.writing.checkpoints import Checkpoints
from broker.storage.writing.leader_epochs import LeaderEpochs
from broker.storage.writing.state import LogState, below


def check_takes_back(state: LogState, epochs: LeaderEpochs, doing: str) -> None:
    """Raise why nothing may be taken back, if so: the log is failed, or leads."""
    state.check_writable()
    if epochs.led is not None:
        raise epochs.refusal(doing)


def truncate(state: LogState, epochs: LeaderEpochs, checkpoints: Checkpoints, to: int) -> None:
    """Take back what stands from `to` on, where a commit group begins.

    Raises:
        DiskFull, StorageFailed: nothing was changed, or the log is failed and `recover` finds it as it
            was, or shorter.
    """
    if to >= state.log_end_offset:
        return
    state.before_cut(to, state.cuts)
    with state.guarded("truncate"):
        _finish_joins(state)
        lower_clean_state(state.disk, state.folder, to)
        point = checkpoints.point(flush=False)
        checkpoints.write(
            replace(
                point,
                high_watermark=min(point.high_watermark, to),
                recovery_point=min(point.recovery_point, to),
                lost_ranges=below(point.lost_ranges, to),
                tail=point.tail if point.tail is not None and point.tail.base_offset < to else None,
                ages=state.ages.kept(min(point.recovery_point, to)),  # `ages.A4`
            ),
            frees=True,
        )
        cut = epochs.write(epochs.known().items, end=to)
    epochs.put(cut)
    state.lower(to)
    with state.failing("truncate"):
        state.chain.end_at(to)


def reset(state: LogState, epochs: LeaderEpochs, checkpoints: Checkpoints, to: int, *, last_epoch: int) -> None:
    """Begin anew and empty at `to`. The start is on disk before any file goes. If it is not known whether it is, the
    log is failed: what was appended to it below would not be there after a kill.

    Args:
        last_epoch: The leader epoch of the record before `to`; -1: not known.
    Raises:
        DiskFull, StorageFailed: as `truncate`.
    """
    state.before_cut(to, state.cuts)
    with state.guarded("reset"):
        _finish_joins(state)
        point = Checkpoint(high_watermark=to, log_start_offset=to, recovery_point=to)
        try:
            checkpoints.write(point, frees=True)
        except OSError as error:
            raise state.error_of(error, "reset", fails=checkpoints.may_say(point)) from error
    before = Epochs([(last_epoch, to - 1)] if last_epoch >= 0 and to else [])
    is_written = False
    with suppress(OSError):  # a full disk: the segments make room
        write_epochs(state.disk, state.folder, before, frees=True)
        is_written = True
    state.log_start_offset = to
    epochs.put(before)
    state.ages.cut(0)  # `ages.A4`: also those below `to`, of which a state file of another history may tell
    state.lower(to)
    state.high_watermark = to
    with state.failing("reset"):
        if not is_written and state.disk.exists(path := f"{state.folder}/{EPOCHS_FILE}"):
            state.disk.unlink(path)  # it tells of the former log; from none they are derived
        state.chain.end_at(to, is_all=True)
        if state.settings.is_compacted or state.disk.exists(f"{state.folder}/{CLEAN_STATE_FILE}"):
            save_clean_state(state.disk, state.folder, CleanState(superseded_to=0))
        state.note_compacted(0)
        state.note_superseded(0, -1)


def _finish_joins(state: LogState) -> None:
    """Finish joins; see the module. A segment below the log is a leftover of retention, which no open takes in."""
    finish_joins(state.disk, state.folder, [])
    known = {segment.base_offset for segment in state.chain.segments}
    found = {segment.base_offset for segment in list_segments(state.disk, state.folder)}
    unknown = sorted(base for base in found - known if base > min(known, default=-1))
    if unknown:
        raise state.fail(
            StorageFailed(
                f"{state.folder}: an interrupted join has left segments {unknown}, and the joined one is damaged",
                path=state.folder,
            )
        )
