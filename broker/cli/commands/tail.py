"""`liftlog tail`: records of a stream on stdout, as they are or as they come."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Annotated, Any

import click

from broker.cli.arguments import Argument, Option
from broker.cli.options import Brokers, Json, client_of, is_json, moment, position
from broker.cli.output import json_text


def tail(
    ctx: click.Context,
    stream: Annotated[str, Argument(metavar="STREAM", help="Name of the stream.")],
    start: Annotated[
        str | None,
        Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, an offset or an ISO time [earliest; latest with --follow]",
        ),
    ] = None,
    limit: Annotated[
        int | None, Option("--limit", "-n", metavar="N", min=0, help="Stop after this many records.")
    ] = None,
    follow: Annotated[bool, Option("--follow", "-f", help="Wait for new records, until Ctrl-C.")] = False,
    partition: Annotated[
        list[int] | None, Option("--partition", "-p", metavar="N", help="Only this one; repeatable [all].")
    ] = None,
    subject: Annotated[
        list[str] | None,
        Option("--subject", "-s", metavar="SUBJECT", help="Only these; * and > are wildcards; repeatable [all]."),
    ] = None,
    key: Annotated[str | None, Option("--key", "-k", metavar="TEXT", help="Only records with this key.")] = None,
    since: Annotated[str | None, Option("--since", metavar="TIME", help="Only records that are not older.")] = None,
    until: Annotated[str | None, Option("--until", metavar="TIME", help="Only records that are older.")] = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Show records of a stream. Order holds within a partition."""
    where = position(start or ("latest" if follow else "earliest"), "--from")
    if limit == 0:
        return
    show = _json_writer() if is_json(ctx, json) else None
    left = limit
    try:
        with (
            client_of(ctx, brokers) as client,
            client.read(
                stream,
                partitions=partition or None,
                start=where,
                follow=follow,
                subject=subject or None,
                key=None if key is None else os.fsencode(key),  # as it was typed, also what is no UTF-8
                since=moment(since, "--since"),
                until=moment(until, "--until"),
            ) as reader,
        ):
            show = show or _line_writer(with_partition="partition" in reader.schema.names)
            for batch in reader:
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                show(batch)
                if left == 0:
                    break
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _json_writer() -> Any:
    from broker.api.legible import readable_rows

    def write(batch: Any) -> None:
        for row in readable_rows(batch):
            sys.stdout.write(json_text(row) + "\n")
        sys.stdout.flush()

    return write


def _line_writer(*, with_partition: bool) -> Any:
    from broker.api.legible import plain_rows
    from broker.cli.commands.records import Lines

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = Lines(width=width, with_partition=with_partition)
    sys.stdout.write(lines.head() + "\n")

    def write(batch: Any) -> None:
        for row in plain_rows(batch):
            sys.stdout.write(lines.line(row) + "\n")
        sys.stdout.flush()

    return write
