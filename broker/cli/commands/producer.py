"""`liftlog producer …`: the names of idempotent producers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import click

from broker.cli.arguments import Argument
from broker.cli.options import Brokers, Json, Yes, answer, client_of, confirm, is_json
from broker.cli.output import json_out, table, time_text

Name = Annotated[str, Argument(metavar="PRODUCER", help="Name of the producer.")]


def list_(ctx: click.Context, brokers: Brokers = None, json: Json = False) -> None:
    """List the producers that have names."""
    with client_of(ctx, brokers) as client:
        producers = client.producers()
    if is_json(ctx, json):
        json_out([asdict(producer) for producer in producers])
        return
    table(
        ["producer", "id", "epoch", "used (UTC)"],
        [(each.name, each.producer_id, each.epoch, time_text(each.used_ms or None)) for each in producers],
        empty="no producer has a name",
    )


def delete(ctx: click.Context, name: Name, yes: Yes = False, brokers: Brokers = None, json: Json = False) -> None:
    """Forget the name of a producer. What it still sends is refused."""
    with client_of(ctx, brokers) as client:
        confirm(yes, f"forget producer {name}, and refuse what it still sends?")
        client.delete_producer(name)
    answer(ctx, json, {"producer": name, "deleted": True}, f"producer {name} forgotten")
