"""Commands of brokers: they start, live, fail, stop and go. Each function takes one, and returns its result.

    form_cluster       cluster_id                          once; feature_level (optional): what it begins with
    register_broker    broker_id, incarnation, http, grpc  a process has started: its former self leads nothing any more
                       rack, after, feature_level_max      (optional) after: the registration that it replaces, or 0
                       raft                                (optional) its id in the Raft group: that of its folder
                       epoch_seen                          (optional) the greatest leader epoch in its logs
                       sound, behind                       {stream: [partition]}: folders that can be opened; and those
                                                           of them that lack what was committed. Any other is lost
    renew_sessions     renewals {broker_id: registration}  these live; who was taken for dead is back
    fail_broker        broker_id, registration, renewal    its session lapsed (renewal: as it stood); none: it left
    stop_broker        broker_id, registration             it is about to: its leaderships go to others
    tell_auth_mode     broker_id, registration, mode       what it does with callers, as it has begun
    remove_broker      broker_id                           for good; it has no replicas any more
    confirm_deleted    broker_id, partitions               folders of deleted or moved replicas are gone
    set_feature_level  level                               once every broker knows it

A `stream` is the incarnation of one. A session is the controller's to measure. The catalog counts renewals, and says
how long a session is (`session.S5`): a lapse that was judged before a renewal, and is applied after it, is refused.

A name belongs to one folder at a time. While a broker lives, a process with another folder is refused under its name:
it may be a second one by mistake. The folder of a broker that was removed is not taken again, under any name; nor is
one that its broker has replaced: what the catalog knows of the replicas is of the later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from broker.api.errors import InvalidRequest, NotReady
from broker.metadata import fields
from broker.metadata.cluster import FEATURE_LEVEL, FEATURE_LEVEL_FIRST, Cluster
from broker.metadata.info import BrokerInfo
from broker.metadata.partition import Who

Handler = Callable[[Cluster, Mapping[str, Any]], dict[str, Any]]


def _form(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    cluster_id = fields.text(command, "cluster_id")
    if cluster.cluster_id not in (None, cluster_id):
        raise InvalidRequest(f"this is cluster {cluster.cluster_id}, not {cluster_id}", cluster_id=cluster.cluster_id)
    if cluster.cluster_id is None and not cluster.brokers:
        cluster.feature_level = _known_level(fields.whole(command, "feature_level", FEATURE_LEVEL_FIRST, least=1))
    cluster.cluster_id = cluster_id
    return {"cluster_id": cluster_id}


def _register(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    broker = fields.text(command, "broker_id")
    level = fields.whole(command, "feature_level_max", FEATURE_LEVEL_FIRST)
    sound, behind = fields.places(command, "sound"), fields.places(command, "behind")
    known = cluster.brokers.get(broker)
    before = known.registration if known else 0
    if "after" in command and fields.whole(command, "after") != before:
        raise InvalidRequest(f"broker {broker} now has registration {before}", registration=before)
    if level < cluster.feature_level:
        raise InvalidRequest(f"broker {broker} knows feature level {level}, the cluster has {cluster.feature_level}")
    raft = fields.text(command, "raft", "")
    _check_folder(cluster, broker, raft)
    own = [(at, state) for at, state in cluster.partitions.items() if broker in state.replicas]
    if own and "sound" not in command:
        raise InvalidRequest(f"broker {broker} has replicas here, and does not say what it has of them", key="sound")
    number = max(cluster.epoch_last, fields.epoch_seen(command)) + 1
    info = BrokerInfo(
        broker_id=broker,
        incarnation=fields.text(command, "incarnation"),
        http=fields.text(command, "http"),
        grpc=fields.text(command, "grpc"),
        registration=number,
        rack=fields.text(command, "rack", ""),
        feature_level_max=level,
        raft=raft,
        session_ms=cluster.session_ms(),
    )
    live = cluster.who(without=broker)
    who = Who(registrations={**live.registrations, broker: number}, stopping=live.stopping)
    changed, lost = {}, []
    for at, state in own:
        after = state.registered(broker)
        if at not in sound and state.knows_log_of(broker):
            after = after.left(broker, lost=True)
            lost.append([*at])
        elif at in behind:
            after = after.fell_behind(broker, number)
        if state.leader == broker:
            after = after.deposed(number)
        changed[at] = after.completed(number, who)
    cluster.commit(changed, number)
    if known is not None and raft not in ("", known.raft):
        cluster.forget_folder(broker, known.raft)
    cluster.brokers[broker] = info
    cluster.epoch_last = number
    cluster.forget_logs(broker)
    return {"registration": number, "leader_epoch": number, "lost": sorted(lost)}


def _check_folder(cluster: Cluster, broker: str, raft: str) -> None:
    known = cluster.brokers.get(broker)
    if raft in cluster.removed:
        why = "was removed, or has another folder by now, and this is its former one"
        raise InvalidRequest(f"broker {cluster.removed[raft]} {why}", raft=raft)
    if known is not None and known.is_live and raft and known.raft not in ("", raft):
        raise NotReady(
            f"broker {broker} lives at {known.http}, with another data folder: stop the one that should not be. If its"
            " folder was lost, its name is free as soon as its session has lapsed",
            raft=known.raft,
        )


def _renew(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    renewals = fields.numbered(command, "renewals")
    live = sorted(b for b, i in cluster.brokers.items() if i.registration == renewals.get(b) and not i.has_left)
    back = [broker for broker in live if not cluster.brokers[broker].is_live]
    renewed = {broker: _renewed(cluster.brokers[broker], cluster.session_ms()) for broker in live}
    if back:
        who = cluster.who()
        who = replace(who, registrations={**who.registrations, **{b: renewed[b].registration for b in back}})
        own = {at: state for at, state in cluster.partitions.items() if not set(back).isdisjoint(state.replicas)}
        epoch = cluster.epoch_last + 1
        cluster.commit({at: state.completed(epoch, who) for at, state in own.items()}, epoch, fresh=set(own))
    cluster.brokers.update(renewed)
    return {"live": live, "refused": sorted(set(renewals) - set(live))}


def _renewed(info: BrokerInfo, session_ms: int) -> BrokerInfo:
    return replace(info, is_live=True, renewal=info.renewal + 1, session_ms=max(info.session_ms, session_ms))


def _may_renew(_: Cluster, command: Mapping[str, Any]) -> None:
    fields.numbered(command, "renewals")


def _may_fail(cluster: Cluster, command: Mapping[str, Any]) -> None:
    info = cluster.present(command)
    if info.renewal != fields.whole(command, "renewal", info.renewal):
        raise InvalidRequest(f"broker {info.broker_id} has renewed its session", renewal=info.renewal)


def _fail(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    _may_fail(cluster, command)
    info = cluster.present(command)
    moved = cluster.take_out(
        info.broker_id, [at for at, s in cluster.partitions.items() if info.broker_id in s.replicas]
    )
    cluster.brokers[info.broker_id] = replace(info, is_live=False, is_stopping=False, has_left="renewal" not in command)
    return {"moved": moved}


def _stop(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    info = cluster.present(command)
    who = cluster.who()
    who = replace(who, stopping={*who.stopping, info.broker_id})
    moved = cluster.hand_over((at for at, s in cluster.partitions.items() if s.leader == info.broker_id), who)
    cluster.brokers[info.broker_id] = replace(info, is_stopping=True)
    return {"moved": moved}


def _tell_auth_mode(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    info = cluster.present(command)
    cluster.brokers[info.broker_id] = replace(info, auth_mode=fields.text(command, "mode"))
    return {}


def _remove(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    broker = fields.text(command, "broker_id")
    info = cluster.brokers.get(broker)
    if info is None:
        raise InvalidRequest(f"no broker {broker!r} is registered")
    assigned = sum(broker in {*s.replicas, *(s.target or ())} for s in cluster.partitions.values())
    if info.is_live or assigned:
        why = "lives" if info.is_live else f"is assigned {assigned} partitions"
        raise InvalidRequest(f"broker {broker} {why}: stop it, and reassign what it has", partitions=assigned)
    del cluster.brokers[broker]
    cluster.forget_folder(broker, info.raft)
    return {"forgotten": cluster.confirm(broker, cluster.leftovers.get(broker, frozenset()))}


def _confirm_deleted(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    return {"forgotten": cluster.confirm(fields.text(command, "broker_id"), fields.places(command, "partitions"))}


def _set_feature_level(cluster: Cluster, command: Mapping[str, Any]) -> dict[str, Any]:
    level = fields.whole(command, "level", least=cluster.feature_level)
    behind = sorted(b.broker_id for b in cluster.brokers.values() if b.feature_level_max < level)
    if behind:
        raise InvalidRequest(f"feature level {level} is not known to {', '.join(behind)}")
    cluster.feature_level = _known_level(level)
    return {"feature_level": level}


def _known_level(level: int) -> int:
    if level > FEATURE_LEVEL:
        raise InvalidRequest(f"feature level {level} is not known to this release, which has {FEATURE_LEVEL}")
    return level


KINDS: Final[Mapping[str, Handler]] = {
    "form_cluster": _form,
    "register_broker": _register,
    "renew_sessions": _renew,
    "fail_broker": _fail,
    "stop_broker": _stop,
    "tell_auth_mode": _tell_auth_mode,
    "remove_broker": _remove,
    "confirm_deleted": _confirm_deleted,
    "set_feature_level": _set_feature_level,
}

CHECKS: Final[Mapping[str, Callable[[Cluster, Mapping[str, Any]], None]]] = {
    "renew_sessions": _may_renew,
    "fail_broker": _may_fail,
}
"""What may refuse a command, where that costs less than to carry it out."""
