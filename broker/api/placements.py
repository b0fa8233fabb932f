"""Answers about a cluster, who keeps what in it, and what came of an operator's command, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from broker.api.answers import Count, LeaderEpoch, Name, Offset, PartitionNumber
from broker.api.validation import Rule

Health = Literal["ok", "under_replicated", "below_minimum", "offline"]
"""From good to bad: all replicas in sync; some are not; it takes no records; nobody leads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """A broker of the cluster and its addresses. `live`: its session is there, as far as the answering broker knows;
    `stopping`: it is about to stop, and leads nothing. `session_ms`: so long it may lead after it was heard last.
    `auth_mode`: off, permissive or enforce; empty: it has not told it yet."""

    id: str
    http: str
    grpc: str
    live: bool = True
    rack: str = ""
    stopping: bool = False
    session_ms: Count = 2_000
    auth_mode: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A vote in the group that keeps the catalog.

    Attributes:
        valid: The broker has what it acknowledged under this vote. False: its disk was lost since, or it was removed;
            the vote counts in every majority, and nobody can give it, until the controller has taken it away.
        live: Its broker is there, and can give it.
    """

    broker: str
    valid: bool
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The cluster.

    Attributes:
        feature_level: The formats and requests that all brokers of the cluster know.
        controller: Id of the broker that decides about streams; None: there is none now.
        version: Release of the broker that answered.
        voters: Ids of the brokers that keep the catalog, whose vote is valid.
        votes: All votes; a majority of them has to be there to change anything.
        answered_by: Id of the broker that answered: it is all as that one knows.
        auth_required: Every broker judges callers, whatever its auth.mode says (`liftlog auth require`).
    """

    cluster_id: str
    feature_level: int
    controller: str | None
    version: str
    brokers: tuple[BrokerDescription, ...]
    voters: tuple[str, ...] = ()
    votes: tuple[Vote, ...] = ()
    answered_by: str = ""
    auth_required: bool = False

    @property
    def votes_needed(self) -> int:
        """A majority."""
        return len(self.votes) // 2 + 1

    @property
    def votes_there(self) -> int:
        """Those that can be given now."""
        return sum(vote.valid and vote.live for vote in self.votes)

    @property
    def votes_to_spare(self) -> int:
        """So many more brokers may go, or lose their disk, before nothing can be decided. Below 0: it is so now."""
        return self.votes_there - self.votes_needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One partition as the catalog has it.

    Attributes:
        replicas: The preferred leader first. While replicas are moved: the former ones and the coming ones.
        isr: Those in sync.
        last_isr: Left the ISR while fewer than the minimum remained: they may lead if nobody of the ISR is there.
        target: `replicas` will be these when all of them are in sync; None: nothing is moved.
        unclean_epoch: The last epoch whose leader was chosen although it may lack committed records; 0: none.
    """

    stream: Name
    partition: PartitionNumber
    leader: str | None
    leader_epoch: LeaderEpoch
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    last_isr: tuple[str, ...] = ()
    min_insync_replicas: int = 1
    target: tuple[str, ...] | None = None
    unclean_epoch: Annotated[int, Rule(limit=(0, (1 << 32) - 1))] = 0

    @property
    def health(self) -> Health:
        """How it is."""
        if self.leader is None:
            return "offline"
        if len(self.isr) < self.min_insync_replicas:
            return "below_minimum"
        wanted = self.replicas if self.target is None else self.target
        return "ok" if set(wanted) <= set(self.isr) else "under_replicated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placements:
    """Partitions, by stream and number. `answered_by`: the broker whose catalog it is."""

    partitions: tuple[Placement, ...]
    answered_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaEnd:
    """Where one broker's copy of a partition ends.

    Attributes:
        last_epoch: The leader epoch of its last record; -1: it has none.
        log_end_offset: The offset behind it. The copy with the greater (last_epoch, log_end_offset) has more.
        is_interrupted: Whether it ends amid a copy of a compacted log: keys may be missing in it whose newer records
            come behind its end.
    """

    broker: str
    stream: Name
    partition: PartitionNumber
    last_epoch: LeaderEpoch
    log_end_offset: Offset
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaEnds:
    """Copies of partitions."""

    replicas: tuple[ReplicaEnd, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Elected:
    """The result of an election.

    Attributes:
        moved: The partitions that have another leader, as they are now.
        passed: Those that were asked for and stay: their preferred replica leads already, or may not lead now.
    """

    moved: tuple[Placement, ...]
    passed: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """The ranges of a damaged partition that were given up.

    Attributes:
        ranges: Offsets [start, end) that hold no record any more.
        aside: The folder of the leader in which the bytes are kept until all replicas are in sync.
    """

    stream: Name
    partition: PartitionNumber
    leader: str
    ranges: tuple[tuple[Offset, Offset], ...]
    aside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """The replicas that a broker still keeps, after they were told to move.

    Attributes:
        moving: Partitions that others are taking over. Done when there are none: ask again.
        stuck: Those that cannot move: nobody but this broker could give their records to another one.
    """

    broker: str
    moving: tuple[Placement, ...]
    stuck: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedBroker:
    """A broker that belongs to the cluster no more."""

    removed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RescuedReplica:
    """One broker's possible copy of a partition. `stream`: its name, or the incarnation of one that nobody knows."""

    broker: str
    stream: Name
    partition: PartitionNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class RescueState:
    """How far a rescue is.

    Attributes:
        rescue: Its number; None: none is under way.
        partitions: So many it has to decide about.
        reported: The brokers that have said where their logs end.
        excused: Brokers that are given up as a whole. excused_replicas: And single replicas.
        missing: The brokers that have neither reported nor been excused.
        missing_replicas: Replicas that the catalog knows, and that their broker did not report.
    """

    rescue: int | None
    partitions: Count = 0
    reported: tuple[str, ...] = ()
    excused: tuple[str, ...] = ()
    excused_replicas: tuple[RescuedReplica, ...] = ()
    missing: tuple[str, ...] = ()
    missing_replicas: tuple[RescuedReplica, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RescuedPartition:
    """The decision of a rescue on one partition.

    Attributes:
        leader: None: the chosen one does not live now, or nobody has a log.
        log_end_offset: Where the log ends that goes on; 0: nobody has one.
        is_lost: Nobody has a log. is_whole: every replica that the catalog knew has reported, so no committed record is
            lost.
    """

    stream: Name
    partition: PartitionNumber
    leader: str | None
    log_end_offset: Offset
    is_lost: bool
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RescueEnded:
    """The outcome of a rescue. `unknown`: logs that the catalog does not know; their brokers keep them, unused."""

    rescue: int
    partitions: tuple[RescuedPartition, ...]
    unknown: tuple[RescuedReplica, ...] = ()
