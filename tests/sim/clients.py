"""Publishers that try again until they are told, and consumers that remember what they have seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broker.replication.events import Acks
from tests.sim.batches import Batch
from tests.sim.stored import Stored

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster

TRY_AGAIN_MS = 700


class Client:
    """Knows the leader as the catalog has it, or had it.

    Attributes:
        stray: So often it asks another one.
    """

    stray = 0.1

    def __init__(self, cluster: Cluster, partition: str) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.partition = partition
        self._replicas: tuple[str, ...] = ()

    def call(self, method: str, answered: Any, *args: Any, of: str | None = None) -> None:
        """Ask the leader, or now and then another broker; `of`: that one."""
        cluster, rng = self.cluster, self.world.rng
        partition = cluster.metadata.states.get(self.partition)
        if partition is not None:
            self._replicas, target = partition.replicas, partition.leader
        else:  # the stream was deleted: it goes on by what it knew
            target = None
            if not self._replicas:
                return
        if target is None or rng.random() < self.stray:
            target = rng.choice(self._replicas)
        if cluster.operator is not None:
            target = cluster.operator.stray(target)
        target = of or target
        cluster.network.send("client", target, cluster.brokers[target].call, self.partition, method, answered, *args)


class Publisher(Client):
    """One batch, or one group of some, at a time; the same again until it is stored.

    Args:
        producer_id: 0: without an id: what it sends again may be there twice.
    """

    def __init__(self, cluster: Cluster, partition: str, producer_id: int, name: str) -> None:
        super().__init__(cluster, partition)
        self.producer_id = producer_id
        self.name = name
        self.sequence = self.number = -1
        self.is_stopped = False
        self.batches: list[Batch] = []
        self.acks = Acks.ALL
        self._try = 0
        self.world.after(self.world.rng.uniform(0, 1_500), self.begin)

    @property
    def is_done(self) -> bool:
        return self.is_stopped and not self.batches

    def begin(self) -> None:
        if self.is_stopped:
            return
        rng = self.world.rng
        self.sequence += 1
        self.number += 1
        self.acks = Acks.ALL if self.producer_id or rng.random() < 0.7 else Acks.LEADER
        self.batches = []
        for part in range(rng.choice((1, 1, 1, 2, 3))):
            size = rng.choice((8, 40, 700))
            values = [b"%s-%d-%d-%d" % (self.name.encode(), self.number, part, i) for i in range(rng.choice((1, 2, 3)))]
            self.batches.append(self.batch_of([value.ljust(size, b".") for value in values]))
        self.send()

    def batch_of(self, values: list[bytes]) -> Batch:
        return Batch(values, self.producer_id, self.sequence)

    def end(self) -> None:
        """Its stream was deleted."""
        self.is_stopped = True
        self.batches = []

    def send(self) -> None:
        self._try += 1
        again = [Batch(batch.values, batch.producer_id, batch.sequence, batch.keys) for batch in self.batches]
        self.call("publish", lambda *answer, this=self._try: self.answered(this, *answer), again, self.acks)
        self.world.after(TRY_AGAIN_MS, self.timed_out, self._try)

    def timed_out(self, this: int) -> None:
        if this == self._try and self.batches:
            self.world.saw("publish sent again")
            self.send()

    def answered(self, this: int, outcome: str, first: int = 0, end: int = 0) -> None:
        if not self.batches or this > self._try or (this < self._try and outcome != "stored"):
            return
        if outcome == "stored" and this == self._try:
            self._try += 1
            self.batches = []
            self.world.after(self.world.rng.expovariate(1 / self.cluster.pace_ms), self.begin)
        elif outcome in ("UnknownProducer", "OutOfSequence"):
            self.world.saw(f"publisher told {outcome}")
            self.world.note("client", f"{self.name} goes on without an id: {outcome}")
            for batch in self.batches:
                batch.producer_id, batch.sequence = 0, 0
            self.producer_id = 0


class KeyedPublisher(Publisher):
    """Writes and deletes keys, a few at a time; each is left alone after a while, as it is then."""

    def batch_of(self, values: list[bytes]) -> Batch:
        rng = self.world.rng
        keys = [b"k%d" % (self.number // 6 + rng.randrange(4)) for _ in values]
        return Batch([None if rng.random() < 0.4 else value for value in values], self.producer_id, self.sequence, keys)


class IdPublisher(Publisher):
    """Sends messages with ids, as over NATS, a batch at a time; those again that it was not told of."""

    def __init__(self, cluster: Cluster, partition: str, name: str) -> None:
        super().__init__(cluster, partition, 0, name)
        self.open: list[bytes] = []  # not acknowledged

    @property
    def is_done(self) -> bool:
        return self.is_stopped and not self.open

    def begin(self) -> None:
        if not self.is_stopped:
            self.number += 1
            rng = self.world.rng
            names = [b"%s-%d-%d" % (self.name.encode(), self.number, i) for i in range(rng.choice((1, 2, 3)))]
            self.open = [name.ljust(rng.choice((20, 40, 400)), b".") for name in names]
            self.send()

    def end(self) -> None:
        self.is_stopped = True
        self.open = []

    def send(self) -> None:
        self._try += 1
        again = self.world.rng.sample(self.open, len(self.open))
        self.call("publish_ids", lambda *answer, this=self._try: self.answered_ids(this, *answer), again)
        self.world.after(TRY_AGAIN_MS, self.timed_out, self._try)

    def timed_out(self, this: int) -> None:
        if this == self._try and self.open:
            self.world.saw("publish sent again")
            self.send()

    def answered_ids(self, this: int, outcome: str, stored: Sequence[bytes] = ()) -> None:
        was_open = bool(self.open)
        self.open = [value for value in self.open if value not in stored]
        if was_open and not self.open:
            self._try += 1
            self.world.after(self.world.rng.expovariate(1 / self.cluster.pace_ms), self.begin)


class NatsPublisher(IdPublisher):
    """Publishes to subjects of a stream on the NATS server of a driven cluster. Nobody knows who takes that in."""

    def __init__(self, cluster: Cluster, partition: str, name: str) -> None:
        super().__init__(cluster, partition, name)
        self._subject = cluster.stream_of(partition)

    def begin(self) -> None:
        if not self.is_stopped:
            self.number += 1
            count = self.world.rng.choice((1, 1, 2, 5))
            names = [f"{self._subject}:{self.name}-{self.number}-{i}" for i in range(count)]
            self.open = [name.encode().ljust(self.world.rng.choice((20, 40, 400)), b".") for name in names]
            self.send()

    def send(self) -> None:
        self._try += 1
        assert self.cluster.nats is not None
        for value in self.open:
            self.cluster.nats.publish(f"{self._subject}.{sum(value) % 8}", value, self._heard)
        self.world.after(TRY_AGAIN_MS, self.timed_out, self._try)

    def _heard(self, value: bytes, body: bytes) -> None:
        answer = json.loads(body)
        if "error" in answer:
            self.world.saw(f"over NATS: {answer['error']['description'].rpartition('[')[2].rstrip(']')}")
        elif value in self.open:
            self.answered_ids(self._try, "stored", [value])


class CorePublisher(NatsPublisher):
    """Publishes each message once, without an id, and waits for no ack: what NATS loses is lost."""

    def send(self) -> None:
        assert self.cluster.nats is not None
        for value in self.open:
            self.cluster.nats.publish(f"{self._subject}.{sum(value) % 8}", value)
        self.open = []
        self.world.after(self.world.rng.expovariate(1 / self.cluster.pace_ms), self.begin)


class Repeater(Client):
    """An idempotent producer that sends one group now and then, and each again for long: somebody always knows it.

    A group may be repeated as long as it is one of its last five; retention, a take-over, and a leader that has never
    had the record change nothing.

    Args:
        times: So often it sends a group, at least.
    """

    def __init__(self, cluster: Cluster, partition: str, producer_id: int, times: int = 5) -> None:
        super().__init__(cluster, partition)
        self.times = times
        self.producer_id = producer_id
        self.sequence = -1
        self.first = -1  # where the last group was stored; -1: not known
        self.repeats = 0
        self.world.after(1_000, self.send)

    def send(self) -> None:
        if self.cluster.faults_are_over and self.first >= 0:
            return
        if self.first >= 0 and self.repeats >= self.times:
            self.first, self.repeats = -1, 0
        self.sequence += self.first < 0 and self.repeats == 0
        self.repeats += 1
        batch = Batch([b"%s-again-%d" % (self.partition.encode(), self.sequence)], self.producer_id, self.sequence)
        this = self.sequence
        self.call("publish", lambda *answer: self.answered(this, *answer), [batch], Acks.ALL)
        self.world.after(700, self.send)

    def answered(self, this: int, outcome: str, first: int = 0, end: int = 0) -> None:
        if this == self.sequence:
            if self.first >= 0:
                self.cluster.checker.repeated(self.partition, self.first, outcome, first)
            if outcome == "stored":
                self.first = first


class Consumer(Client):
    """Reads on from where it is; now and then asks for a trim.

    Attributes:
        epoch: The newest leader epoch that it has seen: it is sent with each read.
        end: The greatest end that it was told.
    """

    stray = 0.3

    def __init__(self, cluster: Cluster, partition: str) -> None:
        super().__init__(cluster, partition)
        self.offset = self.end = self.trimmed_to = 0
        self.epoch = -1
        self.unclean_epoch = 0
        self.world.after(500, self.poll_on)

    def poll_on(self) -> None:
        self.world.after(self.world.rng.uniform(150, 600), self.poll_on)
        self.poll()
        if self.cluster.trims and self.world.chance(0.08) and self.offset > 4:
            start = self.offset - self.world.rng.randint(0, 4)
            self.call("trim", lambda *answer: self.trimmed(start, *answer), start)

    def poll(self, of: str | None = None) -> None:
        asked = (self.end, self.trimmed_to, self.offset, self.unclean_epoch)
        self.call("read", lambda *answer: self.answered(asked, *answer), self.offset, self.epoch, of=of)

    def trimmed(self, start: int, outcome: str, epoch: int = -1) -> None:
        if outcome == "stored" and self.unclean_epoch == self.cluster.checker.known[self.partition].unclean_epoch:
            self.epoch = max(self.epoch, epoch)
            self.trimmed_to = max(self.trimmed_to, start)

    def answered(
        self,
        asked: tuple[int, int, int, int],
        what: str,
        epoch: int = 0,
        start: int = 0,
        end: int = 0,
        batches: Sequence[Stored] = (),
    ) -> None:
        """`asked`: the end and the trim that it knew when it asked, and where it was."""
        checker, name = self.cluster.checker, self.partition
        if what != "records" or checker.known[name].is_lost or epoch < checker.known[name].unclean_epoch:
            return
        if self.unclean_epoch < checker.known[name].unclean_epoch:  # it is told so by name, and begins anew
            self.unclean_epoch = checker.known[name].unclean_epoch
            self.offset = self.end = self.trimmed_to = 0
            self.epoch = epoch
            return
        if asked[3] < self.unclean_epoch:
            return
        checker.has_read(name, "a consumer", epoch, batches)
        if 0 <= end < asked[0]:
            checker.fail(f"R2: {name}: a consumer who had seen end {asked[0]} is told {end} in epoch {epoch}")
        if start < asked[1]:
            checker.fail(f"TRIM: {name}: epoch {epoch} serves from {start} who was told that {asked[1]} is trimmed")
        at = max(asked[2], start)
        for batch in batches:
            if batch.first > at:
                checker.fail(f"R5: {name}: a consumer at {at} is given {batch}: what lies between is passed over")
            at = max(at, batch.next)
        self.end, self.epoch = max(self.end, end), max(self.epoch, epoch)
        self.offset = max([self.offset, start, *(batch.next for batch in batches)])
        self.world.saw("read")
