"""The job of test_pins_again.py: events joined with what is known of their keys, whose tasks Spark runs a second time.

In the first run all tasks of the frame have read when its stream grows; then the last task fails once, or on a cluster
waits until Spark has run it elsewhere, too. The driver is killed as soon as the sink has committed.

    python -m tests.spark.again_app <broker> <folder> <master> static|function|cached

`static`: the frame is the static side of the stream; `function`: it is loaded and joined within foreachBatch; `cached`:
there it is cached, too, as it is used twice.
Each attempt leaves a file `read-<batch>-<task>-<attempt>`, with partition and offset of each row that it has read.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import spark_liftlog
from tests.spark.kill_app import FOLDER, KillableSource
from tests.spark.standalone import SETTINGS
from tests.support.processes import eventually

EVENTS, NAMES, JOINED = "again-events", "again-names", "again-joined"
TASKS = 2
"""Of the frame, one for each partition of its stream."""


def told(folder: Path, batches: Iterator[pa.RecordBatch], *, is_cluster: bool) -> Iterator[pa.RecordBatch]:
    """The same rows. What was read is written down; in the first run of the job the stream grows meanwhile."""
    context = TaskContext.get()
    assert context is not None
    run = "second" if (folder / "killed").exists() else "first"
    task, batch = context.partitionId(), context.getLocalProperty("streaming.sql.batchId")
    places = list[tuple[int, int]]()
    for found in batches:
        places += zip(*(found.column(name).to_pylist() for name in ("partition", "offset")), strict=True)
        yield found
    told_in = folder / run / f"read-{batch}-{task}-{context.attemptNumber()}"
    told_in.parent.mkdir(exist_ok=True)
    partly = told_in.with_name(f".{told_in.name}")
    partly.write_text(json.dumps(places))
    partly.rename(told_in)
    if run == "second" or context.attemptNumber() > 0:
        return
    eventually((folder / "grown").exists, timeout_s=120, what="the stream grows")
    if task == TASKS - 1:
        if not is_cluster:
            raise RuntimeError("this attempt fails")
        eventually(told_in.with_name(f"read-{batch}-{task}-1").exists, timeout_s=120, what="a second attempt")


def main(broker: str, folder: str, master: str, shape: str) -> None:
    """All there is, in one batch."""
    os.environ[FOLDER] = folder
    os.environ["PYSPARK_PYTHON"] = sys.executable
    where, is_cluster = Path(folder), master.startswith("spark://")

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return told(where, batches, is_cluster=is_cluster)

    builder = (
        SparkSession.builder.master(master)
        .config(map=SETTINGS if is_cluster else {})
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.python.authenticate.socketTimeout", "120s")  # the machine may stand still for seconds
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.executorEnv.PYTHONPATH", str(Path.cwd()))
    )
    spark = spark_liftlog.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    (where / "jvm").write_text(str(jvm))
    spark.dataSource.register(KillableSource)

    def names() -> DataFrame:
        frame = spark.read.format("liftlog").options(brokers=broker, stream=NAMES, minPartitions=TASKS).load()
        return frame.mapInArrow(tell, frame.schema).selectExpr("key", "value AS name")

    def joined(batch: DataFrame, number: int) -> None:
        known = names()
        if shape == "cached":
            known.persist().count()
        rows = batch.join(known, "key").selectExpr("key", "name AS value")
        writer = rows.write.format("liftlog").mode("append").options(brokers=broker, stream=JOINED)
        writer.options(txnAppId=folder, txnVersion=number).save()
        if (where / "kill").exists():
            (where / "kill").rename(where / "killed")
            os.kill(jvm, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        known.unpersist()

    options = {"brokers": broker, "stream": EVENTS, "startingOffsets": "earliest"}
    events = spark.readStream.format("liftlog").options(**options).load().select("key")
    if shape == "static":
        rows = events.join(names(), "key").selectExpr("key", "name AS value")
        writer = rows.writeStream.format("liftlog").options(brokers=broker, stream=JOINED)
    else:
        writer = events.writeStream.foreachBatch(joined)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
