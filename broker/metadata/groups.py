"""Consumer groups: which member may read which partition. Part of the catalog: no clock.

    join ─► the target (assignment.py) ─► a partition that is free: granted to its member there, under the next epoch
                                          one that another member holds: revoked, and asked back from it
                                                        │
              released (its member has committed what it did, and stopped), left, expired ─► free

Invariants
G1  A partition is granted to one member at a time, under an epoch that no grant had before: of all groups, for good. A
    group that is forgotten and made anew goes on where the offsets of the former one are fenced (`groups/fencing.py`).
G2  Revoke before grant: what a member holds goes to another one when it has released it, has left, or has expired.
G3  A release names the epoch of its grant. One that comes late, for a grant of before, changes nothing.
G4  Whoever joins under the instance of another member takes its place: what that one holds is granted to it under new
    epochs, which fences the former one. Nothing else moves.
G5  A member's end names its session. What was decided of an earlier session of its name changes nothing.
G6  The target changes with members, with what they read, and with partitions; a release changes grants alone. So a
    group comes to rest when each member has answered once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from broker.metadata.assignment import Partition, assign


class Grant(NamedTuple):
    """Who may read a partition.

    Attributes:
        epoch: Of this grant alone (G1).
        is_revoked: It is asked back.
    """

    member: str
    epoch: int
    is_revoked: bool = False


class Member(NamedTuple):
    """One member of a group.

    Attributes:
        session: Another one each time that it joins (G5).
        streams: That it reads, sorted.
        timeout_ms: It has expired after so long without a sign of it.
        instance: Of a static member; empty: it is none (G4).
    """

    session: int
    streams: tuple[str, ...]
    timeout_ms: int
    instance: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A group at one time. It is replaced, never changed: a reader on another thread keeps what it has."""

    members: Mapping[str, Member] = field(default_factory=dict)
    target: Mapping[Partition, str] = field(default_factory=dict)
    grants: Mapping[Partition, Grant] = field(default_factory=dict)

    def of(self, member: str) -> dict[Partition, Grant]:
        """What a member holds."""
        return {partition: grant for partition, grant in self.grants.items() if grant.member == member}

    @property
    def is_at_rest(self) -> bool:
        """Whether everybody has what he is to have."""
        return {partition: grant.member for partition, grant in self.grants.items()} == self.target


@dataclass(slots=True)
class Groups:
    """See the module.

    Attributes:
        last: The newest number of all epochs and sessions.
    """

    last: int = 0
    named: Mapping[str, ConsumerGroup] = field(default_factory=dict)

    def copy(self) -> Groups:
        """Another one with the same content."""
        return Groups(self.last, self.named)

    def join(
        self,
        name: str,
        member: str,
        streams: Iterable[str],
        *,
        timeout_ms: int,
        counts: Mapping[str, int],
        instance: str = "",
    ) -> int:
        """A member joins, or reads other streams from now on. Returns its session.

        Args:
            counts: How many partitions each stream of the catalog has.
        """
        group = self.named.get(name) or ConsumerGroup()
        members, grants = dict(group.members), dict(group.grants)
        former = next((each for each, kept in members.items() if instance and kept.instance == instance), None)
        known = members.get(member)
        session = self._next() if known is None else known.session
        target = dict(group.target)
        if former is not None and former != member:  # G4
            del members[former]
            target = {partition: member if each == former else each for partition, each in target.items()}
            for partition, grant in grants.items():
                if grant.member == former:
                    grants[partition] = grant._replace(member=member, epoch=self._next())
        members[member] = Member(session, tuple(sorted(set(streams))), timeout_ms, instance)
        self._put(name, ConsumerGroup(members, target, grants), counts)
        return session

    def end(self, name: str, member: str, session: int, counts: Mapping[str, int]) -> bool:
        """A member has left, or has expired. False: it had before (G5)."""
        group = self.named.get(name)
        if group is None or (known := group.members.get(member)) is None or known.session != session:
            return False
        members = {each: kept for each, kept in group.members.items() if each != member}
        grants = {partition: grant for partition, grant in group.grants.items() if grant.member != member}
        self._put(name, ConsumerGroup(members, group.target, grants), counts)
        return True

    def release(self, name: str, member: str, released: Mapping[Partition, int]) -> None:
        """A member has stopped to read these, whose grants had these epochs, and has committed what it did (G3)."""
        group = self.named.get(name)
        if group is None:
            return
        freed = {each for each, epoch in released.items() if _is_grant(group.grants.get(each), member, epoch)}
        if freed:
            grants = {partition: grant for partition, grant in group.grants.items() if partition not in freed}
            self._replace(name, self._granted(replace(group, grants=grants)))

    def fit(self, counts: Mapping[str, int]) -> None:
        """Streams have come or gone, or have other partitions."""
        for name, group in self.named.items():
            self._put(name, group, counts)

    def forget(self, name: str) -> bool:
        """A group that has no members. False: it has, or is not there."""
        group = self.named.get(name)
        if group is None or group.members:
            return False
        self.named = {each: kept for each, kept in self.named.items() if each != name}
        return True

    def _next(self) -> int:
        self.last += 1
        return self.last

    def _replace(self, name: str, group: ConsumerGroup) -> None:
        self.named = {**self.named, name: group}

    def _put(self, name: str, group: ConsumerGroup, counts: Mapping[str, int]) -> None:
        """With a new target. Where a partition is being asked back, its next member keeps its place."""
        held = {**group.target, **{each: grant.member for each, grant in group.grants.items() if not grant.is_revoked}}
        target = assign({each: member.streams for each, member in group.members.items()}, counts, held)
        grants = {each: grant for each, grant in group.grants.items() if each[1] < counts.get(each[0], 0)}
        self._replace(name, self._granted(ConsumerGroup(group.members, target, grants)))

    def _granted(self, group: ConsumerGroup) -> ConsumerGroup:
        """What is free is granted, what is held by somebody else is revoked (G2)."""
        grants: dict[Partition, Grant] = {}
        for partition in sorted({*group.target, *group.grants}):
            grant, member = group.grants.get(partition), group.target.get(partition)
            if grant is not None:
                grants[partition] = grant._replace(is_revoked=grant.member != member)
            elif member is not None:
                grants[partition] = Grant(member, self._next())
        return replace(group, grants=grants)


def _is_grant(grant: Grant | None, member: str, epoch: int) -> bool:
    return grant is not None and (grant.member, grant.epoch) == (member, epoch)
