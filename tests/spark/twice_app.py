"""The job of test_standalone.py: one task waits until Spark runs it a second time, then both write.

python -m tests.spark.twice_app <broker> <folder> <master>
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import spark_liftlog
from tests.spark.standalone import SETTINGS
from tests.support.processes import eventually

SOURCE, SINK = "twice-source", "twice-sink"


def meeting(folder: Path) -> None:
    """In one task of two: the first attempt waits for the second."""
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() != 0:
        return
    me = folder / f"attempt-{context.attemptNumber()}-{os.getpid()}"
    me.touch()
    if context.attemptNumber() == 0:
        eventually(lambda: len(list(folder.glob("attempt-*"))) > 1, timeout_s=120, what="a second attempt")


def main(broker: str, folder: str, master: str) -> None:
    """One micro-batch, all that there is."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    where = Path(folder)

    def met(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        meeting(where)
        yield from batches

    builder = (
        SparkSession.builder.master(master)
        .config(map=SETTINGS)
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.executorEnv.PYTHONPATH", str(Path.cwd()))
    )
    spark = spark_liftlog.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    options = {"brokers": broker, "stream": SOURCE, "startingOffsets": "earliest"}
    rows = spark.readStream.format("liftlog").options(**options).load().select("key", "value").repartition(2)
    writer = rows.mapInArrow(met, rows.schema).writeStream.format("liftlog").options(brokers=broker, stream=SINK)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
