"""A placed stream grows: more partitions, or more replicas of each. State in, state changed; no clock, no luck.

Added partitions are placed, opened and led at once, and nobody counts them yet:

    add_partitions 2 ─► 5      places 2, 3 and 4; `StreamInfo.partitions_next` is 5, `settings.partitions` still 2
    each leader knows          confirm_partitions: it knows of 5, and could commit now
    all know: each stops       it takes nothing more by the old count, and has what it took committed and answered;
                               confirm_partitions, is_stopped
    the last has stopped       `settings.partitions` is 5, and every partition has another leader epoch

Invariants
G1  A count takes effect once the present leader of each partition, old or new, has stopped (`replicas.G9`).
G2  It takes effect with one command, which gives each partition that is led the next leader epoch: the records of one
    leader epoch are sorted by one count.
G3  Replicas are only added; the old minimum in sync holds until all of them have joined (`partition.P6`).
G4  A confirmation names a moment: the greatest leader epoch of the stream's partitions. It counts while that is the
    greatest. Each beginning or end of a leadership of the stream takes a greater one, and all confirm anew: only then
    may a leader that had stopped take messages by the old count again, and a confirmation of before, however late, is
    refused.
G5  Nobody stops before all know: a partition that nobody leads, or a leader that hangs, holds up the change and not the
    stream. A leader for which a stop takes too long gives it up: those that it leads take another leader epoch (G4).
G6  Where one broker leads all, and no other ever will, nobody has to stop: it goes from the one count to the other
    between two messages, and so the leader epochs stay.

Design: docs/explain/metadata.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from broker.api.errors import InvalidRequest, InvalidSetting, NotReady
from broker.metadata import fields
from broker.metadata.cluster import Cluster
from broker.metadata.info import StreamInfo
from broker.metadata.partition import Place
from broker.metadata.placement import candidates, extend


class GrowthStage(NamedTuple):
    """How far a growing stream is. `as_of`: the moment (G4). `is_stopping`: all know, and are to stop (G5)."""

    as_of: int
    is_stopping: bool


def stage_of(cluster: Cluster, info: StreamInfo) -> GrowthStage | None:
    """None: the stream is not about to have more partitions."""
    if not info.partitions_next:
        return None
    places = cluster.places_of(info.incarnation)
    as_of = _as_of(cluster, places)
    return GrowthStage(as_of, not cluster.is_of_one and all(_has_confirmed(cluster, at, as_of) for at in places))


def _as_of(cluster: Cluster, places: list[Place]) -> int:
    return max(cluster.partitions[at].leader_epoch for at in places)


def _has_confirmed(cluster: Cluster, at: Place, as_of: int, *, is_stopped: bool = False) -> bool:
    said = cluster.confirmed.get(at)
    return said is not None and said[0] == as_of and said[1] >= is_stopped


def place_partitions(cluster: Cluster, info: StreamInfo, count: int) -> None:
    """Place partitions until there are so many, like the first one of the stream."""
    first = cluster.partitions[info.incarnation, 0]
    factor = len(first.target or first.replicas)
    least = first.target_min if first.target else first.min_insync_replicas
    present = len(cluster.places_of(info.incarnation))
    places = cluster.place_replicas(count - present, factor)
    cluster.add_stream(info.incarnation, places, first=present, min_insync=min(least, factor))


def confirm(cluster: Cluster, info: StreamInfo, command: Mapping[str, Any]) -> dict[str, Any]:
    """Note which leaderships know of the coming count, or have stopped; or give a stop up (G5).

    Returns:
        `waiting`: the partitions whose leader has not confirmed this stage, or the next one if all have; `refused`:
        those that the broker does not lead in the epoch that it named; `moved`: the leaderships that begin: of all, if
        nobody is waited for any more, or of those that gave up.
    """
    broker, count = cluster.present(command).broker_id, fields.whole(command, "partitions", least=1)
    info.check_incarnation(fields.text(command, "incarnation"))
    if count != info.partitions_next:
        raise InvalidRequest(
            f"stream {info.name!r} is not about to have {count} partitions", partitions=info.settings.partitions
        )
    as_of, places = fields.whole(command, "as_of"), cluster.places_of(info.incarnation)
    is_stopped, gives_up = fields.flag(command, "is_stopped"), fields.flag(command, "gives_up")
    leaders = fields.rows(command, "leaders", int, int)
    present = stage_of(cluster, info)
    assert present is not None
    if as_of != present.as_of or (is_stopped or gives_up) > present.is_stopping:
        knowing = "all" if present.is_stopping else "not all"
        raise InvalidRequest(
            f"stream {info.name!r} is at another stage than its leader says, as of {as_of}: as of {present.as_of}"
            f" {knowing} leaders know"
        )
    refused, named = [], []
    for number, epoch in leaders:
        state = cluster.partitions.get((info.incarnation, number))
        if state is None or (state.leader, state.leader_epoch) != (broker, epoch):
            refused.append(number)
        else:
            named.append((info.incarnation, number))
    if gives_up:
        return {"waiting": [at[1] for at in places], "refused": refused, "moved": cluster.begin_epoch(named)}
    for at in named:
        if not _has_confirmed(cluster, at, as_of, is_stopped=is_stopped):
            cluster.confirmed[at] = as_of, is_stopped
            cluster.touched.places.add(at)
    waiting = [at[1] for at in places if not _has_confirmed(cluster, at, as_of)]
    if cluster.is_of_one:  # G6
        return {"waiting": waiting, "refused": refused, "moved": []}
    if not waiting:
        waiting = [at[1] for at in places if not _has_confirmed(cluster, at, as_of, is_stopped=True)]
    moved = [] if waiting else cluster.begin_epoch(places)
    return {"waiting": waiting, "refused": refused, "moved": moved}


def raise_replication(cluster: Cluster, info: StreamInfo, command: Mapping[str, Any]) -> dict[str, Any]:
    """Give each partition that has fewer than so many replicas others besides; where it has enough nothing is done."""
    factor = fields.whole(command, "replication_factor", least=1)
    asked = fields.whole(command, "min_insync_replicas", 2 if factor >= 3 else 1, least=1)
    if asked > factor:
        raise InvalidSetting(f"min_insync_replicas={asked}: only {factor} replicas", key="min_insync_replicas")
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
        changed[at] = state.targeted(target, least, epoch).completed(epoch, who)
    return {"raised": [at[1] for at in changed], "moved": cluster.commit(changed, epoch)}
