"""Messages between the replicas of a partition. The records themselves travel beside these, as stored bytes.

    follower                                   leader
       | -- AskEnd(last epoch) ------------------> |     where does my last epoch end with you?
       | <-- End(epoch, end) --------------------- |     cut there, and ask again until both agree
       | -- Fetch(log end, last epoch, durable) -> |     what comes next? So far I have fsynced
       | <-- Records(offset, HW, start) + bytes -- |
   | <-- Inside(offset, batch start) --------- |     your log ends within a batch of mine: cut to its start
   | -- AskState(offset, from byte) ---------> |     who begins anew lacks what the records do not tell
   | <-- State(offset, from byte) + bytes ---- |

    a damaged replica                          any other replica
       | -- AskRange(start, end) --------------> |     what stood there cannot be read here
       | <-- HeldRange(start, end) + bytes ----- |     these batches hold that part of it; or none

Each question names the leader epoch that its follower knows, and the incarnation of that replica. Each answer repeats
both, so that an answer to another life of the follower is known as such. Messages may be lost, late, doubled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Incarnation = tuple[int, int]
"""A replica's: that of its broker, and how often it has stepped out. A later one is greater."""
NO_INCARNATION: Final[Incarnation] = (-1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A follower wants what comes after its log.

    Attributes:
        offset: Its log end.
        last_epoch: Leader epoch of its last record; -1: not known.
        durable_end: So far it has fsynced. This alone acknowledges.
        log_start: That of its checkpoint.
        lacks_state: Its log has no state file, and is to have one before it counts.
        number: Counts the fetches of this incarnation: what a later one says holds, whichever comes first.
        compacted_to: Its mark of compaction: below it no key stands twice in its log.
        waits_to: Tombstones below it have had their time in its log, and wait for the marks of others; 0: none.
        lacks_room: Its disk has refused records, and has no room for them still: none are to be sent.
    """

    follower: str
    incarnation: Incarnation
    epoch: int
    offset: int
    last_epoch: int
    durable_end: int
    log_start: int
    lacks_state: bool = False
    number: int = 0
    compacted_to: int = 0
    waits_to: int = 0
    lacks_room: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskEnd:
    """A follower wants to know where its last epoch ends in the leader's log. `request`: to be answered with."""

    follower: str
    incarnation: Incarnation
    epoch: int
    request: int
    last_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Stored records from `offset` on come with this, or none.

    Attributes:
        log_start: As the leader's checkpoint has it.
        rewritten_to: Below it the leader may lack records that its state file tells of.
        state_offset: Offset of a state file that a follower without one may ask for; -1: there is none.
        number: Number of the fetch that this answers.
        tombstones_below: So far tombstones may go: the least mark of compaction of all assigned replicas.
        compact_to: A tombstone waits, here or elsewhere, until all have compacted so far; 0: none does.
        superseded_to: Records may be missing in the leader's log for newer ones that stand below this offset.
        superseded_epoch: Leader epoch of the record before it; -1: not known.
    """

    epoch: int
    incarnation: Incarnation
    offset: int
    high_watermark: int
    log_start: int
    rewritten_to: int = 0
    state_offset: int = -1
    number: int = 0
    tombstones_below: int = 0
    compact_to: int = 0
    superseded_to: int = 0
    superseded_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The offset that the follower fetches lies within a batch that the leader has joined: it has no bytes for it.

    Attributes:
        offset, number: The fetch's.
        batch_start: Where that batch begins.
        start_epoch: Leader epoch of the record before that; -1: not known.
    """

    epoch: int
    incarnation: Incarnation
    offset: int
    number: int
    batch_start: int
    start_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskState:
    """A follower wants a piece of the state file of `offset`, from byte `at` on."""

    follower: str
    incarnation: Incarnation
    epoch: int
    offset: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Bytes [at, at + length) of the state file of `offset` come with this; `size`: of the file, 0: it is gone."""

    epoch: int
    incarnation: Incarnation
    offset: int
    at: int
    length: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRange:
    """A replica wants stored batches that hold [start, end): it cannot read what stood there in its log. It leads,
    follows or rests; so does whoever is asked.

    Attributes:
        request: To be answered with.
        compacted_to: Its mark of compaction, which is not above `start` any more.
        number: Of the last fetch of this incarnation, of which the mark may have been a greater one; 0: there was none.
        takes_aside: Its log was never compacted: it has use for files that were moved aside, too.
    """

    follower: str
    incarnation: Incarnation
    epoch: int
    request: int
    start: int
    end: int
    compacted_to: int
    takes_aside: bool
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRange:
    """Stored batches that hold [start, end) come with this, the first of what was asked for that can be read here.

    Attributes:
        start, end: Equal: none can.
        is_damaged: Something of what was asked for cannot be read here either.
        log_start: As the checkpoint has it there.
        superseded_to, superseded_epoch: As in `Records`.
    """

    epoch: int
    incarnation: Incarnation
    request: int
    start: int
    end: int
    is_damaged: bool
    log_start: int
    superseded_to: int
    superseded_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Answers `AskEnd` (KIP-279).

    Attributes:
        found_epoch: The greatest epoch of the leader's log that is not above the one asked for; -1: none.
        end: First offset after its records and those of all before it.
        log_start: Where the batch begins that holds the start of the leader's log.
        start_epoch: Leader epoch of the record before that; -1: not known.
    """

    epoch: int
    incarnation: Incarnation
    request: int
    found_epoch: int
    end: int
    log_start: int
    start_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """Leader and follower have different records before the offset that the follower fetches."""

    epoch: int
    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class StartsAbove:
    """The leader's log begins above the offset that the follower fetches: `log_start`, `start_epoch` as in `End`."""

    epoch: int
    incarnation: Incarnation
    log_start: int
    start_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """The question names another leader epoch than `epoch`, or an earlier life of the replica: nothing was noted."""

    epoch: int
    incarnation: Incarnation


Reply = Records | Inside | State | HeldRange | End | Diverged | StartsAbove | Fenced
Message = Fetch | AskEnd | AskState | AskRange | Reply
