"""Spark read: a stream into the noop sink, as a batch query and as a streaming query, with one task and with two.

`memory` is a Python data source that yields batches of the same rows from memory, as large as liftlog's source yields
them: what Spark's API for Python sources costs by itself. `kafka` is Spark's own Kafka source, with as many rows of the
same size in one partition of a Kafka on this machine, where BENCH_KAFKA_HOME names one that has the source's jars. All
run in one session, in turns, after queries that warm it up. Batch: rows by the time of the whole query. Stream:
Trigger.AvailableNow, rows by the duration of the micro-batches that Spark reports. All columns are read.

`spark-start`: a streaming query from `load` to its end, with one micro-batch of one row: what it costs to start one.
`null` is a Python source that does nothing, so that is what Spark itself takes for any source written in Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import kafka
from benchmarks.harness import ROOT, Case, Measures, Side, Skipped, Target
from benchmarks.intake import run_intake
from benchmarks.ours import Liftlog
from benchmarks.peers import STREAM
from broker.client.client import connect

SIZE = 100


def cases(*, tiny: bool) -> Sequence[Case]:
    rows = 10_000 if tiny else 8_000_000
    most = (Target(of="liftlog - null", most=100),)
    start = Case(name="spark-start", metric="ms", unit="ms", parameters={"rows": 1}, open=_starts, targets=most)
    return [
        Case(
            name=f"spark-{kind}-{tasks}task",
            metric="rate",
            unit="rows/s",
            parameters={"value_bytes": SIZE, "rows": rows, "tasks": tasks, "columns": 8},
            open=_opener(kind, tasks, rows, tiny=tiny),
            targets=(
                Target(of="liftlog/memory", least=0.85),
                Target(of="liftlog/kafka", least=3.0 if kind == "batch" else 2.5),  # P3
            ),
        )
        for kind in ("batch", "stream")
        for tasks in (1, 2)
        if not tiny or (kind, tasks) == ("stream", 1)  # its check is a batch read
    ] + ([] if tiny else [start])


def _opener(kind: str, tasks: int, rows: int, *, tiny: bool) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        with ExitStack() as stack:
            place = stack.enter_context(Liftlog(folder))
            stored = int(run_intake(place, 1, size=SIZE, count=rows)["stored"])
            jars, topic = _kafka(stack, folder, rows)
            spark = stack.enter_context(_Spark(folder, jars))
            common = {"kind": kind, "tasks": tasks, "rows": stored, "size": SIZE}
            queries = {
                "liftlog": {**common, "source": "liftlog", "brokers": place.address, "stream": STREAM},
                "memory": {**common, "source": "memory"},
            }
            for query in queries.values():
                spark.run({**query, "check": True})
            sides: dict[str, Side] = {name: partial(spark.run, query) for name, query in queries.items()}
            sides["kafka"] = _kafka_side(spark, topic, {**common, "source": "kafka", "rows": rows})
            for name in (
                () if tiny else (*sides, "liftlog", "memory")
            ):  # Kafka's first query took as long as all of these
                with suppress(Skipped):
                    sides[name]()  # warms up the JVM, which else goes on compiling in the first turn that counts
            yield sides

    return open_sides


@contextmanager
def _starts(folder: Path) -> Iterator[Mapping[str, Side]]:
    with ExitStack() as stack:
        place = stack.enter_context(Liftlog(folder))
        with connect(place.address) as client:
            client.append(STREAM, 0, [{"value": b"x"}])
        jars, topic = _kafka(stack, folder, 1)
        spark = stack.enter_context(_Spark(folder, jars))
        common = {"kind": "start", "tasks": 1}
        ours = {**common, "source": "liftlog", "brokers": place.address, "stream": STREAM}
        sides: dict[str, Side] = {"liftlog": partial(spark.run, ours)}
        sides["null"] = partial(spark.run, {**common, "source": "null"})
        sides["kafka"] = _kafka_side(spark, topic, {**common, "source": "kafka"})
        for name in (*sides, *sides):
            with suppress(Skipped):
                sides[name]()  # warms up the JVM
        yield sides


def _kafka(stack: ExitStack, folder: Path, rows: int) -> tuple[Sequence[Path], kafka.Topic | Skipped]:
    """Spark's Kafka source and a topic for it, or why there is none."""
    try:
        jars = kafka.spark_jars()
    except Skipped as reason:
        return (), reason
    return jars, stack.enter_context(kafka.topic(folder, size=SIZE, count=rows))


def _kafka_side(spark: _Spark, topic: kafka.Topic | Skipped, query: Mapping[str, Any]) -> Side:
    def run(**more: object) -> Measures:
        if isinstance(topic, Skipped):
            raise topic
        try:
            return spark.run({**query, "brokers": topic.address, "stream": kafka.TOPIC, **more})
        except QueryFailed as error:  # jars of another Spark, say: a peer does not end the run
            raise Skipped(f"Spark's Kafka source: {error}") from error

    try:
        run(check=True)
    except Skipped as reason:
        topic = reason
    return run


class QueryFailed(RuntimeError):
    """Spark's error in a line; the whole of it is in Spark's log."""


class _Spark:
    """A process with one Spark session that runs queries on demand (spark_driver.py)."""

    def __init__(self, folder: Path, jars: Sequence[Path]) -> None:
        self._folder = folder
        self._jars = jars

    def __enter__(self) -> _Spark:
        self._log = (self._folder / "spark.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.spark_driver", str(self._folder), *map(str, self._jars)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=self._folder,
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            },
        )
        return self

    def run(self, query: Mapping[str, Any]) -> Measures:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(query) + "\n")
            self._process.stdin.flush()
            while line := self._process.stdout.readline():
                if line.startswith("RESULT "):
                    found: Measures = json.loads(line.removeprefix("RESULT "))
                    return found
                if line.startswith("FAILED "):
                    raised = json.loads(line.removeprefix("FAILED "))
                    print(f"Spark: {raised}", file=sys.stderr)
                    raise QueryFailed(raised.splitlines()[0][:200])
        except BrokenPipeError:
            pass
        self._process.wait()
        self._log.seek(0)
        raise RuntimeError(f"Spark ended:\n{self._log.read()[-6000:]}")

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # its signal to stop the session and end
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
