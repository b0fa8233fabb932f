"""Runs, sweeps, aborts, deleted sinks and streams: all at once, in real threads, over HTTP.

Goal: whatever the order, each batch is there once, and all of it from one commit. Method: three queries' runs compete
for one sink, each as long as it is not fenced; a stream that some stages go to is deleted and made anew beside them.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pytest

from broker.api.errors import LiftlogError, SinkBatchRegressed, SinkFenced, StageLost
from broker.client import Client, Stage, connect
from broker.node.sinks.rounds import SinkRounds
from tests.support.processes import eventually
from tests.unit.serving.server import Api, Server

pytestmark = pytest.mark.slow

ROWS = 12
BATCHES = 25


class Race:
    """Calls that run at the same time. Errors that nobody expects end it."""

    def __init__(self, address: str, seed: int) -> None:
        self.address = address
        self.seed = seed
        self.decided = -1
        self.attempts = 0
        self.fenced = 0
        self.staged: list[Stage] = []
        self.unexpected: list[BaseException] = []
        self.lock = threading.Lock()
        self.over = threading.Event()

    def start(self, act: Callable[[Client, random.Random], None], number: int) -> threading.Thread:
        def run() -> None:
            rng = random.Random(self.seed * 100 + number)
            try:
                with connect(self.address, timeout_s=30) as client:
                    while not self.over.is_set():
                        act(client, rng)
            except BaseException as error:
                self.unexpected.append(error)
                self.over.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def query(self, client: Client, rng: random.Random) -> None:
        """A run: it goes on until it is fenced, or dies at any moment."""
        sink = client.sink("q")
        try:
            last = sink.open().last
            batch_id = 0 if last is None else last.batch_id + rng.randint(0, 1)
            while not self.over.is_set() and rng.random() < 0.8:
                with self.lock:
                    self.attempts += 1
                    number = self.attempts
                stages = []
                for partition in (0, 1):
                    values = [b"%d/%d/%d" % (batch_id, row, number) for row in range(partition, ROWS, 2)]
                    stages.append(sink.stage(pa.record_batch({"value": values}), "orders", partition))
                with self.lock:
                    self.staged = [*self.staged, *stages][-30:]
                sink.commit(batch_id, stages, digest=str(batch_id), attributes={"checkpoint": "/c"})
                with self.lock:
                    self.decided = max(self.decided, batch_id)
                    if self.decided >= BATCHES:
                        self.over.set()
                batch_id += 1
        except (SinkFenced, SinkBatchRegressed, StageLost):
            self.fenced += 1

    def operator(self, client: Client, rng: random.Random) -> None:
        """Aborts what others staged; deletes and makes anew a stream that has stages, and a sink."""
        with self.lock:
            victims = rng.sample(self.staged, min(2, len(self.staged)))
        client.sink("q").abort(victims)
        with suppress(LiftlogError):
            other = client.sink("side")
            other.open()
            stage = other.stage(pa.record_batch({"value": [b"x"]}), "side", 0)
            if rng.random() < 0.5:
                client.delete_stream("side")
                client.create_stream("side")
            other.commit(rng.randint(0, 1 << 40), [stage])
        if rng.random() < 0.3:
            with suppress(LiftlogError):
                other.delete()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_each_batch_is_there_once_whatever_happens_at_the_same_time(server: Server, api: Api, seed: int) -> None:
    api.create("orders", partitions=2)
    api.create("side")
    race = Race(f"127.0.0.1:{server.port}", seed)
    rounds = SinkRounds(server.backend.sinks.coordinator())
    threads = [race.start(race.query, n) for n in range(3)]
    threads.append(race.start(race.operator, 3))
    threads.append(race.start(lambda *_: rounds.sweep(), 4))
    for thread in threads:
        thread.join(120)
    assert not [thread for thread in threads if thread.is_alive()], "somebody waits for ever"
    assert not race.unexpected, race.unexpected
    assert race.decided >= BATCHES
    assert race.fenced, "nobody competed"
    seen: Counter[tuple[int, int]] = Counter()
    numbers: dict[int, set[int]] = {}
    with connect(race.address) as client:
        for value in client.read("orders").to_table().column("value").to_pylist():
            batch_id, row, number = map(int, value.split(b"/"))
            seen[batch_id, row] += 1
            numbers.setdefault(batch_id, set()).add(number)
        last = client.sink("q").describe().last
    assert last is not None
    assert seen == Counter((batch, row) for batch in range(last.batch_id + 1) for row in range(ROWS))
    assert all(len(found) == 1 for found in numbers.values())
    rounds.sweep()
    eventually(lambda: not pinned(server), what="no stage stays pinned")


def pinned(server: Server) -> list[str]:
    SinkRounds(server.backend.sinks.coordinator()).sweep()
    return [pin.sink for store in server.backend.sinks.stores() for pin in store.staged().pins if pin.sink == "q"]
