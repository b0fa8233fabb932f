"""`liftlog cluster rescue …`: the way on when a majority of the voters is lost for good.

    stopped:  begin, on one survivor ─► join, on the others ─► start them
    running:  they report their logs ─► status: who is missing? ─► excuse, who is lost ─► end

`docs/guides/cluster.md` tells the whole way. `broker/control/rescue.py` says what these
commands do on disk.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import click

from broker.cli.arguments import Argument, Option
from broker.cli.options import Brokers, Json, Yes, answer, client_of, confirm, is_json, not_empty, partition_place
from broker.cli.output import counted, json_out, note, pairs, table

if TYPE_CHECKING:
    from broker.api.placements import RescuedReplica, RescueState
    from broker.storage.folder import DataFolder

Folder = Annotated[
    str, Option("--data", metavar="DIR", help="Data folder of the broker, which is stopped.", callback=not_empty)
]


def begin(ctx: click.Context, data: Folder, yes: Yes = False, json: Json = False) -> None:
    """Found the cluster anew with the catalog of this broker. Only where a majority of the voters is lost for good: the
    broker must be stopped, and so must the other survivors. Choose the survivor that was up to date last. The command
    says what it will do, and asks first."""
    from broker.control import rescue
    from broker.storage.disk import OsDisk

    with _locked(data) as folder:
        disk = OsDisk()
        found = rescue.survey(disk, folder.path)
        if found.number:
            note(f"rescue {found.number} has begun here already")
        else:
            what = f"{counted(found.streams, 'stream')}, {counted(found.partitions, 'partition')} with internal ones"
            note(
                f"broker {found.broker_id} of cluster {found.cluster_id} knows {what}, and these brokers:"
                f" {', '.join(found.brokers)}"
            )
            note(
                f"its catalog ends at term {found.last[0]}, index {found.last[1]}: if another survivor's ends later, by"
                " term and then by index, begin there"
            )
            note(f"these vote now, and a majority of them has to be lost for good: {', '.join(found.voters)}")
            note(
                f"from then on broker {found.broker_id} is a cluster of its own. Nobody leads anything until the rescue"
                " is ended. Its records stay as they are, and so do its former raft.log and raft.json, beside"
            )
            confirm(yes, "found the cluster anew? If the others are only away, start them instead")
        found = rescue.begin(disk, folder.path)
    value = {"broker": found.broker_id, "rescue": found.number, "brokers": list(found.brokers), "group": found.group}
    answer(
        ctx,
        json,
        value,
        f"rescue {found.number} has begun: start broker {found.broker_id}; run `liftlog cluster rescue join --data DIR`"
        " on each other survivor, and start it",
    )


def join(ctx: click.Context, data: Folder, yes: Yes = False, json: Json = False) -> None:
    """Have this broker join the cluster that was founded anew. It keeps its records, and gives up its vote in the
    former cluster. The broker must be stopped. Asks first."""
    from broker.control import rescue
    from broker.storage.disk import OsDisk

    with _locked(data) as folder:
        rescue.leaving(OsDisk(), folder.path)  # refused before it says anything
        note(
            f"broker {folder.broker_id} keeps its records, and puts raft.log and raft.json aside: from then on it joins"
            " the cluster in which `liftlog cluster rescue begin` was run, and never the former one"
        )
        confirm(yes, "give up its vote in the former cluster?")
        group = rescue.leave(OsDisk(), folder.path)
    value = {"broker": folder.broker_id, "left": group}
    answer(ctx, json, value, f"broker {folder.broker_id} joins when it is started")


def status(ctx: click.Context, brokers: Brokers = None, json: Json = False) -> None:
    """Show who has reported in a rescue, and who is missing. It can be ended when nobody is."""
    with client_of(ctx, brokers) as client:
        found = client.rescue()
    _show(ctx, json, found)


def excuse(
    ctx: click.Context,
    broker: Annotated[str, Argument(metavar="BROKER", help="Id of a broker that is lost, or has lost replicas.")],
    partition: Annotated[
        list[str] | None,
        Option("--partition", metavar="STREAM/N", help="Only this replica of it; repeatable [all that it may have]."),
    ] = None,
    yes: Yes = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Give up what a broker may have had. In a rescue each broker or replica that is lost for good has to be named.
    Committed records that only it had are lost, and `partitions` says of each partition that is concerned that it is
    unclean. Asks first."""
    places: list[tuple[str | None, int | None]] = [partition_place(p, "--partition") for p in partition or []]
    what = ", ".join(partition or []) or "all that it may have"
    confirm(yes, f"give up {what} of broker {broker}? Committed records that only it has are lost then")
    with client_of(ctx, brokers) as client:
        for stream, number in places or [(None, None)]:
            found = client.excuse(broker, stream, number, accept_loss=True)
    _show(ctx, json, found)


def end(
    ctx: click.Context,
    all_brokers: Annotated[
        str,
        Argument(metavar="A,B,C", help="Ids of all brokers that the cluster had, also of those that were excused."),
    ],
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """End the rescue: in each partition the most complete log leads. Refused while somebody is missing. All brokers
    are named because the catalog may have lost one."""
    named = [each.strip() for each in all_brokers.split(",")]
    with client_of(ctx, brokers) as client:
        found = client.end_rescue(named)
    if is_json(ctx, json):
        json_out(asdict(found))
        return
    table(
        ["partition", "leader", "up to offset", "records"],
        [
            (
                f"{each.stream}/{each.partition}",
                each.leader,
                None if each.is_lost else each.log_end_offset,
                "no log is left" if each.is_lost else "all" if each.is_whole else "some may be lost",
            )
            for each in found.partitions
        ],
        empty="the catalog knows no partition",
    )
    for each in found.unknown:
        note(
            f"broker {each.broker} keeps a log that the catalog does not know:"
            f" streams/*/{each.stream}/{each.partition}; see `liftlog log export`"
        )
    note(f"rescue {found.rescue} is ended")


def _show(ctx: click.Context, json: bool, found: RescueState) -> None:
    if is_json(ctx, json):
        json_out(asdict(found))
        return
    if found.rescue is None:
        note("no rescue is under way")
        return
    pairs(
        [
            ("rescue", found.rescue),
            ("partitions", found.partitions),
            ("have reported", ", ".join(found.reported) or "nobody yet"),
            ("excused", ", ".join([*found.excused, *map(_text, found.excused_replicas)]) or "nobody"),
            ("missing brokers", ", ".join(found.missing) or "none"),
            ("missing replicas", len(found.missing_replicas)),
        ]
    )
    if found.missing_replicas:
        table(["broker", "lacks"], [(e.broker, f"{e.stream}/{e.partition}") for e in found.missing_replicas])
    if found.missing or found.missing_replicas:
        note(
            "start the brokers that are missing. For each that is lost for good: liftlog cluster rescue excuse BROKER"
            " [--partition STREAM/N]"
        )
    else:
        note("nobody is missing: liftlog cluster rescue end A,B,C, with the names of all brokers that there were")


def _text(each: RescuedReplica) -> str:
    return f"{each.stream}/{each.partition} of {each.broker}"


def _locked(path: str) -> DataFolder:
    """Lock a broker's data folder.

    Raises:
        FolderInUse: its broker runs. WrongFolder: no broker has used it.
    """
    from broker.api.errors import WrongFolder
    from broker.storage.folder import DataFolder, brokers_in
    from broker.storage.inspect.places import owner_of

    owner = owner_of(path)
    if owner is None:
        below = brokers_in(path)
        hint = f"; it holds those of {', '.join(below)}: name one of them" if below else ""
        raise WrongFolder(f"{path} is no data folder of a broker{hint}", path=path)
    return DataFolder.open(path, broker_id=str(owner.get("broker_id")))
