"""The core of a follower: how its log becomes its leader's, and stays so. Events in, effects out.

    ASKING     where does my last epoch end with you?       <-----+
       | they agree                    | they do not              |
       |                            CUTTING  cut there, ask again-+
    FETCHING   what comes after my end? append, fsync, say so

A log and its leader's agree up to some offset, and may part there: each holds records that were appended by leaders
whom the other never heard. They agree where both have the same epoch:

    follower   1 1 1 2 2 2            last epoch 2: "where does 2 end?"
    leader     1 1 1 1 3 3            "I have no 2; 1 ends at 4"
    follower   1 1 1                  cut to min(4, end of 1 here = 3): both end in 1 now, so they agree

The high watermark decides nothing here: the follower's own may be old, and two leaders may have come since.

F1  Records are appended only at the log end, as they are, from the leader of the epoch that is followed, and only once
    both logs have been found to agree below.
F2  An answer counts only if it names this epoch and this incarnation; an end only if it answers the open question.
F3  It tells only of fsynced records that they are durable; an fsync of an earlier life of the log is not minded.
F4  The high watermark is the leader's, as far as this log goes, to the end of a commit group; it does not move back but
    in a cut.
F5  A follower that would be cut below the leader's log start, or below its own, begins anew at the leader's: below it
    there is nothing to agree on. So an empty log asks too. (A leader whom an operator chose may end below the start of
    a follower that comes back. That one would go on from its start, join with a hole in what is committed since, and
    lose it when it leads. All agree on the log start of any other leader: what is below it was committed.)
F6  The log start is the leader's. It follows only what is below the high watermark here.
F7  After a failed fsync nothing more is said before the replica has another incarnation. Then the log has recovered:
    an fsync that was begun before, and fails late, is not minded. (One of an earlier generation of this incarnation is:
    a cut does not mend a log.)
F8  A record's producer and id outlive it in the leader's state file. A follower that begins anew, or
    takes records from where the leader has removed some, lacks that file: it says so with each fetch, is not asked in,
    and lets nothing go, before it has one of this leader, whole, that was made in this leadership (`leader.L11`). It
    comes in pieces, while records are fetched on.
F9  A log that ends within a batch which its leader has joined is cut to where that batch begins, and fetches it whole.
    Its mark of compaction goes down with the cut. An answer after a cut to a question from before it is not minded:
    the leader did not know of the lower mark when it read.
    So it is with a log that was mended in between (`storage.rewrite.mending`), and is followed by again in its epoch.
F10  Where records may be gone for newer ones, all of which stand below `superseded_to`, a log that an epoch's end would
    cut below that mark (an operator gave up records) begins anew. So does one that ends below it, and whose leader does
    not have the record before the mark: a copy that was interrupted, or that lost its end. It asks for the end of that
    record's epoch instead of its own last one. If the leader has that record, and others than the last ones here, the
    log begins anew, too: it was told of the mark with a range that it lacked (`storage.rewrite.mending`), not by a
    leader with whom it agrees.
F12  A copy of the leader's log lacks for newer records what that lacks. So it has the leader's mark, on disk, before
    records from below the mark are appended.
F11  Tombstones go only below what this leader has told in this epoch; at first that is 0.
F13  A log whose disk has no room for records says so at once, and again with each fetch until there is room. It
    follows the log start all the same: that makes room.

The caller's duties: those of `leader` 1 to 3. `Append`, `Truncate`, `Reset` and `StartAt` are done at once, and
answered by `Holds` before any other event; `TakeState` by `StateTaken`. A sync that is under way when the log is cut
says `Synced` all the same. A replica that cannot read what it has fsynced follows nobody before it has stepped out:
what it says is durable is not.

Time is that of `Tick`. A question without an answer is asked again; a leader that answers nothing is reported.

Design: docs/explain/replication.md; KIP-101, KIP-279.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, Final, cast

from broker.replication.events import Commit, StepOut, Sync, Synced, SyncFailed, Tick
from broker.replication.following import (
    Append,
    Ask,
    Compacted,
    Effect,
    Event,
    Followed,
    Holds,
    Replied,
    Report,
    Reset,
    RoomFound,
    StartAt,
    StateTaken,
    TakeState,
    Truncate,
    Unfollowed,
    Unreachable,
)
from broker.replication.messages import (
    NO_INCARNATION,
    AskEnd,
    AskState,
    Diverged,
    End,
    Fenced,
    Fetch,
    Inside,
    Records,
    StartsAbove,
    State,
)

ASK_AGAIN_MS: Final = 300
"""A question that was not answered for so long is asked again. Longer than a leader holds an answer back."""
FETCH_TIMEOUT_MS: Final = 1_000
"""A leader that has not answered anything for so long is reported."""
NOTHING: Final[tuple[Effect, ...]] = ()


class Phase(Enum):
    """See the module."""

    IDLE = "idle"
    ASKING = "asking"
    CUTTING = "cutting"
    FETCHING = "fetching"


class Follower:
    """One replica's core while another leads.

    Args:
        me: This broker.

    Attributes:
        phase, epoch, leader, incarnation: The leader that it follows, how far it is with that, and its own incarnation.
        log: The log's contents, as last told.
        generation: Counts the lives of the log: what was begun in an earlier one is not minded.
        number: Of the last fetch.
        tombstones_below, compact_to: For passes of compaction here: as the leader last told (`messages.Records`).
    """

    def __init__(self, me: str, *, ask_again_ms: int = ASK_AGAIN_MS, fetch_timeout_ms: int = FETCH_TIMEOUT_MS) -> None:
        self.me = me
        self.phase = Phase.IDLE
        self.epoch = -1
        self.leader = ""
        self.incarnation = NO_INCARNATION
        self.log = Holds(log_start=0, log_end=0, durable_end=0, last_epoch=-1, high_watermark=0, group_end=0)
        self.generation = 0
        self.is_syncing = False
        self.now_ms = 0
        self._has_ticked = False
        self.tombstones_below = self.compact_to = 0
        self._request = 0
        self.number = 0
        self._cut_number = 0  # of the last fetch before the last cut
        self._told: Records | None = None  # the answer whose records are being appended
        self._found_epoch = -1  # what the open cut is to lead to
        self._parts_below_mark = False  # F10: it has that record, and others than the last ones here
        self._recovered = 0  # F7: the first generation of this incarnation
        self._taking: AskState | None = None  # the open question for a piece of a state file
        self._piece = (0, 0)  # where the piece that is being taken ends, and the file
        self._asked_ms = self._state_asked_ms = self._heard_ms = 0
        self._ask_again_ms = ask_again_ms
        self._fetch_timeout_ms = fetch_timeout_ms

    def step(self, event: Event) -> tuple[Effect, ...]:
        """Apply one event. Returns what the driver must do, in this order."""
        effects = _HANDLERS[type(event)](self, event)
        log = self.log
        assert log.log_start <= log.high_watermark <= log.group_end <= log.log_end, "F4"
        assert log.durable_end <= log.log_end, "F3"
        return effects

    # -- whom it follows --------------------------------------------------------------------------------------

    def _followed(self, event: Followed) -> tuple[Effect, ...]:
        assert (event.epoch, event.incarnation) >= (self.epoch, self.incarnation), "an epoch does not come back"
        assert event.incarnation >= self.incarnation, "an incarnation does not come back"
        self._cut_number = self.number  # F9: the log may have been mended since, and its mark lowered
        self.generation += 1
        if event.incarnation > self.incarnation:
            self._recovered = self.generation
        self.epoch, self.leader, self.incarnation = event.epoch, event.leader, event.incarnation
        self.log = event.log
        self.tombstones_below = self.compact_to = 0  # F11
        self._heard_ms = self.now_ms
        return (*self._ask_or_fetch(), *self._begin_sync())

    def _unfollowed(self, event: Unfollowed) -> tuple[Effect, ...]:
        self.phase = Phase.IDLE
        self.generation += 1
        self.tombstones_below = self.compact_to = 0
        return NOTHING

    # -- where the logs part ----------------------------------------------------------------------------------

    def _ask_or_fetch(self) -> tuple[Effect, ...]:
        """A log of which no record is known, not even the last one that went, agrees with any."""
        self._told = self._taking = None
        self._parts_below_mark = False
        self.phase = Phase.FETCHING if self.log.last_epoch < 0 else Phase.ASKING
        return self._ask()

    def _ask(self) -> tuple[Effect, ...]:
        self._asked_ms = self.now_ms
        log = self.log
        message: Fetch | AskEnd
        if self.phase is Phase.ASKING:
            self._request += 1
            message = AskEnd(
                follower=self.me,
                incarnation=self.incarnation,
                epoch=self.epoch,
                request=self._request,
                last_epoch=max(log.last_epoch, log.superseded_epoch) if self._ends_below_mark else log.last_epoch,
            )
        else:
            self.number += 1
            message = Fetch(
                follower=self.me,
                incarnation=self.incarnation,
                epoch=self.epoch,
                offset=log.log_end,
                last_epoch=log.last_epoch,
                durable_end=log.durable_end,
                log_start=log.log_start,
                lacks_state=log.lacks_state,
                number=self.number,
                compacted_to=log.compacted_to,
                waits_to=log.waits_to,
                lacks_room=log.lacks_room,
            )
        return (Ask(self.leader, message),)

    def _answered(self, event: Replied) -> tuple[Effect, ...]:
        message = event.message
        is_minded = (message.epoch, message.incarnation) == (self.epoch, self.incarnation)
        if self.phase is Phase.IDLE or not is_minded or isinstance(message, Fenced):  # F2
            return NOTHING
        self._heard_ms = self.now_ms
        match message:
            case End():
                return self._end(message, event.own_end)
            case Records():
                return self._records(message)
            case Inside():
                return self._inside(message)
            case State():
                return self._state(message)
            case StartsAbove() if self.phase is Phase.FETCHING and self.log.log_end < message.log_start:
                return self._reset(message.log_start, message.start_epoch)
            case Diverged() if self.phase is Phase.FETCHING:
                self.phase = Phase.ASKING
                self._parts_below_mark = self._ends_below_mark
                return self._ask()
        return NOTHING

    def _end(self, message: End, own_end: int) -> tuple[Effect, ...]:
        if self.phase is not Phase.ASKING or message.request != self._request:  # F2
            return NOTHING
        log = self.log
        if self._ends_below_mark:  # F10
            is_there = log.last_epoch <= log.superseded_epoch == message.found_epoch
            if self._parts_below_mark or not (is_there and message.end >= log.superseded_to):
                return self._reset(message.log_start, message.start_epoch)
            self.phase = Phase.FETCHING
            return self._ask()
        if message.found_epoch == log.last_epoch and message.end >= log.log_end:
            self.phase = Phase.FETCHING
            return self._ask()
        cut = min(message.end, own_end)
        if cut < max(log.log_start, message.log_start):  # F5
            if message.log_start != log.log_start:
                return self._reset(message.log_start, message.start_epoch)
            cut = log.log_start
        if cut < log.superseded_to:  # F10
            return self._reset(message.log_start, message.start_epoch)
        return self._truncate(cut, message.found_epoch)

    @property
    def _ends_below_mark(self) -> bool:
        return self.log.log_start < self.log.log_end < self.log.superseded_to

    def _truncate(self, to: int, last_epoch: int, *, is_copied_again: bool = False) -> tuple[Effect, ...]:
        self.phase = Phase.CUTTING
        self._found_epoch = last_epoch
        return (Truncate(to, is_copied_again),)

    def _reset(self, to: int, last_epoch: int) -> tuple[Effect, ...]:
        self.phase = Phase.CUTTING
        self._found_epoch = last_epoch
        return (Reset(to, last_epoch),)

    def _inside(self, message: Inside) -> tuple[Effect, ...]:
        if not self._asks(message):
            return NOTHING
        if message.batch_start < self.log.log_start:
            return self._reset(message.batch_start, message.start_epoch)
        return self._truncate(message.batch_start, message.start_epoch, is_copied_again=True)  # F9

    # -- records ----------------------------------------------------------------------------------------------

    def _asks(self, answer: Records | Inside) -> bool:
        """Whether this is what it wants to know: what comes after its end, as it has been since the last cut."""
        is_since = answer.number > self._cut_number  # F9
        return self.phase is Phase.FETCHING and is_since and answer.offset == self.log.log_end

    def _records(self, message: Records) -> tuple[Effect, ...]:
        if not self._asks(message):  # F1
            return NOTHING
        self._told = message
        self.tombstones_below, self.compact_to = message.tombstones_below, message.compact_to
        is_rewritten = message.offset < message.rewritten_to  # F8
        if is_rewritten:
            self._taking = None  # what it tells of may end below
        is_below = message.offset < message.superseded_to  # F12
        mark = (message.superseded_to, message.superseded_epoch) if is_below else (0, -1)
        if not is_rewritten and self.log.lacks_state and message.state_offset >= 0 and self._taking is None:
            return (*self._ask_state(message.state_offset, 0), Append(self.epoch, False, *mark))
        return (Append(self.epoch, is_rewritten and not self.log.lacks_state, *mark),)

    def _holds(self, event: Holds) -> tuple[Effect, ...]:
        is_news = event.lacks_room and not self.log.lacks_room  # F13
        self.log = event
        if self.phase is Phase.CUTTING:
            return self._has_cut(event)
        effects: list[Effect] = []
        told = self._told
        if told is not None:
            wanted = told.high_watermark if told.high_watermark <= event.log_end else event.group_end  # F4
            if wanted > event.high_watermark:
                self.log = replace(event, high_watermark=wanted)
                effects.append(Commit(wanted))
            self._told = None
            is_above = event.log_start < told.log_start <= self.log.high_watermark
            if is_above and (event.lacks_room or not event.is_refused) and not event.lacks_state:
                news = self._ask() if is_news else NOTHING
                return (*effects, *news, StartAt(told.log_start))  # F6, F13; and then `Holds` again
        if self.phase is Phase.FETCHING and (is_news or not event.is_refused):
            effects += self._ask()
        return (*effects, *self._begin_sync())

    def _has_cut(self, log: Holds) -> tuple[Effect, ...]:
        self.generation += 1
        self._taking = None
        self._cut_number = self.number
        self._parts_below_mark = False
        if log.is_refused:
            self.phase = Phase.ASKING  # at the next tick
            return self._begin_sync()
        do_agree = log.log_end == log.log_start or log.last_epoch == self._found_epoch
        self.phase = Phase.FETCHING if do_agree else Phase.ASKING
        return (*self._ask(), *self._begin_sync())

    def _room_found(self, event: RoomFound) -> tuple[Effect, ...]:
        """F13."""
        self.log = replace(self.log, lacks_room=False)
        return self._ask() if self.phase is Phase.FETCHING else NOTHING

    def _compacted(self, event: Compacted) -> tuple[Effect, ...]:
        self.log = replace(self.log, compacted_to=event.compacted_to, waits_to=event.waits_to)
        return NOTHING  # the next fetch says so

    # -- a state file -----------------------------------------------------------------------------------------

    def _ask_state(self, offset: int, at: int) -> tuple[Effect, ...]:
        self._state_asked_ms = self.now_ms
        self._taking = AskState(follower=self.me, incarnation=self.incarnation, epoch=self.epoch, offset=offset, at=at)
        return (Ask(self.leader, self._taking),)

    def _state(self, message: State) -> tuple[Effect, ...]:
        taking = self._taking
        if taking is None or (message.offset, message.at) != (taking.offset, taking.at):  # F2
            return NOTHING
        end = message.at + message.length
        if message.length <= 0 or end > message.size:
            self._taking = None  # it is gone; the next answer to a fetch names another
            return NOTHING
        self._piece = end, message.size
        return (TakeState(message.offset, message.at, message.size),)

    def _state_taken(self, event: StateTaken) -> tuple[Effect, ...]:
        taking = self._taking
        if taking is None:
            return NOTHING
        at, size = self._piece
        if event.lacks_state and at < size:
            return self._ask_state(taking.offset, at)
        self._taking = None
        self.log = replace(self.log, lacks_state=event.lacks_state)
        return self._ask() if self.phase is Phase.FETCHING else NOTHING

    # -- the disk ---------------------------------------------------------------------------------------------

    def _begin_sync(self) -> tuple[Effect, ...]:
        if self.is_syncing or self.phase is Phase.IDLE or self.log.durable_end == self.log.log_end:
            return NOTHING
        self.is_syncing = True
        return (Sync(self.generation),)

    def _synced(self, event: Synced) -> tuple[Effect, ...]:
        self.is_syncing = False
        effects: tuple[Effect, ...] = ()
        if event.generation == self.generation and event.durable_end > self.log.durable_end:  # F3
            self.log = replace(self.log, durable_end=event.durable_end)
            effects = self._ask() if self.phase is Phase.FETCHING else NOTHING
        return (*effects, *self._begin_sync())

    def _sync_failed(self, event: SyncFailed) -> tuple[Effect, ...]:
        self.is_syncing = False
        if self.phase is Phase.IDLE:
            return NOTHING
        if event.generation < self._recovered:  # F7
            return self._begin_sync()
        self._unfollowed(Unfollowed())
        return (StepOut(),)

    # -- time -------------------------------------------------------------------------------------------------

    def _tick(self, event: Tick) -> tuple[Effect, ...]:
        assert event.now_ms >= self.now_ms, "time runs back"
        self.now_ms = event.now_ms
        if not self._has_ticked:  # what was asked before it knew the time counts from here
            self._has_ticked = True
            self._heard_ms = self._asked_ms = self._state_asked_ms = self.now_ms
        if self.phase is Phase.IDLE:
            return NOTHING
        effects: tuple[Effect, ...] = ()
        if self.now_ms - self._asked_ms >= self._ask_again_ms:
            effects = (*self._ask(), *self._begin_sync())
        if self._taking is not None and self.now_ms - self._state_asked_ms >= self._ask_again_ms:
            effects += self._ask_state(self._taking.offset, self._taking.at)
        if self.now_ms - self._heard_ms >= self._fetch_timeout_ms:
            effects += self._report()
        return effects

    def _unreachable(self, event: Unreachable) -> tuple[Effect, ...]:
        return NOTHING if self.phase is Phase.IDLE else self._report()

    def _report(self) -> tuple[Effect, ...]:
        self._heard_ms = self.now_ms
        return (Report(leader=self.leader, epoch=self.epoch),)


_HANDLERS: Final = cast(
    dict[type[Event], Callable[[Follower, Any], tuple[Effect, ...]]],
    {
        Followed: Follower._followed,
        Unfollowed: Follower._unfollowed,
        Holds: Follower._holds,
        RoomFound: Follower._room_found,
        Compacted: Follower._compacted,
        StateTaken: Follower._state_taken,
        Replied: Follower._answered,
        Unreachable: Follower._unreachable,
        Synced: Follower._synced,
        SyncFailed: Follower._sync_failed,
        Tick: Follower._tick,
    },
)
