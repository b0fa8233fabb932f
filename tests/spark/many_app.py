"""The job of test_many_batches.py: a query of 500 micro-batches, measured after 100 and after all of them.

python -m tests.spark.many_app <broker> <broker's pid> <folder>

Each batch reads a stream, joins it with a frame that is pinned, and writes exactly once. Leaves a JSON file for each
measurement: what each process holds while the query waits for records.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_liftlog
from broker.client.client import Client, connect
from tests.spark.memory import held, what
from tests.spark.stalls import descendants
from tests.support.processes import eventually

SOURCE, NAMES, SINK = "many-source", "many-names", "many-sink"
BATCHES = (100, 500)
BATCH_ROWS = 4
KEPT = {f"spark.{name}": "20" for name in ("ui.retainedJobs", "ui.retainedStages", "sql.ui.retainedExecutions")}
"""What Spark itself keeps of the past; by itself up to 1,000."""
POOLS = ("broadcast-exchange", "shuffle-exchange", "ResultQueryStageExecution")
"""Threads that Spark makes for queries, up to some hundred, and ends when they had nothing to do for a minute."""


def append(client: Client, first: int, end: int) -> None:
    for partition in range(2):
        rows = [{"key": b"%d" % (n % 4), "value": b"%d" % n} for n in range(first + partition, end, 2)]
        client.append(SOURCE, partition, rows)


def wait(query: StreamingQuery, batch_id: int) -> None:
    """Until this batch is over and the query waits for records."""

    def is_there() -> bool:
        assert query.isActive, query.exception()
        last = query.lastProgress
        return last is not None and last["batchId"] >= batch_id and not query.status["isTriggerActive"]

    eventually(is_there, timeout_s=1_500, what=f"batch {batch_id}")


def measured(spark: SparkSession, broker_pid: int) -> dict[str, Any]:
    """Each process by its id and what it is. Of the JVM, what it can reach counts as its memory, and
    Spark's pools of threads do not count."""
    gc.collect()
    java = spark._jvm.java.lang
    for _ in range(3):
        java.System.gc()
    jvm = int(java.ProcessHandle.current().pid())
    heap = java.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()
    threads = Counter(thread.getName().rstrip("0123456789-") for thread in java.Thread.getAllStackTraces().keySet())
    found: dict[str, Any] = {f"{pid} {what(pid)}": held(pid) for pid in descendants(jvm, "python")}
    others = sum(count for name, count in threads.items() if name not in POOLS)
    found |= {"driver": held(os.getpid()), "broker": held(broker_pid)}
    found["java"] = {**held(jvm), "bytes": heap, "threads": others}
    return {"processes": found, "threads": threads.most_common(10)}


def main(broker: str, broker_pid: str, folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.local.dir", f"{folder}/local")
        .config(map=KEPT)
    )
    spark = spark_liftlog.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    names = spark.read.format("liftlog").options(brokers=broker, stream=NAMES).load().selectExpr("key", "value AS name")
    options = {"brokers": broker, "stream": SOURCE, "startingOffsets": "earliest", "consumer": "many"}
    rows = spark.readStream.format("liftlog").options(**options, maxOffsetsPerTrigger=str(BATCH_ROWS)).load()
    rows = rows.join(names, "key").selectExpr("key", "concat(name, value) AS value")
    writer = rows.writeStream.format("liftlog").options(brokers=broker, stream=SINK)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
    with connect(broker) as client:
        for begin, end in zip((0, *BATCHES), BATCHES, strict=False):
            append(client, begin * BATCH_ROWS, end * BATCH_ROWS)
            wait(query, end - 1)
            Path(folder, f"after-{end}.json").write_text(json.dumps(measured(spark, int(broker_pid))))
    query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
