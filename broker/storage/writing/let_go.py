"""Let go of old records: whole segments that lie below a new log start."""

from __future__ import annotations

from contextlib import suppress

from broker.storage.recovery import merge_ranges
from broker.storage.writing.checkpoints import Checkpoints
from broker.storage.writing.state import LogState


def goes_to(state: LogState, start: int) -> int:
    """The end of what goes if the log is to start at `start`: whole segments."""
    bases = [segment.base_offset for segment in state.chain.segments if segment.base_offset <= start]
    return start if state.chain.tail is None and start == state.log_end_offset else max(bases, default=0)


def let_go(state: LogState, checkpoints: Checkpoints, start: int) -> int:
    """Remove the segments that lie below `start`, which is committed. Returns the log start offset.

    The new start is checkpointed before anything goes (`checkpoint.K3`), on a full disk by a spare file.

    Raises:
        StorageFailed, DiskFull: nothing has gone.
    """
    with state.checkpoint_lock:  # `state.L8`
        with state.lock:
            if state.failure is not None or start > state.high_watermark:  # the latter: it was cut meanwhile
                return state.log_start_offset
            if start > state.log_start_offset:
                if start == state.log_end_offset and state.chain.tail is None:
                    with state.guarded("roll"):
                        state.chain.begin(start, frees=True)  # its name keeps the next offset
                state.log_start_offset = start
                state.lost_ranges = merge_ranges(state.lost_ranges, log_start_offset=start)
                state.tampered = merge_ranges(state.tampered, log_start_offset=start)
            start, known = state.log_start_offset, checkpoints.written
        if start > (known.log_start_offset if known is not None else 0):
            with state.guarded("checkpoint"):
                with state.lock:
                    point = checkpoints.point()
                checkpoints.write(
                    point, frees=True
                )  # `checkpoint.K3`; also for an earlier call that could not write it down
        with state.lock:
            gone = state.chain.drop_below(start)
        for segment in gone:
            with suppress(OSError):  # tried again at the next open
                segment.unlink(state.disk)
        return start
