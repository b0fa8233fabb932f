"""`liftlog stream …`: create, list, describe, alter, delete.

What else may be done to a running stream is in `broker.cli.changes`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.options import (
    NONE,
    Brokers,
    Json,
    byte_count,
    client_of,
    duration_ms,
    is_json,
    or_none,
)
from broker.cli.output import bytes_text, json_out, note, pairs, table, time_text

if TYPE_CHECKING:
    from broker.client.answers import StreamDescription

app = typer.Typer(help="Streams: create, change, pause, trim, delete.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the stream.", show_default=False)]


def _option(flag: str, help: str, *, metavar: str | None = None, parser: Any = None) -> Any:
    return typer.Option(flag, help=help, metavar=metavar, parser=parser, show_default=False)


# Where a record goes: fixed when the stream is made.
Subject = Annotated[str | None, _option("--subject", "NATS subject to capture, wildcards allowed.", metavar="S")]
Partitions = Annotated[int | None, _option("--partitions", "How many partitions.", metavar="N")]
PartitionBy = Annotated[
    str | None, _option("--partition-by", "subject_suffix, key, subject or token:N.", metavar="HOW")
]
Group = Annotated[
    str | None, _option("--group", "Streams of one group share the messages of a subject, each gets a part.")
]
# What may change later.
ReplyAcks = Annotated[
    bool | None, _option("--reply-acks/--no-reply-acks", "Whether messages are acknowledged on their reply subject.")
]
Acks = Annotated[str | None, _option("--acks", "What an ack waits for.", metavar="all|leader|none")]
Fsync = Annotated[str | None, _option("--fsync", "When the disk is synced.", metavar="batch|interval")]
FsyncInterval = Annotated[
    Any, _option("--fsync-interval-ms", "With --fsync interval.", metavar="DURATION", parser=duration_ms)
]
Linger = Annotated[
    Any, _option("--linger-ms", "How long an unacknowledged batch waits.", metavar="DURATION", parser=duration_ms)
]
BatchBytes = Annotated[Any, _option("--batch-bytes", "A batch closes at this size.", metavar="SIZE", parser=byte_count)]
BatchRecords = Annotated[int | None, _option("--batch-records", "A batch closes at this count.", metavar="N")]
RecordBytesMax = Annotated[
    Any, _option("--record-bytes-max", "Larger records are refused.", metavar="SIZE", parser=byte_count)
]
SegmentBytes = Annotated[
    Any, _option("--segment-bytes", "A segment is sealed at this size.", metavar="SIZE", parser=byte_count)
]
SegmentAge = Annotated[
    Any, _option("--segment-age-ms", "A segment is sealed at this age.", metavar="DURATION", parser=duration_ms)
]
RetentionMs = Annotated[
    Any,
    _option("--retention-ms", "Keep this long, or none.", metavar="DURATION|none", parser=or_none(duration_ms)),
]
RetentionBytes = Annotated[
    Any,
    _option(
        "--retention-bytes", "Keep this much per partition, or none.", metavar="SIZE|none", parser=or_none(byte_count)
    ),
]
RetentionRecords = Annotated[
    Any,
    _option("--retention-records", "Keep this many per partition, or none.", metavar="N|none", parser=or_none(int)),
]
Cleanup = Annotated[
    str | None,
    _option("--cleanup", "By retention, by key (the newest record of each), or both.", metavar="delete|compact|both"),
]
CompactionLag = Annotated[
    Any,
    _option("--min-compaction-lag-ms", "Younger records are not compacted.", metavar="DURATION", parser=duration_ms),
]
DirtyPercent = Annotated[
    int | None, _option("--min-cleanable-dirty-percent", "So much must be new before it is compacted.", metavar="N")
]
DeleteRetention = Annotated[
    Any, _option("--delete-retention-ms", "How long tombstones stay.", metavar="DURATION", parser=duration_ms)
]
CoalesceMinBatchBytes = Annotated[
    Any,
    _option(
        "--coalesce-min-batch-bytes", "Smaller stored batches are joined; 0: none.", metavar="SIZE", parser=byte_count
    ),
]
Compression = Annotated[
    str | None, _option("--compression", "Of sealed segments that are written anew.", metavar="none|lz4|zstd")
]
DedupWindow = Annotated[
    Any,
    _option("--dedup-window-ms", "How long an Nats-Msg-Id is known; 0: off.", metavar="DURATION", parser=duration_ms),
]
DedupIdsMax = Annotated[int | None, _option("--dedup-ids-max", "So many ids a partition keeps.", metavar="N")]


@app.command()
def create(
    ctx: typer.Context,
    name: Name,
    subject: Subject = None,
    partitions: Partitions = None,
    partition_by: PartitionBy = None,
    group: Group = None,
    reply_acks: ReplyAcks = None,
    acks: Acks = None,
    fsync: Fsync = None,
    fsync_interval_ms: FsyncInterval = None,
    linger_ms: Linger = None,
    batch_bytes: BatchBytes = None,
    batch_records: BatchRecords = None,
    record_bytes_max: RecordBytesMax = None,
    segment_bytes: SegmentBytes = None,
    segment_age_ms: SegmentAge = None,
    retention_ms: RetentionMs = None,
    retention_bytes: RetentionBytes = None,
    retention_records: RetentionRecords = None,
    cleanup: Cleanup = None,
    min_compaction_lag_ms: CompactionLag = None,
    min_cleanable_dirty_percent: DirtyPercent = None,
    delete_retention_ms: DeleteRetention = None,
    coalesce_min_batch_bytes: CoalesceMinBatchBytes = None,
    compression: Compression = None,
    dedup_window_ms: DedupWindow = None,
    dedup_ids_max: DedupIdsMax = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Create a stream. One that exists with the same settings is fine."""
    values = _given(ctx)
    with client_of(ctx, brokers) as client:
        made = client.create_stream(name, **values)
    show_change(ctx, made, json, f"stream {name} is there")


@app.command("list")
def list_(
    ctx: typer.Context,
    internal: Annotated[bool, typer.Option("--internal", help="Streams of liftlog itself, too.")] = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """All streams, one a line."""
    with client_of(ctx, brokers) as client:
        streams = client.streams(internal=internal)
    if is_json(ctx, json):
        json_out([asdict(stream) for stream in streams])
        return
    table(
        ["stream", "subject", "state", "partitions", "records", "size", "created (UTC)"],
        [
            (
                stream.name,
                stream.settings.get("subject"),
                stream.state,
                len(stream.partitions),
                stream.record_count,
                bytes_text(stream.bytes),
                time_text(stream.created_ms),
            )
            for stream in streams
        ],
        empty="no streams yet: liftlog stream create NAME --subject SUBJECT",
    )


@app.command()
def describe(ctx: typer.Context, name: Name, brokers: Brokers = None, json: Json = False) -> None:
    """One stream: settings, warnings, partitions."""
    with client_of(ctx, brokers) as client:
        stream = client.describe(name)
    if is_json(ctx, json):
        json_out(asdict(stream))
        return
    pairs(
        [
            ("stream", stream.name),
            ("incarnation", stream.incarnation),
            ("created (UTC)", time_text(stream.created_ms)),
            ("state", stream.state),
            *stream.settings.items(),
        ]
    )
    for warning in stream.warnings:
        note(f"warning: {warning}")
    table(
        ["partition", "leader", "log start", "high watermark", "size", "segments", "lost"],
        [
            (
                p.partition,
                p.leader_http,
                p.log_start_offset,
                p.high_watermark,
                bytes_text(p.bytes),
                p.segments,
                [f"[{start}, {end})" for start, end in p.lost_ranges],
            )
            for p in stream.partitions
        ],
    )


@app.command()
def alter(
    ctx: typer.Context,
    name: Name,
    reply_acks: ReplyAcks = None,
    acks: Acks = None,
    fsync: Fsync = None,
    fsync_interval_ms: FsyncInterval = None,
    linger_ms: Linger = None,
    batch_bytes: BatchBytes = None,
    batch_records: BatchRecords = None,
    record_bytes_max: RecordBytesMax = None,
    segment_bytes: SegmentBytes = None,
    segment_age_ms: SegmentAge = None,
    retention_ms: RetentionMs = None,
    retention_bytes: RetentionBytes = None,
    retention_records: RetentionRecords = None,
    cleanup: Cleanup = None,
    min_compaction_lag_ms: CompactionLag = None,
    min_cleanable_dirty_percent: DirtyPercent = None,
    delete_retention_ms: DeleteRetention = None,
    coalesce_min_batch_bytes: CoalesceMinBatchBytes = None,
    compression: Compression = None,
    dedup_window_ms: DedupWindow = None,
    dedup_ids_max: DedupIdsMax = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Change settings of a stream; those not named stay. Subject and partitions are fixed."""
    values = _given(ctx)
    if not values:
        raise typer.BadParameter("name at least one setting to change", param_hint="settings")
    with client_of(ctx, brokers) as client:
        changed = client.alter(name, **values)
    show_change(ctx, changed, json, f"stream {name} changed: {', '.join(sorted(values))}")


@app.command()
def delete(
    ctx: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    missing_ok: Annotated[bool, typer.Option("--missing-ok", help="No error if there is none.")] = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Delete a stream and all its records."""
    if not yes:
        typer.confirm(f"delete stream {name} and all its records?", abort=True, err=True)
    with client_of(ctx, brokers) as client:
        client.delete_stream(name, missing_ok=missing_ok)
    if is_json(ctx, json):
        json_out({"stream": name, "deleted": True})
    else:
        note(f"stream {name} is deleted")


NOT_SETTINGS = frozenset({"name", "brokers", "json"})


def _given(ctx: typer.Context) -> dict[str, Any]:
    """The settings that were named on the command line."""
    values = {key: value for key, value in ctx.params.items() if key not in NOT_SETTINGS and value is not None}
    return {key: None if value == NONE and key.startswith("retention") else value for key, value in values.items()}


def show_change(ctx: typer.Context, stream: StreamDescription, json: bool, text: str) -> None:
    """The changed stream as JSON, or a note and its warnings."""
    if is_json(ctx, json):
        json_out(asdict(stream))
        return
    note(text)
    for warning in stream.warnings:
        note(f"warning: {warning}")
