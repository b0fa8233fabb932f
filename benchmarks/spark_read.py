"""Spark read: a stream into the noop sink, as a batch query and as a streaming query, with one task and with two.

The peer is a Python data source that yields batches of the same rows from memory (`memory`): what Spark's API for
Python sources costs by itself. Both run in one session, in turns. Batch: rows by the time of the whole query. Stream:
Trigger.AvailableNow, rows by the duration of the micro-batches that Spark reports. All columns are read, in batches as
large as liftlog's source yields them; Spark's Kafka source is not on this machine unless you bring it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Case, Measures, Side, Target
from benchmarks.intake import run_intake
from benchmarks.ours import Liftlog
from benchmarks.peers import STREAM

SIZE = 100


def cases(*, tiny: bool) -> Sequence[Case]:
    rows = 10_000 if tiny else 8_000_000
    return [
        Case(
            name=f"spark-{kind}-{tasks}task",
            metric="rate",
            unit="rows/s",
            parameters={"value_bytes": SIZE, "rows": rows, "tasks": tasks, "columns": 8},
            open=_opener(kind, tasks, rows, tiny=tiny),
            targets=(Target(of="liftlog/memory", least=0.8),),
        )
        for kind in ("batch", "stream")
        for tasks in (1, 2)
        if not tiny or (kind, tasks) == ("stream", 1)  # its check is a batch read
    ]


def _opener(kind: str, tasks: int, rows: int, *, tiny: bool) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        with Liftlog(folder) as place:
            stored = int(run_intake(place, 1, size=SIZE, count=rows)["stored"])
            with _Spark(folder) as spark:
                common = {"kind": kind, "tasks": tasks, "rows": stored, "size": SIZE}
                liftlog = {**common, "source": "liftlog", "brokers": place.address, "stream": STREAM}
                memory = {**common, "source": "memory"}
                for query in (liftlog, memory):
                    spark.run({**query, "check": True})
                for query in () if tiny else (liftlog, memory, liftlog, memory):
                    spark.run(query)  # warms up the JVM, which else goes on compiling in the first turn that counts
                yield {"liftlog": lambda: spark.run(liftlog), "memory": lambda: spark.run(memory)}

    return open_sides


class _Spark:
    """A process with one Spark session that runs queries on demand (spark_driver.py)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> _Spark:
        self._log = (self._folder / "spark.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.spark_driver", str(self._folder)],
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
