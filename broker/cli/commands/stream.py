"""`liftlog stream …`: create, list, describe, alter, delete; and pause, resume, read-only, trim, add-partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import click

from broker.api.errors import UnknownStream
from broker.cli.arguments import Argument, Option
from broker.cli.commands.settings import CHANGEABLE, HELP, takes
from broker.cli.options import (
    NONE,
    Brokers,
    Json,
    Partitions,
    Yes,
    answer,
    client_of,
    confirm,
    is_json,
    position,
)
from broker.cli.output import bytes_text, counted, json_out, note, pairs, table, time_text

if TYPE_CHECKING:
    from broker.api.answers import StreamDescription

Name = Annotated[str, Argument(metavar="NAME", help="Name of the stream.")]


@takes(HELP, is_new=True)
def create(ctx: click.Context, name: Name, brokers: Brokers = None, json: Json = False, **settings: Any) -> None:
    """Create a stream. A stream that exists with the same settings stays as it is. Defaults stand in brackets; the
    configuration of the broker may set others ([defaults])."""
    with client_of(ctx, brokers) as client:
        made = client.create_stream(name, **_given(settings))
    said = "exists already, with these settings" if made.created is False else "created"
    _show_change(ctx, made, json, f"stream {name} {said}")


def list_(
    ctx: click.Context,
    internal: Annotated[bool, Option("--internal", help="Include the streams of liftlog itself.")] = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """List all streams."""
    with client_of(ctx, brokers) as client:
        streams = client.streams(internal=internal)
    if is_json(ctx, json):
        json_out([_as_json(stream) for stream in streams])
        return
    table(
        ["stream", "subject", "state", "partitions", "replicas", "records", "size", "created (UTC)"],
        [
            (
                stream.name,
                stream.settings.get("subject"),
                stream.state,
                stream.partition_count,
                _replicas_text(stream),
                stream.record_count,
                bytes_text(stream.bytes),
                time_text(stream.created_ms),
            )
            for stream in streams
        ],
        empty="no streams yet: liftlog stream create NAME --subject SUBJECT",
    )


def describe(ctx: click.Context, name: Name, brokers: Brokers = None, json: Json = False) -> None:
    """Show the settings, warnings and partitions of one stream."""
    with client_of(ctx, brokers) as client:
        stream = client.describe(name)
    if is_json(ctx, json):
        json_out(_as_json(stream))
        return
    pairs(
        [
            ("stream", stream.name),
            ("incarnation", stream.incarnation),
            ("created (UTC)", time_text(stream.created_ms)),
            ("state", stream.state),
            ("replication_factor", stream.replication_factor),
            ("min_insync_replicas", stream.min_insync_replicas),
            *stream.settings.items(),
        ]
    )
    for warning in stream.warnings:
        note(f"warning: {warning}")
    table(
        [
            "partition",
            "leader",
            "epoch",
            "replicas",
            "in sync",
            "lag",
            "log start",
            "high watermark",
            "size",
            "segments",
            "lost",
        ],
        [
            (
                p.partition,
                p.leader and p.leader.http,
                p.leader_epoch,
                ",".join(p.replicas),
                ",".join(p.isr),
                ",".join(f"{broker}:{lag}" for broker, lag in sorted(p.replica_lag.items())) or None,
                p.log_start_offset,
                p.high_watermark,
                None if p.bytes is None else bytes_text(p.bytes),
                p.segments,
                [f"[{start}, {end})" for start, end in p.lost_ranges],
            )
            for p in stream.partitions
        ],
    )


@takes(CHANGEABLE)
def alter(
    ctx: click.Context,
    name: Name,
    no_schema: Annotated[bool, Option("--no-schema", help="Keep no columns of JSON objects any more.")] = False,
    brokers: Brokers = None,
    json: Json = False,
    **settings: Any,
) -> None:
    """Change settings of a stream. Settings that are not named stay. The subject and the way records are spread over
    partitions cannot be changed."""
    values = _given(settings)
    if no_schema and "payload_schema" in values:
        raise click.BadParameter("keep a schema or none", param_hint="--schema and --no-schema")
    if no_schema:
        values["payload_schema"] = None
    if not values:
        raise click.BadParameter("name at least one setting to change", param_hint="settings")
    with client_of(ctx, brokers) as client:
        changed = client.alter(name, **values)
    _show_change(ctx, changed, json, f"stream {name} changed: {', '.join(sorted(values))}")


def delete(
    ctx: click.Context,
    name: Name,
    yes: Yes = False,
    missing_ok: Annotated[bool, Option("--missing-ok", help="Succeed if there is no such stream.")] = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Delete a stream and all its records."""
    with client_of(ctx, brokers) as client:
        try:
            confirm(yes, f"delete stream {name} and all its records?", lambda: client.describe(name))
            deleted = client.delete_stream(name)
        except UnknownStream:
            if not missing_ok:
                raise
            deleted = False
    text = f"stream {name} deleted" if deleted else f"there is no stream {name}: nothing to delete"
    answer(ctx, json, {"stream": name, "deleted": deleted}, text)


def pause(ctx: click.Context, name: Name, brokers: Brokers = None, json: Json = False) -> None:
    """Stop capturing and appending; reads go on. `resume` ends the pause."""
    with client_of(ctx, brokers) as client:
        stream = client.pause(name)
    _show_change(ctx, stream, json, f"stream {name} is {stream.state}")


def resume(ctx: click.Context, name: Name, brokers: Brokers = None, json: Json = False) -> None:
    """Capture and append again."""
    with client_of(ctx, brokers) as client:
        stream = client.resume(name)
    _show_change(ctx, stream, json, f"stream {name} is {stream.state}")


def read_only(
    ctx: click.Context,
    name: Name,
    off: Annotated[bool, Option("--off", help="Accept records again.")] = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Refuse every new record with an error; reads go on. `--off` ends that."""
    with client_of(ctx, brokers) as client:
        stream = client.set_read_only(name, not off)
    _show_change(ctx, stream, json, f"stream {name} is {stream.state}")


def trim(
    ctx: click.Context,
    name: Name,
    before: Annotated[
        str,
        Option("--before", metavar="WHERE", help="The first to keep: an offset, an ISO 8601 time (UTC), latest."),
    ],
    partition: Partitions = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Delete the records before a position, for good."""
    where = position(before, "--before")
    if where == "earliest":
        raise click.BadParameter("there are no records before earliest", param_hint="--before")
    with client_of(ctx, brokers) as client:
        starts = client.trim(name, before=where, partitions=partition or None)
    if is_json(ctx, json):
        json_out({"stream": name, "partitions": [{"partition": p, "log_start_offset": s} for p, s in starts.items()]})
        return
    note(f"stream {name} trimmed before {before}")
    table(["partition", "log start"], list(starts.items()))


def add_partitions(
    ctx: click.Context,
    name: Name,
    count: Annotated[int, Argument(metavar="N", min=1, help="Number of partitions in all.")],
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Raise the number of partitions."""
    with client_of(ctx, brokers) as client:
        stream = client.add_partitions(name, count)
    _show_change(ctx, stream, json, f"stream {name} has {counted(stream.partition_count, 'partition')}")


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were named on the command line."""
    values = {key: value for key, value in settings.items() if value is not None}
    return {key: None if value == NONE and key.startswith("retention") else value for key, value in values.items()}


def _replicas_text(stream: StreamDescription) -> str | None:
    """How many there are, and how many of them must have a record before it is acknowledged."""
    factor, least = stream.replication_factor, stream.min_insync_replicas
    return None if factor is None else str(factor) if factor == 1 else f"{factor}, min {least}"


def _as_json(stream: StreamDescription) -> dict[str, Any]:
    """Its fields; `created` only where it says something."""
    values = asdict(stream)
    if values["created"] is None:
        del values["created"]
    return values


def _show_change(ctx: click.Context, stream: StreamDescription, json: bool, text: str) -> None:
    """The changed stream as JSON, or a note and its warnings."""
    if is_json(ctx, json):
        json_out(_as_json(stream))
        return
    note(text)
    for warning in stream.warnings:
        note(f"warning: {warning}")
