"""`liftlog cluster …`: which brokers there are, who keeps what; moving replicas, electing leaders, removing brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import click

from broker.api.errors import DeadlineExceeded, InvalidRequest
from broker.cli.arguments import Argument, Option
from broker.cli.options import Brokers, Json, Yes, answer, client_of, confirm, is_json, partition_place
from broker.cli.output import counted, json_out, note, pairs, table

if TYPE_CHECKING:
    from broker.api.placements import ClusterDescription, Placement

WAIT_S = 60.0
LOOK_S = 0.3

BrokerId = Annotated[str, Argument(metavar="BROKER", help="Id of a broker.")]
Place = Annotated[str, Argument(metavar="STREAM[/PARTITION]", help="A stream, or one partition of it.")]
Wait = Annotated[
    float,
    Option("--wait-s", metavar="S", min=0, max=86_400, help="Seconds to wait. The move goes on afterwards, too."),
]


def status(ctx: click.Context, brokers: Brokers = None, json: Json = False) -> None:
    """Show the brokers, votes and controller, as one broker knows them."""
    with client_of(ctx, brokers) as client:
        cluster = client.cluster()
    if is_json(ctx, json):
        json_out(asdict(cluster))
        return
    pairs(
        [
            ("cluster", cluster.cluster_id),
            ("controller", cluster.controller or "none now"),
            ("votes", _votes(cluster)),
            ("feature level", cluster.feature_level),
            ("auth", _auth(cluster)),
            ("release", cluster.version),
            ("answered by", cluster.answered_by),
        ]
    )
    table(
        ["broker", "state", "vote", "auth", "rack", "http", "grpc"],
        [
            (
                broker.id,
                "dead" if not broker.live else "stopping" if broker.stopping else "live",
                broker.id in cluster.voters,
                broker.auth_mode or None,
                broker.rack or None,
                broker.http,
                broker.grpc,
            )
            for broker in cluster.brokers
        ],
    )


def _auth(cluster: ClusterDescription) -> str:
    """What callers meet, and whether all brokers agree on it."""
    if cluster.auth_required:
        return "required of every broker"
    modes = {broker.auth_mode for broker in cluster.brokers if broker.live and broker.auth_mode}
    return modes.pop() if len(modes) == 1 else "differs: the weakest counts" if modes else "not known yet"


def partitions(
    ctx: click.Context,
    stream: Annotated[str | None, Option("--stream", metavar="STREAM", help="Only of this stream.")] = None,
    unhealthy: Annotated[bool, Option("--unhealthy", help="Only those that are not ok, or are being moved.")] = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Show who keeps, leads and follows each partition. Internal streams are included."""
    with client_of(ctx, brokers) as client:
        found = client.placements(stream)
    if unhealthy:
        found = [each for each in found if each.health != "ok" or each.target is not None]
    _show(ctx, json, found)


def reassign(
    ctx: click.Context,
    place: Place,
    replicas: Annotated[
        str, Option("--replicas", metavar="A,B,C", help="Ids of the brokers, the preferred leader first.")
    ],
    min_insync_replicas: Annotated[
        int | None, Option("--min-insync-replicas", metavar="N", min=1, help="Once they have moved [as it is now].")
    ] = None,
    wait_s: Wait = WAIT_S,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Have other brokers keep a partition. They copy it first; then the old ones go. If a whole stream is moved, each
    partition begins the list one broker later. Naming the former brokers takes a move back."""
    stream, partition = _place(place)
    wanted = [each.strip() for each in replicas.split(",")]
    with client_of(ctx, brokers) as client:
        asked = client.reassign(stream, wanted, partition=partition, min_insync_replicas=min_insync_replicas)
        numbers = {each.partition for each in asked}

        def moving() -> list[Placement]:
            return [p for p in client.placements(stream) if p.partition in numbers and p.target is not None]

        if any(each.target is not None for each in asked):
            _wait(wait_s, moving)
        found = [each for each in client.placements(stream) if each.partition in numbers]
    note(f"{place} is kept by {', '.join(wanted)}")
    _show(ctx, json, found)


def elect(
    ctx: click.Context,
    place: Annotated[
        str | None, Argument(metavar="STREAM[/PARTITION]", help="A stream, or one partition of it [all].")
    ] = None,
    unclean: Annotated[
        bool, Option("--unclean", help="Let a replica lead that may lack records, where nobody else can lead.")
    ] = False,
    broker: Annotated[
        str | None, Option("--broker", metavar="ID", help="With --unclean: which one leads [the longest copy].")
    ] = None,
    yes: Annotated[
        bool, Option("--yes", "-y", help="With --unclean: accept the loss of records that only others have.")
    ] = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Have preferred replicas lead, or one that may lack records. Preferred replicas lead where they are in sync. Where
    nobody can lead a partition any more, `--unclean` has another replica lead. Without `--yes` that only says what may
    be lost."""
    stream, partition = (None, None) if place is None else _place(place)
    if not unclean and (broker is not None or yes):
        raise click.BadParameter("only with --unclean", param_hint="--broker" if broker else "--yes")
    with client_of(ctx, brokers) as client:
        if unclean:
            if stream is None or partition is None:
                raise click.BadParameter("--unclean needs one partition: STREAM/PARTITION", param_hint="place")
            chosen = client.elect_unclean(stream, partition, broker=broker, accept_loss=yes)
            note(f"{place} is led by {chosen.leader}; what only others had is lost")
            _show(ctx, json, [chosen])
            return
        found = client.elect_preferred(stream, partition)
    note(f"{len(found.moved)} have another leader, {len(found.passed)} stay as they are")
    _show(ctx, json, found.moved)


def accept_loss(
    ctx: click.Context,
    place: Annotated[str, Argument(metavar="STREAM/PARTITION", help="One partition.")],
    yes: Annotated[bool, Option("--yes", "-y", help="Accept the loss; without it, only say what is damaged.")] = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Give up what is damaged, where nobody else has it. Its offsets hold no record from then on, all others stay, and
    replicas can follow again. Without `--yes` it says what is lost, and does nothing."""
    stream, partition = partition_place(place, "place")
    with client_of(ctx, brokers) as client:
        found = client.accept_loss(stream, partition, accept_loss=yes)
    ranges = ", ".join(f"[{start}, {end})" for start, end in found.ranges)
    text = f"{place}: {ranges} is given up; broker {found.leader} keeps the bytes in {found.aside} for now"
    answer(ctx, json, asdict(found), text)


def drain(
    ctx: click.Context,
    broker: BrokerId,
    fewer_replicas: Annotated[
        bool,
        Option(
            "--fewer-replicas", help="If the broker is gone and no other can take its place, have one replica less."
        ),
    ] = False,
    wait_s: Wait = WAIT_S,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Have other brokers keep what a broker keeps. That broker may be there or gone. Afterwards it can be removed."""
    with client_of(ctx, brokers) as client:
        found = client.drain(broker, fewer_replicas=fewer_replicas)
        if found.moving:
            _wait(wait_s, lambda: client.drain(broker, fewer_replicas=fewer_replicas).moving)
        stuck = client.drain(broker, fewer_replicas=fewer_replicas).stuck
    if stuck:
        named = ", ".join(f"{each.stream}/{each.partition}" for each in stuck)
        raise InvalidRequest(
            f"only broker {broker} has the records of {named}: start it again, or delete these streams", stuck=named
        )
    answer(ctx, json, {"broker": broker, "drained": True}, f"broker {broker} keeps nothing any more")


def remove_broker(
    ctx: click.Context, broker: BrokerId, yes: Yes = False, brokers: Brokers = None, json: Json = False
) -> None:
    """Give up a broker for good. It must be stopped, and keep nothing (`drain`). Its vote goes, and its data folder is
    refused from then on; with an empty folder it may join again."""
    confirm(yes, f"remove broker {broker} for good?")
    with client_of(ctx, brokers) as client:
        client.remove_broker(broker)
    answer(ctx, json, {"removed": broker}, f"broker {broker} is removed")


def _votes(cluster: ClusterDescription) -> str:
    if not cluster.votes:
        return "not known now"
    text = f"{cluster.votes_there} of {len(cluster.votes)} are there, {cluster.votes_needed} are needed"
    lost = sorted(vote.broker for vote in cluster.votes if not vote.valid)
    if lost:
        text += f"; lost with a disk, to be replaced: {', '.join(lost)}"
    if cluster.votes_to_spare < 0:
        return f"{text}: nothing can be decided now"
    if cluster.votes_to_spare == 0 and len(cluster.votes) > 1:
        return f"{text}: keep those brokers running, none may be lost now"
    return text


def _place(text: str) -> tuple[str, int | None]:
    """A stream, or one partition of it."""
    return partition_place(text, "place") if "/" in text else (text, None)


def _wait(wait_s: float, moving: Callable[[], Iterable[Placement]]) -> None:
    """Until nothing moves. Says how many do, as that changes. Raises DeadlineExceeded: it goes on without us."""
    end_s, told = time.monotonic() + wait_s, -1
    while True:
        left = list(moving())
        if len(left) != told and left:
            told = len(left)
            note(f"being moved: {counted(told, 'partition')}, such as {left[0].stream}/{left[0].partition}")
        if not left:
            return
        if time.monotonic() >= end_s:
            waits = sorted({b for each in left for b in (each.target or ()) if b not in each.isr})
            raise DeadlineExceeded(
                f"still being copied by {', '.join(waits)}: {counted(len(left), 'partition')}; it goes on:"
                " liftlog cluster partitions --unhealthy",
                sent=True,
            )
        time.sleep(LOOK_S)


def _show(ctx: click.Context, json: bool, found: Iterable[Placement]) -> None:
    found = list(found)
    if is_json(ctx, json):
        json_out([_as_json(each) for each in found])
        return
    table(
        ["partition", "state", "leader", "epoch", "replicas", "in sync", "min", "moves to"],
        [
            (
                f"{p.stream}/{p.partition}",
                p.health.replace("_", " ") + (", unclean" if p.unclean_epoch else ""),
                p.leader,
                p.leader_epoch,
                ",".join(p.replicas),
                ",".join(p.isr) or None,
                p.min_insync_replicas,
                None if p.target is None else ",".join(p.target),
            )
            for p in found
        ],
        empty="nothing to show",
    )


def _as_json(each: Placement) -> dict[str, Any]:
    return {**asdict(each), "health": each.health}
