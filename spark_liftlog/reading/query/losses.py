"""Losses: records that a query has read, or was to read, and a log cannot give any more. Named, or survived.

    position  [offset, epoch of the record before it]
    log       log start … that record … high watermark        the same record? else the tail was lost, or written anew

S3  A broker that is away is waited for; what is lost is named, or with failOnDataLoss=false logged.
S4  Before a position is used for the first time, and again when the leader or the incarnation has
    changed, the epoch of the record before it is compared with the log's: a tail that was lost and
    written anew has the same offsets but another epoch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Set

from broker.api.errors import OffsetOutOfRange, UnknownPartition, UnknownStream
from spark_liftlog.options import SourceOptions
from spark_liftlog.reading import advance
from spark_liftlog.reading.advance import Head, Heads, Loss
from spark_liftlog.reading.asking_again import AGAIN_S
from spark_liftlog.reading.cluster import At, Cluster, Resolved
from spark_liftlog.reading.offsets import Key, Offset
from spark_liftlog.reading.query.views import Views

log = logging.getLogger("spark_liftlog")


class Losses:
    """The losses of one query.

    Args:
        cluster: Is asked for the log itself.
        views: Heads that agree with the query's streams.
    """

    def __init__(self, options: SourceOptions, cluster: Cluster, views: Views) -> None:
        self._options = options
        self._cluster = cluster
        self._views = views
        self._verified: dict[Key, tuple[str, int]] = {}
        self._warned: set[str] = set()

    def derived(self, key: Key, incarnation: str, leader_epoch: int) -> None:
        """The position in this partition is from this very leader's log: there is nothing to compare (S4)."""
        self._verified[key] = (incarnation, leader_epoch)

    def survived(self, start: Offset, heads: Heads, added: Set[Key] = frozenset()) -> tuple[dict[Key, int], set[Key]]:
        """Where partitions go on that lost records, and which of them cannot go on now; of others than `added`.

        Raises:
            LiftlogError: the loss, unless failOnDataLoss is false.
        """
        found = advance.losses(start, heads, added=added)
        suspects = {
            key: at.offset
            for key, at in start.positions.items()
            if key not in found and self._is_suspect(key, at.offset, start.incarnations[key[0]], heads)
        }
        if suspects:
            found |= self._compared(start, heads, suspects)
        for _, loss in sorted(found.items()):
            self.lost(loss)
        resume = {key: loss.resume for key, loss in found.items() if loss.resume is not None}
        return resume, found.keys() - resume.keys()

    def lost(self, loss: Loss) -> None:
        """Name a loss, or log it once (S3)."""
        if self._options.fail_on_data_loss:
            raise loss.error
        if str(loss.error) not in self._warned:
            self._warned.add(str(loss.error))
            log.warning("source.data_loss error=%s", loss.error)

    def waits(self) -> Iterator[bool]:
        """Pauses for a log that ends below a position: a leader that has just begun learns its high watermark.

        Only they count, not the time in which nobody said where the log ends.
        """
        left_s = self._options.truncation_timeout_s
        while left_s > 0:
            time.sleep(AGAIN_S)
            left_s -= AGAIN_S
            yield True

    def parting(self, key: Key, incarnation: str, epoch: int, offset: int, head: Head) -> int:
        """Up to where the log is still the one that was read."""
        if epoch >= 0:
            (found,) = self._cluster.resolve([(key, {"epoch": epoch})], known={key[0]: incarnation})
            if found.error is None and found.incarnation == incarnation:
                offset = min(offset, found.position.offset)
        return min(max(offset, head.log_start_offset), head.high_watermark)

    def _is_suspect(self, key: Key, offset: int, incarnation: str, heads: Heads) -> bool:
        """Whether the position must be compared with the log itself (S4)."""
        if not self._views.is_read(key):
            return False
        head = heads.partitions.get(key)
        if head is None:
            return heads.incarnations.get(key[0]) in (None, incarnation)
        return self._verified.get(key) != (incarnation, head.leader_epoch) or head.high_watermark < offset

    def _compared(self, start: Offset, heads: Heads, suspects: Mapping[Key, int]) -> dict[Key, Loss]:
        """Compare positions with the log itself (S4)."""
        keys = sorted(suspects)
        asked: list[tuple[Key, At]] = [(key, {"offset": suspects[key]}) for key in keys]
        believed = self._views.believed_streams
        known = {stream: found for stream, found in start.incarnations.items() if stream not in believed}
        waits = self.waits()
        while True:
            answers = dict(zip(keys, self._cluster.resolve(asked, known=known), strict=True))
            is_behind = any(
                found.incarnation and found.head.high_watermark < suspects[key] for key, found in answers.items()
            )
            if not is_behind or not next(waits, False):
                break
        lost: dict[Key, Loss] = {}
        for key, found in answers.items():
            loss = self._difference(start, key, found)
            if loss is not None:
                lost[key] = loss
            else:
                head = heads.partitions.get(key)
                self._verified[key] = (start.incarnations[key[0]], -1 if head is None else head.leader_epoch)
        return lost

    def _difference(self, start: Offset, key: Key, found: Resolved) -> Loss | None:
        at, head, known = start.positions[key], found.head, start.incarnations[key[0]]
        if isinstance(found.error, UnknownStream):
            return Loss(advance.deleted(key[0]), None)
        if isinstance(found.error, UnknownPartition):
            return Loss(advance.missing(key), None)
        if found.error is not None and not isinstance(found.error, OffsetOutOfRange):
            raise found.error
        if found.incarnation != known:
            # Newer than the heads at hand: nothing to go on at until they have it too.
            return Loss(advance.recreated(key[0], known, found.incarnation, head.log_start_offset), None)
        if head.log_start_offset > at.offset:
            return Loss(advance.expired(key, at.offset, head), head.log_start_offset)
        if head.high_watermark < at.offset:
            resume = self.parting(key, known, at.leader_epoch, head.high_watermark, head)
            return Loss(advance.truncated(key, at.offset, resume, head), resume)
        epoch = found.position.leader_epoch
        # At the log's start the record before is gone, and its epoch perhaps with it.
        if at.offset > head.log_start_offset and -1 not in (epoch, at.leader_epoch) and epoch != at.leader_epoch:
            resume = self.parting(key, known, at.leader_epoch, at.offset, head)
            return Loss(advance.truncated(key, at.offset, resume, head), resume)
        return None
