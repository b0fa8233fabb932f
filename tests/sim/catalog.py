"""The smallest catalog that replication needs: what `broker.metadata` is to know of partitions, as 03 section 2 and 8
say it. It goes when that is there.

A deterministic state machine: one command, its result. Each state of a partition is a value of its own, so what a
broker has applied is simply an older one.

C1  One counter of leader epochs; each command that changes leaders takes the next number once.
C2  A registration ends the leaderships of the broker's earlier life, and takes it out of the ISR and the last ISR of
    every partition whose folder it does not list, in the same command.
C3  Whoever leaves while fewer than the minimum are left in the ISR stays in the last ISR, until as many are in it
    again.
C4  Changes of an ISR are compare-and-set on (leader epoch, partition epoch) and the incarnation of who is added.
C5  A step-out for damage is refused unless another member of the ISR or the last ISR is live.
C6  Before the first leader, `Opened` joins the ISR and a failure removes nobody; afterwards only the leader adds.
C7  Whatever may turn a refusal of a change into its acceptance takes another partition epoch, also a session that comes
    back: of two tries on their way the first may be refused, and the leader forgets whom it wanted to add.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from broker.replication.messages import Incarnation

UNREGISTERED: Incarnation = (0, 0)
REPORT_WINDOW_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition. Sets are sorted tuples."""

    name: str
    number: int
    min_insync_replicas: int
    replicas: tuple[str, ...]
    incarnations: dict[str, Incarnation]  # of replicas; never changed in place
    leader: str | None = None
    epoch: int = 0
    partition_epoch: int = 0
    isr: tuple[str, ...] = ()
    last_isr: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    is_begun: bool = False
    reports: tuple[tuple[str, int, float], ...] = ()  # who reported the leader of which epoch, when


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    broker: str
    token: int  # of the process: the same command again changes nothing
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    broker: str
    partition: str
    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    partition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    broker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    broker: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeIsr:
    partition: str
    leader: str
    incarnation: Incarnation
    epoch: int
    partition_epoch: int
    add: str | None
    remove: str | None
    added_incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOut:
    partition: str
    broker: str
    incarnation: Incarnation
    is_damaged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    partition: str
    reporter: str
    incarnation: Incarnation
    epoch: int
    now_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Elect:
    """Give the leadership to another, as the balancer does."""

    partition: str
    leader: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Let other brokers have the replicas."""

    partition: str
    replicas: tuple[str, ...]


Command = Register | Opened | Deadline | Fail | Renew | ChangeIsr | StepOut | Report | Elect | Assign


@dataclass(slots=True)
class Catalog:
    partitions: dict[str, Partition] = field(default_factory=dict)
    brokers: dict[str, tuple[int, int]] = field(default_factory=dict)  # incarnation, token
    live: set[str] = field(default_factory=set)
    incarnation_last: int = 0
    epoch_last: int = 0

    def apply(self, command: Command) -> bool:
        """Returns whether it was accepted."""
        epoch, before = self.epoch_last, dict(self.partitions)
        handler: Any = getattr(self, f"_{type(command).__name__.lower()}")
        is_accepted: bool = handler(command)
        if any(p.epoch == epoch + 1 for p in self.partitions.values()):
            self.epoch_last += 1  # C1
        for name, partition in self.partitions.items():
            was = before.get(name)
            if was is not None and replace(was, reports=partition.reports) != partition:
                self.partitions[name] = replace(partition, partition_epoch=was.partition_epoch + 1)
        return is_accepted

    # -- commands

    def _register(self, command: Register) -> bool:
        broker = command.broker
        if self.brokers.get(broker, (0, 0))[1] == command.token:
            return True
        self.incarnation_last += 1
        self.brokers[broker] = (self.incarnation_last, command.token)
        self.live.add(broker)
        for name, p in self.partitions.items():
            if broker not in p.replicas:
                continue
            p = replace(p, incarnations={**p.incarnations, broker: (self.incarnation_last, 0)})
            is_known = broker in {*p.opened, *p.isr, *p.last_isr}
            if name not in command.folders and is_known:
                p = self._leave(p, broker, is_lost=True)  # C2
            if p.leader in (broker, None):
                p = self._elected(p)
            self.partitions[name] = self._begun(p, len(p.replicas))
        return True

    def _opened(self, command: Opened) -> bool:
        p, broker = self.partitions[command.partition], command.broker
        if p.incarnations.get(broker) != command.incarnation or broker in p.opened:
            return False
        p = replace(p, opened=tuple(sorted({*p.opened, broker})))
        if not p.is_begun:  # C6
            p = replace(p, isr=tuple(sorted({*p.isr, broker})))
        self.partitions[p.name] = self._begun(p, len(p.replicas))
        return True

    def _deadline(self, command: Deadline) -> bool:
        p = self.partitions[command.partition]
        self.partitions[p.name] = self._begun(p, p.min_insync_replicas)
        return True

    def _fail(self, command: Fail) -> bool:
        broker = command.broker
        if broker not in self.live:
            return False
        self.live.discard(broker)
        for name, p in self.partitions.items():
            if p.is_begun and broker in p.replicas:
                p = self._leave(p, broker, is_lost=False)
                self.partitions[name] = self._elected(p) if p.leader == broker else p
        return True

    def _renew(self, command: Renew) -> bool:
        broker = command.broker
        if broker in self.live or self.brokers.get(broker, (0, 0))[0] != command.incarnation:
            return False
        self.live.add(broker)
        for name, p in self.partitions.items():
            p = self._elected(p) if p.leader is None else p
            if broker in p.replicas:
                p = replace(p, partition_epoch=p.partition_epoch + 1)  # C7
            self.partitions[name] = self._begun(p, len(p.replicas))
        return True

    def _changeisr(self, command: ChangeIsr) -> bool:
        p = self.partitions[command.partition]
        is_current = (p.leader, p.epoch, p.partition_epoch) == (command.leader, command.epoch, command.partition_epoch)
        if not is_current or p.incarnations.get(command.leader) != command.incarnation:  # C4
            return False
        if command.add is not None:
            who = command.add
            is_same = p.incarnations.get(who) == command.added_incarnation
            if who not in self.live or not is_same or who in p.isr:
                return False
            p = replace(p, isr=tuple(sorted({*p.isr, who})), last_isr=_without(p.last_isr, who))
            if len(p.isr) >= p.min_insync_replicas:
                p = replace(p, last_isr=())
        else:
            if command.remove not in p.isr or command.remove == p.leader:
                return False
            p = self._leave(p, command.remove, is_lost=False)
        self.partitions[p.name] = p
        return True

    def _stepout(self, command: StepOut) -> bool:
        p, broker = self.partitions[command.partition], command.broker
        if p.incarnations.get(broker) != command.incarnation:
            return False
        others = ({*p.isr, *p.last_isr} - {broker}) & self.live
        if command.is_damaged and not others and broker in {*p.isr, *p.last_isr}:
            return False  # C5
        broker_incarnation, steps = command.incarnation
        p = replace(p, incarnations={**p.incarnations, broker: (broker_incarnation, steps + 1)})
        p = self._leave(p, broker, is_lost=command.is_damaged)
        self.partitions[p.name] = self._elected(p) if p.leader in (broker, None) else p
        return True

    def _report(self, command: Report) -> bool:
        p = self.partitions[command.partition]
        if p.leader is None or p.epoch != command.epoch or p.incarnations.get(command.reporter) != command.incarnation:
            return False
        reports = [(who, epoch, ms) for who, epoch, ms in p.reports if who != command.reporter and epoch == p.epoch]
        reports = [report for report in reports if command.now_ms - report[2] <= REPORT_WINDOW_MS]
        p = replace(p, reports=(*reports, (command.reporter, p.epoch, command.now_ms)))
        others = set(p.isr) - {p.leader}
        if 2 * len(others & {who for who, _, _ in p.reports}) > len(others):
            p = self._elected(self._leave(p, p.leader or "", is_lost=False))
        self.partitions[p.name] = p
        return True

    def _elect(self, command: Elect) -> bool:
        p = self.partitions[command.partition]
        if p.leader is None or command.leader not in p.isr or command.leader not in self.live:
            return False
        self.partitions[p.name] = self._led(p, command.leader)
        return True

    def _assign(self, command: Assign) -> bool:
        """Whoever leads goes on under another epoch, which knows the new replicas. The minimum stays."""
        p = self.partitions[command.partition]
        gone = set(p.replicas) - set(command.replicas)
        kept = set(p.isr) - gone
        if not p.is_begun or len(kept) < p.min_insync_replicas or not kept & self.live or p.leader is None:
            return False
        incarnations = dict(p.incarnations)  # of those who were, too: nobody comes back under the same
        for who in set(command.replicas) - set(p.replicas):
            mine, (former, steps) = self.brokers.get(who, UNREGISTERED)[0], p.incarnations.get(who, UNREGISTERED)
            incarnations[who] = (mine, steps + 1 if mine == former else 0)
        p = replace(
            p,
            replicas=command.replicas,
            incarnations=incarnations,
            isr=tuple(sorted(kept)),
            last_isr=tuple(who for who in p.last_isr if who not in gone),
            opened=tuple(who for who in p.opened if who not in gone),
        )
        is_led = p.leader in kept and p.leader in self.live
        self.partitions[p.name] = self._led(p, p.leader) if is_led and p.leader else self._elected(p)
        return True

    # -- rules

    def _leave(self, p: Partition, broker: str, *, is_lost: bool) -> Partition:
        isr, last = _without(p.isr, broker), p.last_isr
        if p.is_begun:
            if len(isr) < p.min_insync_replicas and broker in p.isr:
                last = tuple(sorted({*last, broker}))  # C3
            if len(isr) >= p.min_insync_replicas:
                last = ()
        opened = p.opened
        if is_lost:
            last, opened = _without(last, broker), _without(opened, broker)
        return replace(p, isr=isr, last_isr=last, opened=opened)

    def _elected(self, p: Partition) -> Partition:
        """Another leader, or none."""
        if not p.is_begun:
            return p
        live = [who for who in p.replicas if who in p.isr and who in self.live]
        if live:
            return self._led(p, live[0])
        last = [who for who in p.replicas if who in p.last_isr and who in self.live] if not p.isr else []
        if not last:
            return replace(p, leader=None, epoch=self.epoch_last + 1) if p.leader is not None else p
        p = replace(p, isr=(last[0],), last_isr=_without(p.last_isr, last[0]))
        if p.min_insync_replicas <= 1:
            p = replace(p, last_isr=())
        return self._led(p, last[0])

    def _led(self, p: Partition, leader: str) -> Partition:
        return replace(p, leader=leader, epoch=self.epoch_last + 1, reports=())

    def _begun(self, p: Partition, need: int) -> Partition:
        """The first election, once as many are open and live."""
        ready = tuple(who for who in p.isr if who in self.live)
        if p.is_begun or len(ready) < need:
            return p
        return self._elected(replace(p, isr=ready, is_begun=True))


def _without(who: tuple[str, ...], gone: str) -> tuple[str, ...]:
    return tuple(name for name in who if name != gone)
