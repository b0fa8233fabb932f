"""Spark on three brokers: queries go on when leaders die, and each record is in files once, and in the sink's stream.

Method: idempotent producers, a query to parquet and one to an exactly-once sink at the same time; the leader of a
partition is killed, comes back, and the next one dies. So does whoever decides for the sink.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker.api.stream import COMMITS_STREAM
from broker.client.client import Client
from spark_liftlog.options import source_options
from spark_liftlog.reading.plan import Range
from spark_liftlog.reading.task import RACK, TaskRanges, read_task, session
from spark_liftlog.schema import ROW, Projection
from tests.spark.streams import start
from tests.support.clusters import RealCluster, store
from tests.support.processes import eventually

PARTITIONS = 3
DEADLINE_S = 60.0


class Producing:
    """Numbers to all partitions, in turns, until `stop`. `count`: so many are acknowledged."""

    def __init__(self, client: Client, stream: str) -> None:
        self.count = 0
        self._client, self._stream = client, stream
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._client.producer(self._stream, deadline_s=DEADLINE_S, linger_ms=1) as producer:
                while not self._is_over.is_set():
                    sent = [producer.send(b"%d" % number) for number in range(self.count, self.count + 30)]
                    for each in sent:
                        each.result(DEADLINE_S)
                    self.count += len(sent)
        except BaseException as error:
            self._error = error

    def more(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        goal = self.count + count
        eventually(lambda: self.count >= goal or self._error, timeout_s=120, what="records are acknowledged")
        assert self._error is None, self._error

    def stop(self) -> int:
        self._is_over.set()
        self._thread.join()
        assert self._error is None, self._error
        return self.count


@pytest.mark.timeout(600)
def test_queries_go_on_when_leaders_die_and_files_and_sink_have_each_record_once(
    spark: SparkSession, cluster: RealCluster, tmp_path: Path
) -> None:
    out, stream, copied = str(tmp_path / "out"), "followed", "copied"
    with cluster.client(deadline_s=DEADLINE_S) as client:
        client.create_stream(stream, partitions=PARTITIONS, replication_factor=3)
        options = {"brokers": ",".join(cluster.addresses), "stream": stream, "startingOffsets": "earliest"}
        frame = spark.readStream.format("liftlog").options(**options).load()
        query = start(frame.selectExpr("partition", "offset", "string(value) AS text"), out, str(tmp_path / "at"))
        client.create_stream(copied, partitions=PARTITIONS, replication_factor=3)
        writer = frame.select("value").writeStream.format("liftlog").option("checkpointLocation", str(tmp_path / "ck"))
        sinking = writer.options(brokers=options["brokers"], stream=copied).start()
        producing = Producing(client, stream)
        try:
            producing.more(300)
            for each in (query, sinking):
                eventually(lambda each=each: _rows(each) > 0, timeout_s=120, what="the query has begun")  # type: ignore[misc]
            for of in (copied, COMMITS_STREAM):
                leader = cluster.leader(of)
                cluster.brokers[leader].kill9()
                read = [(each, _rows(each)) for each in (query, sinking)]
                producing.more(300)
                for each, before in read:
                    eventually(lambda each=each, before=before: _rows(each) > before, timeout_s=120, what="it goes on")  # type: ignore[misc]
                cluster.brokers[leader].start(wait=False)
                cluster.wait_ready(leader)
                for number in range(PARTITIONS):
                    cluster.in_sync(stream, 3, number)
        finally:
            count = producing.stop()
        for each in (query, sinking):
            each.processAllAvailable()
            each.stop()
        values = client.read(copied).to_table().column("value").to_pylist()
        assert sorted(int(value) for value in values) == list(range(count))
        found = spark.read.parquet(out).collect()
        assert sorted(int(row.text) for row in found) == list(range(count))
        places = {(row.partition, row.offset): row.text.encode() for row in found}
        assert len(places) == count
        stored = client.read(stream).to_table()
        columns = (stored.column(name).to_pylist() for name in ("partition", "offset", "value"))
        assert {(partition, offset): value for partition, offset, value in zip(*columns, strict=True)} == places


def test_tasks_read_from_the_replica_in_their_rack(cluster: RealCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """And from the leader where nobody says in which rack that is."""
    stream, brokers = "racks", ",".join(cluster.addresses)
    with cluster.client(deadline_s=DEADLINE_S) as client:
        described = client.create_stream(stream, replication_factor=3)
        store(client, stream, 0, [{"value": b"%d" % number} for number in range(100)])
        leader = cluster.leader(stream)
        cluster.in_sync(stream, 3)
    follower = next(broker for broker in cluster.brokers if broker != leader)
    options = source_options({"brokers": brokers, "stream": stream, "readFrom": "nearest"}, "batch")
    task = TaskRanges([Range(stream=stream, partition=0, incarnation=described.incarnation, start=0, end=100)])

    def values() -> list[bytes]:
        batches = read_task(task, Projection(ROW), options=options)
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    expected = [b"%d" % number for number in range(100)]
    monkeypatch.delenv(RACK, raising=False)
    assert values() == expected
    monkeypatch.setenv(RACK, f"rack-{follower}")

    def is_near() -> bool:
        assert values() == expected
        nearest = session(brokers, rack=f"rack-{follower}").nearest
        return nearest is not None and str(nearest.replica((stream, 0))) == cluster.brokers[follower].address

    eventually(is_near, what="the follower has been asked, and has answered")


def _rows(query: object) -> int:
    """The rows that the query has read in its last batches."""
    return sum(progress.numInputRows for progress in query.recentProgress)  # type: ignore[attr-defined]
