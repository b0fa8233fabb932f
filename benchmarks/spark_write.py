"""Spark write: the cost of liftlog's sink beside a sink that drops everything, and beside Spark's Kafka sink.

`spark-write-*`: rows that the JVM makes, written by `df.write` with two tasks into two partitions; `liftlog` is the
sink under test, `append` liftlog's at-least-once sink, `null` a Python sink that takes the same Arrow batches and drops
them, `kafka` Spark's own sink with its defaults, where BENCH_KAFKA_HOME names a Kafka that has its jars.

`spark-many-tasks-*`: 40,000 rows from 200 tasks, as many as Spark makes after a shuffle, each of which writes to every
partition; `seconds` of the whole query, beside the sink that drops everything and Spark's own `noop`, which runs no
Python.

`spark-micro-batch-*`: small micro-batches one after the other (Trigger.AvailableNow), one record for each partition,
from liftlog to liftlog; `null` is the same query with a Python source and sink that do nothing. `ms` is the median of
the durations that Spark reports; `added_ms` what liftlog adds to it.

`spark-plan-*`: `latestOffset` and `partitions` of a stream with many partitions, one record in each, asked as Spark
asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import kafka
from benchmarks.harness import Case, Measures, Side, Skipped, Target
from benchmarks.ours import Liftlog
from benchmarks.proc import cpu_s
from benchmarks.spark_read import QueryFailed, _kafka, _Spark
from broker.client.client import connect
from spark_liftlog.options import source_options
from spark_liftlog.reading.stream_reader import LiftlogStreamReader
from spark_liftlog.schema import ROW

SIZE = 100
TASKS = 2
MANY_TASKS = 200
GUARANTEES = {"exactly-once": "exactly-once", "append": "at-least-once"}


def cases(*, tiny: bool) -> Sequence[Case]:
    rows, batches, many = (2_000, 5, 20) if tiny else (2_000_000, 25, 1_000)
    found = [
        Case(
            name=f"spark-write-{kind}",
            metric="rate",
            unit="rows/s",
            parameters={"value_bytes": SIZE, "rows": rows, "tasks": TASKS, "partitions": TASKS},
            open=_opener(_writes, kind, rows),
            targets=(
                (Target(of="liftlog/null", least=0.6), Target(of="liftlog/kafka", least=2.0))
                if kind == "append"
                else (Target(of="liftlog/append", least=0.7), Target(of="liftlog/kafka", least=2.0))
            ),
        )
        for kind in GUARANTEES
        if not tiny or kind == "exactly-once"
    ]
    for kind in () if tiny else GUARANTEES:
        for partitions, target in (
            (64, Target(of="seconds", most=5.0)),
            (1, Target(of="liftlog/null", most=1.3)),
        ):
            found.append(
                Case(
                    name=f"spark-many-tasks-{kind}-{partitions}p",
                    metric="seconds",
                    unit="s",
                    parameters={
                        "value_bytes": SIZE,
                        "rows": 40_000,
                        "tasks": MANY_TASKS,
                        "partitions": partitions,
                    },
                    open=_opener(_many_tasks, kind, 40_000, partitions),
                    targets=(target,),
                )
            )
    for kind, partitions, most in (("append", 1, 30), ("exactly-once", 1, 60), ("exactly-once", 64, 150)):
        if not tiny or (kind, partitions) == ("exactly-once", 1):
            found.append(
                Case(
                    name=f"spark-micro-batch-{kind}-{partitions}p",
                    metric="ms",
                    unit="ms",
                    parameters={"micro_batches": batches, "partitions": partitions},
                    open=_opener(_micro_batches, kind, batches, partitions),
                    targets=(Target(of="added_ms", most=most),),
                )
            )
    plan = Case(
        name=f"spark-plan-{many}p",
        metric="ms",
        unit="ms",
        parameters={"partitions": many},
        open=_opener(_plans, many),
        targets=(Target(of="ms", most=200),),
    )
    return [*found, plan]


def _opener(make: Callable[..., Mapping[str, Side]], *arguments: Any) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        with ExitStack() as stack:
            yield make(stack, folder, stack.enter_context(Liftlog(folder)), *arguments)

    return open_sides


def _writes(stack: ExitStack, folder: Path, place: Liftlog, kind: str, rows: int) -> Mapping[str, Side]:
    jars, topic = _kafka(stack, folder, 1_000)
    spark = stack.enter_context(_Spark(folder, jars))
    place.create_stream("written", partitions=TASKS)
    common = {"kind": "write", "rows": rows, "tasks": TASKS, "size": SIZE}

    def into_liftlog(guarantee: str) -> Measures:
        options = {"brokers": place.address, "stream": "written", "deliveryGuarantee": guarantee}
        with connect(place.address) as client:
            before = sum(p.high_watermark for p in client.describe("written").partitions)
            found = spark.run({**common, "sink": "liftlog", "options": options})
            after = sum(p.high_watermark for p in client.describe("written").partitions)
        return {**found, "lost": before + rows - after}

    def into_kafka() -> Measures:
        if isinstance(topic, Skipped):
            raise topic
        options = {"kafka.bootstrap.servers": topic.address, "topic": kafka.TOPIC}
        try:
            return spark.run({**common, "sink": "kafka", "options": options})
        except QueryFailed as error:
            raise Skipped(f"Spark's Kafka sink: {error}") from error

    sides: dict[str, Side] = {"liftlog": partial(into_liftlog, GUARANTEES[kind])}
    if kind != "append":
        sides["append"] = partial(into_liftlog, GUARANTEES["append"])
    sides["null"] = partial(spark.run, {**common, "sink": "null", "options": {}})
    sides["kafka"] = into_kafka
    for side in sides.values():
        with suppress(Skipped):
            side()  # warms up the JVM
    return sides


def _many_tasks(
    stack: ExitStack, folder: Path, place: Liftlog, kind: str, rows: int, partitions: int
) -> Mapping[str, Side]:
    spark = stack.enter_context(_Spark(folder, ()))
    place.create_stream("many", partitions=partitions)
    common = {"kind": "write", "rows": rows, "tasks": MANY_TASKS, "size": SIZE, "partitions": partitions}
    options = {"brokers": place.address, "stream": "many", "deliveryGuarantee": GUARANTEES[kind]}

    def stored() -> int:
        with connect(place.address) as client:
            return sum(p.high_watermark for p in client.describe("many").partitions)

    def into_liftlog() -> Measures:
        before, used_s = stored(), cpu_s(place.pid)
        found = spark.run({**common, "sink": "liftlog", "options": options})
        return {**found, "broker_cpu_s": cpu_s(place.pid) - used_s, "lost": before + rows - stored()}

    sides: dict[str, Side] = {
        "liftlog": into_liftlog,
        "null": partial(spark.run, {**common, "sink": "null", "options": {}}),
        "noop": partial(spark.run, {**common, "sink": "noop", "options": {}}),
    }
    for side in sides.values():
        side()  # warms up the JVM
    return sides


def _micro_batches(
    stack: ExitStack, folder: Path, place: Liftlog, kind: str, batches: int, partitions: int
) -> Mapping[str, Side]:
    spark = stack.enter_context(_Spark(folder, ()))
    with connect(place.address) as client:
        for name in ("trickle", "caught"):
            client.create_stream(name, partitions=partitions)
        for partition in range(partitions):
            client.append("trickle", partition, [{"value": b"x"} for _ in range(batches)])
    common = {"kind": "micro-batch", "batches": batches}
    source = {"brokers": place.address, "stream": "trickle", "startingOffsets": "earliest"}
    ours = {
        "source": "liftlog",
        "source_options": {**source, "maxOffsetsPerTrigger": partitions, "maxPartitions": TASKS},
        "sink": "liftlog",
        "options": {"brokers": place.address, "stream": "caught", "deliveryGuarantee": GUARANTEES[kind]},
    }
    null = {
        "source": "null",
        "source_options": {"tasks": min(partitions, TASKS), "batches": batches},
        "sink": "null",
        "options": {},
    }

    def run_null() -> Measures:
        return spark.run({**common, **null})

    def run_ours() -> Measures:
        found = spark.run({**common, **ours})
        return {**found, "added_ms": found["ms"] - run_null()["ms"]}

    return {"liftlog": run_ours, "null": run_null}


def _plans(stack: ExitStack, folder: Path, place: Liftlog, partitions: int) -> Mapping[str, Side]:
    with connect(place.address) as client:
        client.create_stream("wide", partitions=partitions)
        for partition in range(partitions):
            client.append("wide", partition, [{"value": b"x"}])
    given = {"brokers": place.address, "stream": "wide", "startingOffsets": "earliest"}
    reader = LiftlogStreamReader(source_options(given, "stream"), ROW)
    stack.callback(reader.stop)

    def run() -> Measures:
        start = reader.initialOffset()
        began_s = time.monotonic()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        planned_s = time.monotonic()
        tasks = reader.partitions(start, end)
        ended_s = time.monotonic()
        rows = sum(r.record_count for task in tasks for r in task.value)
        return {
            "ms": 1000 * (ended_s - began_s),
            "latest_ms": 1000 * (planned_s - began_s),
            "partitions_ms": 1000 * (ended_s - planned_s),
            "lost": partitions - rows,
        }

    run()  # connects
    return {"liftlog": run}
