"""`liftlog group …`: consumer groups: who reads what, how far behind, and moving them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import click

from broker.cli.arguments import Argument, Option
from broker.cli.options import Brokers, Json, Partitions, Yes, answer, client_of, confirm, is_json, position
from broker.cli.output import age_text, json_out, note, table

Name = Annotated[str, Argument(metavar="GROUP", help="Name of the consumer group.")]


def list_(ctx: click.Context, brokers: Brokers = None, json: Json = False) -> None:
    """List all consumer groups."""
    with client_of(ctx, brokers) as client:
        groups = client.groups()
    if is_json(ctx, json):
        json_out([asdict(group) for group in groups])
        return
    rows = [(group.group, group.members, group.partitions) for group in groups]
    table(["group", "members", "partitions held"], rows, empty="no consumer groups yet")


def describe(ctx: click.Context, name: Name, brokers: Brokers = None, json: Json = False) -> None:
    """Show the member, offset and lag of a consumer group in each partition."""
    with client_of(ctx, brokers) as client:
        group = client.describe_group(name)
    if is_json(ctx, json):
        json_out(asdict(group))
        return
    note(f"group {name}: {len(group.members)} members, lag {group.lag}")
    table(
        ["stream", "partition", "member", "offset", "high watermark", "lag", "behind"],
        [
            (
                p.stream,
                p.partition,
                None if p.member is None else p.member + (" (asked back)" if p.is_revoked else ""),
                p.offset,
                p.high_watermark,
                p.lag,
                age_text(p.behind_ms),
            )
            for p in group.partitions
        ],
    )


def reset(
    ctx: click.Context,
    name: Name,
    stream: Annotated[str, Option("--stream", metavar="STREAM", help="The stream to move in.")],
    to: Annotated[str, Option("--to", metavar="WHERE", help="earliest, latest, an offset, or an ISO 8601 time (UTC).")],
    partition: Partitions = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Move a consumer group in one stream. Stop its members first."""
    where = position(to, "--to")
    with client_of(ctx, brokers) as client:
        group = client.reset_group(name, stream, where, partitions=partition or None)
    if is_json(ctx, json):
        json_out(asdict(group))
        return
    note(f"group {name} moved in stream {stream} to {to}")
    rows = [(p.partition, p.offset, p.lag) for p in group.partitions if p.stream == stream]
    table(["partition", "offset", "lag"], rows)


def delete(
    ctx: click.Context,
    name: Name,
    yes: Yes = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Remove a consumer group and its offsets. Stop its members first."""
    with client_of(ctx, brokers) as client:
        confirm(yes, f"remove consumer group {name} and all of its offsets?", lambda: client.describe_group(name))
        client.delete_group(name)
    answer(ctx, json, {"group": name, "deleted": True}, f"group {name} removed")
