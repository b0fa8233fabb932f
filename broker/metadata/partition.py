"""The catalog's entry for one partition, and how it may change. Values and pure functions.

A partition's replicas are brokers, the preferred leader first:

    replicas   a b c d    where it is kept
    isr        a b        in sync: who has every committed record, and may lead
    last isr   c          left while fewer than `min_insync_replicas` remained: nothing was committed without it since,
                          so it may lead too, if no member of the ISR is there to
    opened     a b c d    who has told that the folder is there

Invariants
P1  At most one broker leads in an epoch. It was live, in the ISR, and its incarnation is the one that it had then.
P2  After the first election a replica that leaves the ISR while fewer than `min_insync_replicas` remain joins the last
    ISR.
    It stays there until there are so many again, until it is back in the ISR, or until its log is lost (KIP-966).
P3  Before the first election "opened" joins the ISR, a failure removes nobody, and there is no last ISR. The first ISR
    is who has opened it *and* is live. Afterwards only the leader adds to the ISR, or an election from the last ISR.
P4  Each change takes the next partition epoch, once. So does whatever else could change the answer to `alter_isr`: what
    was refused at a partition epoch is refused at it for ever, and may be forgotten by who asked.
P5  A replica's incarnation is (registration of its broker, number of its step-outs since). It only grows.
P6  `min_insync_replicas` holds from the partition epoch on that it stands at: who leads takes it and the ISR from one
    and the same state. (With the new ISR and the old minimum it would commit what the last ISR does not have.)
P7  A leader goes on in another epoch when the replicas become others: it learns who they are, and forgets what they
    have said, when it begins to lead. (A replica that went and came back has an empty log, and the same incarnation.)
P8  A damaged replica steps out only while another member of the ISR, or of the last ISR, is live. Else it stays, and
    tries again when the catalog shows such a one: nothing is asked before.
P9  A replica that is behind (it lacks committed records at its end, and knows it) leaves both sets as its broker
    registers, while anybody else is in one of them, live or not: a replica that lacks nothing is to lead. The last one
    stays, as nobody could lead then. Records that nobody else has are lost, and the partition says so
    (`unclean_epoch`). It stays opened: an operator may choose it, if the others are gone for good.

Design: docs/explain/metadata.md. The readings are those of KIP-101, 279, 966 and of two model checkers.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, fields, replace
from typing import Any

Place = tuple[str, int]
"""A partition: the incarnation of its stream, and its number."""
ReplicaIncarnation = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """The brokers, as an election sees them.

    Attributes:
        registrations: The registration of each broker that is live.
        stopping: Those among them that are about to stop: they lead only what nobody else can.
    """

    registrations: Mapping[str, int]
    stopping: Set[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition. Tuples of brokers are sorted, but for `replicas` and `target`.

    Attributes:
        leader, leader_incarnation, leader_epoch: The incarnation is that of the replica (P5). Epoch 0: nobody has led
            yet; without a leader it is the epoch in which the last one ended.
        step_outs: Step-outs of each replica, under the present registration of its broker; 0 is left out.
        target: A reassignment is about to make `replicas` so; None: there is none.
        target_min: And `min_insync_replicas` so.
        unclean_epoch: The last epoch whose leader was chosen although it may lack committed records: by an operator, or
            because nobody else was there to (P9); 0: none.
    """

    replicas: tuple[str, ...]
    min_insync_replicas: int = 1
    isr: tuple[str, ...] = ()
    last_isr: tuple[str, ...] = ()
    leader: str | None = None
    leader_incarnation: ReplicaIncarnation = (0, 0)
    leader_epoch: int = 0
    partition_epoch: int = 0
    opened: tuple[str, ...] = ()
    step_outs: tuple[tuple[str, int], ...] = ()
    target: tuple[str, ...] | None = None
    target_min: int = 0
    unclean_epoch: int = 0

    @property
    def has_led(self) -> bool:
        """Whether the first election is over (P3)."""
        return self.leader_epoch > 0

    @property
    def electable(self) -> frozenset[str]:
        """Replicas that may lead without a loss, if they are live."""
        return frozenset(self.isr or self.last_isr)

    def knows_log_of(self, broker: str) -> bool:
        """Whether a replica is known to have a log: has opened it, or may lead. Else what its broker has is no part."""
        return broker in {*self.opened, *self.isr, *self.last_isr}

    def needs(self, broker: str, who: Who) -> bool:
        """Whether nobody else that lives could lead without a loss: who is damaged has to stay then (P8)."""
        members = {*self.isr, *self.last_isr}
        return broker in members and members.isdisjoint(set(who.registrations) - {broker})

    def step_outs_of(self, broker: str) -> int:
        """How often the replica has stepped out under the present registration of its broker."""
        return dict(self.step_outs).get(broker, 0)

    # -- who is in sync -------------------------------------------------------------------------------------

    def left(self, broker: str, *, lost: bool = False) -> PartitionState:
        """A broker leaves the ISR. `lost`: what it had is gone, so it leaves the last ISR too (P2)."""
        isr = _without(self.isr, broker)
        last = self.last_isr
        if self.has_led and broker in self.isr and len(isr) < self.min_insync_replicas:
            last = _with(last, broker)
        if lost:
            last = _without(last, broker)
        opened = _without(self.opened, broker) if lost else self.opened
        return replace(self, isr=isr, last_isr=last, opened=opened).tidied()

    def fell_behind(self, broker: str, epoch: int) -> PartitionState:
        """A broker that registers with this number lacks committed records at the end of its log (P9)."""
        members = {*self.isr, *self.last_isr}
        if not self.has_led or broker not in members:
            return self
        if members == {broker}:
            return replace(self, unclean_epoch=epoch)
        left = replace(self, isr=_without(self.isr, broker), last_isr=_without(self.last_isr, broker))
        return replace(left, opened=_with(self.opened, broker))

    def failed(self, broker: str) -> PartitionState:
        """A broker is taken for dead: it leaves the ISR, and leads no more; before the first leader, nothing (P3)."""
        return self.left(broker) if self.has_led else self

    def joined(self, broker: str) -> PartitionState:
        """A broker joins the ISR."""
        return replace(self, isr=_with(self.isr, broker), last_isr=_without(self.last_isr, broker)).tidied()

    def tidied(self) -> PartitionState:
        """Nobody is in the last ISR while enough are in sync (P2)."""
        return replace(self, last_isr=()) if self.last_isr and len(self.isr) >= self.min_insync_replicas else self

    def reported_open(self, broker: str) -> PartitionState:
        """A replica's folder is there (P3)."""
        state = replace(self, opened=_with(self.opened, broker))
        return state if self.has_led else replace(state, isr=_with(self.isr, broker))

    def stepped_out(self, broker: str, *, lost: bool) -> PartitionState:
        """A replica takes another incarnation (P5), and leaves."""
        counts = dict(self.step_outs) | {broker: self.step_outs_of(broker) + 1}
        state = replace(self, step_outs=tuple(sorted(counts.items())), opened=_without(self.opened, broker))
        return state.left(broker, lost=lost)

    def registered(self, broker: str) -> PartitionState:
        """The broker of a replica has a new registration."""
        kept = tuple(pair for pair in self.step_outs if pair[0] != broker)
        return self if kept == self.step_outs else replace(self, step_outs=kept)

    # -- who leads ------------------------------------------------------------------------------------------

    def deposed(self, epoch: int) -> PartitionState:
        """Nobody leads in this epoch, unless somebody is elected."""
        return self if self.leader is None else replace(self, leader=None, leader_epoch=epoch)

    def led_by(self, broker: str, epoch: int, who: Who) -> PartitionState:
        """A broker leads from now on (P1)."""
        state = self if broker in self.isr else replace(self, isr=(broker,), last_isr=_without(self.last_isr, broker))
        incarnation = (who.registrations[broker], self.step_outs_of(broker))
        return replace(state, leader=broker, leader_incarnation=incarnation, leader_epoch=epoch).tidied()

    def led_anew(self, epoch: int) -> PartitionState:
        """The leader goes on in another epoch (P7)."""
        return self if self.leader is None else replace(self, leader_epoch=epoch)

    def completed(self, epoch: int, who: Who, *, need: int | None = None) -> PartitionState:
        """Do what follows of itself: the end of a reassignment, the first election, another one if nobody leads.

        Args:
            need: So many must have opened the partition before the first election; None: all replicas.
        """
        state = self.reassigned(epoch)
        if not state.has_led:
            ready = [broker for broker in state.replicas if broker in state.isr and broker in who.registrations]
            if len(ready) < (len(state.replicas) if need is None else need):
                return state
            state = replace(state, isr=tuple(sorted(ready)))
        if state.leader is None:
            candidates = [b for b in state.replicas if b in state.electable and b in who.registrations]
            candidates.sort(key=lambda broker: broker in who.stopping)  # of equals, the order of the replicas
            if candidates:
                state = state.led_by(candidates[0], epoch, who)
        return state

    def targeted(self, target: tuple[str, ...], least: int, epoch: int) -> PartitionState:
        """A reassignment begins: the new replicas come, and catch up (P7). One that names the same in another order is
        over at once, also while some are away: it moves nothing."""
        if self.target is None and least == self.min_insync_replicas and set(target) == set(self.replicas):
            return replace(self, replicas=target)
        replicas = (*self.replicas, *(broker for broker in target if broker not in self.replicas))
        state = self if replicas == self.replicas else self.led_anew(epoch)
        return replace(state, replicas=replicas, target=target, target_min=least)

    def with_minimum(self, least: int) -> PartitionState:
        """Another minimum, now and at the end of a reassignment that is under way."""
        coming = 0 if self.target is None else least
        return replace(self, min_insync_replicas=least, target_min=coming).tidied()

    def reassigned(self, epoch: int) -> PartitionState:
        """The reassignment is done as soon as all that are to stay are in sync."""
        target = self.target
        if target is None or (self.has_led and not set(target) <= set(self.isr)):
            return self
        state = replace(
            self,
            replicas=target,
            min_insync_replicas=self.target_min or self.min_insync_replicas,
            isr=tuple(b for b in self.isr if b in target),
            last_isr=tuple(b for b in self.last_isr if b in target),
            opened=tuple(b for b in self.opened if b in target),
            step_outs=tuple(pair for pair in self.step_outs if pair[0] in target),
            target=None,
            target_min=0,
        ).tidied()
        if state.leader in target:
            return state if set(target) == set(self.replicas) else state.led_anew(epoch)
        return state.deposed(epoch)

    # -- as JSON --------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """As JSON values, without what has its default; `state_from` reads it back."""
        return {
            each.name: _plain(value) for each in fields(self) if (value := getattr(self, each.name)) != each.default
        }


def state_from(value: Mapping[str, Any]) -> PartitionState:
    """Read what `PartitionState.as_dict` wrote."""
    values: dict[str, Any] = {key: _tuples(each) for key, each in value.items()}
    return PartitionState(**values)


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


def _with(brokers: tuple[str, ...], broker: str) -> tuple[str, ...]:
    return brokers if broker in brokers else tuple(sorted((*brokers, broker)))


def _without(brokers: tuple[str, ...], broker: str) -> tuple[str, ...]:
    return tuple(each for each in brokers if each != broker) if broker in brokers else brokers
