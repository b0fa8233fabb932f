"""`liftlog sink …`: exactly-once sinks: what each committed last, and what to do when its checkpoint changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import click

from broker.api.errors import UnknownSink
from broker.cli.arguments import Argument, Option
from broker.cli.options import Brokers, Json, Yes, answer, client_of, confirm, is_json
from broker.cli.output import json_out, pairs, table, time_text

if TYPE_CHECKING:
    from broker.api.sink_answers import Stage, StagedFor

Name = Annotated[str, Argument(metavar="SINK", help="Id of the sink.")]


def list_(ctx: click.Context, brokers: Brokers = None, json: Json = False) -> None:
    """List all sinks and the last batch of each."""
    with client_of(ctx, brokers) as client:
        sinks = client.sinks(staged=True)
    if is_json(ctx, json):
        json_out([asdict(sink) for sink in sinks])
        return
    table(
        [
            "sink",
            "current epoch",
            "last batch",
            "rows",
            "complete",
            "decided (UTC)",
            "changed (UTC)",
            "staged",
            "silent",
        ],
        [
            (
                sink.sink,
                sink.current_epoch,
                sink.last and sink.last.batch_id,
                sink.last and sink.last.rows,
                sink.last and sink.last.complete,
                sink.last and time_text(sink.last.decided_ms),
                time_text(sink.changed_ms),
                sum(each.byte_count for each in sink.staged or ()) or None,
                _silent(sink.staged or ()),
            )
            for sink in sinks
        ],
        empty="no sinks yet",
    )


def _silent(staged: Iterable[StagedFor]) -> str | None:
    """How much of what is staged goes when others need the room, and how long its owners have been silent."""
    gone = [each for each in staged if each.is_silent and each.stages > each.pinned]
    if not gone:
        return None
    at_most = "at most " if any(each.pinned for each in gone) else ""  # what a commit has named stays
    held, silent_ms = sum(each.byte_count for each in gone), max(each.silent_ms for each in gone)
    return f"{at_most}{held} bytes, {silent_ms // 1000} s"


def describe(ctx: click.Context, name: Name, brokers: Brokers = None, json: Json = False) -> None:
    """Show the last batch of one sink and where its rows went."""
    with client_of(ctx, brokers) as client:
        sink = client.sink(name).describe()
    if is_json(ctx, json):
        json_out(asdict(sink))
        return
    last = sink.last
    rows: list[tuple[str, Any]] = [
        ("sink", sink.sink),
        ("current epoch", sink.current_epoch),
        ("checkpoint", sink.checkpoint),
        ("one-shot", sink.one_shot),
        ("least batch", sink.least_batch_id),
        ("changed (UTC)", time_text(sink.changed_ms)),
    ]
    if last is not None:
        rows += [
            ("last batch", last.batch_id),
            ("rows", last.rows),
            ("complete", last.complete),
            ("decided (UTC)", time_text(last.decided_ms)),
            ("decided by", last.owner),
            ("decided in epoch", last.epoch),
            ("decision", last.decision),
            ("digest", last.digest or None),
            *sorted((f"attribute {key}", value) for key, value in last.attributes.items()),
        ]
    pairs(rows)
    if last is not None:
        table(["stream", "partition", "stages", "rows"], _by_partition(last.stages), empty="no rows")


def reset(
    ctx: click.Context,
    name: Name,
    to: Annotated[int, Option("--next-batch", metavar="N", min=0, help="Batch id to go on with.")],
    yes: Yes = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Let a sink go on with any batch id. Committed batches stay. A batch that is written again is stored twice."""
    confirm(yes, f"let sink {name} write from batch {to} on, also what it has written before?")
    with client_of(ctx, brokers) as client:
        sink = client.sink(name).reset(to)
    text = f"sink {name} goes on with batch {to}; only a run that opens it from now on may commit"
    answer(ctx, json, asdict(sink), text)


def adopt(
    ctx: click.Context,
    name: Name,
    checkpoint: Annotated[str, Option("--checkpoint", metavar="TEXT", help="As the query gives it from now on.")],
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Give a sink to another checkpoint, because it was moved. Decisions that were made stay in force."""
    with client_of(ctx, brokers) as client:
        sink = client.sink(name).adopt(checkpoint)
    answer(ctx, json, asdict(sink), f"sink {name} belongs to checkpoint {checkpoint}")


def delete(
    ctx: click.Context,
    name: Name,
    yes: Yes = False,
    missing_ok: Annotated[bool, Option("--missing-ok", help="No error if there is none.")] = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Forget a sink. Its committed records stay. A query that repeats its last batch afterwards stores it twice."""
    with client_of(ctx, brokers) as client:
        sink = client.sink(name)
        try:
            confirm(yes, f"forget sink {name}, and which batch it committed last?", sink.describe)
            deleted = sink.delete()
        except UnknownSink:
            if not missing_ok:
                raise
            deleted = False
    text = f"sink {name} is deleted" if deleted else f"there is no sink {name}"
    answer(ctx, json, {"sink": name, "deleted": deleted}, text)


def _by_partition(stages: Iterable[Stage]) -> list[tuple[str, int, int, int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for stage in stages:
        found.setdefault((stage.stream, stage.partition), []).append(stage.rows)
    return [(stream, partition, len(rows), sum(rows)) for (stream, partition), rows in sorted(found.items())]
