"""The driver's side of a streaming read: what `stream_reader.py` asks, independent of Spark.

Lives as long as the query, in the process that Spark runs the source in. One thread asks it; the
watch and the publisher have a thread each of their own.

S1  Every end is derived from its start, from what brokers say, and the limit; what cannot be derived
    again (where "latest" was, where a batch begins after a loss) is written into the end itself.
S2  Without a loss, no record between two ends of a checkpoint is skipped or read twice.
S3  A broker that is away is waited for; what is lost is named, or with failOnDataLoss=false logged.
S4  Before a position is used for the first time, and again when the leader or the incarnation has
    changed, the epoch of the record before it is compared with the log's: a tail that was lost and
    written anew has the same offsets but another epoch.
S5  That a stream is another one, or gone, is believed once it was said for longer than a broker may be behind
    (asking_again.py). Until then nothing is planned, and the query stays in the incarnation where it is.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Container, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from socket import socket
from typing import Any

from broker.api.errors import (
    InvalidSetting,
    NotReady,
    OffsetOutOfRange,
    Retryable,
    UnknownConsumer,
    UnknownPartition,
    UnknownStream,
)
from broker.api.stream import OFFSETS_STREAM
from spark_liftlog.errors import BadOffset
from spark_liftlog.options import SourceOptions
from spark_liftlog.progress.claim import claim
from spark_liftlog.progress.publishing import Progress
from spark_liftlog.progress.query_lag import report
from spark_liftlog.reading import advance
from spark_liftlog.reading.admission import Admission
from spark_liftlog.reading.advance import Head, Heads, Loss
from spark_liftlog.reading.asking_again import AGAIN_S
from spark_liftlog.reading.cluster import ANY, DEADLINE_S, At, Cluster, Resolved
from spark_liftlog.reading.heads import HeadWatch
from spark_liftlog.reading.offsets import Decoder, Key, Offset, ReadPosition, encode, starting_point
from spark_liftlog.reading.plan import Range
from spark_liftlog.reading.positions import keys_of, resolve_where, weighed
from spark_liftlog.reading.where import ByPartition, ByTime

log = logging.getLogger("spark_liftlog")


class StreamDriver:
    """Where a query stands, where its next batch ends, which ranges that is.

    Args:
        options: Checked options.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = Cluster(options.brokers)
        self._watch = HeadWatch(self._cluster, options.selection)
        self._admission = Admission(options, self._cluster)
        self._progress = Progress(self._cluster)
        self._frozen: Heads | None = None
        self._decode = Decoder()
        self._consumer = options.consumer or f"spark-{uuid.uuid4()}"
        self._verified: dict[Key, tuple[str, int]] = {}
        self._ends: Mapping[Key, int] = {}
        self._idle: tuple[Any, Heads] | None = None
        self._reported: tuple[Mapping[Key, int], Heads, dict[str, Any]] | None = None
        self._warned: set[str] = set()
        self._believed: set[Key | tuple[str, str | None]] = set()  # S5: what contradicts a position, and was settled
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
        self._frozen = self._whole(self._watch.fresh())

    def latest(
        self, start_value: dict[str, Any], *, rows_max: int | None = None, is_bounded: bool = True
    ) -> dict[str, Any]:
        """Where the batch that begins at `start_value` ends; `start_value` itself when there is nothing new.

        Args:
            rows_max: Records that the batch may have.
            is_bounded: Whether the limits of the options count. Spark may ask for all that there is.
        """
        self.claim()
        start = self._decode(start_value)
        heads = self._frozen or self._whole(self._watch.current())
        self._admission.begin(heads, rows_max=rows_max, is_bounded=is_bounded, is_final=self._frozen is not None)
        if start is None:
            first = self._first(start_value, heads)
            if first is None:
                return start_value
            end = first
        else:
            self._check_streams(start)
            if self._idle is not None and self._idle[0] == start_value and self._idle[1] is heads:
                return start_value  # and what is before it was told to be done then
            self.done(start_value)
            heads = self._settled(start, heads)
            found = self._next(start, heads)
            if found is None:
                if not self._admission.is_waiting:
                    self._idle = (start_value, heads)
                if self._frozen is not None:
                    self._progress.flush()
                self._ends = {key: at.offset for key, at in start.positions.items()}
                return start_value
            end = found
        self._ends = {key: at.offset for key, at in end.positions.items()}
        return encode(end)

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
        planned = []
        for key, (begin, stop) in _bounds(start, end).items():
            if stop > begin and (available := self._available(end, key, begin, stop)) is not None:
                planned.append(available)
        sized, epochs = weighed(self._cluster, planned)
        return [same for r in sized if (same := self._same_records(r, end, epochs)) is not None]

    def report(self) -> dict[str, Any] | None:
        """The lag behind the end that was returned last, as JSON."""
        if not self._ends:
            return None
        heads = self._watch.recent() if self._frozen is None else self._watch.current()
        if self._reported is None or self._reported[0] is not self._ends or self._reported[1] is not heads:
            found = report(self._ends, {key: head.high_watermark for key, head in heads.partitions.items()})
            self._reported = (self._ends, heads, found)
        return self._reported[2]

    def close(self) -> None:
        """Publish what was learned, shortly, and end the threads. Idempotent."""
        self._progress.close()
        self._watch.close()
        self._cluster.close()
        if self._claimed is not None:
            self._claimed.close()

    def _whole(self, heads: Heads) -> Heads:
        return self._cluster.whole(heads, self._watch.fresh) if heads.unknown else heads

    def _again(self) -> Heads:
        """Newer heads, for this trigger too."""
        heads = self._whole(self._watch.fresh())
        if self._frozen is not None:
            self._frozen = heads
        self._admission.renewed(heads)
        return heads

    def _settled(self, start: Offset, heads: Heads) -> Heads:
        """Heads that agree with the position, or go on contradicting it (S5)."""
        asking = self._cluster.asking_again()
        while doubts := self._doubts(start, heads):
            self._believed &= doubts
            if doubts == self._believed:
                return heads
            if not asking.again():
                break
            heads = self._again()
        self._believed = doubts
        return heads

    def _doubts(self, start: Offset, heads: Heads) -> set[Key | tuple[str, str | None]]:
        """Streams that are another one now, or none, with its incarnation; partitions that are not there."""
        selection = self._options.selection
        streams = {
            (stream, now)
            for stream, known in start.incarnations.items()
            if (now := heads.incarnations.get(stream)) != known and selection.has(stream)
        }
        gone = start.positions.keys() - heads.partitions.keys() - heads.unknown
        others = {stream for stream, _ in streams}
        return streams | {
            key for key in gone if selection.has(key[0]) and selection.takes(key) and key[0] not in others
        }

    def _first(self, start_value: dict[str, Any], heads: Heads) -> Offset | None:
        """The first end of a query: it says itself where its batch begins (S1). None: there is no stream yet."""
        options = self._options
        where = starting_point(start_value)
        if where == "committed":
            return self._committed(heads)
        asking = self._cluster.asking_again()
        while True:
            keys, heads = keys_of(self._cluster, options.selection, heads, self._again)
            resolved = resolve_where(
                self._cluster,
                keys,
                where,
                option="startingOffsets",
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
        return self._finish(it, heads)

    def _committed(self, heads: Heads) -> Offset:
        """The first end of a query whose checkpoint is lost: it goes on where its progress was published.

        What was published is checked like a checkpoint: what is gone since is a loss, never another beginning.

        Raises:
            UnknownConsumer: nothing was published for a stream that is read.
        """
        selection = self._options.selection
        _, heads = keys_of(self._cluster, selection, heads, self._again)
        consumer = self._consumer
        with suppress(UnknownConsumer):
            found = [
                p
                for p in self._cluster.committed(consumer)
                if selection.has(p.stream) and selection.takes((p.stream, p.partition))
            ]
            if found and {p.stream for p in found} >= set(selection.names):
                start = Offset(
                    consumer=consumer,
                    incarnations={p.stream: p.incarnation or heads.incarnations[p.stream] for p in found},
                    positions={(p.stream, p.partition): ReadPosition(p.offset, p.leader_epoch) for p in found},
                )
                heads = self._settled(start, heads)
                resume, held = self._survived(start, heads)
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
        resume, held = self._survived(start, heads, new)
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
            option="startingOffsets",
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
        for key in it.ends:  # derived from this very leader's log
            self._verified[key] = (it.incarnations[key[0]], heads.partitions[key].leader_epoch)
        return advance.finish(it, heads, epochs)

    def _survived(self, start: Offset, heads: Heads, added: Set[Key] = frozenset()) -> tuple[dict[Key, int], set[Key]]:
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
            self._lost(loss)
        resume = {key: loss.resume for key, loss in found.items() if loss.resume is not None}
        return resume, found.keys() - resume.keys()

    def _is_suspect(self, key: Key, offset: int, incarnation: str, heads: Heads) -> bool:
        """Whether the position must be compared with the log itself (S4)."""
        if not self._is_read(key):
            return False
        head = heads.partitions.get(key)
        if head is None:
            return heads.incarnations.get(key[0]) in (None, incarnation)
        return self._verified.get(key) != (incarnation, head.leader_epoch) or head.high_watermark < offset

    def _lost(self, loss: Loss) -> None:
        if self._options.fail_on_data_loss:
            raise loss.error
        if str(loss.error) not in self._warned:
            self._warned.add(str(loss.error))
            log.warning("source.data_loss error=%s", loss.error)

    def _compared(self, start: Offset, heads: Heads, suspects: Mapping[Key, int]) -> dict[Key, Loss]:
        """Compare positions with the log itself (S4)."""
        keys = sorted(suspects)
        asked: list[tuple[Key, At]] = [(key, {"offset": suspects[key]}) for key in keys]
        settled = {stream for stream, _ in self._believed}
        known = {stream: found for stream, found in start.incarnations.items() if stream not in settled}
        waits = self._waits()
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

    def _waits(self) -> Iterator[bool]:
        """Pauses for a log that ends below a position: a leader that has just begun learns its high watermark.

        Only they count, not the time in which nobody said where the log ends.
        """
        left_s = self._options.truncation_timeout_s
        while left_s > 0:
            time.sleep(AGAIN_S)
            left_s -= AGAIN_S
            yield True

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
            resume = self._parting(key, known, at.leader_epoch, head.high_watermark, head)
            return Loss(advance.truncated(key, at.offset, resume, head), resume)
        epoch = found.position.leader_epoch
        # At the log's start the record before is gone, and its epoch perhaps with it.
        if at.offset > head.log_start_offset and -1 not in (epoch, at.leader_epoch) and epoch != at.leader_epoch:
            resume = self._parting(key, known, at.leader_epoch, at.offset, head)
            return Loss(advance.truncated(key, at.offset, resume, head), resume)
        return None

    def _parting(self, key: Key, incarnation: str, epoch: int, offset: int, head: Head) -> int:
        """Up to where the log is still the one that was read."""
        if epoch >= 0:
            (found,) = self._cluster.resolve([(key, {"epoch": epoch})], known={key[0]: incarnation})
            if found.error is None and found.incarnation == incarnation:
                offset = min(offset, found.position.offset)
        return min(max(offset, head.log_start_offset), head.high_watermark)

    def _available(self, end: Offset, key: Key, begin: int, stop: int) -> Range | None:
        """The range as far as the log has it; None: nothing of it. A loss raises or is survived."""
        stream, partition = key
        known = end.incarnations[stream]
        heads = self._heads_with(key, known)
        head = None if heads is None else heads.partitions[key]
        if heads is None or head is None:
            self._lost(Loss(advance.deleted(stream), None))
            return None
        if heads.incarnations[stream] != known:
            now = heads.incarnations[stream]
            self._lost(Loss(advance.recreated(stream, known, now, head.log_start_offset), None))
            return None
        waits = self._waits()
        while head.high_watermark < stop:  # planned in an earlier run, perhaps: settle as in `_compared`
            newer = self._cluster.whole(self._fresh(key), lambda: self._fresh(key), of=key.__eq__)
            head = newer.partitions.get(key, head)
            if head.high_watermark < stop and not next(waits, False):
                self._lost(Loss(advance.truncated(key, stop, head.high_watermark, head), None))
                break
        if head.log_start_offset > begin:
            self._lost(Loss(advance.expired(key, begin, head), None))
        begin, stop = max(begin, head.log_start_offset), min(stop, head.high_watermark)
        if begin >= stop:
            return None
        return Range(stream=stream, partition=partition, incarnation=known, start=begin, end=stop, address=head.leader)

    def _same_records(self, r: Range, end: Offset, epochs: Mapping[Key, int]) -> Range | None:
        """The range as far as its records are those that were planned; None: none of them is.

        A batch of an earlier run may be read again, and the log have been rewritten since (S4).
        """
        key = (r.stream, r.partition)
        at, epoch = end.positions[key], epochs[key]
        if r.end != at.offset or -1 in (epoch, at.leader_epoch) or epoch == at.leader_epoch:
            return r
        head = self._watch.recent().partitions.get(key) or Head(r.start, r.end, epoch)
        resume = self._parting(key, r.incarnation, at.leader_epoch, r.end, head)
        self._lost(Loss(advance.truncated(key, r.end, resume, head), resume))
        return replace(r, end=resume) if resume > r.start else None

    def _heads_with(self, key: Key, known: str) -> Heads | None:
        """Heads that tell of the partition, waited for while it is unavailable; None: it does not exist (any more).

        Args:
            known: The incarnation that is meant. The heads have it, unless the stream is another one (S5).
        """
        began = time.monotonic()
        heads = self._watch.recent() if self._is_read(key) else self._fresh(key)
        asking = self._cluster.asking_again()
        while (now := heads.incarnations.get(key[0])) != known or key not in heads.partitions:
            if key in heads.partitions:
                if (key[0], now) in self._believed or not asking.again():
                    self._believed.add((key[0], now))
                    return heads
            else:
                unsure = {} if (key[0], None) in self._believed else {key[0]: known}
                (found,) = self._cluster.resolve([(key, "earliest")], known=unsure)
                if isinstance(found.error, UnknownStream | UnknownPartition):
                    self._believed |= {(key[0], None)} if isinstance(found.error, UnknownStream) else set()
                    return None
                if time.monotonic() - began > DEADLINE_S:
                    raise found.error or NotReady(f"stream {key[0]!r} is there, but nobody leads partition {key[1]}")
                time.sleep(AGAIN_S)
            heads = self._fresh(key)
        return heads

    def _is_read(self, key: Key) -> bool:
        return self._options.selection.has(key[0]) and self._options.selection.takes(key)

    def _fresh(self, key: Key) -> Heads:
        """Newer heads that tell of the partition, also of one that was still read when a batch was planned."""
        return self._watch.fresh() if self._is_read(key) else self._cluster.heads_now([key[0]])[1]

    def _check_streams(self, offset: Offset) -> None:
        """Streams may be added to a query and left out; one that has none of its streams any more is another query."""
        selection = self._options.selection
        left_out = sorted(stream for stream in offset.incarnations if not selection.has(stream))
        if not left_out or str(left_out) in self._warned:
            return
        if len(left_out) == len(offset.incarnations):
            raise InvalidSetting(
                f"the checkpoint belongs to stream {', '.join(map(repr, left_out))}, the query reads"
                f" {selection}: use a checkpoint of its own",
                key="stream",
                value=str(selection),
            )
        self._warned.add(str(left_out))
        log.warning("source.streams_left_out streams=%s note=their positions are kept", ",".join(left_out))


def _without(places: ByPartition, positions: Container[Key]) -> ByPartition:
    left = {
        stream: {partition: at for partition, at in found.items() if (stream, partition) not in positions}
        for stream, found in places.items()
    }
    return {stream: found for stream, found in left.items() if found}


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
