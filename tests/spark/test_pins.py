"""Frames in a micro-batch: all tasks, all uses and all replays read the same rows, whatever is appended meanwhile.

Method: the reader is asked what Spark would ask, in tasks that name a query, a batch and a run, against a real broker;
and in Spark, with a join whose static side grows while the driver is dead.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.util import inheritable_thread_target

from broker.api.errors import InvalidRequest
from broker.api.stream import OFFSETS_STREAM
from broker.client.client import Client, connect
from broker.client.http.calls import Calls
from spark_liftlog.errors import LiftlogSparkError
from spark_liftlog.options import source_options
from spark_liftlog.reading import pinning
from spark_liftlog.reading.batch_reader import LiftlogReader
from spark_liftlog.schema import ROW
from tests.spark import join_app
from tests.spark.kills import ROOT
from tests.spark.reading_tasks import latest, reading
from tests.spark.sink_tasks import found
from tests.spark.streams import Stream
from tests.spark.test_exactly_once import forget_last, run_into
from tests.support.clusters import RealCluster
from tests.support.processes import BrokerProcess, eventually


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What the tasks from now on say they are part of."""
    query = str(uuid.uuid4())

    def now(run: str, number: int = 7, **more: str) -> None:
        said = {
            "sql.streaming.queryId": query,
            "streaming.sql.batchId": str(number),
            "spark.jobGroup.id": str(uuid.uuid5(uuid.NAMESPACE_OID, query + run)),
            **more,
        }
        context = SimpleNamespace(getLocalProperty=said.get)
        monkeypatch.setattr(pinning, "TaskContext", SimpleNamespace(get=lambda: context))

    now("a")
    return now


class Load:
    """One `load()`, planned when it is used first."""

    def __init__(self, stream: Stream, **options: str) -> None:
        given = {"brokers": stream.address, "stream": stream.name, "minPartitions": "4", **options}
        self._reader = LiftlogReader(source_options(given, "batch"), ROW)
        self._tasks: list[bytes] | None = None

    def rows(self) -> list[tuple[int, int]]:
        """(partition, offset), read as executors do: from pickles, several at once."""
        if self._tasks is None:
            self._tasks = [pickle.dumps(task) for task in self._reader.partitions()]
        with ThreadPoolExecutor(4) as pool:
            return sorted(at for found in pool.map(self._read, self._tasks) for at in found)

    def _read(self, task: bytes) -> list[tuple[int, int]]:
        reader: LiftlogReader = pickle.loads(pickle.dumps(self._reader))
        batches = list(reader.read(pickle.loads(task)))
        columns = [[n for batch in batches for n in batch.column(name).to_pylist()] for name in ("partition", "offset")]
        return list(zip(*columns, strict=True))


def test_all_tasks_of_a_batch_and_of_its_replays_read_the_same(
    stream: Stream, task: Callable[..., None], client: Client
) -> None:
    stream.append(20)
    dims = Load(stream)
    assert dims.rows() == (first := stream.expected())
    stream.append(5)
    client.add_partitions(stream.name, 4)
    stream.counts.append(0)
    stream.append(3, partitions=[3])
    assert dims.rows() == first
    for run in ("b", "c"):
        task(run)
        anew = Load(stream)
        assert [anew.rows(), anew.rows()] == [first, first]
    task("c", 8)
    assert anew.rows() == stream.expected()
    assert not [each for each in client.consumers() if stream.name in {p.stream for p in each.partitions}]


def test_what_an_earlier_build_has_pinned_counts(
    stream: Stream, task: Callable[..., None], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pins have names that no grant could cover but one of all consumers."""
    stream.append(5)
    with monkeypatch.context() as earlier:
        earlier.setattr(pinning, "PREFIX", "")
        first = Load(stream).rows()
    stream.append(2)
    task("b")
    anew = Load(stream)
    assert [anew.rows(), anew.rows()] == [first, first]
    task("b", 8)
    assert anew.rows() == stream.expected()


def test_a_grant_of_what_begins_with_spark_covers_pins_and_unnamed_progress(
    stream: Stream, task: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    placed, ask = set[str](), Calls.json

    def json(self: Calls, method: str, target: str, *given: Any, **more: Any) -> Any:
        if method == "POST" and target.startswith(("/v1/pins/", "/v1/consumers/")):
            placed.add(target.split("/")[3])
        return ask(self, method, target, *given, **more)

    monkeypatch.setattr(Calls, "json", json)
    stream.append(1)
    assert Load(stream).rows() == stream.expected()
    with reading(stream.address, stream=stream.name, startingOffsets="earliest") as reader:
        latest(reader, latest(reader))
    assert len(placed) == 2
    assert all(name.startswith("spark-") for name in placed)


def test_what_is_pinned_outlives_the_broker(tmp_path: Path, task: Callable[..., None]) -> None:
    broker = BrokerProcess(tmp_path, None).start()
    try:
        with connect(broker.address) as client:
            stream = Stream.create(client, "outlives")
            stream.append(9)
            assert Load(stream).rows() == (first := stream.expected())
            broker.kill9()
            broker.start()
            stream.append(2)
            task("b")
            assert Load(stream).rows() == first
            assert client.consumers() == []
    finally:
        broker.stop()


@pytest.mark.timeout(300)
def test_what_is_pinned_outlives_its_keeper(cluster: RealCluster, task: Callable[..., None]) -> None:
    """Of three brokers the one that keeps pins is killed, while tasks read; its successor knows them."""
    with cluster.client() as client:
        stream = Stream.create(client, "outlives-its-keeper")
        stream.append(9)
        assert Load(stream).rows() == (first := stream.expected())
        keeper = cluster.leader(OFFSETS_STREAM, 0)
        cluster.brokers[keeper].kill9()
        try:
            stream.append(2)
            task("b")
            assert Load(stream).rows() == first
            task("b", 8)
            assert Load(stream).rows() == stream.expected()
        finally:
            cluster.brokers[keeper].start(wait=False)
            cluster.wait_ready(keeper)


def test_a_second_load_sees_what_was_appended_before_it(stream: Stream, task: Callable[..., None]) -> None:
    """The program writes between two loads, and so does its replay; whoever comes later sees neither."""
    stream.append(5)
    loads = [Load(stream)]
    first = loads[0].rows()
    stream.append(2)
    loads.append(Load(stream))
    second = loads[1].rows()
    assert (len(first), second) == (15, stream.expected())
    stream.append(1)
    assert [load.rows() for load in loads] == [first, second]
    task("b")
    again = [Load(stream) for _ in loads]
    assert [load.rows() for load in again] == [first, second]


def test_retention_takes_rows_from_a_frame_but_not_from_a_replay(
    stream: Stream, task: Callable[..., None], client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    stream.append(20)
    dims, named = Load(stream), Load(stream, startingOffsets=f'{{"{stream.name}": {{"0": 0, "1": 0, "2": 0}}}}')
    assert dims.rows() == named.rows() == stream.expected()
    client.trim(stream.name, before=7, partitions=[1])
    left = [at for at in stream.expected() if at[0] != 1 or at[1] >= 7]
    assert dims.rows() == left, "as a new plan would: refresh.R2"
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_RECORDS_EXPIRED: .*partition 1: records 0 to 6"):
        named.rows()
    stream.append(4)
    task("b")
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_RECORDS_EXPIRED: .*begun by another run, which has read"):
        Load(stream).rows()
    task("c")
    going_on = Load(stream, failOnDataLoss="false")
    assert going_on.rows() == left
    assert "source.data_loss" in caplog.text
    task("c", 8)
    assert going_on.rows() == [at for at in stream.expected() if at[0] != 1 or at[1] >= 7]


def test_a_stream_that_was_made_anew_is_not_read_by_a_replay(
    stream: Stream, task: Callable[..., None], client: Client
) -> None:
    stream.append(3)
    assert Load(stream).rows() == stream.expected()
    client.delete_stream(stream.name)
    client.create_stream(stream.name, partitions=3)
    stream.counts = [0, 0, 0]
    stream.append(8)
    task("b")
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_STALE_INCARNATION: .*begun by another run"):
        Load(stream).rows()
    task("c")
    assert Load(stream, failOnDataLoss="false").rows() == stream.expected()
    task("b", 8)
    assert Load(stream).rows() == stream.expected()


def test_streams_that_come_to_match_are_not_read_by_a_replay(
    stream: Stream, task: Callable[..., None], client: Client
) -> None:
    stream.append(3)

    def load() -> Load:
        found = Load(stream)
        given = {"brokers": stream.address, "streamPattern": f"{stream.name}(-more)?"}
        found._reader = LiftlogReader(source_options(given, "batch"), ROW)
        return found

    dims = load()
    assert dims.rows() == (first := stream.expected())
    more = Stream.create(client, f"{stream.name}-more", partitions=1)
    more.append(2)
    assert dims.rows() == first
    task("b")
    assert load().rows() == first
    task("b", 8)
    assert load().rows() == dims.rows() == sorted(first + more.expected())


def test_brokers_that_know_no_pins_are_read_as_before(
    stream: Stream, task: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ask = Calls.json

    def json(self: Calls, method: str, target: str, *given: Any, **more: Any) -> Any:
        if target.startswith("/v1/pins/"):
            raise InvalidRequest(f"there is nothing at {target}", path=target)
        return ask(self, method, target, *given, **more)

    monkeypatch.setattr(Calls, "json", json)
    stream.append(3)
    dims = Load(stream)
    assert dims.rows() == stream.expected()
    stream.append(3)
    assert dims.rows() == stream.expected()
    assert caplog.text.count("source.not_pinned") == 1


def test_a_pin_that_has_expired_is_told(
    stream: Stream, tmp_path: Path, task: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is read as a new one: nobody knows that it was begun."""
    stream.append(1)
    dims = Load(stream)
    for number in (0, 1):
        task("a", number)
        dims.rows()
    assert "source.pin_missing" not in caplog.text, "a first batch has none; then one is there"

    env = {"LIFTLOG_CLEANER_OFFSETS_RETENTION_MS": "1000", "LIFTLOG_CLEANER_INTERVAL_MS": "100"}
    process = BrokerProcess(tmp_path, None, env=env).start()
    try:
        with connect(process.address) as client:
            expiring = Stream.create(client, "expires")
            expiring.append(3)
            dims = Load(expiring)
            task("a", 0)
            dims.rows()
            batch, tasks = pinning.batch_here(), dims._tasks
            assert batch is not None
            assert tasks is not None
            pin = f"/v1/pins/{pinning.PREFIX}{batch.query}.{pickle.loads(tasks[0]).opening.frame.name}"
            eventually(lambda: not process.get(pin)["version"], what="the pin has expired")
            expiring.append(2)
            task("b", 1)
            assert Load(expiring).rows() == expiring.expected()
            assert "source.pin_missing" in caplog.text
    finally:
        process.stop()


# in Spark


def test_a_frame_of_a_batch_is_one_frame(spark: SparkSession, stream: Stream, client: Client, checkpoint: str) -> None:
    """Also a frame that is made of it, a join with itself, one that was loaded outside, and in a thread to which the
    function hands what Spark knows of its own."""
    names = Stream.create(client, "one-frame")
    names.append(5)
    stream.append(1)
    outside, seen = names.read(spark), list[list[int]]()

    def counts(batch: DataFrame, _: int) -> None:
        frame, found, session = names.read(batch.sparkSession), list[int](), batch.sparkSession

        def in_a_thread() -> int:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(inheritable_thread_target(session)(frame.count)).result()

        for count in (
            frame.count,
            frame.count,
            frame.withColumn("more", F.lit(1)).count,
            frame.join(frame.selectExpr("partition AS p", "offset AS o"), F.expr("partition = p AND offset = o")).count,
            outside.count,
            outside.count,
            names.read(batch.sparkSession).count,
            frame.count,
            in_a_thread,
        ):
            found.append(count())
            names.append(1)
        seen.append(found)

    query = stream.follow(spark).writeStream.foreachBatch(counts).option("checkpointLocation", checkpoint)
    for _ in range(2):
        run = query.trigger(availableNow=True).start()
        assert run.awaitTermination(120), "still running"
        assert seen.pop() == [15, 15, 15, 15, 27, 27, 33, 15, 15]
        forget_last(checkpoint, "commits")


def test_a_join_is_replayed_as_it_was(spark: SparkSession, stream: Stream, client: Client, checkpoint: str) -> None:
    """What remains of a driver that died after the sink's commit, then the static side grows."""
    names, target = Stream.create(client, "grows"), Stream.create(client, "grew", partitions=1)

    def joined() -> DataFrame:
        known = names.read(spark).selectExpr("partition AS p", "offset AS o", "string(value) AS name")
        return (
            stream.follow(spark)
            .select("key", "partition")
            .join(known, F.expr("partition = p"))
            .selectExpr("key", "binary(name) AS value")
        )

    def written() -> Counter[bytes]:
        return Counter(client.read(target.name, start="earliest").to_table().column("value").to_pylist())

    stream.append(2)
    names.append(3)
    run_into(target, joined(), checkpoint)
    first = written()
    assert first.total() == 18
    forget_last(checkpoint, "commits")
    names.append(2)
    run_into(target, joined(), checkpoint)
    assert written() == first
    stream.append(1)
    run_into(target, joined(), checkpoint)
    assert written().total() == first.total() + 15, "the next batch has what was appended"


def test_a_static_side_that_is_cached_is_not_replayed_as_it_was(
    spark: SparkSession, stream: Stream, client: Client, checkpoint: str
) -> None:
    """What is cached has the state of the batch that read it first, also in later batches. A driver that is started
    anew has no cache, and reads what is there now."""
    names, target = Stream.create(client, "cached"), Stream.create(client, "cached-joined", partitions=1)

    def rows(known: DataFrame) -> DataFrame:
        return stream.follow(spark).select("key").crossJoin(known.select("value"))

    stream.append(1)
    names.append(1)
    known = names.read(spark).cache()
    run_into(target, rows(known), checkpoint)
    names.append(1)
    stream.append(1)
    run_into(target, rows(known), checkpoint)
    assert len(found(target)) == 2 * 3 * 3, "the second batch does not see what was appended"
    forget_last(checkpoint, "commits")
    known.unpersist()
    known = names.read(spark).cache()
    try:
        with pytest.raises(PySparkException, match=r"LIFTLOG_SINK_ROWS_DIFFER: .* 9 rows.*keepFirst"):
            run_into(target, rows(known), checkpoint)
        assert len(found(target)) == 18, "nothing of it was written"
        run_into(target, rows(known), checkpoint, onRepeatWithOtherRows="keepFirst")
        stream.append(1)
        run_into(target, rows(known), checkpoint)
        assert len(found(target)) == 18 + 3 * 6, "the next batch has what was appended"
    finally:
        known.unpersist()


def test_a_frame_that_is_cached_within_the_function_is_replayed_as_it_was(
    spark: SparkSession, stream: Stream, client: Client, checkpoint: str
) -> None:
    """And each batch has what was appended since, also where the cache of the batch before is still there."""
    names, seen, kept = Stream.create(client, "cached-within"), list[list[int]](), list[DataFrame]()
    names.append(5)

    def counts(batch: DataFrame, _: int) -> None:
        kept.append(names.read(batch.sparkSession).persist())
        found = [kept[-1].count()]
        names.append(1)
        seen.append([*found, kept[-1].count(), names.read(batch.sparkSession).count()])

    query = stream.follow(spark).writeStream.foreachBatch(counts).option("checkpointLocation", checkpoint)
    try:
        for grown in (1, 1, 0):
            if grown:
                stream.append(grown)
            run = query.trigger(availableNow=True).start()
            assert run.awaitTermination(120), "still running"
            if len(seen) == 2:
                forget_last(checkpoint, "commits")
                names.append(10)
    finally:
        for frame in kept:
            frame.unpersist()
    assert seen == [[15, 15, 18], [18, 18, 21], [18, 18, 21]]


@pytest.mark.timeout(400)
def test_a_join_whose_driver_was_killed_after_the_commit_is_in_the_sink_once(
    broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    for name in (join_app.EVENTS, join_app.NAMES, join_app.JOINED):
        client.create_stream(name, partitions=2)

    def append(stream: str, *keys: bytes) -> None:
        for partition in (0, 1):
            client.append(stream, partition, [{"key": key, "value": b"%s of %d" % (key, partition)} for key in keys])

    def run() -> int:
        given = [sys.executable, "-m", "tests.spark.join_app", broker.address, str(tmp_path)]
        done = subprocess.run(given, cwd=ROOT, capture_output=True, timeout=300)
        assert done.returncode in (0, -9, 1), done.stderr.decode(errors="replace")[-4000:]
        return done.returncode

    append(join_app.EVENTS, b"a", b"b")
    append(join_app.NAMES, b"a", b"b")
    (tmp_path / "kill").write_text("after")
    run()
    assert (tmp_path / "killed").exists()
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists(), "Spark had recorded the batch"
    append(join_app.NAMES, b"a", b"b")
    assert run() == 0
    assert (tmp_path / "checkpoint" / "commits" / "0").exists(), "the batch came again"
    values = client.read(join_app.JOINED, start="earliest").to_table().column("value").to_pylist()
    assert Counter(values) == {b"%s of %d" % (key, partition): 2 for key in (b"a", b"b") for partition in (0, 1)}


def test_a_batch_pays_few_requests(stream: Stream, task: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task asks once for the pin; who comes first asks for the ends as before, and places it."""
    asked = Counter[str]()
    ask = Calls.json

    def json(self: Calls, method: str, target: str, *given: Any, **more: Any) -> Any:
        asked[f"{method} {target.split('/')[2].partition('?')[0]}"] += 1
        return ask(self, method, target, *given, **more)

    stream.append(20)
    dims = Load(stream)
    assert dims._tasks is None
    dims.rows()
    monkeypatch.setattr(Calls, "json", json)
    dims.rows()
    assert asked == {"GET pins": 4}
