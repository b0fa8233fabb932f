"""The answers of brokers about consumer groups, as `answers.py` has the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from broker.api.answers import Count, Name, PartitionNumber
from broker.api.plain import INT64_MAX
from broker.api.validation import Rule

MaybeOffset = Annotated[int | None, Rule(limit=(0, INT64_MAX))]
MaybeEpoch = Annotated[int | None, Rule(limit=(-1, INT64_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPartition:
    """A partition that a member may read.

    Attributes:
        epoch: Of this grant: a begin and each commit name it.
        is_revoked: It is asked back: commit what was done, stop, and release it.
    """

    stream: Name
    partition: PartitionNumber
    epoch: Count
    is_revoked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShare:
    """What a member of a group may read now.

    Attributes:
        session: Of this membership: each poll names it.
        version: Of the group: the next poll waits for another one. One that is lower than what was seen is of a broker
            that is behind: pass it over.
    """

    group: Name
    member: Name
    session: Count
    version: Count
    timeout_ms: Count
    partitions: tuple[HeldPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStep:
    """A begin or a commit of one partition.

    Attributes:
        offset: The next one to be read, durable. None: it failed.
        incarnation: Of the stream; empty: it failed.
        leader_epoch: Of the record before `offset`, as the group read it; -1: not known. None: it failed, or a broker
            of the cluster is of a release that cannot keep it: then commit none.
        error: A problem; None: it is done.
    """

    stream: Name
    partition: PartitionNumber
    epoch: Count
    offset: MaybeOffset
    incarnation: str = ""
    leader_epoch: MaybeEpoch = None
    error: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSteps:
    """In the order asked."""

    partitions: tuple[GroupStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group, as others see it. `instance`: of a static member; empty: it is none."""

    member: Name
    instance: str
    streams: tuple[str, ...]
    timeout_ms: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPartition:
    """A partition that a group reads, or has read.

    Attributes:
        member: Who may read it; None: nobody.
        offset: The next one to be read; None: nobody has begun.
        lag: Records that are not done yet; None: nobody has begun, or its end is not known now.
        behind_ms: Age of the first of them.
    """

    stream: Name
    partition: PartitionNumber
    member: str | None
    epoch: Count
    is_revoked: bool
    offset: MaybeOffset
    high_watermark: MaybeOffset
    lag: MaybeOffset
    behind_ms: MaybeOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group, its members, and how far it is. `lag`: of all its partitions whose lag is known."""

    group: Name
    members: tuple[GroupMember, ...]
    partitions: tuple[GroupPartition, ...]
    lag: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBrief:
    """A group, in short: how many members it has, and how many partitions they hold."""

    group: Name
    members: Count
    partitions: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """All groups, by name."""

    groups: tuple[GroupBrief, ...]
