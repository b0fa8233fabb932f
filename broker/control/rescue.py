"""Rescue the folders of a cluster that has lost a majority of its voters for good. No broker runs meanwhile.

    the folder of one survivor    begin ─► raft.log: another group, of this broker alone, with the catalog that it has
    those of the other survivors  leave ─► no raft.log: each joins that group, under another id, with its records

The rest is done while brokers run: `metadata/rescue.py` says by which commands. `begin_rescue` was the first one here.

B1  Each step is atomic. Before the journal is replaced this is a broker of the old group, and afterwards one of the new
    one: a start goes on with either, and whoever calls again finishes it.
B2  Nothing is deleted: what the old group had stays beside, as `<file>.before-rescue-<group>`.
B3  The new group's log begins where the old one ended. A broker that joins begins below that, so it gets the catalog
    as a snapshot, and never a log without its beginning.
B4  All that the journal has counts, committed or not: what this broker has not heard of as committed may well be.
B5  A broker that left joins, and never forms a group (`forming.F7`), even if all who are named have empty folders.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from broker.api.errors import CorruptLog, InvalidRequest, LiftlogError, WrongFolder
from broker.control import membership
from broker.control.membership import FILE, JOINING, JOURNAL, MEMBER, Membership, group_of
from broker.metadata.catalog import COMMAND_VERSION, Catalog
from broker.metadata.voting import address, owner
from broker.raft.core import first_entries, first_voters, voters_in
from broker.raft.journal import Base, Journal
from broker.raft.node import catalog_in
from broker.storage.disk import FixedDisk, disk_errors

BEFORE: Final = "before-rescue"
CATALOG_FILE: Final = "catalog.log"  # of a broker that is alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """A folder from which a rescue may begin.

    Attributes:
        group: The one that it is of. voters: Names of the brokers that vote there.
        brokers: Names of all that its catalog knows. streams, partitions: How many of them it knows.
        last: Term and index of the journal's last entry: of two survivors the greater one has all that is committed in
            the other one's.
        number: Number of the rescue that was begun here already; 0: none was.
    """

    broker_id: str
    cluster_id: str
    group: str
    voters: tuple[str, ...]
    brokers: tuple[str, ...]
    streams: int
    partitions: int
    last: tuple[int, int]
    number: int = 0


def survey(disk: FixedDisk, folder: str) -> Survivor:
    """Look at what a rescue would begin with. Changes nothing that counts: cuts a torn end of the journal, as a start.

    Raises:
        WrongFolder: of a broker that is alone, or of none, or of one that the cluster has removed.
        CorruptLog: its journal is damaged. InvalidRequest: it needs no rescue, or knows no catalog.
        StorageFailed, DiskFull: the disk refuses.
    """
    journal = _opened(disk, folder)
    try:
        return _found_in(journal, catalog_in(journal), folder)
    finally:
        journal.close()


def begin(disk: FixedDisk, folder: str) -> Survivor:
    """Found a group of this broker alone, in which a rescue is under way. To be called again after a kill (B1).

    Raises:
        As `survey`.
    """
    journal = _opened(disk, folder)
    try:
        catalog = catalog_in(journal)
        found = _found_in(journal, catalog, folder)
        if not found.number:
            _keep_beside(disk, folder, found.group)
            _found_group(journal, catalog)
            found = _found_in(journal, catalog, folder)
        base = journal.base
        own = Membership(state=MEMBER, node_id=base.node_id, group=base.cluster_id, first=(base.node_id,))
        membership.store(disk, folder, own)
    finally:
        journal.close()
    return found


def leave(disk: FixedDisk, folder: str) -> str:
    """Give the group of this folder up, so that this broker joins another one. To be called again after a kill (B1).

    Returns:
        The group that it was of.
    Raises:
        WrongFolder: of a broker that is alone. InvalidRequest: it is of no group, or of one that needs nobody else.
        StorageFailed, DiskFull: the disk refuses.
    """
    left, is_begun = leaving(disk, folder)
    path = f"{folder}/{JOURNAL}"
    with disk_errors(f"put the journal in {folder} aside"):
        if not is_begun:
            _copy(disk, f"{folder}/{FILE}", left.group)
        membership.store(disk, folder, left)
        for name in (path, f"{path}.marks"):
            if disk.exists(name):
                disk.rename(name, _beside(name, left.group))
        disk.sync_dir(folder)
    return left.group


def leaving(disk: FixedDisk, folder: str) -> tuple[Membership, bool]:
    """The membership that `leave` makes, and whether it had begun before. Changes nothing; raises as `leave`."""
    _check_placed(disk, folder)
    path = f"{folder}/{JOURNAL}"
    try:
        own = membership.load(disk, folder)
    except CorruptLog:
        own = None
    if disk.exists(path):
        try:
            journal = Journal.open(disk, path)
        except CorruptLog:
            group, node_id, first = (own.group, own.node_id, own.first) if own is not None else ("", "", ())
        else:
            journal.close()
            group, node_id = journal.base.cluster_id, journal.base.node_id
            first = own.first if own is not None and own.group == group else first_voters(journal.entries)
            if _voters_of(journal) == (node_id,):
                raise InvalidRequest(
                    f"broker {owner(node_id)} has the only vote of its group, so a rescue was begun here, or none is"
                    " needed: start it. Only the other brokers are to join",
                    path=folder,
                )
        left = Membership(state=JOINING, node_id=node_id or "unknown", group=group, first=first)
    elif own is not None and own.state != membership.FORMING:
        left = Membership(state=JOINING, node_id=own.node_id, group=own.group, first=own.first)
    else:
        raise InvalidRequest(
            f"{folder} is of no group: there is nothing to put aside. Start the broker, it joins", path=folder
        )
    return left, own is not None and own.state == JOINING


def _check_placed(disk: FixedDisk, folder: str) -> None:
    if disk.exists(f"{folder}/{CATALOG_FILE}"):
        raise WrongFolder(f"data folder {folder} is of a broker that is alone: it has no voters to lose", path=folder)


def _opened(disk: FixedDisk, folder: str) -> Journal:
    _check_placed(disk, folder)
    path = f"{folder}/{JOURNAL}"
    if not disk.exists(path):
        raise WrongFolder(
            f"data folder {folder} has no {JOURNAL}, so no catalog: it is not of a cluster's broker, or has lost it."
            " Begin with another broker that is left",
            path=folder,
        )
    try:
        return Journal.open(disk, path)
    except CorruptLog as error:
        raise CorruptLog(f"{error.message}. Begin with another broker that is left", path=folder) from error


def _found_in(journal: Journal, catalog: Catalog, folder: str) -> Survivor:
    node_id, group = journal.base.node_id, journal.base.cluster_id
    voters, cluster = _voters_of(journal), catalog.cluster
    name = owner(node_id)
    if not voters or cluster.cluster_id is None or not cluster.brokers:
        raise InvalidRequest(
            f"broker {name} has not heard of its group's catalog yet: begin with another broker that is left",
            path=folder,
        )
    if node_id in cluster.removed:
        why = "was removed from the cluster, or has another folder by now, and this is its former one"
        raise WrongFolder(f"broker {name} {why}", path=folder)
    is_begun = cluster.rescue is not None and len(journal.entries) == 2 and first_voters(journal.entries) == (node_id,)
    if voters == (node_id,) and not is_begun:
        raise InvalidRequest(
            f"broker {name} has the only vote of its group: it needs no other one. Start it", path=folder
        )
    return Survivor(
        broker_id=name,
        cluster_id=group.rpartition("/")[0],
        group=group,
        voters=tuple(sorted(owner(voter) for voter in voters)),
        brokers=tuple(sorted(cluster.brokers)),
        streams=sum(not info.internal for info in catalog.streams.values()),
        partitions=len(cluster.partitions),
        last=(journal.entries[-1][2], journal.entries[-1][1]),
        number=cluster.rescue.number if is_begun and cluster.rescue is not None else 0,
    )


def _voters_of(journal: Journal) -> tuple[str, ...]:
    return voters_in(journal, journal.entries[-1][1]) if journal.entries else ()


def _found_group(journal: Journal, catalog: Catalog) -> None:
    """The one write that counts (B1)."""
    cluster = catalog.cluster
    cluster.rescue = None  # a majority is lost again, amid one: it begins anew
    _apply(catalog, "begin_rescue", cluster_id=cluster.cluster_id, epoch_last=cluster.epoch_last)
    for info in [each for each in cluster.brokers.values() if each.is_live]:  # nobody runs
        _apply(catalog, "fail_broker", broker_id=info.broker_id, registration=info.registration)
    old = journal.base
    node_id = f"{owner(old.node_id)}.{secrets.token_hex(8)}@{address(old.node_id)}"
    group = group_of(old.cluster_id.rpartition("/")[0], (node_id,))
    base = Base(node_id=node_id, cluster_id=group, voters=(node_id,), snapshot=catalog.snapshot())
    journal.begin_anew(base, first_entries((node_id,), index=journal.entries[-1][1] + 1))  # B3


def _apply(catalog: Catalog, kind: str, **values: object) -> None:
    result = catalog.apply({"v": COMMAND_VERSION, "kind": kind, **values})
    if "error" in result:
        raise LiftlogError(f"{kind}: {result['error']}")


def _keep_beside(disk: FixedDisk, folder: str, group: str) -> None:
    """B2. Copies: the files go on to count until they are replaced."""
    with disk_errors(f"keep a copy of the journal in {folder}"):
        for name in (JOURNAL, FILE):
            _copy(disk, f"{folder}/{name}", group)


def _copy(disk: FixedDisk, path: str, group: str) -> None:
    if disk.exists(path):
        disk.replace_file(_beside(path, group), disk.read_file(path))


def _beside(path: str, group: str) -> str:
    return f"{path}.{BEFORE}-{group.rpartition('/')[2] or 'unknown'}"
