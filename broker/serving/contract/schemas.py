"""The shapes of JSON bodies: requests as dataclasses, and all of them as JSON Schema (2020-12), see `openapi.py`.

Answers may get further keys in later releases, so clients must pass over what they do not know; what
clients send is closed: an unknown key is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from broker.api import answers, auth_answers, group_answers, placements, sink_answers
from broker.api.answers import LEADER_EPOCH_MAX, PIN_LENGTH_MAX, LeaderEpoch, Name, Offset, PartitionNumber
from broker.api.errors import BY_REASON
from broker.api.group_polls import GROUP_WAIT_MS_MAX
from broker.api.plain import INT64_MAX
from broker.api.principals import SHA256_PATTERN, TOKEN_ID_PATTERN
from broker.api.stream import LIMITS, NAME_BYTES_MAX, REPLICAS_MAX, UNALTERABLE, StreamSettings
from broker.api.validation import Rule, object_of, shape_of
from broker.metadata.access import GRANTS_MAX
from broker.metadata.groups import MEMBER_STREAMS_MAX, TIMEOUT_MS_LEAST, TIMEOUT_MS_MAX
from broker.metadata.shapes import WORD_PATTERN
from broker.sinks.ledger import NamedStage

Schema = dict[str, Any]

METADATA_LENGTH_MAX: Final = 4096
INCARNATION_LENGTH_MAX: Final = 128
ITEMS_MAX: Final = 10_000
"""Most positions, offsets or partitions in one request."""
PARTS_MAX: Final = 1 << 20
"""Most parts of one stage."""
ATTRIBUTES_MAX: Final = 32
STAGES_MAX: Final = 50_000
"""Most stages of one commit: 200 tasks that write to 64 partitions make 12,800."""
AUDIT_RECORDS_MAX: Final = 64
"""Most records of the audit in one request."""
AUDIT_LENGTH_MAX: Final = 128 << 10
"""Characters of one of them."""

ABSENT: Final = Rule(is_absent=True)

Incarnation = Annotated[str, Rule(limit=(0, INCARNATION_LENGTH_MAX), is_printable=True)]
Metadata = Annotated[str, Rule(limit=(0, METADATA_LENGTH_MAX), is_printable=True)]
StageName = Annotated[str, Rule(pattern="[0-9a-f]{32}", says="must be 32 lower-case hexadecimal digits")]
PartitionNumbers = Annotated[tuple[PartitionNumber, ...], Rule(limit=(1, ITEMS_MAX))]
Principal = Annotated[str, Rule(limit=(1, 160), is_printable=True, doc="user:NAME, svc:NAME or anonymous")]
Owner = Annotated[
    str,
    Rule(
        limit=(1, NAME_BYTES_MAX),
        is_printable=True,
        doc="Name of the run that writes. All of its tasks have it, and no other run",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimestamp:
    """The first record that is not older."""

    timestamp_us: Annotated[int, Rule(limit=(-INT64_MAX, INT64_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOffset:
    """A record's offset."""

    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AtEpoch:
    """The end of a leader epoch."""

    epoch: Annotated[int, Rule(limit=(0, LEADER_EPOCH_MAX))]


End = Literal["earliest", "latest"] | AtTimestamp | AtOffset
At = End | AtEpoch
Before = Literal["latest"] | AtOffset | AtTimestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One position of a request."""

    stream: Name
    partition: PartitionNumber
    at: Annotated[
        At,
        Rule(doc="For a timestamp: the first record that is not older. For an epoch: its end."),
    ]
    incarnation: Annotated[Incarnation | None, ABSENT] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Positions to resolve."""

    positions: Annotated[tuple[Position, ...], Rule(limit=(1, ITEMS_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffset:
    """Where a consumer is: the next offset that it will read."""

    stream: Name
    partition: PartitionNumber
    offset: Offset
    leader_epoch: LeaderEpoch = -1
    incarnation: Incarnation = ""
    metadata: Metadata = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Offsets to store, all or none."""

    offsets: Annotated[tuple[CommitOffset, ...], Rule(limit=(1, ITEMS_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """Where a consumer is moved to. No partitions: all."""

    stream: Name
    to: End
    partitions: Annotated[PartitionNumbers | None, ABSENT] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJoin:
    """A process that is to read its part of some streams."""

    member: Annotated[
        str,
        Rule(
            pattern=WORD_PATTERN,
            says="must be 1 to 64 of A-Z a-z 0-9 _ -, the first a letter or digit",
            doc="Made by the process, and no other one has it. To join again under it changes what is read",
        ),
    ]
    streams: Annotated[tuple[Name, ...], Rule(limit=(1, MEMBER_STREAMS_MAX))]
    timeout_ms: Annotated[
        int,
        Rule(limit=(TIMEOUT_MS_LEAST, TIMEOUT_MS_MAX), doc="After so long without a poll its partitions go to others"),
    ] = 10_000
    instance: Annotated[
        Name | None,
        Rule(is_absent=True, doc="Of a static member: who joins under it takes the place of the former one"),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """A partition that a member holds, and the epoch of its grant."""

    stream: Name
    partition: PartitionNumber
    epoch: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPoll:
    """A sign of life, which waits for news."""

    session: Offset
    version: Annotated[Offset, Rule(limit=(0, INT64_MAX), doc="That was seen; another one is answered at once")] = 0
    wait_ms: Annotated[
        int, Rule(limit=(0, GROUP_WAIT_MS_MAX), doc="At most; a third of the member's timeout is never exceeded")
    ] = 0
    released: Annotated[
        tuple[GroupPlace, ...],
        Rule(limit=(0, ITEMS_MAX), doc="Partitions that the member has stopped to read, and has committed"),
    ] = ()
    instance: Annotated[
        Name | None, Rule(is_absent=True, doc="Under which it has joined: it is told if another process took its place")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLeave:
    """The end of a member. Its partitions go to others at once."""

    session: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFirst:
    """A partition that a member is about to read."""

    stream: Name
    partition: PartitionNumber
    epoch: Offset
    first: Annotated[Offset, Rule(limit=(0, INT64_MAX), doc="Where it begins if the group has never read it")] = 0
    incarnation: Annotated[Incarnation, Rule(doc="Of the stream that `first` was found in; empty: of any")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBegin:
    """Partitions that a member is about to read. From then on nobody commits under earlier epochs."""

    member: Name
    partitions: Annotated[tuple[GroupFirst, ...], Rule(limit=(1, ITEMS_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDone:
    """The records of a partition that are done: those from `start`, where it was, to before `offset`."""

    stream: Name
    partition: PartitionNumber
    epoch: Offset
    start: Offset
    offset: Offset
    incarnation: Incarnation
    leader_epoch: Annotated[int, Rule(limit=(-1, INT64_MAX), doc="Of the record before `offset`; -1: not known")] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """Offsets of a group, each judged by itself."""

    partitions: Annotated[tuple[GroupDone, ...], Rule(limit=(1, ITEMS_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPlaced:
    """A text to keep under a name, in the place of the one that has this version."""

    text: Annotated[str, Rule(limit=(1, PIN_LENGTH_MAX), is_printable=True)]
    version: Annotated[Offset, Rule(limit=(0, INT64_MAX), doc="The one that was seen last; 0: there was none")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceRaised:
    """The next fence of a partition, in the place of the one that has this number."""

    after: Annotated[Offset, Rule(limit=(0, 1 << 62), doc="The one that was seen last; 0: there was none")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnlyState:
    """Whether a stream takes records."""

    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """The records to let go of. No partitions: of all."""

    before: Annotated[
        Before,
        Rule(doc="For a timestamp: the first record that is not older, or the high watermark."),
    ]
    partitions: Annotated[PartitionNumbers | None, ABSENT] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCount:
    """How many partitions there are to be."""

    partitions: Annotated[int, Rule(limit=LIMITS["partitions"])]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerName:
    """Under which name a producer registers, if any."""

    name: Annotated[Name | None, ABSENT] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOpen:
    """The owner that opens a sink."""

    owner: Owner
    one_shot: Annotated[bool, Rule(doc="If this makes the sink, it is for one batch and vanishes with it")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRenew:
    """The owner that lives."""

    owner: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkEnd:
    """The owner whose sink for one batch ends."""

    owner: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedStage(NamedStage):
    """A stage that a commit or an abort names."""

    stream: Name
    partition: PartitionNumber
    stage: StageName
    parts: Annotated[int | None, Rule(limit=(1, PARTS_MAX), is_absent=True)] = None


Stages = Annotated[tuple[AskedStage, ...], Rule(limit=(0, STAGES_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCommit:
    """A batch of a sink."""

    owner: Owner
    epoch: Offset
    batch_id: Offset
    stages: Stages
    rows: Annotated[int, Rule(limit=(0, INT64_MAX), doc="The commit is refused unless the stages hold so many rows")]
    digest: Annotated[
        str,
        Rule(
            limit=(0, METADATA_LENGTH_MAX),
            is_printable=True,
            doc="Digest of the rows, in any order. It is compared with that of a repetition if both have one of the"
            " same kind. The kind is the text before the last `:`",
        ),
    ] = ""
    attributes: Annotated[
        Mapping[str, Metadata],
        Rule(
            limit=(0, ATTRIBUTES_MAX),
            doc="Kept with the decision. If `checkpoint` is not the sink's, the error is `sink_forked`",
        ),
    ] = field(default_factory=dict)
    follows: Annotated[
        int | None,
        Rule(
            limit=(0, INT64_MAX),
            is_absent=True,
            doc="A batch id that the driver knows to be written. If the sink has not come so far, the error is"
            " `sink_batches_missing`",
        ),
    ] = None
    on_repeat_with_other_rows: Annotated[
        Literal["refuse", "keep_first"],
        Rule(
            doc="Applies if this batch id was decided with another number of rows or another digest. `refuse`"
            " (the default) answers `sink_rows_differ`. `keep_first` drops these rows and answers with the decision"
        ),
    ] = "refuse"
    on_new_destination: Annotated[
        Literal["refuse", "accept"],
        Rule(
            doc="Applies if a stream of the stages was deleted and made anew since the sink wrote it. `refuse` (the"
            " default) answers `sink_destination_new`. `accept` goes on with this batch; a batch that was decided"
            " before is not written again"
        ),
    ] = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledPart:
    """A part of a stage in a bundle: the next `rows` rows of the body."""

    partition: PartitionNumber
    stage: StageName
    part: Annotated[int, Rule(limit=(0, PARTS_MAX - 1))]
    last: bool
    rows: Annotated[int, Rule(limit=(0, INT64_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The parts of a bundle."""

    parts: Annotated[tuple[BundledPart, ...], Rule(limit=(1, LIMITS["partitions"][1]))]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedPart:
    """The next `rows` records of the body go to this partition."""

    partition: PartitionNumber
    rows: Annotated[int, Rule(limit=(0, INT64_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendBundle:
    """The parts of a bundle that is appended."""

    parts: Annotated[tuple[AppendedPart, ...], Rule(limit=(1, LIMITS["partitions"][1]))]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkAbort:
    """Stages to drop."""

    stages: Stages


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkReset:
    """The batch that a sink goes on with."""

    next_batch_id: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkAdopt:
    """The checkpoint that a sink is given to."""

    checkpoint: Annotated[str, Rule(limit=(1, METADATA_LENGTH_MAX), is_printable=True)]


BROKERS_NAMED_MAX: Final = 1_000
BrokerIds = Annotated[tuple[Name, ...], Rule(limit=(1, REPLICAS_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """The brokers that are to keep a partition."""

    stream: Name
    partition: Annotated[PartitionNumber | None, Rule(is_absent=True, doc="Absent: all of the stream")] = None
    replicas: Annotated[
        BrokerIds,
        Rule(
            doc="Ids of brokers, the preferred leader first. If a whole stream is moved, each partition begins the list"
            " one broker later"
        ),
    ]
    min_insync_replicas: Annotated[
        int | None, Rule(limit=(1, REPLICAS_MAX), is_absent=True, doc="When they are moved. Absent: as it is")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """Which leaders are elected. Nothing named: of all partitions the preferred replica, where it may lead."""

    stream: Annotated[Name | None, ABSENT] = None
    partition: Annotated[PartitionNumber | None, ABSENT] = None
    unclean: Annotated[
        bool, Rule(doc="For one partition that nobody else may lead: let a replica lead that may lack records")
    ] = False
    broker: Annotated[Name | None, Rule(is_absent=True, doc="Absent: the one with the longest copy")] = None
    accept_loss: Annotated[bool, Rule(doc="False: it is refused, and the error tells what may be lost")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss: records that nobody can read any more."""

    stream: Name
    partition: PartitionNumber
    accept_loss: Annotated[bool, Rule(doc="False: it is refused, and the error tells what is lost")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """How a broker is drained."""

    fewer_replicas: Annotated[bool, Rule(doc="Where no other broker can take its place, have one replica less")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Excuse:
    """The replicas that are given up in a rescue."""

    broker: Name
    stream: Annotated[Name | None, Rule(is_absent=True, doc="Absent: all that the broker may have")] = None
    partition: Annotated[PartitionNumber | None, Rule(is_absent=True, doc="Absent: all of the stream")] = None
    accept_loss: Annotated[bool, Rule(doc="False: it is refused")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RescueEnd:
    """Which brokers there were."""

    brokers: Annotated[
        tuple[Name, ...],
        Rule(limit=(1, BROKERS_NAMED_MAX), doc="All, also those that were excused: the catalog may have lost one"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCheck:
    """Whether an epoch may stage. For brokers."""

    epoch: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SilencesAsked:
    """Owners, each a sink and an epoch. For brokers."""

    owners: Annotated[tuple[tuple[Name, Offset], ...], Rule(limit=(0, STAGES_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesAsked:
    """A coordinator's question about the stages of a partition. For brokers: `what` is no part of the contract."""

    incarnation: Incarnation
    act: Literal["pin", "finish", "abort", "drop", "supersede", "forget", "finished", "sweep", "trim", "live", "held"]
    what: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAsked:
    """A token that its holder has made: `llg_<id>_<256 bits as hex>`."""

    id: Annotated[str, Rule(pattern=TOKEN_ID_PATTERN, says="must be 12 of a-z 2-7")]
    sha256: Annotated[str, Rule(pattern=SHA256_PATTERN, says="must be the SHA-256 of the whole token, in hex")]
    principal: Principal
    expires_ms: Annotated[int, Rule(limit=(0, 1 << 62), doc="Milliseconds since 1970 UTC")]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantAsked:
    """An action, and a name or a prefix with `*`."""

    action: Annotated[str, Rule(limit=(1, 64), is_printable=True)]
    name: Annotated[str, Rule(limit=(0, 512), is_printable=True, doc="Empty where there are no names")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantsAsked:
    """What changes for a principal."""

    principal: Principal
    add: Annotated[tuple[GrantAsked, ...], Rule(limit=(0, GRANTS_MAX))] = ()
    remove: Annotated[tuple[GrantAsked, ...], Rule(limit=(0, GRANTS_MAX))] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessAsked:
    """Whether a principal may do something."""

    principal: Principal
    action: Annotated[str, Rule(limit=(1, 64), is_printable=True)]
    name: Annotated[str, Rule(limit=(0, 512), is_printable=True, doc="Empty where there are no names")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthRequired:
    """Whether every broker is to judge callers, whatever its configuration says."""

    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecordTold:
    """One record of the audit."""

    id: Annotated[str, Rule(pattern="[0-9a-f]{32}", says="must be 32 lower-case hexadecimal digits")]
    key: Annotated[str, Rule(limit=(0, 160), is_printable=True)]
    value: Annotated[str, Rule(limit=(1, AUDIT_LENGTH_MAX))]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTold:
    """Records of the audit, from another broker."""

    records: Annotated[tuple[AuditRecordTold, ...], Rule(limit=(1, AUDIT_RECORDS_MAX))]


def ref(name: str) -> Schema:
    """A reference to a component schema."""
    return {"$ref": f"#/components/schemas/{name}"}


_ANSWERS: Final = {
    answers.PartitionDescription: "Partition",
    answers.StreamDescription: "Stream",
    answers.Streams: "Streams",
    answers.Trimmed: "Trimmed",
    answers.AppendAnswer: "Appended",
    answers.BundleAppended: "BundleAppended",
    answers.FenceAnswer: "Fence",
    answers.ProducerIdentity: "Producer",
    answers.Producers: "Producers",
    answers.Watch: "Watch",
    answers.ResolvedPositions: "Resolved",
    answers.ConsumerLag: "Consumer",
    answers.Consumers: "Consumers",
    answers.OffsetsCommitted: "Committed",
    answers.PinnedText: "Pin",
    group_answers.HeldShare: "Membership",
    group_answers.GroupSteps: "GroupSteps",
    group_answers.GroupDescription: "Group",
    group_answers.GroupList: "Groups",
    sink_answers.SinkDescription: "Sink",
    sink_answers.SinkOpened: "SinkOpened",
    sink_answers.SinkCommitted: "SinkCommitted",
    sink_answers.Sinks: "Sinks",
    sink_answers.Staged: "Staged",
    sink_answers.BundleStaged: "BundleStaged",
    sink_answers.SinkAborted: "SinkAborted",
    sink_answers.SinkRenewed: "SinkRenewed",
    placements.Vote: "Vote",
    placements.ClusterDescription: "Cluster",
    placements.Placement: "Placement",
    placements.Placements: "Placements",
    placements.ReplicaEnds: "ReplicaEnds",
    placements.Elected: "Elected",
    placements.Drained: "Drained",
    placements.GivenUp: "GivenUp",
    placements.RemovedBroker: "RemovedBroker",
    placements.RescuedReplica: "RescuedReplica",
    placements.RescueState: "RescueState",
    placements.RescuedPartition: "RescuedPartition",
    placements.RescueEnded: "RescueEnded",
    auth_answers.WhoAmI: "WhoAmI",
    auth_answers.Tokens: "Tokens",
    auth_answers.Principals: "Principals",
    auth_answers.AccessChanged: "AccessChanged",
    auth_answers.AccessTested: "AccessTested",
    answers.Readiness: "Ready",
    answers.Liveness: "Live",
    answers.Problem: "Problem",
    StreamSettings: "StreamSettings",
}
_REQUESTS: Final = (
    *(ReadOnlyState, Trim, PartitionCount, ProducerName, Positions, Commit, Reset, PinPlaced, FenceRaised),
    *(GroupJoin, GroupPoll, GroupLeave, GroupBegin, GroupCommit),
    *(SinkOpen, SinkRenew, SinkEnd, SinkCommit, Bundle, AppendBundle, SinkAbort, SinkReset, SinkAdopt),
    *(SinkCheck, SilencesAsked, StagesAsked),
    *(TokenAsked, GrantsAsked, AccessAsked, AuthRequired),
    *(Reassignment, Election, Loss, Drain, Excuse, RescueEnd, AuditTold),
)


def _components() -> dict[str, Schema]:
    found = {name: object_of(cls, is_open=True).inline(_ANSWERS) for cls, name in _ANSWERS.items()}
    found |= {cls.__name__: object_of(cls).inline({}) for cls in _REQUESTS}
    settings = found["StreamSettings"]["properties"]
    number = {"type": "integer", "minimum": 1, "maximum": REPLICAS_MAX}
    replication = {
        "replication_factor": {**number, "description": "Brokers of the cluster that keep each partition."},
        "min_insync_replicas": {**number, "description": "So many of them must have a record before it is committed."},
    }
    alterable = {key: schema for key, schema in settings.items() if key not in UNALTERABLE}
    found["CreatedStream"] = {**found["Stream"], "required": [*found["Stream"]["required"], "created"]}
    found["NewStream"] = {
        "type": "object",
        "properties": {"name": shape_of(Name).schema({}), **settings, **replication},
        "required": ["name"],
        "additionalProperties": False,
    }
    found["AlteredSettings"] = {
        "type": "object",
        "properties": {**alterable, **replication},
        "description": "Settings that cannot be altered may be repeated with the value that they have.",
        "minProperties": 1,
    }
    found["StagesAnswer"] = {"type": "object", "description": "As the act has it."}
    found["Problem"]["properties"]["reason"]["enum"] = sorted(BY_REASON)
    found["Problem"]["description"] = (
        "An RFC 9457 problem. Further keys hold the facts: parameter, value, limit, and others."
    )
    return found


COMPONENTS: Final = _components()
