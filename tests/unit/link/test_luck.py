"""Goal: the drivers hold what the cores promise, whatever happens in which order.

Method: three brokers publish and take over from each other while streams are cut, stopped and changed, and replicas
are moved, by luck. At the end all agree, and everything that was acknowledged is there, once, in its place; of a group
there is all or nothing. Threads make no run like another: the seed names what happens, not when.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from broker.api.batch import decode_batch
from broker.api.errors import LiftlogError
from broker.metadata.partition import Place
from tests.support.linked import Linked, linked
from tests.support.processes import eventually
from tests.unit.runtime.test_partition import Waiter, rows

pytestmark = [pytest.mark.slow, pytest.mark.long]  # threads by luck: the simulator has its own in the first lane
STEPS = 60


class Luck:
    """One run."""

    def __init__(self, cluster: Linked, places: list[Place], rng: random.Random) -> None:
        self.cluster, self.places, self.rng = cluster, places, rng
        self.sent: list[tuple[Place, list[bytes], Waiter, int]] = []

    def publish(self) -> None:
        for at in self.places:
            leader = self.cluster.service.state(at).leader
            node = self.cluster.nodes.get(leader or "")
            partition = node.replicas.partition(at) if node is not None else None
            if partition is None:
                continue
            for _ in range(self.rng.choice((1, 1, 5))):
                size = self.rng.choice((0, 100, 30_000))
                group = [b"%d %d " % (len(self.sent), n) + bytes(size) for n in range(self.rng.choice((1, 1, 3)))]
                waiter = Waiter()
                try:
                    first = partition.append_now([rows(value) for value in group], waiter).first_offset
                except LiftlogError:
                    continue
                self.sent.append((at, group, waiter, first))

    def step(self) -> None:
        rng, cluster = self.rng, self.cluster
        relay = cluster.relays[rng.choice(cluster.names)]
        match rng.randrange(10):
            case 0:
                relay.cut()
            case 1:
                relay.paused = not relay.paused
            case 2:
                relay.flip_at = rng.randrange(100_000)
            case 3:
                relay.cut_after = rng.choice((None, 100, 5_000, 100_000))
            case 4:
                self.restart(rng.choice(cluster.names))
            case 5:
                self.fail_leader(rng.choice(self.places))
            case 6:
                self.reassign(rng.choice(self.places), rng.sample(cluster.names, rng.choice((1, 2, 3))))
        self.publish()
        time.sleep(rng.choice((0, 0.01, 0.1)))

    def restart(self, name: str) -> None:
        cluster = self.cluster
        cluster.stop(name, kill=self.rng.random() < 0.5)
        if self.rng.random() < 0.7:
            self.fail(name)
        self.publish()
        cluster.start(name)

    def fail_leader(self, at: Place) -> None:
        """It is taken for dead, and comes back as it can: by another process."""
        leader = self.cluster.service.state(at).leader
        if leader is not None:
            self.fail(leader)
            self.publish()
            self.cluster.stop(leader)
            self.cluster.start(leader)

    def reassign(self, at: Place, target: Sequence[str]) -> bool:
        """Returns whether it was not refused: who has to delete a former replica is not given another."""
        with suppress(LiftlogError):
            self.cluster.service.apply(kind="reassign", stream=at[0], partition=at[1], replicas=list(target))
            return True
        return False

    def fail(self, name: str) -> None:
        if self.cluster.service.catalog.brokers[name].is_live:
            self.cluster.fail(name)

    def check(self) -> None:
        cluster = self.cluster
        for relay in cluster.relays.values():
            relay.paused, relay.flip_at, relay.cut_after = False, None, None
            relay.cut()
        for at in self.places:
            eventually(lambda at=at: self.reassign(at, cluster.names), what="all to keep it")  # type: ignore[misc]
            cluster.in_sync(at)
            end = cluster.stored(at, b"the end")
            cluster.same(at)
            opened = cluster.leader(at).log(at)
            there: dict[int, bytes] = {}
            for message in opened.reader.batches(opened.state.log_start_offset):
                batch = decode_batch(message)
                there |= dict(zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True))
            assert sorted(there) == list(range(end)), "no gap, and nothing twice"
            for place, group, waiter, first in self.sent:
                if place != at:
                    continue
                found = [there.get(first + n) == value for n, value in enumerate(group)]
                assert len(set(found)) == 1, "a group is there as a whole, or not at all"
                if isinstance(eventually(lambda w=waiter: w.outcome, what="an outcome"), int):  # type: ignore[misc]
                    assert found[0], "what was acknowledged is in its place"


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_is_there_whatever_happens(tmp_path: Path, seed: int) -> None:
    with linked(tmp_path) as cluster:
        cluster.start()
        luck = Luck(cluster, cluster.create(partitions=3), random.Random(seed))
        for at in luck.places:
            cluster.stored(at, b"the beginning")
        for _ in range(STEPS):
            luck.step()
        luck.check()
