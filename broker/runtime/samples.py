"""The samples of a broker for /metrics, read when scraped. Names and meanings: docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from broker.api.errors import LiftlogError
from broker.background.expiry import Look
from broker.common.metrics import Sample, open_file_count
from broker.groups.progress import GroupOffset
from broker.intake.driver import IntakeDriver
from broker.metadata.groups import Groups
from broker.node.partitions.consumers import Consumers
from broker.node.partitions.partition import Partition
from broker.storage.log import PartitionLog

PARTITION_LABELS = ("stream", "partition")
OFFLINE: Final = "Streams of which something could not be opened here"
GROUP_SERIES_MAX: Final = 10_000
"""Partitions of groups whose lag is told, three series each: groups may read 100,000."""


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
    yield "liftlog_partition_log_start_offset", "First offset kept", labels, at, log.state.log_start_offset
    yield "liftlog_partition_log_end_offset", "Next offset to be assigned", labels, at, log.state.log_end_offset
    yield "liftlog_partition_high_watermark", "First offset not committed", labels, at, log.state.high_watermark
    yield "liftlog_partition_bytes", "Bytes on disk", labels, at, log.state.byte_count
    yield "liftlog_partition_segments", "Segments", labels, at, log.state.segment_count
    if log.state.is_encrypted:
        text = "Ranges that somebody has changed, found since the log was opened"
        yield "liftlog_partition_tampered_ranges", text, labels, at, log.state.tampered_count
    yield "liftlog_partition_lost_ranges", "Ranges lost to corruption", labels, at, len(log.state.lost_ranges)


def _intake(intake: IntakeDriver) -> Iterator[Sample]:
    yield "liftlog_intake_connected", "1 while connected to NATS", (), (), float(intake.state == "connected")
    for name, value in sorted(intake.counts.items()):
        yield f"liftlog_intake_{name}_total", f"Intake: {name.replace('_', ' ')}", (), (), value
    for name, value in sorted(intake.message_counts().items()):
        if name.startswith("refused_"):
            yield "liftlog_intake_refused_total", "Records refused", ("reason",), (name[8:],), value
        else:
            yield f"liftlog_intake_{name}_total", f"Intake: {name}", (), (), value


def consumer_samples(consumers: Consumers, look: Look, *, now_us: int) -> Iterator[Sample]:
    """How far consumers are.

    Args:
        look: The log that one reads, if it is here.
        now_us: The time, microseconds since 1970 UTC.
    """
    labels = ("consumer", "stream", "partition")
    for consumer in consumers.consumers():
        try:
            rows = consumers.get(consumer)
        except LiftlogError:  # forgotten meanwhile
            continue
        for row in rows:
            if isinstance(log := look(row), PartitionLog):
                at = (consumer, row.stream, str(row.partition))
                lag = max(0, log.state.high_watermark - row.offset)
                yield "liftlog_consumer_offset", "Offset that the consumer reads next", labels, at, row.offset
                yield "liftlog_consumer_lag_records", "High watermark minus consumer offset", labels, at, lag
                with suppress(LiftlogError):  # damaged there, and said elsewhere
                    behind_s = _behind_s(log, row.offset, now_us) if lag else 0.0
                    yield "liftlog_consumer_lag_seconds", "Age of the first record not read", labels, at, behind_s


def group_samples(consumers: Consumers, groups: Groups, look: Look, *, now_us: int) -> Iterator[Sample]:
    """How far consumer groups are, whether their members live or not: it goes by what is committed. Where a member is
    to read and no begin was committed, all that is there is unread.

    Args:
        look, now_us: As of `consumer_samples`.
    """
    named = groups.named
    for name, group in sorted(named.items()):
        yield "liftlog_group_members", "Members of the group", ("group",), (name,), len(group.members)
    rows = [row for row in consumers.group_rows() if row.offset is not None]
    begun = {(row.group, row.stream, row.partition): (log, row) for row in rows if (log := look(row))}
    for name, group in named.items():
        for stream, number in group.target:
            row = GroupOffset(group=name, incarnation="", partition=number, epoch=0, offset=None, stream=stream)
            if (name, stream, number) not in begun and (log := look(row)):
                begun[name, stream, number] = log, row
    labels, untold = ("group", *PARTITION_LABELS), max(0, len(begun) - GROUP_SERIES_MAX)
    yield "liftlog_group_partitions_untold", "Partitions of groups beyond those that have a lag here", (), (), untold
    for place, (log, row) in sorted(begun.items(), key=lambda each: each[0])[:GROUP_SERIES_MAX]:
        if isinstance(log, PartitionLog):
            at, first = (place[0], place[1], str(place[2])), log.state.log_start_offset
            offset = first if row.offset is None else row.offset
            lag = max(0, log.state.high_watermark - offset)
            yield "liftlog_group_offset", "Offset that the group reads next", labels, at, offset
            yield "liftlog_group_lag_records", "High watermark minus offset of the group", labels, at, lag
            with suppress(LiftlogError):
                behind_s = _behind_s(log, max(offset, first), now_us) if lag else 0.0
                yield "liftlog_group_lag_seconds", "Age of the first record not read", labels, at, behind_s


def _behind_s(log: PartitionLog, offset: int, now_us: int) -> float:
    timestamp_us = log.reader.timestamp_at(offset)
    return 0.0 if timestamp_us is None else max(0.0, (now_us - timestamp_us) / 1e6)
