"""Replicas that count for a commit: those in sync, as the catalog has them, and the one change that is asked for.

    committed ISR      a b c                  each of them counts, until the catalog has confirmed that it does not
    asked: remove c    a b c                  still counts: the catalog may have elected it meanwhile
    asked: add d       a b c + d              counts already: the catalog may elect it as soon as it has been added

I1  A member counts until its removal is confirmed, an addition from the moment that it is asked for until the catalog
    has refused it. A time-out is no answer.
I2  One change is asked for at a time, of the partition epoch that is known: of two, one would be refused.
I3  A follower is asked in only with a *durable* end at or above the high watermark and the start of the epoch, and with
    a log start at or above the last trim that was answered. And it lacks no state file: it may be elected at once.
I4  The words of a follower from an earlier leadership, or under an earlier incarnation, are forgotten.
I5  How long a follower has been behind is counted from the first tick of this leadership on, not from before.
I6  All that are assigned count for tombstones, in sync or not, from the start: one that has told no mark has compacted
    nothing. The mark of the later fetch holds, though it be the lesser one: a log that was cut has copied anew what it
    had compacted, from a leader that may not have. Who lowers its mark without a fetch names the last one before it,
    which may come later, and says nothing then.
I7  A follower whose disk has no room for records is asked out at once, so that acks go on without it; it joins when it
    has what there is. It stays, and may join, where fewer than must be in sync were left otherwise: nothing is
    committed without it then, and a trim that would make room waits for as many as must be (`trims.T1`).
I8  A follower that the catalog has refused, as of the state that is known, is asked in again after a while, which
    doubles. It may be held for dead, and fetch all the same. Another incarnation is asked in at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.replication.events import AskIsr, IsrAnswered, Led
from broker.replication.messages import NO_INCARNATION, AskRange, Fetch, Incarnation

ASK_AGAIN_MS: Final = (200, 3_200)
"""The first pause of I8, and the last."""


@dataclass(slots=True)
class KnownFollower:
    """One follower, by what it has said in this leadership.

    Attributes:
        durable_end: -1: nothing yet.
        log_start: As its checkpoint has it.
        number: The number of its latest fetch.
        lacks_state, compacted_to, waits_to, lacks_room: As that one had it.
        caught_up_ms: When it last held all that the leader had; None: before the first tick.
        mark_ms, mark_end: Once it holds this much, it had all of what there was at that time.
        pause_ms, ask_again_ms: The last pause after a refusal, and when it is over (I8).
    """

    incarnation: Incarnation = NO_INCARNATION
    durable_end: int = -1
    log_start: int = 0
    lacks_state: bool = True
    number: int = -1
    compacted_to: int = 0
    waits_to: int = 0
    lacks_room: bool = False
    caught_up_ms: int | None = None
    mark_ms: int = 0
    mark_end: int = 0
    pause_ms: int = 0
    ask_again_ms: int = 0


class InSync:
    """The in-sync replicas of one leadership. `me` is its leader.

    Attributes:
        without_room: The followers that have said last that their disks have no room, members or not.
    """

    def __init__(self, me: str, led: Led, request: int) -> None:
        self.members = tuple(sorted(led.isr))
        self.partition_epoch = led.partition_epoch
        self.pending: AskIsr | None = None
        self.followers = {broker: KnownFollower() for broker in sorted(led.replicas) if broker != me}  # I4
        self.without_room: tuple[str, ...] = ()
        self.request = request
        self._me = me
        self._epoch = led.epoch
        self._now_ms = 0

    def counting(self) -> list[str]:
        """The followers that count, in order (I1)."""
        added = self.pending.add if self.pending is not None else None
        return [broker for broker in self.followers if broker in self.members or broker == added]

    def durable_end(self, own_end: int) -> int:
        """The least durable end of all that count."""
        return min([own_end, *(self.followers[broker].durable_end for broker in self.counting())])

    def log_starts(self) -> list[int]:
        """The log starts of all that count, but the leader's."""
        return [self.followers[broker].log_start for broker in self.counting()]

    def admits(self, broker: str, incarnation: Incarnation) -> bool:
        """Whether somebody may be minded (I4)."""
        return broker in self.followers and incarnation >= self.followers[broker].incarnation

    def note(self, fetch: Fetch, *, log_end: int, now_ms: int) -> None:
        """A follower that may be minded has said how far it is; what it holds is in the leader's log."""
        follower = self._known(fetch.follower, fetch.incarnation)
        if fetch.number > follower.number:  # I6
            follower.number, follower.lacks_state = fetch.number, fetch.lacks_state
            follower.compacted_to, follower.waits_to = fetch.compacted_to, fetch.waits_to
            if fetch.lacks_room != follower.lacks_room:
                follower.lacks_room = fetch.lacks_room
                self.without_room = tuple(broker for broker, one in self.followers.items() if one.lacks_room)
        follower.durable_end = max(follower.durable_end, fetch.durable_end)
        follower.log_start = max(follower.log_start, fetch.log_start)
        if follower.caught_up_ms is not None and follower.durable_end >= follower.mark_end:
            at_end = follower.durable_end >= log_end
            follower.caught_up_ms = now_ms if at_end else max(follower.caught_up_ms, follower.mark_ms)
            follower.mark_ms, follower.mark_end = now_ms, log_end

    def _known(self, broker: str, incarnation: Incarnation) -> KnownFollower:
        """This follower, under this incarnation."""
        follower = self.followers[broker]
        if incarnation > follower.incarnation:
            follower.incarnation, follower.durable_end, follower.log_start = incarnation, -1, 0
            follower.number, follower.pause_ms, follower.ask_again_ms = -1, 0, 0
        return follower

    def lower_mark(self, ask: AskRange) -> None:
        """This follower has lowered its mark of compaction (I6)."""
        if self.admits(ask.follower, ask.incarnation):
            follower = self._known(ask.follower, ask.incarnation)
            follower.compacted_to = min(follower.compacted_to, ask.compacted_to)
            follower.number = max(follower.number, ask.number)

    def tombstones_below(self, own_mark: int) -> int:
        """The least mark of compaction of all that are assigned (I6)."""
        return min([own_mark, *(follower.compacted_to for follower in self.followers.values())])

    def compact_to(self, own_wait: int) -> int:
        """So far somebody's tombstones wait for the marks of others."""
        return max([own_wait, *(follower.waits_to for follower in self.followers.values())])

    def confirm(self, event: IsrAnswered) -> bool:
        """The catalog has spoken. Returns whether that is news."""
        if event.partition_epoch < self.partition_epoch:
            return False
        is_answer = self.pending is not None and event.request == self.pending.request
        is_later = event.partition_epoch > self.partition_epoch  # then what is asked for came to pass, or never can
        if is_answer and not is_later and self.pending is not None:
            self._refused(self.pending)
        if is_answer or is_later:
            self.pending = None
        self.members, self.partition_epoch = tuple(sorted(event.isr)), event.partition_epoch
        return is_answer or is_later

    def _refused(self, ask: AskIsr) -> None:
        """I8."""
        follower = self.followers.get(ask.add or "")
        if follower is not None and follower.incarnation == ask.incarnation:
            first_ms, last_ms = ASK_AGAIN_MS
            follower.pause_ms = min(max(first_ms, 2 * follower.pause_ms), last_ms)
            follower.ask_again_ms = self._now_ms + follower.pause_ms

    def reduction(self, *, least_in_sync: int) -> AskIsr | None:
        """Ask out a member whose disk has no room, if enough remain (I2, I7)."""
        if not self.without_room or self.pending is not None or len(self.members) <= least_in_sync:
            return None
        full = [broker for broker in self.without_room if broker in self.members]
        return self._ask(remove=full[0]) if full else None

    def expansion(self, broker: str, *, least_end: int, least_start: int, least_in_sync: int) -> AskIsr | None:
        """Ask this follower in, if it has what it needs (I2, I3, I7, I8)."""
        follower = self.followers[broker]
        is_ready = follower.durable_end >= least_end and follower.log_start >= least_start and not follower.lacks_state
        is_ready &= not follower.lacks_room or len(self.members) < least_in_sync
        if self.pending is not None or broker in self.members or not is_ready or self._now_ms < follower.ask_again_ms:
            return None
        return self._ask(add=broker, incarnation=follower.incarnation)

    def tick(self, now_ms: int, *, log_end: int, lag_ms_max: int, least_in_sync: int) -> AskIsr | None:
        """Time passes: the longest behind is asked out, if it is for too long; what was asked is asked again."""
        self._now_ms = now_ms
        is_few = len(self.members) <= least_in_sync
        worst, worst_ms = None, now_ms - lag_ms_max
        for broker, follower in self.followers.items():
            if follower.caught_up_ms is None or follower.durable_end >= log_end:  # I5
                follower.caught_up_ms, follower.mark_ms, follower.mark_end = now_ms, now_ms, log_end
            elif broker in self.members and follower.caught_up_ms < worst_ms and not (is_few and follower.lacks_room):
                worst, worst_ms = broker, follower.caught_up_ms
        if self.pending is not None:
            return self.pending
        if worst is None:
            return self.reduction(least_in_sync=least_in_sync)
        return self._ask(remove=worst)

    def _ask(
        self, *, add: str | None = None, remove: str | None = None, incarnation: Incarnation = NO_INCARNATION
    ) -> AskIsr:
        self.request += 1
        self.pending = AskIsr(
            request=self.request,
            epoch=self._epoch,
            partition_epoch=self.partition_epoch,
            add=add,
            remove=remove,
            incarnation=incarnation,
        )
        return self.pending
