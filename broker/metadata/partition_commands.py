"""Commands of partitions: who leads, who is in sync, where they are. Each function takes one, and returns its result.

    report_opened     broker_id, registration, replicas             these folders are there
    elect_first       partitions {stream: [partition]}              the deadline is over: who has opened them must do
    alter_isr         broker_id, stream, partition, leader_epoch, partition_epoch, and one of
                      add [broker_id, registration, step-outs], remove broker_id
    alter_isrs        broker_id, add [[stream, partition, leader_epoch, partition_epoch, broker_id, registration,
                      step-outs]], remove [[stream, partition, leader_epoch, partition_epoch, broker_id]]
                                                                    as many `alter_isr`, each judged for itself
    report_leader     broker_id, registration, stream, partition, leader_epoch, at_ms, window_ms
                                                                    it cannot fetch. Once a majority of the ISR says so,
                                                                    without the leader, the leader is taken for dead
    step_out          broker_id, registration, replicas, why        why: fsync, damage or lost
    elect_preferred   partitions                                    to the first replica, where that may lead
    elect_unclean     stream, partition, broker_id, epoch_seen      an operator gives up what only others have
    reassign          stream, partition, replicas [broker_id]       and min_insync_replicas (optional)
    set_min_insync    stream, min_insync_replicas

A `stream` is the incarnation of one; `replicas` are lists of [stream, partition, step-outs of this replica so far].
Lists may name what is not so any more: that is passed over, and told as `refused`. `alter_isrs` has `answers`, one for
each change: [stream, partition, the result of `alter_isr` or {"error": problem}]. `moved` in a result lists the
leaderships that changed: [stream, partition, leader].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from broker.api.errors import InvalidRequest, InvalidSetting, LiftlogError, NotReady
from broker.metadata import fields
from broker.metadata.cluster import Cluster
from broker.metadata.partition import PartitionState, Place, Who

ISR_CHANGES_MAX: Final = 500
"""So many changes are in one command: some 40 KiB, and 30 ms of the controller, while a session lasts two seconds."""

Handler = Callable[[Cluster, Mapping[str, Any]], dict[str, Any]]


class _Change(NamedTuple):
    """A change of in-sync replicas that a leader asks for. `incarnation`: of the replica that is added."""

    at: Place
    said: tuple[int, int]
    member: str
    incarnation: tuple[int, int] | None = None


def _may_report(cluster: Cluster, command: Mapping[str, Any]) -> str:
    """Returns the leader."""
    reporter, at = cluster.present(command).broker_id, fields.place(command)
    state, epoch = cluster.state_at(at), fields.whole(command, "leader_epoch")
    if state.leader is None or state.leader_epoch != epoch or reporter == state.leader or reporter not in state.isr:
        raise InvalidRequest(f"broker {reporter} has no say on the leader of epoch {epoch}", state=state.as_dict())
    return state.leader


def _report(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    leader = _may_report(cluster, command)
    reporter, at = fields.text(command, "broker_id"), fields.place(command)
    state, epoch = cluster.state_at(at), fields.whole(command, "leader_epoch")
    at_ms, window_ms = fields.whole(command, "at_ms"), fields.whole(command, "window_ms")
    of_epoch, said = cluster.reports.get(at, (epoch, {}))
    said = {b: ms for b, ms in said.items() if abs(at_ms - ms) <= window_ms} if of_epoch == epoch else {}
    said[reporter] = at_ms
    others = [broker for broker in state.isr if broker != leader]
    if 2 * sum(broker in said for broker in others) <= len(others):
        cluster.reports[at] = (epoch, said)
        return {"moved": [], "reports": len(said)}
    live = set(cluster.who(without=leader).registrations)
    # `cluster.C3`
    shared = [at for at, s in cluster.partitions.items() if leader in s.isr and not live.isdisjoint(s.isr)]
    return {"moved": cluster.take_out(leader, shared), "reports": len(said)}


def _opened(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    broker, epoch, who = cluster.present(command).broker_id, cluster.epoch_last + 1, cluster.who()
    changed, refused = {}, []
    for at, step_outs in sorted(fields.replicas(command, "replicas").items()):
        state = cluster.partitions.get(at)
        if state is None or broker not in state.replicas or state.step_outs_of(broker) != step_outs:
            refused.append([*at])
        elif broker not in state.opened:
            changed[at] = state.reported_open(broker).completed(epoch, who)
    return {"moved": cluster.commit(changed, epoch), "refused": refused}


def _elect_first(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    epoch, who = cluster.epoch_last + 1, cluster.who()
    wanted = {at: cluster.state_at(at) for at in sorted(fields.places(command, "partitions"))}
    waiting = {at: state for at, state in wanted.items() if not state.has_led}
    changed = {at: s.completed(epoch, who, need=s.min_insync_replicas) for at, s in waiting.items()}
    return {"moved": cluster.commit(changed, epoch)}


def _alter_isr(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    broker, at = fields.text(command, "broker_id"), fields.place(command)
    said = (fields.whole(command, "leader_epoch"), fields.whole(command, "partition_epoch"))
    if ("add" in command) == ("remove" in command):
        raise InvalidRequest("malformed command: one of add and remove", key="add")
    if "add" in command:
        change = _Change(at, said, *_added(command))
    else:
        change = _Change(at, said, fields.text(command, "remove"))
    return _altered(cluster, broker, change, cluster.epoch_last + 1, cluster.who())


def _alter_isrs(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    broker, epoch, who = fields.text(command, "broker_id"), cluster.epoch_last + 1, cluster.who()
    added = fields.rows(command, "add", str, int, int, int, str, int, int)
    removed = fields.rows(command, "remove", str, int, int, int, str)
    changes = [_Change((row[0], row[1]), (row[2], row[3]), row[4], row[5:] or None) for row in (*added, *removed)]
    if not 0 < len({change.at for change in changes}) == len(changes) <= ISR_CHANGES_MAX:
        said_max = f"1 to {ISR_CHANGES_MAX} partitions are allowed, each once"
        raise InvalidRequest(f"{len(changes)} changes of in-sync replicas; {said_max}", key="add")
    answers: list[list[Any]] = []
    for change in changes:
        try:
            answers.append([*change.at, _altered(cluster, broker, change, epoch, who)])
        except LiftlogError as error:
            answers.append([*change.at, {"error": error.to_problem()}])
    if all("error" in said for _, _, said in answers):
        raise InvalidRequest("none of the in-sync replicas are altered", answers=answers)
    return {"answers": answers}


def _altered(cluster: Cluster, broker: str, change: _Change, epoch: int, who: Who) -> dict[str, Any]:
    """Make one change, or raise why not, and then nothing is changed."""
    at, said, member, incarnation = change
    state = cluster.state_at(at)
    known = (state.leader_epoch, state.partition_epoch)
    if said[0] > known[0] or said[1] > known[1]:
        raise NotReady(f"epochs {said} are not known here yet, {known} are")
    if said != known or broker != state.leader:
        raise _refusal(state, f"leader {state.leader} and epochs {known} by now")
    if incarnation is None:
        if member == broker or member not in state.isr:
            raise _refusal(state, f"{member} cannot be removed")
        after = state.left(member)
    else:
        present = cluster.replica_incarnation(member, state)
        if present is None or incarnation > present:
            raise NotReady(f"{member} has no incarnation {incarnation} here yet")
        if incarnation < present or member not in who.registrations:
            raise _refusal(state, f"{member} has incarnation {present}, or is taken for dead")
        if member not in state.replicas or member in state.isr:
            raise _refusal(state, f"{member} cannot be added")
        after = state.joined(member)
    cluster.commit({at: after.completed(epoch, who)}, epoch)
    return {"state": cluster.partitions[at].as_dict()}


def _step_out(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    broker, why = cluster.present(command).broker_id, fields.text(command, "why")
    if why not in ("fsync", "damage", "lost"):
        raise InvalidRequest(f"malformed command: why is {why!r}, not fsync, damage or lost", key="why")
    epoch, who = cluster.epoch_last + 1, cluster.who()
    changed, refused = {}, []
    for at, step_outs in sorted(fields.replicas(command, "replicas").items()):
        state = cluster.partitions.get(at)
        if state is None or broker not in state.replicas or state.step_outs_of(broker) != step_outs:
            refused.append([*at])
            continue
        if why == "damage" and state.needs(broker, who):  # `partition.P8`
            refused.append([*at])
            continue
        after = state.stepped_out(broker, lost=why != "fsync")
        changed[at] = (after.deposed(epoch) if state.leader == broker else after).completed(epoch, who)
    moved = cluster.commit(changed, epoch)
    cluster.forget_logs(broker)
    now = {at: cluster.partitions[at] for at in changed}
    stepped = [[*at, state.step_outs_of(broker)] for at, state in now.items() if broker in state.replicas]
    return {"stepped_out": stepped, "refused": refused, "moved": moved}


def _elect_preferred(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    places = sorted(fields.places(command, "partitions"))
    for at in places:
        cluster.state_at(at)
    return {"moved": cluster.hand_over(places, cluster.who(), to_preferred=True)}


def _elect_unclean(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    at, broker, who = fields.place(command), fields.text(command, "broker_id"), cluster.who()
    state = cluster.state_at(at)
    epoch = max(cluster.epoch_last, fields.epoch_seen(command)) + 1
    if not state.has_led or state.leader is not None or not state.electable.isdisjoint(who.registrations):
        raise InvalidRequest("the partition has a leader, or may get one without a loss", state=state.as_dict())
    if broker not in state.replicas or broker not in state.opened or broker not in who.registrations:
        raise InvalidRequest(f"broker {broker} is not live, or has no replica", state=state.as_dict())
    chosen = replace(state, isr=(broker,), last_isr=(), unclean_epoch=epoch).led_by(broker, epoch, who)
    return {"moved": cluster.commit({at: chosen}, epoch)}


def _reassign(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    at, target = fields.place(command), fields.names(command, "replicas")
    state = cluster.state_at(at)
    least = fields.whole(command, "min_insync_replicas", min(state.min_insync_replicas, len(target)), least=1)
    if least > len(target):
        raise InvalidSetting(f"min_insync_replicas={least}: only {len(target)} replicas", key="min_insync_replicas")
    for broker in target:
        if broker not in cluster.brokers:
            raise InvalidRequest(f"no broker {broker!r} is registered")
        if broker not in state.replicas and at in cluster.leftovers.get(broker, ()):
            raise NotReady(f"broker {broker} has not deleted its former replica yet")
    epoch = cluster.epoch_last + 1
    after = state.targeted(target, least, epoch)
    cluster.commit({at: after.completed(epoch, cluster.who())}, epoch)
    return {"state": cluster.partitions[at].as_dict()}


def _set_min_insync(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    incarnation = fields.text(command, "stream")
    least = fields.whole(command, "min_insync_replicas", least=1)
    places = cluster.places_of(incarnation)
    states = {at: cluster.partitions[at] for at in places}
    fewest = min((min(len(s.replicas), len(s.target or s.replicas)) for s in states.values()), default=0)
    if least > fewest:
        raise InvalidSetting(f"min_insync_replicas={least}: only {fewest} replicas", key="min_insync_replicas")
    changed = {at: state.with_minimum(least) for at, state in states.items()}
    cluster.commit(changed, cluster.epoch_last + 1)
    return {"partitions": len(places)}


def _refusal(state: PartitionState, why: str) -> InvalidRequest:
    return InvalidRequest(f"the in-sync replicas are not altered: {why}", state=state.as_dict())


def _added(command: Mapping[str, Any]) -> tuple[str, tuple[int, int]]:
    member, registration, step_outs = command["add"]
    numbers = {"registration": registration, "step-outs": step_outs}
    incarnation = (fields.whole(numbers, "registration"), fields.whole(numbers, "step-outs"))
    return fields.text({"add": member}, "add"), incarnation


KINDS: Final[Mapping[str, Handler]] = {
    "report_leader": _report,
    "report_opened": _opened,
    "elect_first": _elect_first,
    "alter_isr": _alter_isr,
    "alter_isrs": _alter_isrs,
    "step_out": _step_out,
    "elect_preferred": _elect_preferred,
    "elect_unclean": _elect_unclean,
    "reassign": _reassign,
    "set_min_insync": _set_min_insync,
}

CHECKS: Final[Mapping[str, Callable[[Cluster, Mapping[str, Any]], object]]] = {"report_leader": _may_report}
"""What may refuse a command, where that costs less than to carry it out."""
