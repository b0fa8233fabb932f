"""The core from append to ack: how far a partition is committed, and who is told what. Events in, effects out.

A record is on its way from the log's end to the high watermark. In between it has to become durable on each replica
that counts:

    leader a    0 1 2 3 4 5 6 7 |              log end 8, durable end 6
    replica b   0 1 2 3 4 |                    durable end 5, in sync
    replica c   0 1 |                          durable end 2, not in sync: does not count
    groups      [0 1 2] [3 4] [5 6 7]
                          ^ high watermark 5: readers may have [0, 5)

A ticket for `LEADER` is answered once the record is durable on the leader, a ticket for `ALL` once the high watermark
is past it. With one replica both are the same moment. With `fsync = interval` read "appended" for "durable" on a leader
that is the only replica; beside others each batch is fsynced (L12).

L1  Within an epoch the high watermark never moves back.
L2  It is the end of a commit group, at or above the start of the epoch, and at most the durable end of the leader, of
    each in-sync replica and of an addition that is asked for; it moves only while as many are in sync as must be.
L3  Each ticket is answered once: STORED only when what it waits for is so, else with the reason why that is not known.
L4  After a failed fsync, a recovery, the end of the leadership or of the partition nobody waits any more.
L5  One sync at a time. The result of a sync of an earlier generation is not minded.
L6  With several replicas a failed fsync ends the leadership: nobody may count on a log whose pages may be gone.
L7  A follower's word counts only if it names this epoch and its latest incarnation, and if the record before its fetch
    offset is the leader's: then all that it has fsynced is. Its durable end alone acknowledges. An empty log that
    begins above this one and does not know whose the record before was may have it from somebody who is given up.
L8  The state that names the members also says how many must be in sync. The settings count only in a leadership whose
    state says nothing of it: settings are altered at another time than members are.
L9  A tombstone may go below the least mark of compaction of all that are assigned: this log's own, and what each other
    one has last told in this leadership, under its latest incarnation. One that has told nothing counts as zero. One
    that is about to copy what is damaged there tells a lower mark before: others may have compacted less.
L10  A batch goes over as it is stored, whole. A follower whose log ends within one is told where it begins. No member
    of the ISR or of the last ISR is: batches are joined only below the high watermark, and members hold all of that.
L11  A state file that is offered tells of all below the start of this leadership. An earlier leader may have written
    anew what a follower copied before: its files told of the records that had gone, an older one here does not.
L12  Where there are others, each batch is fsynced on the leader whatever the settings say: nobody else's clock would do
    it. A log that is synced by intervals gets replicas while it moves to another broker.

The caller's duties:

1. Events come in the order in which their causes happened to the log: hold one lock over an append and its `Appended`,
   and over a recovery and its `Recovered`. `step` is not thread-safe by itself.
2. Effects are done in their order, those of one step by one thread. Steps may overlap: `Commit` is a least bound.
3. Every `Sync` is answered by one `Synced` or `SyncFailed`, with its generation.
4. `AskIsr` goes to the catalog, which answers with the state that it was judged by: a second try is refused because the
   first was accepted. A late answer, or none, does no harm: it is asked anew.
5. After `StepOut` nothing is appended before the next `Led`.
6. `FetchArrived`, `EndAsked` and `StateAsked` bring what this log says of the question. The lock is not held while the
   log is asked, which may read a disk. What is appended meanwhile changes no answer; if the epoch, the generation or
   what the log has taken back is another one when the core is told, the log is asked again.
   A `Send` may be held back while there is nothing to tell; the next one to the same follower is as good. The bytes of
   `Records` are read after the step; if no batch begins at their offset by then, nothing is sent. `rewritten_to` is
   that of any log which may lack records, also when its stream is compacted no more: what is gone stays gone.
   It is looked up once more behind the bytes: they may have been written anew since the step. `superseded_to` and its
   epoch are filled in then.
7. A `Trim` that the disk refuses is tried again.

Design: docs/explain/replication.md. Cost: per batch, never per record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, cast

from broker.replication.events import (
    Acks,
    Altered,
    Answer,
    Appended,
    Closed,
    Commit,
    Deposed,
    Effect,
    EndAsked,
    Event,
    FetchArrived,
    IsrAnswered,
    Led,
    Outcome,
    RangeAsked,
    Recovered,
    Send,
    StartMoved,
    StateAsked,
    StepOut,
    Sync,
    Synced,
    SyncFailed,
    Tick,
    Ticket,
    TrimAsked,
    TrimRefused,
    Wake,
)
from broker.replication.insync import InSync
from broker.replication.messages import (
    AskEnd,
    AskState,
    Diverged,
    End,
    Fenced,
    Inside,
    Records,
    Reply,
    StartsAbove,
    State,
)
from broker.replication.trims import Trims

REPLICA_LAG_MS_MAX: Final = 10_000
"""A follower that has not been caught up for so long is asked out of the in-sync replicas."""
NOTHING: Final[tuple[Effect, ...]] = ()
WAKE: Final = Wake()
STORED: Final = Outcome.STORED
ALL: Final = Acks.ALL
"""A name of its own: an enum is asked for a member in six times the time of a global."""
Waiting = list[tuple[int, Ticket]]
"""(No deque: one that is empty takes 600 bytes, and there are ten thousand idle partitions.)"""


class Role(Enum):
    """Whether this replica may commit."""

    IDLE = "idle"
    LEADING = "leading"
    CLOSED = "closed"


LEADING: Final = Role.LEADING


class Leader:
    """One partition's core.

    Args:
        me: This broker.

    Attributes:
        role, epoch, epoch_start: The present leadership's, or the last one's.
        high_watermark, durable_end, log_end: As far as the core was told.
        generation: See `events`.
        is_syncing: A `Sync` is not answered yet.
        fsync_each_batch: Nothing counts on this broker before it is fsynced.
        is_failed: A sync has failed, and the log has not recovered: nothing but what is durable counts.
    """

    def __init__(self, me: str, *, replica_lag_ms_max: int = REPLICA_LAG_MS_MAX) -> None:
        self.me = me
        self.role = Role.IDLE
        self.epoch = self.epoch_start = -1
        self.high_watermark = self.durable_end = self.log_end = 0
        self.generation = 0
        self.is_syncing = self.is_failed = False
        self.min_insync_replicas = 1
        self._has_minimum = False  # of a state (L8)
        self.fsync_each_batch = self._wants_each_batch = True
        self.fsync_interval_ms = 0
        self.in_sync: InSync | None = None  # None: this replica is the only one
        self.trims = Trims(0)
        self.now_ms = 0
        self._lag_ms_max = replica_lag_ms_max
        self._requests = 0
        self._synced_ms = 0
        self._group_ends: list[int] = []
        self._for_all: Waiting = []
        self._for_leader: Waiting = []
        self._sync: tuple[Effect, ...] = (Sync(0),)

    def may_tell_end(self, high_watermark: int) -> bool:
        """Whether clients may be told that the committed records end there: not before the start of this epoch is
        committed. Asked with the log's high watermark, which follows this core's: readers have no more."""
        return self.role is Role.LEADING and high_watermark >= self.epoch_start

    @property
    def waiting_count(self) -> int:
        """Tickets that are not answered yet."""
        return len(self._for_all) + len(self._for_leader) + self.trims.waiting_count

    def state_from(self, log_start: int) -> int:
        """The least offset of a state file for a follower whose log begins there (L11)."""
        return max(log_start, self.epoch_start)

    def tombstones_below(self, own_mark: int) -> int:
        """So far a pass of compaction of this log may let tombstones go, if it leads (L9). `own_mark`: its own."""
        return 0 if self.role is not LEADING or self.in_sync is None else self.in_sync.tombstones_below(own_mark)

    def compact_to(self) -> int:
        """So far tombstones of others wait for this log to be compacted, if it leads."""
        return 0 if self.role is not LEADING or self.in_sync is None else self.in_sync.compact_to(0)

    def step(self, event: Event) -> tuple[Effect, ...]:
        """Apply one event. Returns what the driver must do, in this order."""
        effects = _HANDLERS[type(event)](self, event)
        assert self.durable_end <= self.log_end, "a log is durable beyond its end"
        return effects

    # -- the way of a record ----------------------------------------------------------------------------------

    def _appended(self, event: Appended) -> tuple[Effect, ...]:
        if self.role is not LEADING:
            outcome = Outcome.CLOSED if self.role is Role.CLOSED else Outcome.DEPOSED
            return tuple([Answer(ticket, outcome) for ticket, _ in event.awaited])
        if event.group_ends:
            assert event.first == self.log_end < event.next == event.group_ends[-1], "appends come in order"
            self.log_end = event.next
            if event.durable_end == event.next and self.in_sync is None and not (self._for_all or self._for_leader):
                self._group_ends.clear()  # it came alone: all of the log is committed
                self.durable_end = self.high_watermark = event.next
                if len(event.awaited) == 1:
                    return Commit(event.next), WAKE, Answer(event.awaited[0][0], STORED)
                return (Commit(event.next), WAKE, *[Answer(ticket, STORED) for ticket, _ in event.awaited])
            self._group_ends.extend(event.group_ends)
        else:
            assert event.next <= self.log_end, "a repeat of what is not there"
        for ticket, acks in event.awaited:
            waiting = self._for_all if acks is ALL else self._for_leader
            waiting.append((event.next, ticket))  # a repeat waits behind the others
        if event.durable_end > self.durable_end:
            self.durable_end = event.durable_end
        if not self.fsync_each_batch or event.next <= self.durable_end:
            return tuple(self._advance())
        if self.is_syncing:
            return NOTHING
        self.is_syncing = True
        return self._sync

    def _synced(self, event: Synced) -> tuple[Effect, ...]:
        self.is_syncing = False
        effects: list[Effect] = []
        if event.generation == self.generation and self.role is Role.LEADING:  # L5
            assert event.durable_end <= self.log_end, "durable beyond the log end"
            if event.durable_end > self.durable_end:
                self.durable_end = event.durable_end
            self._synced_ms = self.now_ms
            effects = self._advance()
            if self.durable_end == self.log_end:
                return tuple(effects)
        return (*effects, *self._begin_sync())

    def _advance(self) -> list[Effect]:
        """Something moved: commit what may be, answer whom that satisfies."""
        own_end = self.durable_end if self.fsync_each_batch or self.is_failed else self.log_end
        effects = _stored(self._for_leader, own_end)
        before, ends = self.high_watermark, self._group_ends
        committed = before
        in_sync = self.in_sync
        if in_sync is None:
            safe_end = own_end
            if self.trims.waiting_count:
                effects += self.trims.advance(())
        elif len(in_sync.members) >= self.min_insync_replicas:
            safe_end = in_sync.durable_end(own_end)
            if self.trims.waiting_count:
                effects += self.trims.advance(in_sync.log_starts())
        else:
            safe_end = before
        if safe_end >= self.epoch_start:  # L2
            count = bisect_right(ends, safe_end)
            if count:
                committed = ends[count - 1]
                del ends[:count]
        if committed > before:
            self.high_watermark = committed
            effects[:0] = (Commit(committed), WAKE)  # before all others
        assert before <= self.high_watermark <= max(before, own_end), "L1, L2"
        effects += _stored(self._for_all, self.high_watermark)
        return effects

    def _tell_all(self, outcome: Outcome, error: Any = None) -> list[Effect]:
        """Nobody waits any more (L4)."""
        effects: list[Effect] = [Answer(ticket, outcome, error) for _, ticket in (*self._for_leader, *self._for_all)]
        self._for_leader.clear()
        self._for_all.clear()
        return effects + self.trims.tell_all(outcome, error)

    # -- the disk fails ---------------------------------------------------------------------------------------

    def _sync_failed(self, event: SyncFailed) -> tuple[Effect, ...]:
        self.is_syncing = False
        if event.generation != self.generation or self.role is not Role.LEADING:  # L5: they have been told
            return self._begin_sync()
        self.is_failed = True
        effects: list[Effect] = [WAKE, *self._tell_all(Outcome.FAILED, event.error)]
        if self.in_sync is not None:  # L6
            self.role = Role.IDLE
            effects.append(StepOut())
        return tuple(effects)

    def _begin_sync(self) -> tuple[Effect, ...]:
        is_needed = self.durable_end < self.log_end and self.fsync_each_batch and self.role is Role.LEADING
        if self.is_syncing or not is_needed:
            return NOTHING
        self.is_syncing = True
        return self._sync

    def _recovered(self, event: Recovered) -> tuple[Effect, ...]:
        self._begin_generation()
        if self.role is not Role.LEADING:
            return NOTHING
        assert self.in_sync is None, "L6"
        self.is_failed = False
        self.log_end, self.durable_end = event.log_end, event.durable_end
        ends = [end for end in self._group_ends if end < event.log_end]
        self._group_ends = [*ends, event.log_end] if event.log_end > self.high_watermark else []
        effects = self._tell_all(Outcome.UNSURE)
        return (*self._advance(), WAKE, *effects, *self._begin_sync())

    def _begin_generation(self) -> None:
        self.generation += 1
        self._sync = (Sync(self.generation),)

    # -- leadership -------------------------------------------------------------------------------------------

    def _led(self, event: Led) -> tuple[Effect, ...]:
        assert self.role is not Role.CLOSED, "a partition that is no more is not led"
        assert event.epoch > self.epoch, "an epoch is led once"
        assert self.me in event.isr, "who leads is in sync"
        assert event.high_watermark <= event.log_end, "a high watermark beyond the log"
        is_more = event.log_end > event.high_watermark
        group_ends = [*(event.group_ends or ((event.log_end,) if is_more else ()))]
        assert not is_more or group_ends[-1] == event.log_end, "a leader cuts what is no whole group"
        if self.in_sync is not None:
            self._requests = self.in_sync.request
        # what may fail comes before all else: who leads without them, or with former ones, commits what they lack
        self.in_sync = None if len(event.replicas) == 1 else InSync(self.me, event, self._requests)
        effects = self._tell_all(Outcome.DEPOSED)
        self._begin_generation()
        self.role, self.is_failed = Role.LEADING, False
        self.epoch, self.epoch_start = event.epoch, event.log_end
        self.high_watermark, self.durable_end, self.log_end = event.high_watermark, event.durable_end, event.log_end
        self._group_ends = group_ends
        self._has_minimum = False
        self._minimum(event.min_insync_replicas)
        self.fsync_each_batch = self._wants_each_batch or self.in_sync is not None  # L12
        self.trims = Trims(event.log_start)
        return (*effects, *self._advance(), WAKE, *self._begin_sync())

    def _deposed(self, event: Deposed) -> tuple[Effect, ...]:
        return self._end(Role.IDLE, Outcome.DEPOSED)

    def _closed(self, event: Closed) -> tuple[Effect, ...]:
        return self._end(Role.CLOSED, Outcome.CLOSED)

    def _end(self, role: Role, outcome: Outcome) -> tuple[Effect, ...]:
        if self.role is not Role.CLOSED:
            self.role = role
        self._begin_generation()
        return (*self._tell_all(outcome), WAKE)

    def _altered(self, event: Altered) -> tuple[Effect, ...]:
        if not self._has_minimum:
            self.min_insync_replicas = event.min_insync_replicas
        self._wants_each_batch = event.fsync_each_batch
        self.fsync_each_batch = event.fsync_each_batch or self.in_sync is not None  # L12
        self.fsync_interval_ms = event.fsync_interval_ms
        if self.role is not Role.LEADING:
            return NOTHING
        return (*self._advance(), *self._begin_sync())

    # -- the others -------------------------------------------------------------------------------------------

    def _fetch_arrived(self, event: FetchArrived) -> tuple[Effect, ...]:
        fetch, in_sync = event.fetch, self.in_sync
        if self.role is not LEADING or in_sync is None:
            return NOTHING
        answer: Reply
        effects: list[Effect] = []
        epoch, incarnation = self.epoch, fetch.incarnation
        is_minded = fetch.epoch == epoch and in_sync.admits(fetch.follower, incarnation)
        agrees_on_less = fetch.last_epoch >= 0 or fetch.follower in in_sync.members  # L7
        is_empty = (fetch.offset == fetch.log_start and agrees_on_less) or fetch.offset == event.log_start
        if not is_minded or not 0 <= fetch.durable_end <= fetch.offset:
            answer = Fenced(epoch=epoch, incarnation=incarnation)
        elif fetch.offset < event.log_start:
            answer = StartsAbove(
                epoch=epoch, incarnation=incarnation, log_start=event.log_start, start_epoch=event.start_epoch
            )
        elif fetch.offset > self.log_end or not (is_empty or fetch.last_epoch == event.epoch_before):
            answer = Diverged(epoch=epoch, incarnation=incarnation)
        else:  # L7
            in_sync.note(fetch, log_end=self.log_end, now_ms=self.now_ms)
            effects = self._advance()
            asked = in_sync.expansion(
                fetch.follower,
                least_end=max(self.high_watermark, self.epoch_start),
                least_start=self.trims.answered,
                least_in_sync=self.min_insync_replicas,
            ) or in_sync.reduction(least_in_sync=self.min_insync_replicas)
            effects += [] if asked is None else [asked]
            if 0 <= event.batch_start < fetch.offset:  # L10
                inside = Inside(
                    epoch=epoch,
                    incarnation=incarnation,
                    offset=fetch.offset,
                    number=fetch.number,
                    batch_start=event.batch_start,
                    start_epoch=event.batch_epoch,
                )
                return (*effects, Send(fetch.follower, inside))
            is_offered = fetch.lacks_state and event.state_offset >= self.epoch_start  # L11
            answer = Records(
                epoch=epoch,
                incarnation=incarnation,
                offset=fetch.offset,
                high_watermark=self.high_watermark,
                log_start=self.trims.log_start,
                rewritten_to=event.rewritten_to,
                state_offset=event.state_offset if is_offered else -1,
                number=fetch.number,
                tombstones_below=in_sync.tombstones_below(event.compacted_to),
                compact_to=in_sync.compact_to(event.waits_to),
            )
        return (*effects, Send(fetch.follower, answer))

    def _refusal(self, ask: AskEnd | AskState) -> tuple[Effect, ...] | None:
        """Refuse a follower that may not ask this leader; NOTHING: nobody leads here; None: it may ask."""
        if self.role is not LEADING or self.in_sync is None:
            return NOTHING
        if ask.epoch == self.epoch and self.in_sync.admits(ask.follower, ask.incarnation):
            return None
        return (Send(ask.follower, Fenced(epoch=self.epoch, incarnation=ask.incarnation)),)

    def _end_asked(self, event: EndAsked) -> tuple[Effect, ...]:
        ask = event.ask
        refusal = self._refusal(ask)
        if refusal is not None:
            return refusal
        answer = End(
            epoch=ask.epoch,
            incarnation=ask.incarnation,
            request=ask.request,
            found_epoch=event.found_epoch,
            end=event.end,
            log_start=event.log_start,
            start_epoch=event.start_epoch,
        )
        return (Send(ask.follower, answer),)

    def _range_asked(self, event: RangeAsked) -> tuple[Effect, ...]:
        """L9. The bytes of the answer are no matter of this core: any replica has them."""
        ask, in_sync = event.ask, self.in_sync
        if self.role is LEADING and in_sync is not None and ask.epoch == self.epoch:
            in_sync.lower_mark(ask)
        return NOTHING

    def _state_asked(self, event: StateAsked) -> tuple[Effect, ...]:
        ask = event.ask
        refusal = self._refusal(ask)
        if refusal is not None:
            return refusal
        answer = State(
            epoch=ask.epoch,
            incarnation=ask.incarnation,
            offset=ask.offset,
            at=ask.at,
            length=event.length,
            size=event.size,
        )
        return (Send(ask.follower, answer),)

    def _trim_asked(self, event: TrimAsked) -> tuple[Effect, ...]:
        if self.role is not LEADING:
            return (Answer(event.ticket, Outcome.CLOSED if self.role is Role.CLOSED else Outcome.DEPOSED),)
        self.trims.ask(event.start, event.ticket)
        return tuple(self._advance())

    def _trim_refused(self, event: TrimRefused) -> tuple[Effect, ...]:
        return tuple(self.trims.refused(event.error))

    def _start_moved(self, event: StartMoved) -> tuple[Effect, ...]:
        self.trims.log_start = max(self.trims.log_start, event.log_start)
        return tuple(self._advance()) if self.role is LEADING else NOTHING

    def _isr_answered(self, event: IsrAnswered) -> tuple[Effect, ...]:
        if self.role is not Role.LEADING or self.in_sync is None or event.epoch != self.epoch:
            return NOTHING
        if self.me not in event.isr or not self.in_sync.confirm(event):
            return NOTHING
        self._minimum(event.min_insync_replicas)
        return tuple(self._advance())

    def _minimum(self, of_state: int | None) -> None:
        if of_state is not None:
            self.min_insync_replicas, self._has_minimum = of_state, True

    def _tick(self, event: Tick) -> tuple[Effect, ...]:
        assert event.now_ms >= self.now_ms, "time runs back"
        self.now_ms = event.now_ms
        if self.role is not Role.LEADING:
            return NOTHING
        if self.in_sync is not None:
            asked = self.in_sync.tick(
                self.now_ms,
                log_end=self.log_end,
                lag_ms_max=self._lag_ms_max,
                least_in_sync=self.min_insync_replicas,
            )
            return NOTHING if asked is None else (asked,)
        is_due = self.now_ms - self._synced_ms >= self.fsync_interval_ms
        if self.fsync_each_batch or self.is_syncing or not is_due or self.durable_end == self.log_end:
            return NOTHING
        self.is_syncing = True
        return self._sync


def _stored(waiting: Waiting, end: int) -> list[Effect]:
    """Answers to those in front who wait for no more than `end`; they wait no longer."""
    count = 0
    while count < len(waiting) and waiting[count][0] <= end:
        count += 1
    effects: list[Effect] = [Answer(ticket, STORED) for _, ticket in waiting[:count]]
    del waiting[:count]
    return effects


_HANDLERS: Final = cast(
    dict[type[Event], Callable[[Leader, Any], tuple[Effect, ...]]],
    {
        Appended: Leader._appended,
        Synced: Leader._synced,
        SyncFailed: Leader._sync_failed,
        Recovered: Leader._recovered,
        Led: Leader._led,
        Deposed: Leader._deposed,
        Closed: Leader._closed,
        Altered: Leader._altered,
        FetchArrived: Leader._fetch_arrived,
        EndAsked: Leader._end_asked,
        StateAsked: Leader._state_asked,
        RangeAsked: Leader._range_asked,
        TrimAsked: Leader._trim_asked,
        TrimRefused: Leader._trim_refused,
        StartMoved: Leader._start_moved,
        IsrAnswered: Leader._isr_answered,
        Tick: Leader._tick,
    },
)
