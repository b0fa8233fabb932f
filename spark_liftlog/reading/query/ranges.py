"""Which records a batch has: between two offsets of a checkpoint, as far as the logs have them.

They may be of an earlier run, whose batch is planned again. By driver.S2 the begin of each range is where the batch
before has ended, and the log may have changed since.

S7  A batch that is planned again has the records that were planned then. None is read that is gone, or was written
    anew, and the loss is named (losses.S3, losses.S4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spark_liftlog.errors import BadOffset
from spark_liftlog.reading import advance
from spark_liftlog.reading.advance import Head, Loss
from spark_liftlog.reading.cluster import Cluster
from spark_liftlog.reading.offsets import Key, Offset
from spark_liftlog.reading.plan import Range
from spark_liftlog.reading.positions import weighed
from spark_liftlog.reading.query.losses import Losses
from spark_liftlog.reading.query.views import Views


class BatchRanges:
    """Plans the batches of one query.

    Args:
        cluster: Is asked how many bytes the records have, and of which epochs they are.
        views: How far the logs reach.
        losses: Is told what is gone.
    """

    def __init__(self, cluster: Cluster, views: Views, losses: Losses) -> None:
        self._cluster = cluster
        self._views = views
        self._losses = losses

    def between(self, start: Offset | None, end: Offset) -> list[Range]:
        """The ranges of a batch, with leaders and sizes; none that is empty."""
        planned = []
        for key, (begin, stop) in _bounds(start, end).items():
            if stop > begin and (available := self._available(end, key, begin, stop)) is not None:
                planned.append(available)
        sized, epochs = weighed(self._cluster, planned)
        return [same for r in sized if (same := self._same_records(r, end, epochs)) is not None]

    def _available(self, end: Offset, key: Key, begin: int, stop: int) -> Range | None:
        """The range as far as the log has it; None: nothing of it. A loss raises or is survived."""
        stream, partition = key
        known = end.incarnations[stream]
        heads = self._views.telling_of(key, known)
        head = None if heads is None else heads.partitions[key]
        if heads is None or head is None:
            self._losses.lost(Loss(advance.deleted(stream), None))
            return None
        if heads.incarnations[stream] != known:
            now = heads.incarnations[stream]
            self._losses.lost(Loss(advance.recreated(stream, known, now, head.log_start_offset), None))
            return None
        waits = self._losses.waits()
        while head.high_watermark < stop:  # planned in an earlier run, perhaps: ask again as positions do
            newer = self._cluster.whole(self._views.fresh(key), lambda: self._views.fresh(key), of=key.__eq__)
            head = newer.partitions.get(key, head)
            if head.high_watermark < stop and not next(waits, False):
                self._losses.lost(Loss(advance.truncated(key, stop, head.high_watermark, head), None))
                break
        if head.log_start_offset > begin:
            self._losses.lost(Loss(advance.expired(key, begin, head), None))
        begin, stop = max(begin, head.log_start_offset), min(stop, head.high_watermark)
        if begin >= stop:
            return None
        return Range(stream=stream, partition=partition, incarnation=known, start=begin, end=stop, address=head.leader)

    def _same_records(self, r: Range, end: Offset, epochs: Mapping[Key, int]) -> Range | None:
        """The range as far as its records are those that were planned; None: none of them is (S7)."""
        key = (r.stream, r.partition)
        at, epoch = end.positions[key], epochs[key]
        if r.end != at.offset or -1 in (epoch, at.leader_epoch) or epoch == at.leader_epoch:
            return r
        head = self._views.recent().partitions.get(key) or Head(r.start, r.end, epoch)
        resume = self._losses.parting(key, r.incarnation, at.leader_epoch, r.end, head)
        self._losses.lost(Loss(advance.truncated(key, r.end, resume, head), resume))
        return replace(r, end=resume) if resume > r.start else None


def _bounds(start: Offset | None, end: Offset) -> dict[Key, tuple[int, int]]:
    """Per partition where a batch begins and ends: at its base if it has one, else where the one before ended."""
    bounds = {}
    for key, at in sorted(end.positions.items()):
        begin = end.base.get(key)
        if begin is None and start is not None and key in start.positions:
            begin = start.positions[key].offset
        if begin is None or begin > at.offset:
            raise BadOffset(f"the checkpoint does not say where partition {key[1]} of {key[0]!r} begins", offset="")
        bounds[key] = (begin, at.offset)
    return bounds
