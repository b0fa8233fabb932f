"""The job of test_worker_reuse.py: everything that source and sink do, with a Python worker of its own for each task.

python -m tests.spark.fresh_app <broker> <folder>

Each task notes its process.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import spark_liftlog

SOURCE, STREAMED, EACH, WRITTEN = "fresh-source", "fresh-streamed", "fresh-each", "fresh-written"
ROWS = 200


def main(broker: str, folder: str) -> None:
    """The source into three streams: by a query's sink, by `foreachBatch`, and by a batch job."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.python.worker.reuse", "false")
    )
    spark = spark_liftlog.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    where = Path(folder)

    def noting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        where.joinpath(f"task-{uuid.uuid4()}").write_text(str(os.getpid()))
        yield from batches

    def noted(frame: DataFrame) -> DataFrame:
        frame = frame.select("key", "value")
        return frame.mapInArrow(noting, frame.schema)

    source = {"brokers": broker, "stream": SOURCE}

    def follow(**options: str) -> DataFrame:
        options = {**source, "startingOffsets": "earliest", **options}
        return noted(spark.readStream.format("liftlog").options(**options).load())

    sink = (
        follow(maxOffsetsPerTrigger=str(ROWS // 2))
        .writeStream.format("liftlog")
        .options(brokers=broker, stream=STREAMED)
    )
    query = sink.option("checkpointLocation", f"{folder}/streamed").trigger(availableNow=True).start()
    assert query.awaitTermination(240)

    def write(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("liftlog").mode("append").options(brokers=broker, stream=EACH)
        writer.options(txnAppId="fresh", txnVersion=str(batch_id)).save()

    each = follow().writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/each")
    query = each.trigger(availableNow=True).start()
    assert query.awaitTermination(240)

    frame = noted(spark.read.format("liftlog").options(**source).load())
    frame.write.format("liftlog").mode("append").options(brokers=broker, stream=WRITTEN).save()


if __name__ == "__main__":
    main(*sys.argv[1:])
