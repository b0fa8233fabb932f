"""The job of test_dynamic_allocation.py: a query whose executors go away while it runs, and come when there is work.

python -m tests.spark.dynamic_app <broker> <folder> <master>

Records are appended in turns. In the first turn one task of a batch waits until the executor of the other has gone,
which had written a part of the shuffle and of the sink. Between two turns all executors go. Each task notes where it
ran.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_liftlog
from broker.client.client import Client, connect
from tests.spark.standalone import SETTINGS
from tests.support.processes import eventually

SOURCE, SINK = "dynamic-source", "dynamic-sink"
TURNS, ROWS = 3, 200
DYNAMIC = {
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.initialExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.locality.wait": "0s",
}


def passing(batches: Iterator[pa.RecordBatch], folder: Path) -> Iterator[pa.RecordBatch]:
    """The same rows. The first task of all waits until an executor has gone."""
    rows = list(batches)
    context = TaskContext.get()
    assert context is not None
    folder.joinpath(f"executor-{os.getppid()}").touch()
    if context.partitionId() == 0 and rows and not folder.joinpath("waited").exists():
        folder.joinpath("waited").touch()
        eventually(folder.joinpath("gone").exists, timeout_s=480, what="an executor goes")
    yield from rows


def main(broker: str, folder: str, master: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    where = Path(folder)
    builder = (
        SparkSession.builder.master(master)
        .config(map=SETTINGS | DYNAMIC)
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.executorEnv.PYTHONPATH", str(Path.cwd()))
    )
    spark = spark_liftlog.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def executors() -> int:
        return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver counts

    def watch() -> None:
        """The task that waits has an executor for itself, so the other one gets another, which notes that it ran."""
        eventually(where.joinpath("waited").exists, timeout_s=240, what="a task waits")
        eventually(lambda: len(list(where.glob("executor-*"))) == 2, timeout_s=240, what="a task on another executor")
        eventually(lambda: executors() == 1, timeout_s=240, what="one of two executors goes")
        where.joinpath("gone").touch()

    watching = threading.Thread(target=watch)
    watching.start()
    options = {"brokers": broker, "stream": SOURCE, "startingOffsets": "earliest"}
    rows = spark.readStream.format("liftlog").options(**options).load().select("key", "value").repartition(2)
    rows = rows.mapInArrow(lambda batches: passing(batches, where), rows.schema)
    writer = rows.writeStream.format("liftlog").options(brokers=broker, stream=SINK)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
    with connect(broker) as client:
        for turn in range(TURNS):
            for partition in range(2):
                numbers = range(turn * ROWS + partition, (turn + 1) * ROWS, 2)
                client.append(SOURCE, partition, [{"value": b"%d" % n} for n in numbers])
            rows_end = (turn + 1) * ROWS
            eventually(partial(is_written, query, client, rows_end), timeout_s=240, what=f"{rows_end} rows")
            eventually(lambda: executors() == 0, timeout_s=240, what="all executors go")
    watching.join()
    query.stop()


def is_written(query: StreamingQuery, client: Client, rows: int) -> bool:
    assert query.isActive, query.exception()
    return sum(part.high_watermark or 0 for part in client.describe(SINK).partitions) >= rows


if __name__ == "__main__":
    main(*sys.argv[1:])
