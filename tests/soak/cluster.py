"""The operator of three brokers: what one broker has done to it is done to one of the three, drawn anew each time.

Besides, brokers are restarted in a row, leaders change by order, replicas and whole brokers are taken out and come
back, and several processes end at once. It leaves out operations for which a cluster promises less (docs/status.md):

- `acks = leader` is not set: such a record may be lost with its leader.
- `fsync = interval` is not set: it is refused where there are several replicas.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from broker.api.errors import LiftlogError, Retryable
from broker.api.placements import Placement
from tests.soak.operator import KEPT, OPERATIONS, Operator
from tests.soak.world import World

HEAL_S = 120.0
"""So long replicas may take to be in sync once nothing fails any more."""
HARMS = ("fill_disk", "fail_writes", "refuse_many", "fail_reads", "fail_syncs", "fail_small_files")
"""Operations that may end a broker: one that cannot write its catalog, or that it steps out, ends, and is started
again."""


def in_sync(world: World) -> list[Placement]:
    """Wait until all replicas of all partitions are in sync; return what is placed where. Raises Violation."""
    since_s = time.monotonic()
    while True:
        with suppress(Retryable):
            found = world.client.placements()
            behind = [one for one in found if one.target is not None or len(one.isr) < len(world.brokers)]
            if not behind:
                return found
        world.look()
        if time.monotonic() > since_s + HEAL_S:
            world.ledger.violate(f"not in sync within {HEAL_S:.0f} s: {behind[:3]}", since_s, since_s)
        time.sleep(0.05)


class ClusterOperator(Operator):
    """See the module."""

    kept = KEPT | {"acks": ["all"]}
    stands_still_s = (0.05, 0.5, 1.5, 2.2, 3.0)

    def before(self, name: str) -> None:
        self.world.victim = self.rng.choice(sorted(self.world.brokers))
        self.story.tell(f"{name}: {self.world.victim}")
        self.world.may_end = {self.world.victim} if name in HARMS else set()

    def after(self, name: str) -> None:
        for broker in sorted(self.world.may_end):
            process = self.world.brokers[broker].process
            assert process is not None
            with suppress(subprocess.TimeoutExpired):
                process.popen.wait(1.0)  # it may be about to end
                self.story.tell(f"{broker} has ended, and is started again")
                self.world.brokers[broker].start()
        self.world.may_end = set()

    def faults(self, do: str, **values: Any) -> dict[str, int]:
        try:
            return super().faults(do, **values)
        except OSError:
            if self.world.victim not in self.world.may_end:
                raise
            return {}

    def move_clock(self) -> None:
        """That of one broker; the others stay as they are."""
        self.ledger.are_apart = True
        super().move_clock()

    def _start(self) -> None:
        if self.rng.random() < 0.5:
            self.world.all_go_on()  # two are a majority
        super()._start()

    def kill_several(self) -> None:
        """Two or all of them, at once, by a signal or by a power cut."""
        names = self.rng.sample(sorted(self.world.brokers), self.rng.choice([2, 2, 3]))
        cuts, seed, away_s = self.rng.random() < 0.5, self.rng.randrange(1 << 30), self.rng.choice([0.0, 0.5, 2.5])
        self.story.tell(f"{f'power cut {seed}' if cuts else 'kill -9'} of {names}, away for {away_s} s")
        if cuts:
            for name in names:
                self.world.disks[name].power_cut(seed)
        for name in names:
            self.world.brokers[name].kill9()
        time.sleep(away_s)
        for name in names:
            self.world.brokers[name].start(wait=False)
        for name in names:
            self.world.brokers[name].wait_ready()
        self.story.tell("all are there")

    def restart_in_a_row(self) -> None:
        names = self.rng.sample(sorted(self.world.brokers), len(self.world.brokers))
        waits = self.rng.random() < 0.7
        self.story.tell(f"restart {names} in a row{', each when all are in sync' * waits}")
        for name in names:
            self.world.victim = name
            if waits:
                in_sync(self.world)
            self.restart_broker()

    # --- who keeps and who leads -----------------------------------------------------------------------------

    def _all(self) -> list[str]:
        return self.rng.sample(sorted(self.world.brokers), len(self.world.brokers))

    def hand_over(self) -> None:
        """Other leaders, once or several times."""
        for _ in range(self.rng.choice([1, 1, 4])):
            stream, replicas = self.any_stream(), self._all()
            self.story.tell(f"{stream} is to be led by {replicas[0]}, then {replicas[1]}")
            self.client.reassign(stream, replicas)
            self.client.elect_preferred(stream)

    def fewer_replicas(self) -> None:
        stream, replicas, for_s = self.any_stream(), self._all()[:2], self.rng.choice([0.0, 0.5])
        self.story.tell(f"{stream} is kept by {replicas} only, then by all")
        with self._restored([stream]):
            self.client.reassign(stream, replicas)
            time.sleep(for_s)

    def drain(self) -> None:
        """All that a broker keeps is kept by the others; it may be started anew; then it takes all again."""
        broker, restarts = self.world.victim, self.rng.random() < 0.5
        self.story.tell(f"drain {broker}{', restart it' * restarts}")
        since_s = time.monotonic()
        with self._restored(sorted({one.stream for one in self.client.placements()})):
            while self.client.drain(broker, fewer_replicas=True).moving:
                self.world.look()
                if time.monotonic() > since_s + HEAL_S:
                    self.ledger.violate(f"{broker} is not drained within {HEAL_S:.0f} s", since_s, since_s)
                time.sleep(0.05)
            if restarts:
                self.restart_broker()

    @contextmanager
    def _restored(self, streams: list[str]) -> Iterator[None]:
        """Each stream is kept by all again; its answer may be lost, and it is asked for until it comes."""
        try:
            yield
        finally:
            for stream in streams:
                replicas, since_s = self._all(), time.monotonic()
                while True:
                    try:
                        self.client.reassign(stream, replicas)
                        break
                    except LiftlogError as error:
                        if time.monotonic() > since_s + HEAL_S:
                            self.ledger.violate(f"{stream} is not kept by all again: {error}", since_s, since_s)
                        self.world.look()
                        time.sleep(0.05)


CLUSTER_OPERATIONS: dict[str, tuple[float, Callable[[Any], None]]] = OPERATIONS | {
    "kill_several": (2, ClusterOperator.kill_several),
    "restart_in_a_row": (2, ClusterOperator.restart_in_a_row),
    "hand_over": (8, ClusterOperator.hand_over),
    "fewer_replicas": (3, ClusterOperator.fewer_replicas),
    "drain": (2, ClusterOperator.drain),
}
"""Operations on three brokers: how often each comes, and how it is done."""
ClusterOperator.operations = CLUSTER_OPERATIONS
