"""Lost ranges are given up for good: empty batches of the same offsets and epochs take their place.

    lost   [ 0..3 ] ???????? [ 7..9 ]             4..6 cannot be read: no read goes past it where there are replicas
    then   [ 0..3 ][ 4..6 ][ 7..9 ]               4..6 has no rows: reads pass over it, followers copy it

The segments are written anew as `gaps.py` says. What cannot be read is copied aside before that, as it is, and fsynced.

E3  It is done by who leads in the epoch in which it was decided: the log may be another's copy by now, and what is
    lost here there elsewhere.
E4  An empty batch ends where an epoch does, and at each border that the caller names: a follower that stands there goes
    on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from broker.api.errors import CorruptLog, NotLeader
from broker.storage.disk import File, storage_error
from broker.storage.disk.unreadable import ReadAround
from broker.storage.log import PartitionLog
from broker.storage.recovery import Ranges
from broker.storage.rewrite.gaps import GapCopy, GapRewrite
from broker.storage.rewrite.rewriting import WINDOW_BYTES

ENDING: Final = ".lost"


def give_up(log: PartitionLog, ranges: Ranges, *, leader_epoch: int, aside: str, borders: Sequence[int] = ()) -> None:
    """Let ranges that are lost be empty, durably. Readers and appends go on beside it. One at a time per log.

    Args:
        ranges: Ranges of `lost_ranges`, below the high watermark.
        leader_epoch: The one in which the log leads (E3).
        aside: A folder for what cannot be read: a file `<start>-<end>.lost` for each range, with the bytes that stand
            there, zeros for what the disk does not read.
        borders: Offsets at which empty batches end (E4).
    Raises:
        NotLeader: the log does not lead in that epoch.
        CorruptLog: they are not lost, or more is than that; or no segment is left before them: trim the log instead.
        StorageFailed, DiskFull: the disk refuses; the ranges are still lost, and this may be tried again.
    """
    try:
        _GivingUp(log, ranges, leader_epoch, aside, borders).run()
    except OSError as error:
        raise storage_error(error, f"give up {ranges} of {log.state.folder}") from error


class _GivingUp(GapRewrite):
    def __init__(
        self, log: PartitionLog, ranges: Ranges, leader_epoch: int, aside: str, borders: Sequence[int]
    ) -> None:
        super().__init__(log, ranges, ENDING)
        self.leader_epoch, self.aside, self.borders = leader_epoch, aside, borders

    def check(self) -> None:
        log = self.log
        log.state.check_writable()  # `state.L8`
        if log.epochs.led != self.leader_epoch:
            raise NotLeader(f"{log.state.folder}: does not lead in {self.leader_epoch}", leader_epoch=log.epochs.latest)
        if not self.ranges or not set(self.ranges) <= set(log.state.lost_ranges):
            raise CorruptLog(
                f"{log.state.folder}: lost are {log.state.lost_ranges}, not {self.ranges}", path=log.state.folder
            )

    def prepare(self) -> None:
        """Keep what the ranges told of ids in a state file; followers take that (`handover.rewritten_to`)."""
        log, remembered = self.log, self.log.remembered
        with log.state.sync_lock, log.state.guarded("write state"):
            remembered.states.look()
            if remembered.has_states() and remembered.kept_offset() < max(stop for _, stop in self.ranges):
                remembered.keep_committed(gone_below=log.state.log_end_offset)

    def close(self, source: File, copy: GapCopy, place: tuple[int, int], offsets: tuple[int, int]) -> bool:
        first, stop = offsets
        start = max(first, self.log.state.log_start_offset)  # what lies below counts no more
        is_named = start >= stop or any(a <= start and stop <= b for a, b in self.ranges)
        if not is_named:
            if any(start < b and a < stop for a, b in self.ranges):
                raise CorruptLog(
                    f"{self.log.state.folder}: more is lost than {self.ranges}", path=self.log.state.folder
                )
            copy.keep(source, *place)
            return False
        self.set_aside(source, place, offsets)
        for begin, end, epoch in self.pieces(first, stop):
            copy.add_empty(begin, end, max(epoch, copy.epoch))
        return True

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The spans of the empty batches, one each: begin, end, epoch (E4)."""
        while start < stop:
            epoch = self.log.epochs.epoch_of(start)
            ends = [self.log.epochs.end_of(epoch).end_offset, *self.borders]
            end = min([stop, *(each for each in ends if each > start)])
            yield start, end, epoch
            start = end

    def set_aside(self, source: File, place: tuple[int, int], offsets: tuple[int, int]) -> None:
        self.disk.makedirs(self.aside)
        path = f"{self.aside}/{offsets[0]:020d}-{offsets[1]:020d}{ENDING}"
        file = self.disk.open(path, create=True)
        try:
            file.truncate(0)
            around = ReadAround(source)
            for at in range(place[0], place[1], WINDOW_BYTES):
                file.write(around.pread(min(WINDOW_BYTES, place[1] - at), at))
            file.sync()
        except OSError:
            with suppress(OSError):  # half a copy is of no use: on a full disk a trim needs its room
                self.disk.unlink(path)
            raise
        finally:
            file.close()
        self.disk.sync_dir(self.aside)
