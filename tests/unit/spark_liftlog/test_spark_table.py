"""mode=table without Spark: its options, how partitions become tasks, and whose log a task reads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from broker.api import http
from broker.api.errors import InvalidSetting, NotSupported, UnknownSetting
from broker.api.gathered.reused_memory import ReusedMemory
from broker.client.http.interrupt import Interrupt
from broker.client.reading.gathering import Gathering, Shape
from spark_liftlog.options import source_options
from spark_liftlog.reading.plan import TASK_BYTES, Range
from spark_liftlog.reading.table import TableTask, whole_partitions
from spark_liftlog.reading.table_options import TableOptions
from spark_liftlog.reading.task import records_of
from spark_liftlog.reading.where import LATEST, ByTime
from tests.support.effort import seeds
from tests.unit.client.logs import INCARNATION, Log, body, message
from tests.unit.client.rawserver import RawServer, Reply, Request

TABLE = {"stream": "s", "mode": "Table"}


def test_the_options_are_read() -> None:
    found = source_options({**TABLE, "resolve": "read", "failOnDataLoss": "false"}, "batch")
    assert (found.starting, found.ending) == ("earliest", "latest")
    assert found.table == TableOptions(is_as_of=False, keeps_shared_keys=False)
    assert source_options({"stream": "s"}, "batch").table is None
    assert source_options({"stream": "s", "mode": "log"}, "stream").table is None
    kept = source_options({**TABLE, "sharedKeys": "keep", "asOf": "1"}, "batch").table
    assert kept == TableOptions(is_as_of=True, keeps_shared_keys=True)


@pytest.mark.parametrize(
    "given, ending",
    [
        ('{"s": {"0": 7, "1": -1}}', {"s": {0: 7, 1: LATEST}}),
        ("1700000000001", ByTime(at_ms=1_700_000_000_001, strategy="latest")),
        ("2023-11-14T22:13:20.001Z", ByTime(at_ms=1_700_000_000_001, strategy="latest")),
        ("2023-11-15 00:13:20.0001+02:00", ByTime(at_ms=1_700_000_000_001, strategy="latest")),
    ],
)
def test_as_of_is_offsets_or_a_time(given: str, ending: object) -> None:
    assert source_options({**TABLE, "asOf": given}, "batch").ending == ending


@pytest.mark.parametrize(
    "given, says",
    [
        ({"mode": "tables"}, "option mode='tables': must be log or table"),
        ({**TABLE, "asOf": "yesterday"}, "option asOf='yesterday': must be JSON such as"),
        ({**TABLE, "asOf": "2023-11-14T22:13:20"}, "option asOf='2023-11-14T22:13:20': the time has no time zone"),
        ({**TABLE, "asOf": "1969-01-01T00:00:00Z"}, "option asOf=.*: must not be before 1970"),
        ({**TABLE, "asOf": '{"s": {"0": -2}}'}, "option asOf=.*-2 is no offset of partition 0"),
        ({**TABLE, "asOf": '{"t": {"0": 1}}'}, "option asOf=.*names .'t'., the streams that are read are .'s'."),
        ({**TABLE, "sharedKeys": "newest"}, "option sharedKeys='newest': must be refuse or keep"),
        (
            {**TABLE, "startingOffsets": "earliest"},
            "option startingOffsets='earliest': it means nothing with mode=table",
        ),
        ({**TABLE, "endingTimestamp": "5"}, "option endingTimestamp='5': .*asOf takes its place"),
        ({**TABLE, "minPartitions": "5"}, "option minPartitions='5': .*a task reads whole partitions"),
        ({**TABLE, "readFrom": "nearest"}, "option readFrom='nearest': a table is read from leaders"),
        ({"asOf": "5"}, "option asOf='5': means something with mode=table only"),
        ({"sharedKeys": "keep"}, "option sharedKeys='keep': means something with mode=table only"),
    ],
)
def test_what_means_nothing_is_refused_by_name(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        source_options({"stream": "s", **given}, "batch")


def test_a_streaming_query_has_no_table() -> None:
    with pytest.raises(NotSupported, match=r"option mode='table': .*spark\.read.*static side of a join"):
        source_options(TABLE, "stream")
    with pytest.raises(UnknownSetting, match=r"option 'asOf' means something for spark\.read only"):
        source_options({"stream": "s", "asOf": "1"}, "stream")


@pytest.mark.parametrize("seed", seeds(20))
def test_a_task_has_whole_partitions(seed: int) -> None:
    luck = random.Random(seed)
    ranges = [
        Range(
            stream=luck.choice("ab"),
            partition=number,
            incarnation="i",
            start=0,
            end=luck.choice([0, 1, 1000]),
            byte_count=luck.choice([0, 100, TASK_BYTES, 9 * TASK_BYTES]),
        )
        for number in range(luck.randint(0, 12))
    ]
    tasks_max = luck.randint(1, 5)
    tasks = whole_partitions(ranges, tasks_max=tasks_max)
    assert len(tasks) <= tasks_max
    assert all(tasks)
    found = [r for task in tasks for r in task]
    assert sorted(found, key=lambda r: r.partition) == [r for r in ranges if r.record_count]
    weights = [sum(max(r.byte_count, r.record_count) for r in task) for task in tasks]
    if tasks:
        assert max(weights) - min(weights) <= 9 * TASK_BYTES


def test_nothing_of_a_table_comes_from_a_leader_of_before() -> None:
    """It may have compacted past the end, and the mark of the one that leads now says nothing of that."""
    log, answers = Log.of(8, per_batch=4), [1, 2]
    wanted = Range(stream="s", partition=0, incarnation=INCARNATION, start=0, end=8, byte_count=0)

    def answer(request: Request, reply: Reply) -> None:
        epoch = answers.pop(0) if len(answers) > 1 else answers[0]
        found = message(0, 4, keep=[2]) if epoch == 1 else log.messages[0]  # of key k0 it has what is newer
        offset = int(request.query["offset"])
        whole, headers = (body(found), log.headers(4)) if offset < 4 else log.answer(offset, 8)
        reply.answer(200, whole, {**headers, http.LEADER_EPOCH: str(epoch)})

    with RawServer(answer) as server:

        def read(wanted: Range, shape: Shape, epoch: int, epochs: list[int | None]) -> Iterator[pa.RecordBatch]:
            gathering = Gathering(shape, rows_max=100, bytes_enough=1 << 20, memory=ReusedMemory())
            address = f"127.0.0.1:{server.port}"
            return records_of(wanted, gathering, address, None, True, Interrupt(), epoch=epoch, epochs=epochs)

        stream: Any = SimpleNamespace(name="s", settings={"partition_by": "key"}, partition_count=1)
        partition: Any = SimpleNamespace(superseded_to=0, high_watermark=8, leader_epoch=2)
        options = TableOptions(is_as_of=True, keeps_shared_keys=False)
        task = TableTask(
            options,
            read,
            lambda _: (stream, partition),
            may_move=False,
            fail_on_data_loss=True,
            deadline_s=30.0,
            interrupt=Interrupt(),
        )
        rows = pa.Table.from_batches(task.rows(wanted, Shape(["key", "offset"])))
        assert rows.column("offset").to_pylist() == [0, 2, 4, 6]
        assert {request.query["epoch"] for request in server.requests} == {"2"}
