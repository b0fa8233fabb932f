"""Events that tell the core of a leader what has happened, and effects that it wants done.

Offsets are half-open: an `end` is the first offset that is not in it. Brokers are names. A *generation* counts the
leaderships and recoveries of a replica: what began in an earlier one speaks of a log that may be another by now.

Classes of which each append makes one are not frozen: a frozen one takes four times as long. Nobody changes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from broker.replication.messages import NO_INCARNATION, AskEnd, AskRange, AskState, Fetch, Incarnation, Reply

Ticket = Any
"""The driver's handle for somebody who waits. The core only hands it back."""


class Acks(Enum):
    """The moment that a ticket waits for."""

    ALL = auto()  # committed: the high watermark is past it
    LEADER = auto()  # durable on the leader's own disk
    OWN = auto()  # the same moment, for what a broker counts for itself: no client is told


class Outcome(Enum):
    """The fate of the records that a ticket waits for."""

    STORED = auto()  # they are as safe as was asked for
    FAILED = auto()  # the fsync failed: they may be lost
    UNSURE = auto()  # the log had to recover: they may be lost
    DEPOSED = auto()  # another broker leads: it knows
    CLOSED = auto()  # the partition is no more


# -- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """This replica leads from now on.

    Attributes:
        epoch: Greater than any before.
        replicas: All that are assigned; `me` is among them.
        isr, partition_epoch: As the catalog has them; `me` is in sync.
        min_insync_replicas: As the same state has it; None: as `Altered` has it.
        high_watermark, durable_end, log_end: As its log has them, whose last group is whole.
        group_ends: Ends of the commit groups beyond the high watermark, in order; the last is the log end.
        log_start: As its checkpoint has it.
    """

    epoch: int
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    partition_epoch: int
    high_watermark: int
    durable_end: int
    log_end: int
    group_ends: tuple[int, ...] = ()
    log_start: int = 0
    min_insync_replicas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deposed:
    """Another replica leads, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """Settings of the stream.

    Attributes:
        min_insync_replicas: Where the state that names the members says none (`leader.L8`).
        fsync_each_batch: Otherwise "appended" counts for "durable" on the leader.
        fsync_interval_ms: How long appended records may stay without fsync then.
    """

    min_insync_replicas: int
    fsync_each_batch: bool
    fsync_interval_ms: int


@dataclass(slots=True)
class Appended:
    """Records [first, next) are in the log; or a repeat of some was found there.

    Attributes:
        group_ends: Ends of the commit groups that were written; none for a repeat.
        awaited: Tickets, and what they wait for. A repeat waits for `ALL`: the first try may have promised it.
        durable_end: The log's, if it was synced in the same breath, with the caller's lock held; -1: it was not.
    """

    first: int
    next: int
    group_ends: tuple[int, ...]
    awaited: tuple[tuple[Ticket, Acks], ...]
    durable_end: int = -1


@dataclass(frozen=True, slots=True)
class Synced:
    """A sync that was begun in `generation` has ended well."""

    generation: int
    durable_end: int


@dataclass(frozen=True, slots=True)
class SyncFailed:
    """A sync that was begun in `generation` has failed, and with it the log. `error` goes to who waits."""

    generation: int
    error: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The sole replica's log failed, and is well again: it holds [.., log_end), of which durable_end is durable."""

    durable_end: int
    log_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchArrived:
    """A follower fetches.

    Attributes:
        epoch_before: Leader epoch of the record before `fetch.offset` in this log; -1: there is none, or not any more.
        log_start: Where the batch begins that holds the start of this log: who begins anew begins there, since stored
            batches are appended whole.
        start_epoch: Leader epoch of the record before that; -1: not known.
        rewritten_to, state_offset: As in `messages.Records`. The latter is for a follower without a state file: one at
            or above `Leader.state_from` of its log start, which tells of nothing beyond its durable end.
        batch_start, batch_epoch: Where the stored batch begins that `fetch.offset` lies within, and the leader epoch of
            the record before that; -1: none, one begins there or is yet to come. None is joined above the high
            watermark, so there is nothing to look up for who fetches there.
        compacted_to, waits_to: This log's, as in `messages.Fetch`.
    """

    fetch: Fetch
    epoch_before: int
    log_start: int = 0
    start_epoch: int = -1
    rewritten_to: int = 0
    state_offset: int = -1
    batch_start: int = -1
    batch_epoch: int = -1
    compacted_to: int = 0
    waits_to: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAsked:
    """A follower asks for the end of an epoch. The other attributes are those of `messages.End`, from this log."""

    ask: AskEnd
    found_epoch: int
    end: int
    log_start: int = 0
    start_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAsked:
    """A follower asks for a piece of a state file. `length`: of the piece that there is; `size`: 0: no such file."""

    ask: AskState
    length: int
    size: int


@dataclass(frozen=True, slots=True)
class RangeAsked:
    """A replica that is damaged asks for a range, and has lowered its mark of compaction before."""

    ask: AskRange


@dataclass(frozen=True, slots=True)
class TrimAsked:
    """The log is to start at `start`, which is committed."""

    start: int
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class TrimRefused:
    """The disk of this log refuses to let go of anything now. `error`: why."""

    error: Any


@dataclass(frozen=True, slots=True)
class StartMoved:
    """This log's checkpoint says that it starts here."""

    log_start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrAnswered:
    """The catalog says who is in sync, by itself or as an answer.

    Attributes:
        epoch: Epoch of the leadership that this is said to.
        min_insync_replicas: As the same state has it; None: as before. (With the new members and the old minimum too
            few would commit what a member of the last ISR does not have.)
        request: Number of the `AskIsr` of this leadership that is answered; None: none is. (One of an earlier
            leadership may have the same number.)
    """

    epoch: int
    partition_epoch: int
    isr: tuple[str, ...]
    request: int | None = None
    min_insync_replicas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """So late it is, in milliseconds since whenever; never earlier than before."""

    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The partition is deleted."""


Event = (
    Led
    | Deposed
    | Altered
    | Appended
    | Synced
    | SyncFailed
    | Recovered
    | FetchArrived
    | EndAsked
    | StateAsked
    | RangeAsked
    | TrimAsked
    | TrimRefused
    | StartMoved
    | IsrAnswered
    | Tick
    | Closed
)


# -- effects --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sync:
    """Fsync the log; then say `Synced` or `SyncFailed` with this generation. No other is begun before."""

    generation: int


@dataclass(slots=True)
class Commit:
    """Records below this are committed: readers may have them."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class Wake:
    """Tell all who wait for news of the partition to look."""


@dataclass(slots=True)
class Answer:
    """Tell who waits. `error`: of the fsync that failed."""

    ticket: Ticket
    outcome: Outcome
    error: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskIsr:
    """Ask the catalog to add or to remove one in-sync replica, if all of this is still so.

    Attributes:
        request: To be answered with; the same question may be asked again under it.
        epoch, partition_epoch: Those of the state that is to be changed.
        incarnation: The added replica's, as its fetch had it.
    """

    request: int
    epoch: int
    partition_epoch: int
    add: str | None = None
    remove: str | None = None
    incarnation: Incarnation = NO_INCARNATION


@dataclass(frozen=True, slots=True)
class StepOut:
    """Ask the catalog for another incarnation of this replica: nobody may rely on its log before it has caught up."""


@dataclass(frozen=True, slots=True)
class Send:
    """Tell another replica. With `Records` go the stored bytes from its offset on, as many as there are and fit; with
    `State` go those of the file."""

    to: str
    message: Reply


@dataclass(frozen=True, slots=True)
class Trim:
    """Let the log start here, in its checkpoint first; then say `StartMoved`."""

    start: int


Effect = Sync | Commit | Wake | Answer | AskIsr | StepOut | Send | Trim
