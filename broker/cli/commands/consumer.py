"""`liftlog consumer …`: who reads what, how far behind, and moving it."""

from __future__ import annotations

from dataclasses import asdict
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import click

from broker.cli.arguments import Argument, Option
from broker.cli.options import Brokers, Json, Partitions, Yes, answer, client_of, confirm, is_json, position
from broker.cli.output import age_text, json_out, note, table, time_text

if TYPE_CHECKING:
    from broker.client.client import Client

Name = Annotated[str, Argument(metavar="CONSUMER", help="Name of the consumer.")]


def list_(ctx: click.Context, brokers: Brokers = None, json: Json = False) -> None:
    """List all consumers and their lag in each stream."""
    with client_of(ctx, brokers) as client:
        consumers = client.consumers()
    if is_json(ctx, json):
        json_out([asdict(consumer) for consumer in consumers])
        return
    rows = []
    for consumer in consumers:
        for stream in sorted({p.stream for p in consumer.partitions}):
            parts = [p for p in consumer.partitions if p.stream == stream]
            lags = [p.lag for p in parts if p.lag is not None]
            ages = [p.behind_ms for p in parts if p.behind_ms is not None]
            rows.append(
                (
                    consumer.consumer,
                    stream,
                    len(parts),
                    sum(lags) if lags else None,
                    age_text(max(ages, default=None)),
                    time_text(max(p.committed_ms for p in parts)),
                )
            )
    table(["consumer", "stream", "partitions", "lag", "behind", "committed (UTC)"], rows, empty="no consumers yet")


def describe(ctx: click.Context, name: Name, brokers: Brokers = None, json: Json = False) -> None:
    """Show the offset and lag of one consumer in each partition."""
    with client_of(ctx, brokers) as client:
        consumer = client.consumer(name)
    if is_json(ctx, json):
        json_out(asdict(consumer))
        return
    table(
        [
            "stream",
            "partition",
            "offset",
            "high watermark",
            "lag",
            "behind",
            "leader epoch",
            "committed (UTC)",
            "metadata",
        ],
        [
            (
                p.stream,
                p.partition,
                p.offset,
                p.high_watermark,
                p.lag,
                age_text(p.behind_ms),
                p.leader_epoch if p.leader_epoch >= 0 else None,
                time_text(p.committed_ms),
                p.metadata or None,
            )
            for p in consumer.partitions
        ],
    )


def reset(
    ctx: click.Context,
    name: Name,
    stream: Annotated[str, Option("--stream", metavar="STREAM", help="The stream to move in.")],
    to: Annotated[str, Option("--to", metavar="WHERE", help="earliest, latest, an offset, or an ISO 8601 time (UTC).")],
    partition: Partitions = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask if there is no such consumer yet.")] = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Move the committed offsets of a consumer in one stream. Stop the consumer first."""
    where = position(to, "--to")
    with client_of(ctx, brokers) as client:
        if not yes and (unknown := _unknown(client, name)) is not None:
            confirm(yes, f"{unknown}: begin it, in stream {stream} at {to}?")
        consumer = client.reset(name, stream, where, partitions=partition or None)
    if is_json(ctx, json):
        json_out(asdict(consumer))
        return
    note(f"consumer {name} moved in stream {stream} to {to}")
    table(
        ["partition", "offset", "lag"],
        [(p.partition, p.offset, p.lag) for p in consumer.partitions if p.stream == stream],
    )


def _unknown(client: Client, name: str) -> str | None:
    """What to say of a consumer that has committed nothing: it may be another one's name, mistyped."""
    known = [consumer.consumer for consumer in client.consumers()]
    if name in known:
        return None
    near = get_close_matches(name, known, n=1)
    return f"there is no consumer {name}" + (f" (did you mean {near[0]}?)" if near else "")


def delete(
    ctx: click.Context,
    name: Name,
    yes: Yes = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Forget the committed offsets of a consumer."""
    with client_of(ctx, brokers) as client:
        confirm(yes, f"forget all committed offsets of consumer {name}?", lambda: client.consumer(name))
        client.delete_consumer(name)
    answer(ctx, json, {"consumer": name, "deleted": True}, f"consumer {name} forgotten")
