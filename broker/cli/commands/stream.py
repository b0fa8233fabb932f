"""`liftlog stream …`: create, list, describe, alter, delete.

What else may be done to a running stream is in `broker.cli.commands.changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import click

from broker.cli.arguments import Argument, Option
from broker.cli.commands.settings import CHANGEABLE, FIXED, takes
from broker.cli.options import NONE, Brokers, Json, client_of, is_json
from broker.cli.output import bytes_text, json_out, note, pairs, table, time_text

if TYPE_CHECKING:
    from broker.api.answers import StreamDescription

Name = Annotated[str, Argument(metavar="NAME", help="Name of the stream.")]


@takes(FIXED, CHANGEABLE)
def create(ctx: click.Context, name: Name, brokers: Brokers = None, json: Json = False, **settings: Any) -> None:
    """Create a stream. A stream that exists with the same settings stays as it is."""
    values = _given(settings)
    with client_of(ctx, brokers) as client:
        made = client.create_stream(name, **values)
    said = "exists already, with these settings" if made.created is False else "created"
    show_change(ctx, made, json, f"stream {name} {said}")


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
        json_out([as_json(stream) for stream in streams])
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


def describe(ctx: click.Context, name: Name, brokers: Brokers = None, json: Json = False) -> None:
    """Show the settings, warnings and partitions of one stream."""
    with client_of(ctx, brokers) as client:
        stream = client.describe(name)
    if is_json(ctx, json):
        json_out(as_json(stream))
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
                p.leader.http,
                p.log_start_offset,
                p.high_watermark,
                bytes_text(p.bytes),
                p.segments,
                [f"[{start}, {end})" for start, end in p.lost_ranges],
            )
            for p in stream.partitions
        ],
    )


@takes(CHANGEABLE)
def alter(ctx: click.Context, name: Name, brokers: Brokers = None, json: Json = False, **settings: Any) -> None:
    """Change settings of a stream. Settings that are not named stay. The subject and the way records are spread over
    partitions cannot be changed."""
    values = _given(settings)
    if not values:
        raise click.BadParameter("name at least one setting to change", param_hint="settings")
    with client_of(ctx, brokers) as client:
        changed = client.alter(name, **values)
    show_change(ctx, changed, json, f"stream {name} changed: {', '.join(sorted(values))}")


def delete(
    ctx: click.Context,
    name: Name,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
    missing_ok: Annotated[bool, Option("--missing-ok", help="Succeed if there is no such stream.")] = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Delete a stream and all its records."""
    if not yes:
        click.confirm(f"delete stream {name} and all its records?", abort=True, err=True)
    with client_of(ctx, brokers) as client:
        deleted = client.delete_stream(name, missing_ok=missing_ok)
    if is_json(ctx, json):
        json_out({"stream": name, "deleted": deleted})
    else:
        note(f"stream {name} deleted" if deleted else f"there is no stream {name}: nothing to delete")


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were named on the command line."""
    values = {key: value for key, value in settings.items() if value is not None}
    return {key: None if value == NONE and key.startswith("retention") else value for key, value in values.items()}


def as_json(stream: StreamDescription) -> dict[str, Any]:
    """Its fields; `created` only where it says something."""
    values = asdict(stream)
    if values["created"] is None:
        del values["created"]
    return values


def show_change(ctx: click.Context, stream: StreamDescription, json: bool, text: str) -> None:
    """The changed stream as JSON, or a note and its warnings."""
    if is_json(ctx, json):
        json_out(as_json(stream))
        return
    note(text)
    for warning in stream.warnings:
        note(f"warning: {warning}")
