"""`liftlog stream …` for a stream that runs: pause, resume, read-only, trim, add-partitions."""

from __future__ import annotations

from typing import Annotated

import click

from broker.cli.arguments import Argument, Option
from broker.cli.commands.stream import Name, show_change
from broker.cli.options import Brokers, Json, client_of, is_json, position
from broker.cli.output import json_out, note, table


def pause(ctx: click.Context, name: Name, brokers: Brokers = None, json: Json = False) -> None:
    """Stop capturing and appending; reads go on. `resume` ends the pause."""
    with client_of(ctx, brokers) as client:
        stream = client.pause(name)
    show_change(ctx, stream, json, f"stream {name} is {stream.state}")


def resume(ctx: click.Context, name: Name, brokers: Brokers = None, json: Json = False) -> None:
    """Capture and append again."""
    with client_of(ctx, brokers) as client:
        stream = client.resume(name)
    show_change(ctx, stream, json, f"stream {name} is {stream.state}")


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
    show_change(ctx, stream, json, f"stream {name} is {stream.state}")


def trim(
    ctx: click.Context,
    name: Name,
    before: Annotated[
        str,
        Option("--before", metavar="WHERE", help="The first to keep: an offset, an ISO 8601 time (UTC), latest."),
    ],
    partition: Annotated[
        list[int] | None, Option("--partition", metavar="N", help="Only this one; repeatable [all].")
    ] = None,
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
    show_change(ctx, stream, json, f"stream {name} has {len(stream.partitions)} partitions")
