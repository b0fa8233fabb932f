"""The driver's side of a streaming read: what `stream_reader.py` asks, independent of Spark.

Lives as long as the query, in the process that Spark runs the source in. One thread asks it; the
watch and the publisher have a thread each of their own.

S1  Every end is derived from its start, from what brokers say, and the limit; what cannot be derived
    again (where "latest" was, where a batch begins after a loss) is written into the end itself.
S2  Without a loss, no record between two ends of a checkpoint is skipped or read twice.
S12  A query with a new checkpoint and the progress of another one is refused, unless that is said to be meant: Spark
     counts its batches from 0 again, and a sink that knows the former ones skips the new ones (decision record 143).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Container, Mapping, Set
from dataclasses import replace
from socket import socket
from typing import Any

from broker.api.answers import PartitionLag
from broker.api.errors import NotReady, Retryable, UnknownConsumer
from broker.api.stream import OFFSETS_STREAM
from spark_liftlog.errors import NewCheckpoint
from spark_liftlog.options import SourceOptions
from spark_liftlog.progress.claim import claim
from spark_liftlog.progress.publishing import BEGINS, Progress
from spark_liftlog.progress.query_lag import report
from spark_liftlog.reading import advance
from spark_liftlog.reading.advance import Heads
from spark_liftlog.reading.cluster import ANY, At, Cluster
from spark_liftlog.reading.offsets import Decoder, Key, Offset, ReadPosition, encode, starting_point
from spark_liftlog.reading.plan import Range
from spark_liftlog.reading.positions import keys_of, resolve_where
from spark_liftlog.reading.query.admission import Admission
from spark_liftlog.reading.query.changes import OptionChanges
from spark_liftlog.reading.query.losses import Losses
from spark_liftlog.reading.query.pause import IdlePause
from spark_liftlog.reading.query.ranges import BatchRanges
from spark_liftlog.reading.query.views import Views
from spark_liftlog.reading.where import ByPartition, ByTime, Where

log = logging.getLogger("spark_liftlog")


class StreamDriver:
    """Where a query stands, where its next batch ends, which ranges that is.

    Args:
        options: Checked options.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = Cluster(options.brokers)
        self._views = Views(self._cluster, options.selection)
        self._losses = Losses(options, self._cluster, self._views)
        self._ranges = BatchRanges(self._cluster, self._views, self._losses)
        self._admission = Admission(options, self._cluster)
        self._changes = OptionChanges(options, self._cluster)
        self._progress = Progress(self._cluster, note=self._changes.note)
        self._pause = IdlePause()
        self._decode = Decoder()
        self._consumer = options.consumer or f"spark-{uuid.uuid4()}"
        self._ends: Mapping[Key, int] = {}
        self._idle: tuple[Any, Heads] | None = None  # from where, and in which heads, the last question found nothing
        self._reported: tuple[Mapping[Key, int], Heads, dict[str, Any]] | None = None
        self._claimed: socket | None = None

    def claim(self) -> None:
        """Have the consumer's name to oneself, if progress is published under one. Asked before the first offset.

        Raises:
            InvalidSetting: another source of this driver has it.
        """
        options = self._options
        if self._claimed is None and options.consumer is not None and options.commit_offsets:
            _, heads = self._cluster.heads_now([OFFSETS_STREAM])
            if (progress := heads.incarnations.get(OFFSETS_STREAM)) is not None:  # else nobody can publish yet
                self._claimed = claim(options.consumer, progress)

    def freeze(self) -> None:
        """Read up to what there is now, and no further (Trigger.AvailableNow)."""
        self._views.freeze()

    def latest(
        self, start_value: dict[str, Any], *, rows_max: int | None = None, is_bounded: bool = True
    ) -> dict[str, Any]:
        """Where the batch that begins at `start_value` ends; `start_value` itself when there is nothing new.

        That answer may be held back for a moment (pause.py).

        Args:
            rows_max: Records that the batch may have.
            is_bounded: Whether the limits of the options count. Spark may ask for all that there is.
        """
        wait_s = self._pause.asked(time.monotonic())
        end_value = self._latest(start_value, wait_s, rows_max, is_bounded)
        self._pause.answered(time.monotonic())
        return end_value

    def _latest(
        self, start_value: dict[str, Any], wait_s: float, rows_max: int | None, is_bounded: bool
    ) -> dict[str, Any]:
        self.claim()
        start = self._decode(start_value)
        heads = self._views.current()
        if self._idle is not None and self._idle[0] == start_value and self._idle[1] is heads:
            if wait_s:
                heads = self._views.after(heads, min(wait_s, self._admission.due_in_s(time.monotonic())))
            if self._idle[1] is heads and not self._admission.is_waiting:
                return start_value  # and what is before it was told to be done then
        self._admission.begin(heads, rows_max=rows_max, is_bounded=is_bounded, is_final=self._views.is_frozen)
        if start is None:
            first = self._first(start_value, heads)
            if first is None:
                self._idle = (start_value, heads)
                return start_value
            end = first
        else:
            self._changes.check(start)
            self.done(start_value)
            heads = self._views.agreeing(start, heads, self._again)
            found = self._next(start, heads)
            if found is None:
                self._idle = (start_value, heads)
                if self._views.is_frozen:
                    self._progress.flush()
                self._ends = {key: at.offset for key, at in start.positions.items()}
                return start_value
            end = found
        self._ends = {key: at.offset for key, at in end.positions.items()}
        return encode(end)

    def commit(self, value: dict[str, Any]) -> None:
        """The query has a micro-batch, perhaps of another source, and this is `done`."""
        self._pause.stirred(time.monotonic())
        self.done(value)

    def done(self, value: dict[str, Any]) -> None:
        """Every record before this offset has been processed. Never raises, never waits."""
        if not self._options.commit_offsets:
            return
        offset = self._decode(value)
        if offset is not None:
            self._progress.learned(replace(offset, consumer=self._options.consumer or offset.consumer))

    def ranges(self, start_value: dict[str, Any], end_value: dict[str, Any]) -> list[Range]:
        """The ranges of a batch, with leaders and sizes; none that is empty."""
        start, end = self._decode(start_value), self._decode(end_value)
        if end is None or start_value == end_value:
            return []
        return self._ranges.between(start, end)

    def report(self) -> dict[str, Any] | None:
        """The lag behind the end that was returned last, as JSON."""
        if not self._ends:
            return None
        heads = self._views.beyond()
        if self._reported is None or self._reported[0] is not self._ends or self._reported[1] is not heads:
            found = report(
                self._ends,
                {key: head.high_watermark for key, head in heads.partitions.items()},
                brokers=self._options.brokers,
                selection=self._options.selection,
            )
            self._reported = (self._ends, heads, found)
        return self._reported[2]

    def close(self) -> None:
        """Publish what was learned, shortly, and end the threads. Idempotent."""
        self._progress.close()
        self._views.close()
        self._cluster.close()
        if self._claimed is not None:
            self._claimed.close()

    def _again(self) -> Heads:
        """Newer heads, for this trigger too."""
        heads = self._views.newer()
        self._admission.renewed(heads)
        return heads

    def _first(self, start_value: dict[str, Any], heads: Heads) -> Offset | None:
        """The first end of a query: it says itself where its batch begins (S1). None: there is no stream yet."""
        options = self._options
        where = starting_point(start_value)
        self._check_new(where)
        if where == "committed":
            return self._committed(heads)
        asking = self._cluster.asking_again()
        while True:
            keys, heads = keys_of(self._cluster, options.selection, heads, self._again)
            resolved = resolve_where(
                self._cluster,
                keys,
                where,
                side="starting",
                fail_on_data_loss=options.fail_on_data_loss,
                known=dict.fromkeys(heads.incarnations, ANY),
            )
            if not resolved:
                return None
            differs = [key for key, found in resolved.items() if found.incarnation != heads.incarnations[key[0]]]
            if not differs:
                break
            if not asking.again():
                (stream, _), found = differs[0], resolved[differs[0]]
                known = heads.incarnations[stream]
                raise advance.recreated(stream, known, found.incarnation, found.head.log_start_offset)
            heads = self._again()
        first = Offset(
            consumer=self._consumer,
            incarnations=heads.incarnations,
            positions={key: found.position for key, found in resolved.items()},
        )
        base = {key: found.position.offset for key, found in resolved.items()}
        it = advance.step(first, heads, base, limit=None, share=self._admission.share)
        assert it is not None, "a step with a base is never empty"
        end = self._finish(it, heads)
        if options.commit_offsets and not (options.consumer and self._progressed()):  # what it has published counts
            self._progress.begins(first)
        return end

    def _check_new(self, where: Where) -> None:
        """See S12.

        Raises:
            NewCheckpoint: the consumer has progress in what is read. This query has published none yet.
        """
        consumer, is_committed = self._options.consumer, where == "committed"
        if consumer is None or self._options.accepts_new_checkpoint:
            return
        if not (is_committed or self._options.commit_offsets):
            return
        if self._progressed():
            begins = (
                "goes on there" if is_committed else "begins at its own start; startingOffsets=committed goes on there"
            )
            raise NewCheckpoint(
                f"consumer {consumer!r} has published the progress of another checkpoint, and the query's checkpoint is"
                " new. Spark counts its batches from 0 again, and an output that knows the former batches skips the new"
                " ones, and their records, without an error: a folder of files with its _spark_metadata, a table with"
                " a txnAppId. Restore the checkpoint; or give the query a new output and set the option"
                f" onNewCheckpoint=accept for this start, which {begins}",
                consumer=consumer,
            )

    def _published(self) -> list[PartitionLag]:
        """The progress of the consumer in what is read, and where it began."""
        selection = self._options.selection
        try:
            found = self._cluster.committed(self._consumer)
        except UnknownConsumer:
            return []
        return [p for p in found if selection.has(p.stream) and selection.takes((p.stream, p.partition))]

    def _progressed(self) -> bool:
        """Whether the consumer has processed anything of what is read, not only begun."""
        return any(not p.metadata.startswith(BEGINS) for p in self._published())

    def _committed(self, heads: Heads) -> Offset:
        """The first end of a query whose checkpoint is lost: it goes on where its progress was published.

        Published progress is checked like a checkpoint: records that have gone are a loss, never another beginning.

        Raises:
            UnknownConsumer: nothing was published for a stream that is read.
        """
        selection = self._options.selection
        _, heads = keys_of(self._cluster, selection, heads, self._again)
        consumer = self._consumer
        found = self._published()
        if found and {p.stream for p in found} >= set(selection.names):
            start = Offset(
                consumer=consumer,
                incarnations={p.stream: p.incarnation or heads.incarnations[p.stream] for p in found},
                positions={(p.stream, p.partition): ReadPosition(p.offset, p.leader_epoch) for p in found},
            )
            heads = self._views.agreeing(start, heads, self._again)
            resume, held = self._losses.survived(start, heads)
            base = {key: at.offset for key, at in start.positions.items() if key not in held} | resume
            it = advance.step(start, heads, base, limit=None, held=held, share=self._admission.share)
            if it is None:
                raise NotReady(f"consumer {consumer!r}: none of its streams can be read at present")
            return self._finish(it, heads)
        raise UnknownConsumer(
            f"option startingOffsets='committed': consumer {consumer!r} has published no progress for {selection};"
            " start once with startingOffsets=earliest or latest",
            consumer=consumer,
        )

    def _next(self, start: Offset, heads: Heads) -> Offset | None:
        start = replace(start, consumer=self._options.consumer or start.consumer)
        new = self._new(start, heads)
        resume, held = self._losses.survived(start, heads, new)
        added = self._added(start, heads, new)
        held |= new - added.keys()  # they begin later, with newer heads
        it = advance.step(start, heads, resume, limit=None, added=added, held=held, share=self._admission.share)
        return None if it is None else self._finish(it, heads)

    def _new(self, start: Offset, heads: Heads) -> set[Key]:
        """Partitions that the query begins to read: of streams that it has not met, or named since (`partitions`)."""
        return {
            (stream, partition)
            for stream, partition in heads.partitions.keys() - start.positions.keys()
            if (known := start.incarnations.get(stream)) is None
            or (known == heads.incarnations[stream] and not self._options.selection.is_whole(stream))
        }

    def _added(self, start: Offset, heads: Heads, added: Set[Key]) -> dict[Key, int]:
        """Where partitions begin that the query begins to read."""
        where, by_pattern = self._options.starting, self._options.selection.pattern is not None
        first = {
            key: heads.partitions[key].log_start_offset
            for key in added
            if where == "committed" or (by_pattern and key[0] not in start.incarnations)
        }
        new = sorted(added - first.keys())
        if not new:
            return first
        if isinstance(where, ByTime) and not isinstance(where.at_ms, int):
            where = replace(where, at_ms=_without(where.at_ms, start.positions))
        elif not isinstance(where, str | ByTime):
            where = _without(where, start.positions)
        found = resolve_where(
            self._cluster,
            new,
            where,
            side="starting",
            fail_on_data_loss=self._options.fail_on_data_loss,
            known=heads.incarnations,
        )
        others = {key[0] for key, one in found.items() if one.incarnation != heads.incarnations[key[0]]}
        return first | {key: one.position.offset for key, one in found.items() if key[0] not in others}

    def _finish(self, it: advance.Step, heads: Heads) -> Offset:
        asked: list[tuple[Key, At]] = [
            (key, {"offset": end}) for key, end in sorted(advance.unknown_epochs(it, heads).items())
        ]
        answers = self._cluster.resolve(asked, known=it.incarnations)
        for answer in answers:
            if isinstance(answer.error, Retryable):
                raise answer.error  # "unknown" would switch the comparison off for good
        epochs = {
            key: -1
            if answer.error is not None or answer.incarnation != it.incarnations[key[0]]
            else answer.position.leader_epoch
            for (key, _), answer in zip(asked, answers, strict=True)
        }
        for key in it.ends:
            self._losses.derived(key, it.incarnations[key[0]], heads.partitions[key].leader_epoch)
        return advance.finish(it, heads, epochs)


def _without(places: ByPartition, positions: Container[Key]) -> ByPartition:
    left = {
        stream: {partition: at for partition, at in found.items() if (stream, partition) not in positions}
        for stream, found in places.items()
    }
    return {stream: found for stream, found in left.items() if found}
