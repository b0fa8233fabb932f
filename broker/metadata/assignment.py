"""Which member of a consumer group is to read which partition. Pure: the same group gets the same answer everywhere.

    held        a: p0 p1 p2 p3                    what is held stays where it is, as far as that is even
    b joins     a: p0 p1        b: p2 p3          the member with the most gives to the one with the fewest

T1  A partition goes to a member that reads its stream, and to nobody if there is none.
T2  Even: no partition could go from one member to another that has two fewer. So members that read the same streams
    differ by one partition at most.
T3  Sticky: a partition leaves its member only if that makes it more even, or if the member does not read it any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Partition = tuple[str, int]
"""Of a stream."""


def assign(
    streams: Mapping[str, Sequence[str]], counts: Mapping[str, int], held: Mapping[Partition, str]
) -> dict[Partition, str]:
    """Who is to read what.

    Args:
        streams: By member, the streams that it reads.
        counts: So many partitions each stream has. One that is missing there does not exist.
        held: What each partition's member is by now.
    """
    names = sorted({name for member in streams.values() for name in member if name in counts})
    readers = {name: [member for member in sorted(streams) if name in streams[member]] for name in names}
    has: dict[str, list[Partition]] = {member: [] for member in sorted(streams)}
    free = []
    for name, members in readers.items():
        for partition in ((name, number) for number in range(counts[name])):
            if (member := held.get(partition)) in members:
                has[str(member)].append(partition)
            elif members:
                free.append(partition)
    for partition in free:
        min((has[member] for member in readers[partition[0]]), key=len).append(partition)
    while (move := _next_move(has, readers)) is not None:
        giver, partition, taker = move
        has[giver].remove(partition)
        has[taker].append(partition)
    return {partition: member for member, partitions in has.items() for partition in partitions}


def _next_move(
    has: Mapping[str, Sequence[Partition]], readers: Mapping[str, Sequence[str]]
) -> tuple[str, Partition, str] | None:
    """From a member with the most that can give, what it got last, to the one with the fewest (T2)."""
    takers = {name: min(members, key=lambda member: len(has[member])) for name, members in readers.items() if members}
    for giver in sorted(has, key=lambda member: -len(has[member])):
        for partition in reversed(has[giver]):
            if len(has[taker := takers[partition[0]]]) < len(has[giver]) - 1:
                return giver, partition, taker
    return None
