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
G7  Each change of a group has a number of the same counter (`version`). A member that has seen a later one passes over
    what a broker says that is behind.
G8  A group without members is fenced: that takes an epoch, as a grant does. Who is granted anything later has a greater
    one, and who was before a smaller one. So a reset or a removal of its offsets has its place among their commits.
G9  No number is below `floor`, which the catalog raises with the registrations of brokers. A catalog that has lost its
    last commands, or was put back from a copy, gives none out a second time. Then all members end (`end_all`), and join
    again: the log may know later epochs than their grants have, and would fence them for good.
G10  Everything is decided in sorted order: a catalog that was restored goes on as the one that made the snapshot.
G11  `last` is told once `named` has all that has a number up to there: a reader on another thread, which looks at
    `last` first, does not take what is half done for a refusal.
G12  A member is told what concerns it: in most changes of a large group it is neither the one that gives nor the one
    that gets. When that was last (`ConsumerGroup.news`) is no part of the state: a catalog that was restored tells each
    member once more.
G13  What a stream has more of while a group reads it is `added`: a partition, or all of them, if it was made anew. All
    that is in it came after the group did. That is known while the group has members that read the stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from broker.api.errors import GroupInUse, InvalidRequest, UnknownGroup, UnknownMember
from broker.metadata.assignment import Partition, assign

GROUPS_MAX: Final = 2_000
MEMBERS_MAX: Final = 256
"""Of one group."""
MEMBERS_ALL_MAX: Final = 20_000
"""Of all groups."""
MEMBER_STREAMS_MAX: Final = 64
TIMEOUT_MS_LEAST: Final = 2_000
TIMEOUT_MS_MAX: Final = 3_600_000
GROUP_PARTITIONS_ALL_MAX: Final = 100_000
"""Which all groups read, counted for each."""
GROUP_PARTITIONS_MAX: Final = 2_048
"""Which a group reads when a member joins. Each that a member gives up to another one is a step of the assignment."""


def change_key(group: str, member: str) -> tuple[str, str, str]:
    """What is watched by whoever waits for news of one member (G12). No stream has such a name."""
    return "group", group, member


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
    """A group at one time. It is replaced, never changed: a reader on another thread keeps what it has.

    Attributes:
        version: G7.
        added: G13.
        news: When a member's own share, or how it is a member, changed last, as a version: G12.
        told: Whom the last change concerned, also those who are members no more.
    """

    members: Mapping[str, Member] = field(default_factory=dict)
    target: Mapping[Partition, str] = field(default_factory=dict)
    grants: Mapping[Partition, Grant] = field(default_factory=dict)
    version: int = 0
    added: frozenset[Partition] = frozenset()
    news: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    told: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def has_news(self, member: str, seen: int) -> bool:
        """Whether a member that has seen a version has something else than then (G12)."""
        return self.news.get(member, self.version) > seen

    def of(self, member: str) -> dict[Partition, Grant]:
        """What a member holds."""
        return {partition: grant for partition, grant in self.grants.items() if grant.member == member}

    def is_member(self, member: str, session: int) -> bool:
        """Whether it is one, in this session."""
        known = self.members.get(member)
        return known is not None and known.session == session

    def checked(self, member: str, session: int) -> Member:
        """A member. Raises UnknownMember: it is none in this session."""
        if not self.is_member(member, session):
            raise UnknownMember(f"{member!r} is no member any more: join again", member=member)
        return self.members[member]

    @property
    def streams(self) -> set[str]:
        """That members read, or that are still held."""
        read = {name for member in self.members.values() for name in member.streams}
        return read | {name for name, _ in self.grants}


_NONE: Final = ConsumerGroup()


@dataclass(slots=True)
class Groups:
    """See the module.

    Attributes:
        last: The newest number of all epochs, sessions and versions (G11).
        floor: G9. It is no part of the state.
    """

    last: int = 0
    named: Mapping[str, ConsumerGroup] = field(default_factory=dict)
    floor: int = field(default=0, compare=False, repr=False)
    _count: int = field(init=False, compare=False, repr=False)
    _totals: tuple[int, int] = field(init=False, compare=False, repr=False)  # members and partitions of all

    def __post_init__(self) -> None:
        self._count = self.last
        sizes = [_size(group) for group in self.named.values()]
        self._totals = sum(each[0] for each in sizes), sum(each[1] for each in sizes)

    def copy(self) -> Groups:
        """Another one with the same content."""
        found = Groups(self.last, {}, self.floor)
        found.named, found._totals = self.named, self._totals
        return found

    def get(self, name: str) -> ConsumerGroup:
        """One of them. Raises UnknownGroup."""
        group = self.named.get(name)
        if group is None:
            raise UnknownGroup(f"no group {name!r}", group=name)
        return group

    @property
    def member_count(self) -> int:
        """Of all groups."""
        return self._totals[0]

    def told(self, name: str) -> list[tuple[str, str, str]]:
        """Whom the last change of a group concerned, as keys that are watched (G12)."""
        return [change_key(name, member) for member in self.named.get(name, _NONE).told]

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
        Raises:
            InvalidRequest: there would be too many of something: `limit`.
        """
        group = self.named.get(name) or ConsumerGroup()
        self._check_room(name, group, member, {*streams}, counts)
        members, grants = dict(group.members), dict(group.grants)
        former = next((each for each, kept in members.items() if instance and kept.instance == instance), None)
        known = members.get(member)
        session = self._next() if known is None else known.session
        target = dict(group.target)
        if former is not None and former != member:  # G4
            del members[former]
            target = {partition: member if each == former else each for partition, each in target.items()}
            for partition, grant in sorted(grants.items()):  # G10
                if grant.member == former:
                    grants[partition] = grant._replace(member=member, epoch=self._next())
        members[member] = Member(session, tuple(sorted(set(streams))), timeout_ms, instance)
        self._put(name, replace(group, members=members, target=target, grants=grants), counts)
        self.last = self._count
        return session

    def end(self, name: str, members: Mapping[str, int], counts: Mapping[str, int]) -> list[str]:
        """Members have left, or have expired. Returns those that were still there (G5). They are one change: what they
        had is assigned once, however many they are."""
        group = self.named.get(name, ConsumerGroup())
        ended = sorted(each for each, session in members.items() if group.is_member(each, session))
        if ended:
            rest = {each: kept for each, kept in group.members.items() if each not in ended}
            grants = {partition: grant for partition, grant in group.grants.items() if grant.member in rest}
            self._put(name, replace(group, members=rest, grants=grants), counts)
            self.last = self._count
        return ended

    def end_all(self) -> None:
        """All members of all groups end (G9)."""
        for name in sorted(self.named):
            self._replace(name, ConsumerGroup())
        self.last = self._count

    def release(self, name: str, member: str, released: Mapping[Partition, int]) -> None:
        """A member has stopped to read these, whose grants had these epochs, and has committed what it did (G3)."""
        group = self.named.get(name)
        if group is None:
            return
        freed = {each for each, epoch in released.items() if _is_grant(group.grants.get(each), member, epoch)}
        if freed:
            grants = {partition: grant for partition, grant in group.grants.items() if partition not in freed}
            self._replace(name, self._granted(replace(group, grants=grants)))
        self.last = self._count

    def fit(self, counts: Mapping[str, int], stream: str | None = None, *, notes_added: bool = True) -> None:
        """A stream has come or gone, or has other partitions. None: it may be any. `notes_added`: G13."""
        for name, group in sorted(self.named.items()):  # G10
            if stream is None or stream in group.streams:
                self._put(name, group, counts, notes_added=notes_added)
        self.last = self._count

    def fence(self, name: str, *, forget: bool) -> int:
        """Give out the epoch under which the offsets of a group are reset, or go with it (G8).

        Raises:
            GroupInUse: it has members.
        """
        if self.named.get(name, ConsumerGroup()).members:
            raise GroupInUse(f"group {name!r} has members: stop them first", group=name)
        if forget:
            self._count_size(name, None)
            self.named = {each: kept for each, kept in self.named.items() if each != name}
        self.last = self._next()
        return self.last

    def snapshot(self) -> dict[str, Any]:
        """All of it as JSON values; nothing, if there was never any."""
        if not self.last:
            return {}
        named = [
            {
                "name": name,
                "version": group.version,
                "members": [[each, *member] for each, member in sorted(group.members.items())],
                "target": [[*at, member] for at, member in sorted(group.target.items())],
                "grants": [[*at, *grant] for at, grant in sorted(group.grants.items())],
                **({"added": [[*at] for at in sorted(group.added)]} if group.added else {}),
            }
            for name, group in sorted(self.named.items())
        ]
        return {"groups": {"last": self.last, "named": named}}

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> Groups:
        """What `snapshot` described; of before there was any: nothing."""
        kept = snapshot.get("groups", {"last": 0, "named": []})
        return cls(
            kept["last"],
            {
                each["name"]: ConsumerGroup(
                    members={
                        name: Member(session, tuple(streams), timeout_ms, instance)
                        for name, session, streams, timeout_ms, instance in each["members"]
                    },
                    target={(stream, number): member for stream, number, member in each["target"]},
                    grants={(stream, number): Grant(*grant) for stream, number, *grant in each["grants"]},
                    version=each["version"],
                    added=frozenset((stream, number) for stream, number in each.get("added", ())),
                )
                for each in kept["named"]
            },
        )

    def _check_room(
        self, name: str, group: ConsumerGroup, member: str, streams: set[str], counts: Mapping[str, int]
    ) -> None:
        is_new = member not in group.members
        partitions = sum(counts.get(each, 0) for each in group.streams | streams)
        for is_full, what, limit in (
            (name not in self.named and len(self.named) >= GROUPS_MAX, "groups", GROUPS_MAX),
            (is_new and len(group.members) >= MEMBERS_MAX, "members of a group", MEMBERS_MAX),
            (
                is_new and self._totals[0] >= MEMBERS_ALL_MAX,
                "members of all groups",
                MEMBERS_ALL_MAX,
            ),
            (len(streams) > MEMBER_STREAMS_MAX, "streams of a member", MEMBER_STREAMS_MAX),
            (partitions > GROUP_PARTITIONS_MAX, "partitions of a group", GROUP_PARTITIONS_MAX),
            (
                partitions + self._totals[1] - len(group.target) > GROUP_PARTITIONS_ALL_MAX,
                "partitions of all groups",
                GROUP_PARTITIONS_ALL_MAX,
            ),
        ):
            if is_full:
                help_text = ": delete groups that nobody reads by any more" if what == "groups" else ""
                raise InvalidRequest(f"{limit} {what} are the limit{help_text}", limit=limit)

    def _next(self) -> int:
        self._count = max(self._count, self.floor) + 1
        return self._count

    def _replace(self, name: str, group: ConsumerGroup) -> None:
        self._count_size(name, group)
        self.named = {**self.named, name: _with_news(self.named.get(name, _NONE), group, self._next())}

    def _count_size(self, name: str, group: ConsumerGroup | None) -> None:
        """So that a join among thousands of groups does not count them all."""
        members, partitions = _size(group)
        former_members, former_partitions = _size(self.named.get(name))
        self._totals = self._totals[0] + members - former_members, self._totals[1] + partitions - former_partitions

    def _put(self, name: str, group: ConsumerGroup, counts: Mapping[str, int], *, notes_added: bool = False) -> None:
        """With a new target. Where a partition is being asked back, its next member keeps its place. `notes_added`: who
        reads what is the same as before (G13)."""
        held = {**group.target, **{each: grant.member for each, grant in group.grants.items() if not grant.is_revoked}}
        target = assign({each: member.streams for each, member in group.members.items()}, counts, held)
        grants = {each: grant for each, grant in group.grants.items() if each[1] < counts.get(each[0], 0)}
        added = group.added | (target.keys() - group.target.keys()) if notes_added else group.added
        kept = replace(group, target=target, grants=grants, added=frozenset(added & target.keys()))
        self._replace(name, self._granted(kept))

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


def _with_news(former: ConsumerGroup, group: ConsumerGroup, version: int) -> ConsumerGroup:
    """A group in the place of the one that it was (G12)."""
    told = {each for each in {*former.members, *group.members} if former.members.get(each) != group.members.get(each)}
    for at in {*former.grants, *group.grants}:
        pair = former.grants.get(at), group.grants.get(at)
        if pair[0] != pair[1]:
            told.update(grant.member for grant in pair if grant is not None)
    news = {each: version if each in told else former.news.get(each, former.version) for each in group.members}
    return replace(group, version=version, news=news, told=frozenset(told))


def _size(group: ConsumerGroup | None) -> tuple[int, int]:
    return (0, 0) if group is None else (len(group.members), len(group.target))


def _is_grant(grant: Grant | None, member: str, epoch: int) -> bool:
    return grant is not None and (grant.member, grant.epoch) == (member, epoch)
