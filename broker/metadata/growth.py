"""A placed stream grows: more partitions, or more replicas of each. State in, state changed; no clock, no luck.

Added partitions are placed, opened and led at once, and nobody counts them yet:

    add_partitions 2 ─► 5      places 2, 3 and 4; `StreamInfo.partitions_next` is 5, `settings.partitions` still 2
    each leader                knows of 5 and subscribes as it will have to: confirm_partitions, in its leader epoch
    the last of them           `settings.partitions` is 5, and every partition has another leader epoch

Invariants
G1  A count takes effect once the present leader of each partition, old or new, has confirmed it in its present epoch.
    Whatever ends a leadership ends its confirmation: what that leader knew, its successor may not know.
G2  It takes effect with one command, which gives each partition that is led the next leader epoch. A leader that has
    not heard of it yet cannot commit by the old count any more. But what it has taken in by then is in its log, and is
    committed once it leads on in the next epoch: a message may be there twice, by its former and by its new partition.
G3  Replicas are only added; the old minimum in sync holds until all of them have joined (`partition.P6`).

Design: docs/explain/metadata.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.errors import InvalidRequest, InvalidSetting, NotReady
from broker.metadata import fields
from broker.metadata.cluster import Cluster
from broker.metadata.info import StreamInfo
from broker.metadata.placement import candidates, extend


def place_partitions(cluster: Cluster, info: StreamInfo, count: int) -> None:
    """Place partitions until there are so many, like the first one of the stream."""
    first = cluster.partitions[info.incarnation, 0]
    factor = len(first.target or first.replicas)
    least = first.target_min if first.target else first.min_insync_replicas
    present = len(cluster.places_of(info.incarnation))
    places = cluster.place_replicas(count - present, factor)
    cluster.add_stream(info.incarnation, places, first=present, min_insync=min(least, factor))


def confirm(cluster: Cluster, info: StreamInfo, command: Mapping[str, Any]) -> dict[str, Any]:
    """Note which leaderships know of the coming count.

    Returns:
        `waiting`: the partitions whose leader has not confirmed it; `refused`: those that the broker does not lead in
        the epoch that it named; `moved`: if nobody is waited for, the leaderships that begin by it.
    """
    broker, count = cluster.present(command).broker_id, fields.whole(command, "partitions", least=1)
    info.check_incarnation(fields.text(command, "incarnation"))
    if count != info.partitions_next:
        raise InvalidRequest(
            f"stream {info.name!r} is not about to have {count} partitions", partitions=info.settings.partitions
        )
    refused = []
    for number, epoch in fields.rows(command, "leaders", int, int):
        state = cluster.partitions.get((info.incarnation, number))
        if state is None or (state.leader, state.leader_epoch) != (broker, epoch):
            refused.append(number)
        else:
            cluster.confirmed[info.incarnation, number] = count
    places = cluster.places_of(info.incarnation)
    waiting = [at[1] for at in places if cluster.confirmed.get(at) != count]
    moved = [] if waiting else cluster.begin_epoch(places)
    return {"waiting": waiting, "refused": refused, "moved": moved}


def raise_replication(cluster: Cluster, info: StreamInfo, command: Mapping[str, Any]) -> dict[str, Any]:
    """Give each partition that has fewer than so many replicas others besides; where it has enough nothing is done."""
    factor = fields.whole(command, "replication_factor", least=1)
    asked = fields.whole(command, "min_insync_replicas", 2 if factor >= 3 else 1, least=1)
    if asked > factor:
        raise InvalidSetting(f"min_insync_replicas={asked} of {factor} replicas", key="min_insync_replicas")
    who, places = cluster.who(), cluster.places_of(info.incarnation)
    fit = set(who.registrations) - set(who.stopping)
    racks = {broker: each.rack for broker, each in cluster.brokers.items()}
    brokers = candidates(racks, (s.target or s.replicas for s in cluster.partitions.values()))
    epoch, changed = cluster.epoch_last + 1, {}
    for at in places:
        state = cluster.partitions[at]
        present = state.target or state.replicas
        if len(present) >= factor:
            continue
        able = {broker for broker in fit if broker in state.replicas or at not in cluster.leftovers.get(broker, ())}
        target = extend(brokers, present, factor, able)
        if len(target) < factor:
            raise NotReady(f"{factor} replicas need as many brokers, {len(target)} are there")
        least = max(asked, state.target_min if state.target else state.min_insync_replicas)
        changed[at] = state.targeted(target, least, epoch).settled(epoch, who)
    return {"raised": [at[1] for at in changed], "moved": cluster.commit(changed, epoch)}
