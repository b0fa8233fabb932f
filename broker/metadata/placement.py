"""Where the replicas of new partitions go. Pure: the same brokers and partitions give the same places everywhere.

Replicas of a partition are spread over racks first, then over the brokers with the fewest replicas. First among the
chosen brokers is the one that is the preferred leader of the fewest partitions. Equals are ordered by name.

    brokers   a (rack 1)  b (rack 1)  c (rack 2)  d (rack 3)
    place 3   c d a       one of each rack; of a and b the one that has less; the first leads the least

L1  The replicas of a partition are different brokers.
L2  They are in as many racks as they can be. A broker without a rack is one of its own.
L3  In each rack, and of equals of several, the broker with the fewest replicas is taken.
L4  A partition that is extended keeps its replicas and their order; the others come by the same rules, and after them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A broker that may take replicas, and what it has by now.

    Attributes:
        rack: Empty: none.
        replicas: So many replicas it keeps.
        preferred: It is the preferred leader of so many partitions.
    """

    broker_id: str
    rack: str = ""
    replicas: int = 0
    preferred: int = 0


def candidates(racks: Mapping[str, str], placed: Iterable[Sequence[str]]) -> list[Candidate]:
    """The brokers with their racks, and what they have of the partitions that are placed by now."""
    found = {broker: Candidate(broker_id=broker, rack=rack) for broker, rack in sorted(racks.items())}
    for replicas in placed:
        for position, broker in enumerate(replicas):
            if broker in found:
                found[broker].replicas += 1
                found[broker].preferred += position == 0
    return list(found.values())


def place(brokers: Sequence[Candidate], partitions: int, replication_factor: int) -> list[tuple[str, ...]]:
    """Choose the replicas of new partitions, the preferred leader first. Counts them in `brokers`.

    Args:
        replication_factor: At most as many as there are brokers.
    """
    assert 1 <= replication_factor <= len(brokers), f"{replication_factor} replicas on {len(brokers)} brokers"
    return [_place_one(brokers, replication_factor) for _ in range(partitions)]


def _place_one(brokers: Sequence[Candidate], replication_factor: int) -> tuple[str, ...]:
    chosen = _choose(brokers, [], replication_factor)
    chosen.sort(key=lambda broker: (broker.preferred, broker.broker_id))
    chosen[0].preferred += 1
    return tuple(broker.broker_id for broker in chosen)


def extend(
    brokers: Sequence[Candidate], replicas: Sequence[str], replication_factor: int, able: Set[str]
) -> tuple[str, ...]:
    """The replicas of a partition, and others of those that are `able` to take one. Counts these in `brokers`.

    Returns:
        As many as `replication_factor`; fewer if too few are able.
    """
    present = [broker for broker in brokers if broker.broker_id in replicas]
    others = [broker for broker in brokers if broker.broker_id in able and broker.broker_id not in replicas]
    more = min(replication_factor - len(replicas), len(others))
    return (*replicas, *(broker.broker_id for broker in _choose(others, present, more)))


def _choose(brokers: Sequence[Candidate], present: Sequence[Candidate], count: int) -> list[Candidate]:
    """So many of the brokers, which are to stand beside those that are present. Counts their replicas."""
    chosen: list[Candidate] = []
    in_rack = Counter(_rack_of(broker) for broker in present)
    while len(chosen) < count:
        best = min(
            (broker for broker in brokers if broker not in chosen),
            key=lambda broker: (in_rack[_rack_of(broker)], broker.replicas, broker.preferred, broker.broker_id),
        )
        chosen.append(best)
        in_rack[_rack_of(best)] += 1
        best.replicas += 1
    return chosen


def _rack_of(broker: Candidate) -> str:
    return f"rack {broker.rack}" if broker.rack else f"broker {broker.broker_id}"
