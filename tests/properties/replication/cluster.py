"""Three replicas: the leader's core against followers, a catalog and messages that come late, twice or never.

Followers and logs are numbers here: how far each has what the leader has, and how far that is durable. Checked, with
what only somebody outside can know:

S1  what is committed is durable on every broker that the catalog has in the ISR at that moment: any may be elected
S2  it ends where a commit group ends, at or above the start of the epoch, and never moves back in an epoch
S3  it moves only while the ISR that the leader knows is large enough
S4  nobody is told twice; ALL is told once it is committed, LEADER once it is durable here
S5  once messages come through, followers are in sync and nobody waits
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import broker.replication.events as events
from broker.replication.events import Acks, AskIsr, Outcome
from broker.replication.messages import Fetch, Incarnation

BROKERS = ("a", "b", "c")
STEPS = 160


@dataclass
class Catalog:
    isr: frozenset[str] = frozenset(BROKERS)
    partition_epoch: int = 0
    incarnations: dict[str, Incarnation] = field(default_factory=lambda: dict.fromkeys(BROKERS, (1, 0)))

    def change(self, isr: frozenset[str]) -> None:
        self.isr, self.partition_epoch = isr, self.partition_epoch + 1


@dataclass
class Cluster:
    """See the module. `leader`: the module with the core."""

    leader: ModuleType
    seed: int
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.catalog = Catalog()
        self.core: Any = self.leader.Leader("a", replica_lag_ms_max=1_000)
        self.durable = dict.fromkeys(BROKERS, 0)
        self.has = dict.fromkeys(BROKERS, 0)
        self.groups = [0]
        self.net: list[events.Event | AskIsr] = []
        self.known_isr: tuple[str, ...] = ()
        self.min = self.rng.choice((1, 2, 2))
        self.epoch = self.high_watermark = self.committed = self.now_ms = 0
        self.is_asked = False
        self.told: dict[int, Outcome | None] = {}
        self.wants: dict[int, tuple[int, Acks]] = {}
        self.step(events.Altered(min_insync_replicas=self.min, fsync_each_batch=True, fsync_interval_ms=0))
        self.lead()

    def run(self) -> None:
        actions = {
            self.append: 20,
            self.sync: 20,
            self.fetch: 40,
            self.follower_sync: 30,
            self.deliver: 40,
            self.lose: 4,
            self.tick: 8,
            self.fail_follower: 2,
            self.wipe: 2,
            self.depose: 2,
        }
        for _ in range(STEPS):
            [act] = self.rng.choices(list(actions), list(actions.values()))
            self.trace.append(act.__name__)
            act()
        self.come_to_rest()

    def step(self, event: events.Event) -> None:
        self.trace.append(f"  {event}")
        if isinstance(event, events.IsrAnswered) and event.epoch == self.core.epoch:
            self.known_isr = event.isr
        for effect in self.core.step(event):
            self.trace.append(f"    -> {effect}")
            match effect:
                case events.Sync():
                    assert not self.is_asked
                    self.is_asked = True
                case events.Commit(high_watermark):
                    self.check_commit(high_watermark)
                case events.Answer(ticket, outcome, _):
                    self.check_answer(ticket, outcome)
                case AskIsr():
                    self.net.append(effect)

    def check_commit(self, high_watermark: int) -> None:
        for broker in self.catalog.isr:
            assert self.durable[broker] >= high_watermark, f"S1: {broker} may lead, and has {self.durable}"
        assert high_watermark in self.groups, "S2"
        assert high_watermark > self.high_watermark, "S2"
        assert high_watermark >= self.core.epoch_start, "S2"
        assert len(self.core.in_sync.members) >= self.min, "S3"
        self.high_watermark = high_watermark
        self.committed = max(self.committed, high_watermark)

    def check_answer(self, ticket: int, outcome: Outcome) -> None:
        assert self.told[ticket] is None, "S4: told twice"
        self.told[ticket] = outcome
        end, acks = self.wants[ticket]
        if outcome is Outcome.STORED:
            assert self.durable["a"] >= end, "S4"
            assert acks is Acks.LEADER or self.committed >= end, "S4"

    # -- what happens

    def lead(self) -> None:
        self.epoch += 2
        self.net = [m for m in self.net if self.rng.random() < 0.5]  # others are late
        end = self.has["a"]
        self.high_watermark = self.rng.choice([g for g in self.groups if g <= min(self.committed, end)])
        self.catalog.change(self.catalog.isr | {"a"})
        self.known_isr = tuple(sorted(self.catalog.isr))
        self.step(
            events.Led(
                epoch=self.epoch,
                replicas=BROKERS,
                isr=self.known_isr,
                partition_epoch=self.catalog.partition_epoch,
                high_watermark=self.high_watermark,
                durable_end=self.durable["a"],
                log_end=end,
                group_ends=tuple(g for g in self.groups if self.high_watermark < g <= end),
            )
        )
        for broker in "bc":  # they find out where they part from the new leader
            self.has[broker] = min(self.has[broker], end)
            self.durable[broker] = min(self.durable[broker], self.has[broker])

    def depose(self) -> None:
        """Somebody of the ISR leads for a while; then a leads again, with whatever log that left it."""
        others = sorted(self.catalog.isr - {"a"})
        if not others:
            return
        self.step(events.Deposed())
        heir = self.rng.choice(others)
        end = max([g for g in self.groups if g <= self.has[heir]])
        assert end >= self.committed, "what was committed is gone"
        self.groups = [g for g in self.groups if g <= end]
        for broker in BROKERS:
            self.has[broker] = min(self.has[broker], end)
            self.durable[broker] = min(self.durable[broker], self.has[broker])
        self.has["a"] = self.durable["a"] = end
        self.lead()

    def append(self) -> None:
        first = self.has["a"]
        ends = [first + self.rng.randint(1, 3)]
        if self.rng.random() < 0.3:
            ends.append(ends[-1] + self.rng.randint(1, 3))
        self.groups += ends
        self.has["a"] = ends[-1]
        ticket = len(self.told)
        acks = self.rng.choice((Acks.ALL, Acks.LEADER))
        self.told[ticket], self.wants[ticket] = None, (ends[-1], acks)
        self.step(events.Appended(first, ends[-1], tuple(ends), ((ticket, acks),)))

    def sync(self) -> None:
        if self.is_asked:
            self.is_asked = False
            late = self.rng.random() < 0.2
            end = self.durable["a"] if late else self.has["a"]
            self.durable["a"] = max(self.durable["a"], end)
            self.step(events.Synced(self.core.generation, self.durable["a"]))

    def fetch(self) -> None:
        broker = self.rng.choice("bc")
        end = self.has["a"]
        self.has[broker] = min(end, self.has[broker] + self.rng.randint(0, 4))
        self.net.append(self.fetched(broker))

    def fetched(self, broker: str) -> events.FetchArrived:
        return events.FetchArrived(
            fetch=Fetch(
                follower=broker,
                incarnation=self.catalog.incarnations[broker],
                epoch=self.epoch,
                offset=self.has[broker],
                last_epoch=self.epoch,
                durable_end=self.durable[broker],
                log_start=0,
            ),
            epoch_before=self.epoch,
        )

    def follower_sync(self) -> None:
        broker = self.rng.choice("bc")
        self.durable[broker] = self.has[broker]

    def deliver(self) -> None:
        if self.net:
            message = self.net.pop(self.rng.randrange(len(self.net)))
            if self.rng.random() < 0.1:
                self.net.append(message)
            self.hand_over(message)

    def hand_over(self, message: events.Event | AskIsr) -> None:
        if isinstance(message, AskIsr):
            self.net.append(self.judge(message))
        else:
            self.step(message)

    def judge(self, ask: AskIsr) -> events.IsrAnswered:
        catalog = self.catalog
        if (ask.epoch, ask.partition_epoch) == (self.epoch, catalog.partition_epoch):
            if ask.add and ask.incarnation == catalog.incarnations[ask.add]:
                catalog.change(catalog.isr | {ask.add})
            elif ask.remove:
                catalog.change(catalog.isr - {ask.remove})
        return events.IsrAnswered(
            epoch=ask.epoch,
            partition_epoch=catalog.partition_epoch,
            isr=tuple(sorted(catalog.isr)),
            request=ask.request,
        )

    def tell_isr(self) -> None:
        self.net.append(
            events.IsrAnswered(
                epoch=self.epoch, partition_epoch=self.catalog.partition_epoch, isr=tuple(sorted(self.catalog.isr))
            )
        )

    def lose(self) -> None:
        if self.net:
            self.net.pop(self.rng.randrange(len(self.net)))

    def tick(self) -> None:
        self.now_ms += self.rng.randint(0, 600)
        self.step(events.Tick(now_ms=self.now_ms))

    def fail_follower(self) -> None:
        """The controller takes a broker out."""
        gone = self.rng.choice("bc")
        if gone in self.catalog.isr:
            self.catalog.change(self.catalog.isr - {gone})
            self.tell_isr()

    def wipe(self) -> None:
        """A follower comes back without its disk, and is registered so: in one command it leaves the ISR."""
        gone = self.rng.choice("bc")
        self.catalog.incarnations[gone] = (self.catalog.incarnations[gone][0] + 1, 0)
        self.catalog.change(self.catalog.isr - {gone})
        self.has[gone] = self.durable[gone] = 0
        self.tell_isr()

    def come_to_rest(self) -> None:
        self.net.clear()
        self.tell_isr()
        for _ in range(40):
            for broker in "bc":
                self.has[broker] = self.durable[broker] = self.has["a"]
                self.net.append(self.fetched(broker))
            while self.net:
                self.hand_over(self.net.pop(0))
            if self.is_asked:
                self.is_asked = False
                self.durable["a"] = self.has["a"]
                self.step(events.Synced(self.core.generation, self.has["a"]))
            self.now_ms += 100
            self.step(events.Tick(now_ms=self.now_ms))
        assert self.catalog.isr == frozenset(BROKERS), "S5: in sync, and not in the ISR"
        assert None not in self.told.values(), "S5: somebody waits for ever"
        assert self.high_watermark == self.has["a"], "S5"
