"""What /metrics says of a broker, read when scraped. Names and meanings: docs/guides/operations.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from broker.api.errors import LiftlogError
from broker.runtime.intake.driver import IntakeDriver
from broker.runtime.metrics import Sample, open_file_count
from broker.runtime.partitions.consumers import Consumers
from broker.runtime.partitions.leader import Partition

PARTITION_LABELS = ("stream", "partition")


def broker_samples(
    streams: Mapping[str, Sequence[Partition]],
    intake: IntakeDriver | None,
    consumers: Consumers,
    sinks: Mapping[str, int],
    *,
    started: bool,
    offline: int,
) -> Iterator[Sample]:
    """All samples of one broker.

    Args:
        offline: How many streams could not be opened.
    """
    yield "liftlog_up", "1 once the broker has started", (), (), float(started)
    yield "liftlog_open_files", "Open file descriptors of the broker", (), (), open_file_count()
    yield "liftlog_streams_offline", "Streams that could not be opened", (), (), offline
    for name, partitions in sorted(streams.items()):
        for partition in partitions:
            yield from _partition(partition, (name, str(partition.partition)))
    if intake is not None:
        yield from _intake(intake)
    yield from _lag(streams, consumers)
    for what, count in sorted(sinks.items()):
        yield "liftlog_sink_calls_total", "Calls of exactly-once sinks", ("outcome",), (what,), count


def _partition(partition: Partition, at: tuple[str, ...]) -> Iterator[Sample]:
    log = partition.log
    labels = PARTITION_LABELS
    yield "liftlog_messages_in_total", "Records appended", labels, at, partition.replica.record_count
    yield "liftlog_bytes_in_total", "Bytes appended", labels, at, partition.replica.byte_count
    yield "liftlog_partition_log_start_offset", "First offset kept", labels, at, log.log_start_offset
    yield "liftlog_partition_log_end_offset", "Next offset to be assigned", labels, at, log.log_end_offset
    yield "liftlog_partition_high_watermark", "First offset not committed", labels, at, log.high_watermark
    yield "liftlog_partition_bytes", "Bytes on disk", labels, at, log.byte_count
    yield "liftlog_partition_segments", "Segments", labels, at, log.segment_count
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


def _lag(streams: Mapping[str, Sequence[Partition]], consumers: Consumers) -> Iterator[Sample]:
    labels = ("consumer", "stream", "partition")
    for consumer in consumers.consumers():
        try:
            rows = consumers.get(consumer)
        except LiftlogError:  # forgotten meanwhile
            continue
        for row in rows:
            partitions = streams.get(row.stream, ())
            if row.partition < len(partitions):
                at = (consumer, row.stream, str(row.partition))
                lag = max(0, partitions[row.partition].log.high_watermark - row.offset)
                yield "liftlog_consumer_offset", "Offset that the consumer reads next", labels, at, row.offset
                yield "liftlog_consumer_lag_records", "High watermark minus consumer offset", labels, at, lag
