"""The driver's side and the executors' side without Spark, against a real broker process: faults that Spark hides.

Method: ask the stream reader what Spark would ask, in Spark's order.
"""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from broker.api.answers import Resolved
from broker.client.client import Client, connect
from spark_liftlog.errors import LiftlogSparkError
from spark_liftlog.options import source_options
from spark_liftlog.progress import claim as claim_module
from spark_liftlog.progress.lag_listener import LagListener
from spark_liftlog.progress.query_lag import Lag, lag
from spark_liftlog.reading import cluster as cluster_module
from spark_liftlog.reading import offsets
from spark_liftlog.reading.cluster import Cluster
from spark_liftlog.reading.offsets import decode
from spark_liftlog.reading.stream_reader import LiftlogStreamReader
from spark_liftlog.reading.task import TaskRanges, read_task
from spark_liftlog.schema import ROW, Projection
from tests.spark.reading_tasks import latest, reading
from tests.spark.streams import Stream, published, wait_published
from tests.support.processes import BrokerProcess, eventually

ALL = ReadAllAvailable()


@pytest.fixture
def reader(stream: Stream) -> Iterator[LiftlogStreamReader]:
    reader = reader_of(stream, consumer=stream.name)
    yield reader
    reader.stop()


def reader_of(stream: Stream, schema: StructType = ROW, **options: str) -> LiftlogStreamReader:
    given = {"brokers": stream.address, "stream": stream.name, "startingOffsets": "earliest", **options}
    return LiftlogStreamReader(source_options(given, "stream"), schema)


def rows_of(reader: LiftlogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    """(partition, offset) of a batch, read as executors do: from pickles, elsewhere."""
    found = []
    for task in reader.partitions(start, end):
        executor: LiftlogStreamReader = pickle.loads(pickle.dumps(reader))
        for batch in executor.read(pickle.loads(pickle.dumps(task))):
            found += zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
    return sorted(found)


def test_batches_cover_the_stream_once(reader: LiftlogStreamReader, stream: Stream) -> None:
    stream.append(100)
    stream.append(1, partitions=[2])
    start, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(start, ReadMaxRows(70))) is not start:
        seen += rows_of(reader, start, end)
        start = end
    assert sorted(seen) == stream.expected()


def test_nothing_new_returns_the_start_itself_and_asks_nobody(
    reader: LiftlogStreamReader, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.append(3)
    start = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.partitions(start, start) == []
    assert reader.latestOffset(start, ALL) is start
    for question in ("heads_now", "resolve"):
        monkeypatch.setattr(Cluster, question, None)  # whoever asks now fails
    assert reader.latestOffset(start, ALL) is start


def test_an_idle_trigger_decodes_nothing_and_a_batch_each_offset_once(
    reader: LiftlogStreamReader, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks up to a hundred times a second, each time with a fresh copy; 1,000 partitions take milliseconds."""
    decoded = []

    def counting(value: Any) -> Any:
        decoded.append(value)
        return decode(value)

    stream.append(3)
    start = reader.latestOffset(reader.initialOffset(), ALL)
    monkeypatch.setattr(offsets, "decode", counting)
    for _ in range(5):
        assert reader.latestOffset(json.loads(json.dumps(start)), ALL) == start
    assert decoded == [start]
    assert reader.reportLatestOffset() is (told := reader.reportLatestOffset()), "of 1,000 partitions: 0.7 ms"
    stream.append(2)
    end = start
    while end == start:
        end = reader.latestOffset(json.loads(json.dumps(start)), ALL)
    assert rows_of(reader, json.loads(json.dumps(start)), json.loads(json.dumps(end)))
    reader.commit(json.loads(json.dumps(end)))
    assert decoded == [start, end]
    assert told != reader.reportLatestOffset()


def test_the_first_offset_pins_where_the_query_began(stream: Stream) -> None:
    """The same first batch, planned again by another process that starts from the same constant."""
    stream.append(10)
    first = reader_of(stream, startingOffsets="latest")
    end = first.latestOffset(first.initialOffset(), ALL)
    first.stop()
    stream.append(5)
    again = reader_of(stream, startingOffsets="latest")
    assert json.dumps(again.initialOffset()) == json.dumps(first.initialOffset()) == '{"v": 1, "start": "latest"}'
    assert rows_of(again, again.initialOffset(), end) == []
    later = again.latestOffset(end, ALL)
    assert rows_of(again, end, later) == [(p, o) for p in range(3) for o in range(10, 15)]
    again.stop()


def test_available_now_stops_where_the_heads_were(reader: LiftlogStreamReader, stream: Stream) -> None:
    stream.append(5)
    reader.prepareForTriggerAvailableNow()
    stream.append(5)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert rows_of(reader, reader.initialOffset(), end) == [(p, o) for p in range(3) for o in range(5)]
    assert reader.latestOffset(end, ALL) is end
    report = reader.reportLatestOffset()
    assert report is not None
    assert {entry["lag"] for entry in report["streams"][stream.name].values()} == {5}, "lag counts from the real heads"


def test_only_what_was_learned_is_published(stream: Stream) -> None:
    """A batch that was planned and not seen to be done is nobody's progress, also when the reader is stopped."""
    stream.append(5)
    planned = reader_of(stream, consumer="planned")
    end = planned.latestOffset(planned.initialOffset(), ALL)
    planned.partitions(planned.initialOffset(), end)
    planned.stop()
    done = reader_of(stream, consumer="done")
    done.latestOffset(end, ALL)
    done.stop()
    assert published(stream.client, "done", stream.name) == {0: 5, 1: 5, 2: 5}, "stop flushes what was learned"
    assert published(stream.client, "planned", stream.name) == {0: 0, 1: 0, 2: 0}, "where it begins"


def progress_of(reader: LiftlogStreamReader, end: dict[str, Any]) -> dict[str, Any]:
    """What Spark tells of a batch that is complete."""
    report, end_text = json.dumps(reader.reportLatestOffset()), json.dumps(end)
    return {"id": "7", "runId": "a", "name": "q", "sources": [{"latestOffset": report, "endOffset": end_text}]}


def lags_at_the_broker(stream: Stream, consumer: str) -> list[int | None]:
    return [p.lag for p in stream.client.consumer(consumer).partitions]


def test_the_lag_grows_while_the_first_batch_runs(reader: LiftlogStreamReader, stream: Stream) -> None:
    """Where a query begins is published: else a first batch that hangs has no consumer, and no lag."""
    stream.append(5)
    reader.latestOffset(reader.initialOffset(), ALL)
    eventually(lambda: published(stream.client, stream.name, stream.name) == {0: 0, 1: 0, 2: 0}, what="it has begun")
    stream.append(100)
    assert lags_at_the_broker(stream, stream.name) == [105] * 3


def test_the_lag_of_a_query_is_what_brokers_have_now(reader: LiftlogStreamReader, stream: Stream) -> None:
    """Spark tells nothing while a batch runs, or while a query waits for more records: the lag was what it was."""
    stream.append(5)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    progress = progress_of(reader, end)
    listener = LagListener()
    listener.onQueryStarted(SimpleNamespace(id="7", runId="a", name="q"))
    listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress))))
    stream.append(100, partitions=[1])
    assert lag(progress) == Lag({(stream.name, partition): 0 for partition in range(3)}), "at its moment"
    query = SimpleNamespace(lastProgress=progress)
    now = Lag({(stream.name, partition): 100 * (partition == 1) for partition in range(3)})
    assert lag(query) == lag(query, brokers=stream.address) == now  # type: ignore[arg-type]
    found = lag(query)  # type: ignore[arg-type]
    assert found is not None
    assert found.ages[stream.name, 0] == found.ages[stream.name, 2] == 0.0
    assert found.behind_s == found.ages[stream.name, 1] > 0
    eventually(lambda: listener.lags() == {"q": now}, what="the listener asks, too")
    told = listener.prometheus()
    assert f'spark_liftlog_lag_seconds{{query="q",stream="{stream.name}",partition="0"}} 0.000\n' in told
    assert f'spark_liftlog_lag_records{{query="q",stream="{stream.name}",partition="1"}} 100\n' in told
    reader.commit(end)
    eventually(lambda: lags_at_the_broker(stream, stream.name) == [0, 100, 0], what="and so has the broker")


def test_a_partition_that_no_broker_tells_of_keeps_its_reported_lag(
    reader: LiftlogStreamReader, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.append(5)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(9))
    query = SimpleNamespace(lastProgress=progress_of(reader, end))
    resolve = Client.resolve

    def without_heads(client: Client, positions: Any) -> list[Resolved]:
        return [replace(answer, high_watermark=None) for answer in resolve(client, positions)]

    monkeypatch.setattr(Client, "resolve", without_heads)
    assert lag(query) == Lag({(stream.name, partition): 2 for partition in range(3)})  # type: ignore[arg-type]


def test_partitions_and_streams_that_came_since_the_last_batch_count_and_those_left_out_do_not(
    stream: Stream, client: Client
) -> None:
    """While a batch hangs nobody asks the source. Seen before: they counted for nothing, and what options leave out
    over a checkpoint was a lag for ever."""

    def behind(reader: LiftlogStreamReader, end: dict[str, Any]) -> dict[tuple[str, int], int]:
        found = lag(SimpleNamespace(lastProgress=progress_of(reader, end)))  # type: ignore[arg-type]
        assert found is not None
        assert found.ages.keys() <= found.partitions.keys()
        return {key: records for key, records in found.partitions.items() if records}

    stream.append(5)
    pattern = f"{stream.name}(-more)?"
    with reading(stream.address, streamPattern=pattern, startingOffsets="earliest") as reader:
        end = latest(reader)
        progress = progress_of(reader, end)
        more = Stream.create(client, f"{stream.name}-more", partitions=1)
        more.append(7)
        other = Stream.create(client, f"{stream.name}-other", partitions=1)
        other.append(1)
        client.add_partitions(stream.name, 4)
        stream.counts.append(0)
        stream.append(2, partitions=[1, 3])
        now = lag(SimpleNamespace(lastProgress=progress))  # type: ignore[arg-type]
        assert now is not None
        assert {key: records for key, records in now.partitions.items() if records} == {
            (stream.name, 1): 2,
            (stream.name, 3): 2,
            (more.name, 0): 7,
        }
        assert now.ages[more.name, 0] > 0
    only = json.dumps({stream.name: [0, 1]})
    with reading(stream.address, partitions=only) as reader:
        narrower = eventually(lambda: (found := latest(reader, end)) != end and found, what="partition 1 goes on")
        assert behind(reader, narrower) == {}
        stream.append(3)
        assert behind(reader, narrower) == {(stream.name, 0): 3, (stream.name, 1): 3}
    with reading(stream.address, stream=stream.name) as reader:
        whole = eventually(lambda: (found := latest(reader, narrower)) != narrower and found, what="all go on")
        assert behind(reader, whole) == {}
    with reading(stream.address, streams=f"{stream.name},{other.name}") as reader:
        latest(reader, whole)
        assert behind(reader, whole) == {}, "a stream that options name since begins where they say"


def test_a_query_that_has_only_begun_may_begin_again(stream: Stream) -> None:
    """It failed before its first batch: its checkpoint is new still, and nothing was processed."""
    stream.append(5)
    for _ in range(2):
        reader = reader_of(stream, consumer=stream.name)
        end = reader.latestOffset(reader.initialOffset(), ALL)
        reader.stop()
    done = reader_of(stream, consumer=stream.name)
    done.latestOffset(end, ALL)
    done.stop()
    assert published(stream.client, stream.name, stream.name) == {0: 5, 1: 5, 2: 5}
    new = reader_of(stream, consumer=stream.name)
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_NEW_CHECKPOINT"):
        new.latestOffset(new.initialOffset(), ALL)
    new.stop()


def test_a_first_batch_without_records_is_progress(stream: Stream) -> None:
    """The output has a batch 0, though its end is where the query began."""
    stream.append(5)
    reader = reader_of(stream, consumer=stream.name, startingOffsets="latest")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.latestOffset(end, ALL)
    reader.stop()
    new = reader_of(stream, consumer=stream.name)
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_NEW_CHECKPOINT"):
        new.latestOffset(new.initialOffset(), ALL)
    new.stop()


def test_a_beginning_that_is_accepted_hides_no_progress(stream: Stream) -> None:
    """It may fail at once. The next start without `accept` is refused as before."""
    stream.append(5)
    done = reader_of(stream, consumer=stream.name)
    done.latestOffset(done.latestOffset(done.initialOffset(), ALL), ALL)
    done.stop()
    accepted = reader_of(stream, consumer=stream.name, onNewCheckpoint="accept")
    accepted.latestOffset(accepted.initialOffset(), ALL)
    accepted.stop()
    assert published(stream.client, stream.name, stream.name) == {0: 5, 1: 5, 2: 5}
    new = reader_of(stream, consumer=stream.name)
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_NEW_CHECKPOINT"):
        new.latestOffset(new.initialOffset(), ALL)
    new.stop()


def test_commit_is_news_of_progress_too(reader: LiftlogStreamReader, stream: Stream) -> None:
    stream.append(4)
    reader.commit(reader.latestOffset(reader.initialOffset(), ALL))
    wait_published(stream, stream.name)


def test_commit_and_report_never_raise(reader: LiftlogStreamReader) -> None:
    reader.commit({"not": "ours"})
    assert reader_of_nobody().reportLatestOffset() is None


def reader_of_nobody() -> LiftlogStreamReader:
    return LiftlogStreamReader(source_options({"brokers": "127.0.0.1:9", "stream": "s"}, "stream"), ROW)


def test_sigterm_lets_the_reader_publish(stream: Stream, tmp_path: Path) -> None:
    """Spark sends this signal to the source's process when a query ends: progress used to be lost with it."""
    stream.append(5)
    code = """
import sys, time
from pyspark.sql.streaming.datasource import ReadAllAvailable
from spark_liftlog.datasource import LiftlogDataSource
from spark_liftlog.schema import ROW
source = LiftlogDataSource({"brokers": sys.argv[1], "stream": sys.argv[2], "consumer": "terminated"})
reader = source.streamReader(ROW)
try:
    end = reader.latestOffset({"v": 1, "start": "earliest"}, ReadAllAvailable())
    reader.latestOffset(end, ReadAllAvailable())
    print("ready", flush=True)
    while True:
        time.sleep(0.02)  # a signal just before a read that blocks would be seen when that returns: never
finally:
    reader.stop()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, stream.address, stream.name],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert published(stream.client, "terminated", stream.name) == {0: 5, 1: 5, 2: 5}


def test_a_broker_that_is_away_is_waited_for_and_progress_is_not_lost(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, None).start()
    with connect(broker.address) as client, ThreadPoolExecutor(1) as pool:
        stream = Stream.create(client, "away", partitions=2)
        stream.append(5)
        reader = reader_of(stream, consumer="away")
        try:
            end = reader.latestOffset(reader.initialOffset(), ALL)
            broker.kill9()
            assert reader.latestOffset(end, ALL) is end, "from memory"
            planning = pool.submit(reader.partitions, reader.initialOffset(), end)
            broker.start()
            assert sum(r.record_count for task in planning.result(120) for r in task.value) == 10
            wait_published(stream, "away")
            stream.append(5)
            later = eventually(lambda: _advanced(reader, end), what="the watch goes on")
            assert rows_of(reader, end, later) == [(p, o) for p in range(2) for o in range(5, 10)]
        finally:
            reader.stop()
            broker.stop()


def _advanced(reader: LiftlogStreamReader, start: dict[str, Any]) -> dict[str, Any] | None:
    end = reader.latestOffset(start, ALL)
    return None if end is start or _total(end) < 20 else end


def _total(end: dict[str, Any]) -> int:
    return sum(at[0] for stream in end["streams"].values() for at in stream["partitions"].values())


def test_brokers_that_never_answered_are_named_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "FIRST_DEADLINE_S", 0.3)
    with pytest.raises(LiftlogSparkError, match=r"^LIFTLOG_UNAVAILABLE: .*127\.0\.0\.1:9"):
        reader_of_nobody().latestOffset({"v": 1, "start": "latest"}, ALL)


def test_small_batches_are_joined_and_large_ones_are_not_cut_more_than_asked(stream: Stream) -> None:
    for _ in range(60):
        stream.append(1, partitions=[0])
    stream.append(150, partitions=[1])
    reader = reader_of(stream, batchRows="100")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    (task,) = reader.partitions(reader.initialOffset(), end)
    sizes = [batch.num_rows for batch in reader.read(task)]
    assert sum(sizes) == 210
    assert max(sizes) <= 100
    assert len(sizes) <= 4
    reader.stop()


def test_tasks_are_as_many_and_as_small_as_the_options_say(stream: Stream) -> None:
    """`maxRecordsPerPartition` wins over `maxPartitions`; each record is in one task."""
    stream.append(20)
    for options, least, most, share in (
        ({}, 1, 1, 60),
        ({"minPartitions": "5", "maxPartitions": "6"}, 5, 6, 60),
        ({"maxRecordsPerPartition": "7"}, 9, 9, 7),
        ({"maxRecordsPerPartition": "7", "maxPartitions": "2"}, 9, 9, 7),
    ):
        reader = reader_of(stream, **options)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        counts = [sum(each.record_count for each in task.value) for task in reader.partitions(start, end)]
        assert least <= len(counts) <= most, options
        assert max(counts) <= share, options
        assert rows_of(reader, start, end) == stream.expected()
        reader.stop()


def test_a_read_that_is_closed_early_leaves_no_thread_and_no_connection(stream: Stream) -> None:
    """As under a LIMIT: Spark closes the iterator while the thread that reads ahead is underway."""
    for _ in range(20):
        stream.append(500, partitions=[0], size=2000)
    reader = reader_of(stream, batchRows="500")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    (task,) = reader.partitions(reader.initialOffset(), end)
    batches = reader.read(task)
    assert next(batches).num_rows
    batches.close()  # type: ignore[attr-defined]
    assert "liftlog-read-ahead" not in {thread.name for thread in threading.enumerate()}
    assert sum(batch.num_rows for batch in reader.read(task)) == 10_000, "the next read is whole"
    reader.stop()


def test_a_second_source_of_a_driver_with_the_same_consumer_is_refused(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would overwrite the other's progress. Once the first is gone, its name is free."""
    monkeypatch.setattr(claim_module, "PATIENCE_S", 0.2)
    stream.append(1)
    first, second = (reader_of(stream, consumer="shared") for _ in range(2))
    silent = reader_of(stream, consumer="shared", commitOffsets="false")
    first.latestOffset(first.initialOffset(), ALL)
    silent.latestOffset(silent.initialOffset(), ALL)
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_INVALID_SETTING: option consumer='shared': another source"):
        second.latestOffset(second.initialOffset(), ALL)
    first.stop()
    second.latestOffset(second.initialOffset(), ALL)
    for reader in (second, silent):
        reader.stop()


def test_a_consumer_is_one_however_its_brokers_are_spelled(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_module, "PATIENCE_S", 0.2)
    stream.append(1)
    port = stream.address.rpartition(":")[2]
    first = reader_of(stream, consumer="spelled")
    first.latestOffset(first.initialOffset(), ALL)
    for brokers in (f"localhost:{port}", f"localhost:{port},{stream.address}", f"http://{stream.address}/"):
        second = reader_of(stream, consumer="spelled", brokers=brokers)
        with pytest.raises(LiftlogSparkError, match="LIFTLOG_INVALID_SETTING: option consumer='spelled': another"):
            second.latestOffset(second.initialOffset(), ALL)
        second.stop()
    first.stop()


def test_the_empty_plan_of_a_batch_read_has_no_rows() -> None:
    options = source_options({"brokers": "127.0.0.1:9", "stream": "s"}, "batch")
    assert list(read_task(InputPartition(None), Projection(ROW), options=options)) == []


def test_what_is_lost_between_plan_and_task_is_named_or_left_out(client: Client) -> None:
    stream = Stream.create(client, "late-loss", partitions=1, segment_bytes=65536, retention_records=100)
    stream.append(100, size=2000)
    reader = reader_of(stream)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    tasks = reader.partitions(reader.initialOffset(), end)
    for _ in range(2):
        stream.append(100, size=2000)
    eventually(lambda: client.describe(stream.name).partitions[0].log_start_offset == 200, what="retention has run")
    check_loss(stream, tasks, "LIFTLOG_RECORDS_EXPIRED: .*records 0 to 199")
    reader.stop()
    client.delete_stream(stream.name)
    check_loss(stream, tasks, "LIFTLOG_UNKNOWN_STREAM")
    Stream.create(client, stream.name, partitions=1)
    check_loss(stream, tasks, "LIFTLOG_STALE_INCARNATION")


def check_loss(stream: Stream, tasks: Any, says: str) -> None:
    given = {"brokers": stream.address, "stream": stream.name}
    with pytest.raises(LiftlogSparkError, match=says):
        list(read_task(tasks[0], Projection(ROW), options=source_options(given, "batch")))
    surviving = source_options({**given, "failOnDataLoss": "false"}, "batch")
    assert list(read_task(tasks[0], Projection(ROW), options=surviving)) == []


def test_a_task_is_pickled_with_its_ranges_and_leaders(stream: Stream, broker: BrokerProcess) -> None:
    stream.append(1)
    reader = reader_of(stream)
    tasks = reader.partitions(reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ALL))
    reader.stop()
    (task,) = pickle.loads(pickle.dumps(tasks))
    assert isinstance(task, TaskRanges)
    assert [(r.partition, r.start, r.end, r.address) for r in task.value] == [
        (p, 0, 1, broker.address) for p in range(3)
    ]


def test_reading_costs_no_python_object_per_row(stream: Stream) -> None:
    """The columns that Spark gets are views of what came over the wire."""
    stream.append(1000, partitions=[0], size=100)
    reader = reader_of(stream, batchRows="100000")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    (task,) = reader.partitions(reader.initialOffset(), end)
    (batch,) = list(reader.read(task))
    reader.stop()
    assert pa.compute.sum(pa.compute.binary_length(batch.column("value"))).as_py() == 100_000
