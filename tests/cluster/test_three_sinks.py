"""Goal: what a sink commits is there once, whoever dies of three brokers, and at whatever moment.

Method: queries that do as Spark does: after an error they open anew and replay the batch that was not acknowledged, its
rows spread otherwise, under new stage ids. Meanwhile the coordinator, and leaders of what they write to, are killed
with kill -9, at any moment of a commit, or between a stage and its commit. A reader that knows nothing of sinks counts.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from broker.api.errors import LiftlogError, SinkDestinationNew
from broker.api.stream import COMMITS_STREAM, stages_of
from broker.client import Client
from tests.support.clusters import RealCluster, three
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROWS = 40
PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with three(tmp_path_factory.mktemp("three"), LIFTLOG_CLEANER_INTERVAL_MS="200") as made:
        yield made


def rows_of(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def values_of(client: Client, stream: str) -> list[bytes]:
    return [value for batch in client.read(stream) for value in batch.column("value").to_pylist()]


class Query:
    """Writes batch after batch to a stream until it is told to stop.

    Attributes:
        acked: The last batch that was acknowledged.
    """

    def __init__(self, cluster: RealCluster, stream: str, rng: random.Random, *, deadline_s: float) -> None:
        self.acked = -1
        self.outcomes: Counter[str] = Counter()
        self._attempts = 0
        self._cluster, self._stream, self._rng, self._deadline_s = cluster, stream, rng, deadline_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._cluster.client(deadline_s=self._deadline_s) as client:
                try:
                    self._write(client)
                except LiftlogError as error:
                    self.outcomes[error.reason] += 1
                    time.sleep(0.05)

    def _write(self, client: Client) -> None:
        sink = client.sink(f"to-{self._stream}")
        last = sink.open().last
        assert last is None or last.batch_id >= self.acked, "an acknowledged batch is forgotten"
        while not self._stop.is_set():
            batch_id = self.acked + 1
            self._attempts += 1
            tasks: dict[int, list[bytes]] = {}
            for row in range(ROWS):
                tasks.setdefault(self._rng.randrange(4), []).append(b"%d/%d/%d" % (batch_id, row, self._attempts))
            stages = [
                sink.stage(rows_of(*values), self._stream, self._rng.randrange(PARTITIONS)) for values in tasks.values()
            ]
            answer = sink.commit(batch_id, stages, digest=str(batch_id), attributes={"checkpoint": "/c"})
            self.outcomes[answer.outcome] += 1
            self.acked = batch_id

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the query hangs"


def check(query: Query, values: list[bytes]) -> None:
    """Each batch is there as a whole, of one attempt; at most the last one was not acknowledged."""
    seen: Counter[tuple[int, int]] = Counter()
    attempts: dict[int, set[int]] = {}
    for value in values:
        batch_id, row, attempt = map(int, value.split(b"/"))
        seen[batch_id, row] += 1
        attempts.setdefault(batch_id, set()).add(attempt)
    assert set(seen.values()) == {1}, [key for key, count in seen.items() if count > 1][:10]
    assert sorted(attempts) == list(range(len(attempts)))
    assert query.acked <= len(attempts) - 1 <= query.acked + 1
    assert len(seen) == ROWS * len(attempts), "a batch is there in part"
    assert all(len(found) == 1 for found in attempts.values()), "rows of two attempts"


def test_each_row_is_there_once_whoever_is_killed(cluster: RealCluster) -> None:
    rng = random.Random(92)
    stream = "killed"
    with cluster.client(deadline_s=120.0) as client:
        client.create_stream(stream, partitions=PARTITIONS, replication_factor=3)
        query = Query(cluster, stream, rng, deadline_s=2.0)
        try:
            for victim_of in (COMMITS_STREAM, stream):
                goal = query.acked + rng.randint(2, 4)
                eventually(lambda goal=goal: query.acked >= goal, timeout_s=60, what="batches go on")  # type: ignore[misc]
                victim = cluster.leader(victim_of)
                time.sleep(rng.uniform(0, 0.1))  # any moment of a commit
                cluster.brokers[victim].kill9()
                goal = query.acked + 2
                eventually(lambda goal=goal: query.acked >= goal, timeout_s=60, what="batches with two")  # type: ignore[misc]
                cluster.brokers[victim].start(wait=False)
                cluster.wait_ready(victim)
                cluster.in_sync(COMMITS_STREAM, 3)
        finally:
            query.stop()
        sink = client.sink(f"to-{stream}")
        eventually(lambda: sink.describe().last.complete, timeout_s=60, what="the last batch complete")  # type: ignore[union-attr]
        check(query, values_of(client, stream))


def test_a_commit_outlives_the_leaders_of_what_was_staged(cluster: RealCluster) -> None:
    """Killed between stage and commit: what was answered is on the others, and the client finds the next leaders."""
    stream = "between"
    with cluster.client(deadline_s=120.0) as client:
        client.create_stream(stream, partitions=PARTITIONS, replication_factor=3)
        sink = client.sink("between")
        sink.open()
        stages = [sink.stage(rows_of(b"%d" % number), stream, number) for number in range(PARTITIONS)]
        victim = cluster.leader(stream, 1)
        cluster.brokers[victim].kill9()
        assert sink.commit(0, stages).outcome == "committed"
        assert sorted(values_of(client, stream)) == [b"0", b"1", b"2"]
        assert sink.commit(0, stages).outcome == "already_done"
        for outcome in ("committed", "already_done"):
            name = f'liftlog_sink_calls_total{{outcome="{outcome}"}}'
            assert sum(each.metric(name) for each in cluster.running.values()) >= 1, outcome
        cluster.brokers[victim].start(wait=False)
        cluster.wait_ready(victim)
        cluster.in_sync(stream, 3, 1)
        companion = stages_of(cluster.describe(stream)["incarnation"])

        def streams(broker: str) -> set[str]:
            return {info["name"] for info in cluster.brokers[broker].get("/v1/streams?internal=true")["streams"]}

        def is_gone(broker: str) -> bool:
            try:
                return companion not in streams(broker)
            except OSError:  # it has no session for a moment
                return False

        assert companion in streams(cluster.leader(stream))
        client.delete_stream(stream)
        for broker in cluster.running:
            eventually(
                lambda broker=broker: is_gone(broker), timeout_s=60, what=f"stages gone with their stream at {broker}"
            )  # type: ignore[misc]


def test_a_stream_made_anew_is_refused_by_whichever_broker_coordinates(cluster: RealCluster) -> None:
    """Also by a coordinator that has not led `__commits` when the sink wrote the former stream."""
    with cluster.client(deadline_s=120.0) as client:

        def write(batch_id: int, **options: Any) -> str:
            sink = client.sink("anew")
            sink.open()
            stages = [sink.stage(rows_of(b"%d" % batch_id), "anew", partition) for partition in range(PARTITIONS)]
            return sink.commit(batch_id, stages, **options).outcome

        client.create_stream("anew", partitions=PARTITIONS, replication_factor=3)
        write(0)
        client.delete_stream("anew")
        client.create_stream("anew", partitions=PARTITIONS, replication_factor=3)
        for is_killed in (False, True):
            if is_killed:
                victim = cluster.leader(COMMITS_STREAM)
                cluster.brokers[victim].kill9()
            for batch in (0, 1):
                with pytest.raises(SinkDestinationNew, match="'anew'"):
                    write(batch)
        assert values_of(client, "anew") == []
        assert write(1, on_new_destination="accept") == "committed"
        assert write(2) == "committed"
        assert sorted(values_of(client, "anew")) == [b"1"] * PARTITIONS + [b"2"] * PARTITIONS
        cluster.brokers[victim].start(wait=False)
        cluster.wait_ready(victim)
