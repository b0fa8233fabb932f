"""The samples of a broker for /metrics, read when scraped. Names and meanings: docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from broker.api.errors import LiftlogError
from broker.groups.offsets import ConsumerOffset
from broker.runtime.intake.driver import IntakeDriver
from broker.runtime.metrics import Sample, open_file_count
from broker.runtime.partitions.consumers import Consumers
from broker.runtime.partitions.leader import Partition
from broker.storage.log import PartitionLog

PARTITION_LABELS = ("stream", "partition")


def broker_samples(
    streams: Mapping[str, Sequence[Partition]],
    intake: IntakeDriver | None,
    consumers: Consumers,
    sinks: Mapping[str, int],
    *,
    started: bool,
    offline: int,
    now_us: int,
) -> Iterator[Sample]:
    """All samples of one broker.

    Args:
        offline: How many streams could not be opened.
        now_us: As of `consumer_samples`.
    """
    yield from common_samples(intake, started=started)
    yield "liftlog_streams_offline", "Streams that could not be opened", (), (), offline
    for name, partitions in sorted(streams.items()):
        for partition in partitions:
            yield from partition_samples(partition, (name, str(partition.partition)))
    yield from consumer_samples(consumers, partial(_log_in, streams), now_us=now_us)
    yield from sink_samples(sinks)


def sink_samples(counts: Mapping[str, int]) -> Iterator[Sample]:
    """The samples of exactly-once sinks, by whoever coordinates them."""
    for what, count in sorted(dict(counts).items()):
        yield "liftlog_sink_calls_total", "Calls of exactly-once sinks", ("outcome",), (what,), count


def common_samples(intake: IntakeDriver | None, *, started: bool) -> Iterator[Sample]:
    """The samples of every broker."""
    yield "liftlog_up", "1 once the broker has started", (), (), float(started)
    yield "liftlog_open_files", "Open file descriptors of the broker", (), (), open_file_count()
    if intake is not None:
        yield from _intake(intake)


def partition_samples(partition: Partition, at: tuple[str, ...]) -> Iterator[Sample]:
    """The samples of one partition's log."""
    log = partition.log
    labels = PARTITION_LABELS
    yield "liftlog_messages_in_total", "Records appended", labels, at, partition.replica.record_count
    yield "liftlog_bytes_in_total", "Bytes appended", labels, at, partition.replica.byte_count
    yield "liftlog_partition_log_start_offset", "First offset kept", labels, at, log.log_start_offset
    yield "liftlog_partition_log_end_offset", "Next offset to be assigned", labels, at, log.log_end_offset
    yield "liftlog_partition_high_watermark", "First offset not committed", labels, at, log.high_watermark
    yield "liftlog_partition_bytes", "Bytes on disk", labels, at, log.byte_count
    yield "liftlog_partition_segments", "Segments", labels, at, log.segment_count
    if log.is_encrypted:
        text = "Ranges that somebody has changed, found since the log was opened"
        yield "liftlog_partition_tampered_ranges", text, labels, at, log.tampered_count
    yield "liftlog_partition_lost_ranges", "Ranges lost to corruption", labels, at, len(log.lost_ranges)


def _intake(intake: IntakeDriver) -> Iterator[Sample]:
    yield "liftlog_intake_connected", "1 while connected to NATS", (), (), float(intake.state == "connected")
    for name, value in sorted(intake.counts.items()):
        yield f"liftlog_intake_{name}_total", f"Intake: {name.replace('_', ' ')}", (), (), value
    for name, value in sorted(intake.message_counts().items()):
        if name.startswith("refused_"):
            yield "liftlog_intake_refused_total", "Records refused", ("reason",), (name[8:],), value
        else:
            yield f"liftlog_intake_{name}_total", f"Intake: {name}", (), (), value


def consumer_samples(
    consumers: Consumers, find: Callable[[ConsumerOffset], PartitionLog | None], *, now_us: int
) -> Iterator[Sample]:
    """How far consumers are.

    Args:
        find: The log that one reads; None: it is not here, or gone.
        now_us: The time, microseconds since 1970 UTC.
    """
    labels = ("consumer", "stream", "partition")
    for consumer in consumers.consumers():
        try:
            rows = consumers.get(consumer)
        except LiftlogError:  # forgotten meanwhile
            continue
        for row in rows:
            if (log := find(row)) is not None:
                at = (consumer, row.stream, str(row.partition))
                lag = max(0, log.high_watermark - row.offset)
                yield "liftlog_consumer_offset", "Offset that the consumer reads next", labels, at, row.offset
                yield "liftlog_consumer_lag_records", "High watermark minus consumer offset", labels, at, lag
                with suppress(LiftlogError):  # damaged there, and said elsewhere
                    timestamp_us = log.timestamp_at(row.offset) if lag else None
                    behind_s = 0.0 if timestamp_us is None else max(0.0, (now_us - timestamp_us) / 1e6)
                    yield "liftlog_consumer_lag_seconds", "Age of the first record not read", labels, at, behind_s


def _log_in(streams: Mapping[str, Sequence[Partition]], row: ConsumerOffset) -> PartitionLog | None:
    partitions = streams.get(row.stream, ())
    return partitions[row.partition].log if row.partition < len(partitions) else None
