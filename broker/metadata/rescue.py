"""Rescue: the catalog has lost commands (a majority of its disks is gone), and is to fit the logs again.

    begin_rescue     cluster_id, epoch_last     nobody leads, and nobody is taken for in sync; epochs jump
    report_logs      broker_id, registration, rescue, epoch_seen, logs [[stream, partition, epoch, end]]
                                                what this broker's disk holds, sound to the end that it names
    excuse_replicas  broker_id, rescue, partitions (optional)
                                                the operator gives up what this broker, or this replica, may have had
    end_rescue       rescue, brokers            of each partition the greatest (epoch, end) leads. `brokers`: all that
                                                there are, as the operator knows it; the catalog may have lost some

A catalog that is older than the logs lies in three ways: its epochs were given out already (a follower that compares
epochs would keep what it has to cut), its in-sync replicas are not those that have every committed record, and it may
not know who keeps a partition. So nothing of that is used.

Invariants
Q1  No epoch that was ever given out is given out again: those of the logs are passed by EPOCH_MARGIN, for those that
    left no record and that consumers may have seen.
Q2  Nobody is elected before every broker has reported, or is excused by name. The report is of its present
    registration, and came after its last step-out. If it lacks a replica that the catalog knows, that one is excused by
    name too.
Q3  The greatest (epoch, log end) leads. It has every committed record if nobody was excused: a leader had them all, and
    who has a record of its epoch has what its log held before. Equals are in the last ISR. Where a replica was excused,
    or nobody could be elected before, the partition says so: `unclean_epoch`.
Q4  A partition of which nobody has a log is led by nobody, until it is deleted or `elect_unclean` chooses somebody.
    Logs of streams that the catalog does not know are told, and left alone.

A `rescue` is the number that the first command gave. Each of them names what it was judged by (that number, or
`epoch_last`), so none is carried out twice. Streams that are created meanwhile are not touched.

Design: docs/explain/metadata.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from broker.api.errors import InvalidRequest
from broker.metadata import fields
from broker.metadata.cluster import Cluster
from broker.metadata.info import Rescue
from broker.metadata.partition import PartitionState, Place, Who

Handler = Callable[[Cluster, Mapping[str, Any]], dict[str, Any]]
REFUSED_MEANWHILE: Final = frozenset(
    {
        "begin_rescue",
        "elect_unclean",
        "reassign",
        "raise_replication",
        "add_partitions",
        "set_min_insync",
        "remove_broker",
    }
)
"""Commands that would choose by what the catalog no longer knows (Q2)."""


def check_kind(cluster: Cluster, kind: str) -> None:
    """Raise InvalidRequest for a command that has to wait for the end of a rescue."""
    if cluster.rescue is not None and kind in REFUSED_MEANWHILE:
        number = cluster.rescue.number
        raise InvalidRequest(f"{kind} has to wait for the end of rescue {number}", rescue=number)


def _begin(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    cluster_id, known = fields.text(command, "cluster_id"), fields.whole(command, "epoch_last")
    if cluster.cluster_id != cluster_id or known != cluster.epoch_last:
        raise InvalidRequest(
            f"this is cluster {cluster.cluster_id}, and its last number {cluster.epoch_last}",
            cluster_id=cluster.cluster_id,
            epoch_last=cluster.epoch_last,
        )
    number = cluster.epoch_last + fields.EPOCH_MARGIN
    unknown = {at: _unknown(state, number) for at, state in cluster.partitions.items()}
    cluster.commit(unknown, number)
    cluster.epoch_last = number
    cluster.rescue = Rescue(number=number, places=tuple(sorted(unknown)), logs={})
    return {"rescue": number, **missing_in(cluster)}


def _report(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    rescue, broker = _present(cluster, command), cluster.present(command).broker_id
    logs = {(s, n): (epoch, end) for s, n, epoch, end in fields.rows(command, "logs", str, int, int, int)}
    said = fields.whole(command, "epoch_seen", least=-1)
    greatest = fields.checked_epoch(max([said, *(epoch for epoch, _ in logs.values())]))
    cluster.epoch_last = max(cluster.epoch_last, greatest + fields.EPOCH_MARGIN)
    cluster.rescue = replace(rescue, logs={**rescue.logs, broker: logs})
    return missing_in(cluster)


def _excuse(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    rescue, broker = _present(cluster, command), fields.text(command, "broker_id")
    if broker not in cluster.brokers:
        raise InvalidRequest(f"no broker {broker!r} is registered")
    named = fields.places(command, "partitions")
    excused = {(broker, *at) for at in named} if "partitions" in command else {(broker, "", 0)}
    cluster.rescue = replace(rescue, excused=rescue.excused | excused)
    return missing_in(cluster)


def _end(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    rescue, missing = _present(cluster, command), missing_in(cluster)
    missing["brokers"] += [broker for broker in fields.names(command, "brokers") if broker not in cluster.brokers]
    if missing["brokers"] or missing["replicas"]:
        raise InvalidRequest("some have neither reported nor been excused", **missing)
    epoch, who = cluster.epoch_last + 1, cluster.who()
    chosen = {at: _chosen(cluster.partitions[at], rescue, at, epoch, who) for at in _present_places(cluster, rescue)}
    moved = cluster.commit({at: state.completed(epoch, who) for at, state in chosen.items()}, epoch)
    for at, state in chosen.items():
        for broker in state.replicas:
            cluster.confirm(broker, frozenset({at}))  # what it has is a replica (again), and not to be deleted
    cluster.epoch_last = epoch
    cluster.rescue = None
    lost = [[*at] for at, state in chosen.items() if not state.isr]
    known = {(broker, at) for at, state in cluster.partitions.items() for broker in state.replicas}
    unknown = [[b, *at] for b, logs in sorted(rescue.logs.items()) for at in sorted(logs) if (b, at) not in known]
    return {"moved": moved, "lost": lost, "unknown": unknown}


def _unknown(state: PartitionState, epoch: int) -> PartitionState:
    """Nobody leads, nobody is in sync. A reassignment stops: replicas that it has added or was to remove stay."""
    is_lost = state.has_led and not state.electable  # before this rescue
    unclean = epoch if is_lost else state.unclean_epoch
    return replace(
        state, leader=None, leader_epoch=epoch, isr=(), last_isr=(), target=None, target_min=0, unclean_epoch=unclean
    )


def _chosen(state: PartitionState, rescue: Rescue, at: Place, epoch: int, who: Who) -> PartitionState:
    """Q3. A broker whose log has more than those of all known replicas was one, too: the catalog has forgotten it."""
    logs = {broker: logs[at] for broker, logs in rescue.logs.items() if at in logs}
    if state.unclean_epoch == rescue.number or any(broker not in logs for broker in state.replicas):
        state = replace(state, unclean_epoch=epoch)
    if not logs:
        return state
    greatest = sorted(broker for broker, end in logs.items() if end == max(logs.values()))
    known = [broker for broker in state.replicas if broker in greatest]
    replicas = state.replicas if known else (*state.replicas, *greatest)
    equals = sorted(known or greatest, key=lambda broker: broker not in who.registrations)  # who lives can lead now
    opened = tuple(sorted({*state.opened, *(logs.keys() & set(replicas))}))
    after = replace(state, replicas=replicas, opened=opened, isr=(equals[0],), last_isr=tuple(sorted(equals[1:])))
    return after.tidied()


def _present_places(cluster: Cluster, rescue: Rescue) -> list[Place]:
    return [at for at in rescue.places if at in cluster.partitions]


def missing_in(cluster: Cluster) -> dict[str, Any]:
    """Q2: the brokers, and the replicas of those that have reported, that are waited for. While one is under way."""
    rescue = cluster.rescue
    assert rescue is not None, "callers have looked"
    silent = {broker for broker in cluster.brokers if broker not in rescue.logs}
    brokers = sorted(broker for broker in silent if not rescue.is_excused(broker))
    replicas = [
        [broker, *at]
        for at in _present_places(cluster, rescue)
        for broker in cluster.partitions[at].replicas
        if broker in rescue.logs and at not in rescue.logs[broker] and not rescue.is_excused(broker, at)
    ]
    return {"brokers": brokers, "replicas": replicas}


def _present(cluster: Cluster, command: Mapping[str, Any]) -> Rescue:
    number = fields.whole(command, "rescue")
    if cluster.rescue is None or cluster.rescue.number != number:
        raise InvalidRequest(f"rescue {number} is not under way")
    return cluster.rescue


KINDS: Final[Mapping[str, Handler]] = {
    "begin_rescue": _begin,
    "report_logs": _report,
    "excuse_replicas": _excuse,
    "end_rescue": _end,
}
