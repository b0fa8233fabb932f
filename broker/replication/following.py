"""Events that tell the core of a follower what has happened, and effects that it wants done. (Leader: `events`.)"""

from __future__ import annotations

from dataclasses import dataclass

from broker.replication.events import Commit, StepOut, Sync, Synced, SyncFailed, Tick
from broker.replication.messages import AskEnd, AskState, Fetch, Incarnation, Reply

# -- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """The log's contents: as an event, after it was cut, reset, or records were appended to it.

    Attributes:
        log_start: As its checkpoint has it.
        durable_end: So far it is fsynced.
        last_epoch: Leader epoch of the last record, or of the one before an empty log; -1: not known.
        group_end: Where its last whole commit group ends; at least the high watermark.
        is_refused: The disk took nothing, or not all, and may later.
        lacks_state: There is no state file, and records below may have been told of what no record tells any more.
        compacted_to, waits_to, lacks_room: As in `messages.Fetch`.
        superseded_to, superseded_epoch: As in `messages.Records`; the former may be above the log end.
    """

    log_start: int
    log_end: int
    durable_end: int
    last_epoch: int
    high_watermark: int
    group_end: int
    is_refused: bool = False
    lacks_state: bool = False
    compacted_to: int = 0
    waits_to: int = 0
    lacks_room: bool = False
    superseded_to: int = 0
    superseded_epoch: int = -1


@dataclass(frozen=True, slots=True)
class RoomFound:
    """The disk that refused records has room for them again."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A pass of compaction has ended, or has found that tombstones wait: `compacted_to`, `waits_to` as in `Holds`."""

    compacted_to: int
    waits_to: int


@dataclass(frozen=True, slots=True)
class StateTaken:
    """A piece of a state file was taken, or dropped: does the log lack one still?"""

    lacks_state: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """This replica follows `leader` from now on, under this incarnation of its own."""

    epoch: int
    leader: str
    incarnation: Incarnation
    log: Holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfollowed:
    """There is nobody to follow: this replica leads, has stepped out, or nobody leads."""


@dataclass(frozen=True, slots=True)
class Replied:
    """The leader has replied.

    Attributes:
        own_end: For `End`: the first offset of this log after the records of `found_epoch` and earlier ones.
    """

    message: Reply
    own_end: int = 0


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The leader cannot be asked: nobody listens there."""


Event = (
    Followed
    | Unfollowed
    | Holds
    | RoomFound
    | Compacted
    | StateTaken
    | Replied
    | Unreachable
    | Synced
    | SyncFailed
    | Tick
)


# -- effects --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the leader."""

    to: str
    message: Fetch | AskEnd | AskState


@dataclass(frozen=True, slots=True)
class Append:
    """Append the bytes that came with the answer, under this epoch; then say what the log `Holds`.

    `is_rewritten`: not all may be there that was stored once. Before, the log forgets its tables and state files.
    `superseded_to`, `superseded_epoch`: Before, the log writes down that mark (`follower.F12`).
    """

    epoch: int
    is_rewritten: bool = False
    superseded_to: int = 0
    superseded_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TakeState:
    """Take the bytes that came with the answer: bytes from `at` on of a state file; then say `StateTaken`.

    With the last one the file is checked, and written as a whole, durably, or dropped.
    """

    offset: int
    at: int
    size: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log here, or further down to where a stored batch and its commit group end; then say what it `Holds`.

    `is_copied_again`: from a log that has all of it. Otherwise the log refuses a cut below its mark as it is by now.
    """

    to: int
    is_copied_again: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """Begin the log anew at `to`; then say what it `Holds`."""

    to: int
    last_epoch: int


@dataclass(frozen=True, slots=True)
class StartAt:
    """Let the log start here, as the leader's does; then say what it `Holds`."""

    log_start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Tell the controller that the leader of this epoch does not answer."""

    leader: str
    epoch: int


Effect = Ask | Append | TakeState | Truncate | Reset | StartAt | Report | Commit | Sync | StepOut
