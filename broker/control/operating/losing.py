"""Find the ranges that an operator may give up: the leader has them damaged, and nobody else may have them.

    damaged here ─► others that live have not been asked for it yet           wait
                 ─► another member of the ISR, or of the last ISR, lives      it has it, or is damaged and goes
                 ─► a follower has told that it is past it, and is not        it comes in sync, and leads on
                    damaged there itself
                 ─► a follower that lives has told nothing yet                wait
                 ─► else                                                      nobody that is there has it: it may go

Brokers that are away may have it, too. The refusal names them, and the offsets: to go on is the operator's decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.api.errors import InvalidRequest, NotReady
from broker.metadata.cluster import Cluster
from broker.metadata.partition import PartitionState
from broker.storage.recovery import Ranges


def to_give_up(
    name: str,
    me: str,
    state: PartitionState,
    cluster: Cluster,
    *,
    lost: Ranges,
    ends: Mapping[str, int],
    high_watermark: int,
    asked: Mapping[str, bool],
) -> Ranges:
    """The ranges that nobody has who is there.

    Args:
        name: The partition's, for people.
        me: The leader.
        lost: The ranges that it cannot read.
        ends: The durable ends that its followers have told; -1: none yet.
        asked: Those who were asked for what is lost, and whether they have said that it is damaged there as well
            (`mending`).
    Raises:
        InvalidRequest: nothing is damaged, or there is another way.
        NotReady: somebody may have it who has not told yet, or it is not known to be committed.
    """
    if not lost:
        raise InvalidRequest(f"{name}: nothing is damaged on its leader, broker {me}", field="partition")
    others = _live(cluster, (each for each in state.replicas if each != me))
    if not state.needs(me, cluster.who()):
        able = _live(cluster, (each for each in state.electable if each != me))
        raise InvalidRequest(
            f"{name}: {', '.join(able)} can lead without a loss; what is damaged on broker {me} comes from there",
            field="accept_loss",
            has_it=able,
        )
    unasked = [each for each in others if each not in asked]
    if unasked:
        raise NotReady(f"{name}: {', '.join(unasked)} is yet to be asked for what is damaged here", silent=unasked)
    others = [each for each in others if not asked[each]]
    silent = [each for each in others if ends.get(each, -1) < 0]
    if silent:
        raise NotReady(f"{name}: {', '.join(silent)} has not told yet what it has", silent=silent)
    past = {each: ends[each] for each in others}
    kept = max(past.values(), default=-1)
    found = tuple((start, end) for start, end in lost if end > kept)
    if not found:
        has_it = [each for each, end in past.items() if end == kept]
        raise InvalidRequest(
            f"{name}: {', '.join(has_it)} has what is damaged, and is catching up: wait until it is in sync",
            field="accept_loss",
            has_it=has_it,
        )
    if found[-1][1] > high_watermark:
        raise NotReady(f"{name}: what is damaged is not known to be committed yet", high_watermark=high_watermark)
    return found


def refusal(name: str, me: str, state: PartitionState, cluster: Cluster, ranges: Ranges) -> InvalidRequest:
    """The error for an operator who has not accepted the loss."""
    live = {me, *_live(cluster, state.replicas)}
    away = [each for each in state.replicas if each not in live]
    count = sum(end - start for start, end in ranges)
    text = ", ".join(f"[{start}, {end})" for start, end in ranges)
    or_else = f" {', '.join(away)}, which may have it, is away: start it first if you can." if away else ""
    return InvalidRequest(
        f"{name}: the offsets {text} cannot be read on broker {me}, and no other replica that is there has them: up to"
        f" {count} records are lost for good.{or_else} To do it, repeat it with accept_loss (--yes)",
        field="accept_loss",
        ranges=[list(each) for each in ranges],
        may_have_it=away,
    )


def _live(cluster: Cluster, brokers: Iterable[str]) -> list[str]:
    known = cluster.brokers
    return sorted(each for each in brokers if each in known and known[each].is_live)
