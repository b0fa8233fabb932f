"""The source on three brokers, while partitions have other leaders or none: what the users' table says of it.

Method: the reader without Spark, as in test_offsets.py. A stream with one replica of each partition has a partition
that nobody can tell of for as long as its broker is away.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError

import pytest

from broker.client.client import Client
from spark_liftlog.errors import LiftlogSparkError
from spark_liftlog.options import source_options
from spark_liftlog.reading import cluster as cluster_module
from spark_liftlog.reading import task as task_module
from spark_liftlog.reading.batch_reader import LiftlogReader
from spark_liftlog.schema import ROW
from tests.spark.reading_tasks import Value, latest, reading, records, rows_of
from tests.spark.streams import Stream
from tests.spark.test_offsets import lost, survived
from tests.support.clusters import RealCluster, store
from tests.support.processes import BrokerProcess, eventually

DEADLINE_S = 60.0


@pytest.fixture
def client(cluster: RealCluster) -> Iterator[Client]:
    with cluster.client(deadline_s=DEADLINE_S) as client:
        yield client


@dataclass
class Placed(Stream):
    """A stream of three brokers, which takes what is appended once, whatever happens meanwhile."""

    def append_to(self, partition: int, count: int) -> None:
        first = self.counts[partition]
        store(self.client, self.name, partition, [{"value": b"%d" % n} for n in range(first, first + count)])
        self.counts[partition] += count


def placed(client: Client, name: str, *, partitions: int = 3, replicas: int) -> Placed:
    client.create_stream(name, partitions=partitions, replication_factor=replicas)
    return Placed(client, name, [0] * partitions)


def wait_for_whole(cluster: RealCluster, stream: Placed, replicas: int = 3) -> None:
    for number in range(len(stream.counts)):
        cluster.in_sync(stream.name, replicas, number)


def news(reader: object, start: Value, count: int) -> Value:
    """The end of a batch of so many records."""
    total = sum(at[0] for at in next(iter(start["streams"].values()))["partitions"].values()) + count

    def look() -> Value | None:
        end = latest(reader, start)  # type: ignore[arg-type]
        positions = next(iter(end["streams"].values()))["partitions"]
        return end if sum(at[0] for at in positions.values()) == total else None

    return eventually(look, what=f"{count} more records are seen") or {}


def test_a_leader_that_moved_is_no_loss_and_no_batch(
    cluster: RealCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Row "a leader moved" of the table: killed, or stopped by its operator, with a batch planned and not read yet."""
    stream = placed(client, "moved", partitions=1, replicas=3)
    wait_for_whole(cluster, stream)
    stream.append_to(0, 50)
    with reading(stream.address, stream="moved", startingOffsets="earliest") as reader:
        at = latest(reader)
        assert rows_of(reader, None, at) == records(stream, (0, 0, 50))
        for leave in ("kill9", "stop"):
            first = stream.counts[0]
            stream.append_to(0, 30)
            end = news(reader, at, 30)
            tasks = pickle.loads(pickle.dumps(reader.partitions(at, end)))
            was = cluster.leader("moved")
            getattr(cluster.brokers[was], leave)()
            for _ in range(2):  # the plan that names the former leader, and the same batch planned anew
                found = [row for task in tasks for batch in reader.read(task) for row in batch["offset"].to_pylist()]
                assert found == list(range(first, first + 30))
                tasks = reader.partitions(at, end)
            assert latest(reader, end) is end, "another leader is nothing new"
            assert cluster.leader("moved") != was
            stream.append_to(0, 20)
            at = news(reader, end, 20)
            assert rows_of(reader, end, at) == records(stream, (0, first + 30, first + 50))
            ((before, after),) = zip(
                *(value["streams"]["moved"]["partitions"].values() for value in (end, at)), strict=True
            )
            assert after[1] > before[1], "the epoch is that of the record before, which the next leader appended"
            cluster.brokers[was].start(wait=False)
            cluster.wait_ready(was)
            wait_for_whole(cluster, stream)
    with reading(stream.address, stream="moved") as reader:
        assert latest(reader, at) is at, "a restart compares it with the log, and finds no difference"
    assert "source.data_loss" not in caplog.text


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_without_a_leader_a_query_waits_and_then_says_so(
    cluster: RealCluster, client: Client, monkeypatch: pytest.MonkeyPatch, fail_on_data_loss: str
) -> None:
    """Row "a broker or a leader is away" of the table; the two minutes are cut to less."""
    stream = placed(client, f"headless-{fail_on_data_loss}", replicas=1)
    for number in range(3):
        stream.append_to(number, 10)
    options = {"stream": stream.name, "startingOffsets": "earliest", "failOnDataLoss": fail_on_data_loss}
    with reading(stream.address, **options) as reader:
        end = latest(reader)
        tasks = pickle.loads(pickle.dumps(reader.partitions(reader.initialOffset(), end)))
        with away(cluster, stream.name):
            for module in (cluster_module, task_module):
                monkeypatch.setattr(module, "DEADLINE_S", 1.0)
            with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_(UNAVAILABLE|NOT_LEADER|NOT_READY): .*gave up after"):
                reader.partitions(reader.initialOffset(), end)
            with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_(UNAVAILABLE|NOT_LEADER|NOT_READY): .*gave up after"):
                [batch for task in tasks for batch in reader.read(task)]
            monkeypatch.undo()
        assert rows_of(reader, None, end) == records(stream, (0, 0, 10), (1, 0, 10), (2, 0, 10))


@contextmanager
def away(cluster: RealCluster, stream: str) -> Iterator[None]:
    """The broker that leads partition 1 is killed, and comes back at the end of the block."""
    broker = cluster.leader(stream, 1)
    cluster.brokers[broker].kill9()
    try:
        for process in cluster.running.values():
            eventually(lambda process=process: _is_unknown(process, stream), what="it is gone")  # type: ignore[misc]
        yield
    finally:
        cluster.brokers[broker].start(wait=False)
        cluster.wait_ready(broker)


def _is_unknown(process: BrokerProcess, stream: str) -> bool:
    try:
        watched = process.get("/v1/watch")
    except HTTPError as refused:  # a broker without a session answers so, for a moment on a busy machine
        if refused.code != 503:
            raise
        return False
    return 1 in watched["streams"][stream]["unknown"]


def meanwhile(cluster: RealCluster, stream: str, plan: Callable[[], object]) -> Future[object]:
    """Plan while partition 1 has no leader; it has one again when this returns."""
    with ThreadPoolExecutor(1) as pool:
        with away(cluster, stream):
            planned = pool.submit(plan)
            with pytest.raises(TimeoutError):
                planned.result(2.0)
        planned.exception(DEADLINE_S)
        return planned


def test_a_read_waits_for_a_partition_that_has_no_leader(cluster: RealCluster, client: Client) -> None:
    """The rule: a read leaves no partition out. Its rows would be missing, and nobody would know."""
    stream = placed(client, "all-of-it", replicas=1)
    for number in range(3):
        stream.append_to(number, 10)
    options = source_options({"brokers": stream.address, "stream": stream.name, "resolve": "read"}, "batch")
    reader = LiftlogReader(options, ROW)

    def rows(tasks: object) -> int:
        return sum(batch.num_rows for task in tasks for batch in reader.read(task))  # type: ignore[attr-defined]

    planned = meanwhile(cluster, stream.name, reader.partitions).result()
    assert rows(planned) == 30
    stream.append_to(1, 5)
    assert meanwhile(cluster, stream.name, lambda: rows(planned)).result() == 35


def test_a_query_does_not_begin_without_a_partition_that_has_no_leader(
    cluster: RealCluster, client: Client, tmp_path: Path
) -> None:
    """It would come back as one that was added, and be read from its start. Nor does AvailableNow end without it."""
    stream = placed(client, "begun", replicas=1)
    for number in range(3):
        stream.append_to(number, 10)
    with reading(stream.address, stream=stream.name, startingOffsets="latest") as reader:
        begun = meanwhile(cluster, stream.name, lambda: latest(reader)).result()
        assert isinstance(begun, dict)
        assert rows_of(reader, None, begun) == []
        stream.append_to(1, 5)
        end = news(reader, begun, 5)
        assert rows_of(reader, begun, end) == records(stream, (1, 10, 15))
    stream.append_to(1, 5)
    with reading(stream.address, stream=stream.name) as reader:
        meanwhile(cluster, stream.name, reader.prepareForTriggerAvailableNow).result()
        assert rows_of(reader, end, latest(reader, end)) == records(stream, (1, 15, 20))


def test_a_tail_that_an_unclean_election_gave_up_is_a_loss(cluster: RealCluster, client: Client) -> None:
    """Rows "the log lost its tail": what the next leader does not have, and then what it has written in its place."""
    client.create_stream("given", replication_factor=2, min_insync_replicas=1)
    stream = Placed(client, "given", [0])
    wait_for_whole(cluster, stream, 2)
    stream.append_to(0, 10)
    leader = cluster.leader("given")
    other = next(broker for broker in client.placements("given")[0].replicas if broker != leader)
    cluster.in_sync("given", 2)
    cluster.brokers[other].kill9()
    cluster.in_sync("given", 1)
    stream.append_to(0, 5)
    with reading(stream.address, stream="given", startingOffsets="earliest") as reader:
        start = latest(reader)
    cluster.brokers[leader].kill9()
    cluster.brokers[other].start(wait=False)
    cluster.wait_ready(other)
    eventually(lambda: client.placements("given")[0].leader is None, what="nobody leads")
    client.elect_unclean("given", 0, accept_loss=True)
    assert cluster.leader("given") == other
    stream.counts = [10]
    end = lost(stream, start, r"LIFTLOG_LOG_TRUNCATED: .*the log ends at 10, the query has read up to 15")
    assert survived(stream, start, end) == []
    stream.append_to(0, 20)
    cluster.brokers[leader].start(wait=False)
    cluster.wait_ready(leader)
    cluster.in_sync("given", 2)
    end = lost(
        stream, start, r"LIFTLOG_LOG_TRUNCATED: .*from 10 on were lost and written anew, .* up to 15; .* 0 to 30"
    )
    assert survived(stream, start, end) == records(stream, (0, 10, 30))
    with reading(stream.address, stream="given") as reader:
        assert latest(reader, end) is end
