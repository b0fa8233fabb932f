"""The job of test_late_tasks.py: a `df.write` of two tasks. One fails; the other begins to write when the job is over.

    python -m tests.spark.late_app <broker> <folder>

What the late task met is in the file `late`. Spark would end its process, but has time here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import spark_liftlog
from spark_liftlog.datasource import LiftlogDataSource
from spark_liftlog.writing.run import Written
from spark_liftlog.writing.sink_options import sink_options
from spark_liftlog.writing.writer import LiftlogWriter
from tests.spark.kill_app import FOLDER
from tests.support.processes import eventually

TARGET = "late-target"


class LateWriter(LiftlogWriter):
    """Task 0 fails as soon as task 1 is there, and that one writes when the job has been given up."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context, folder = TaskContext.get(), Path(os.environ[FOLDER])
        assert context is not None
        if context.partitionId() == 0:
            eventually((folder / "there").exists, timeout_s=120, what="the other task")
            raise RuntimeError("this task fails")
        (folder / "there").touch()
        eventually((folder / "over").exists, timeout_s=120, what="the end of the job")
        try:
            return super().write(iterator)
        except Exception as error:
            _tell(folder, str(error))
            raise
        finally:
            _tell(folder, "written")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        super().abort(messages)
        Path(os.environ[FOLDER], "over").touch()


def _tell(folder: Path, what: str) -> None:
    """What is told first counts."""
    if not (folder / "late").exists():
        (folder / ".late").write_text(what)
        (folder / ".late").rename(folder / "late")


class LateSource(LiftlogDataSource):
    """`format("liftlog")` with that writer."""

    def writer(self, schema: StructType, overwrite: bool) -> LateWriter:
        return LateWriter(sink_options(self.options, "batch"), schema, overwrite=overwrite)


def main(broker: str, folder: str) -> None:
    """Fails; returns when the late task has told what it met."""
    os.environ[FOLDER] = folder
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.python.task.killTimeout", "120s")
    )
    spark = spark_liftlog.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(LateSource)
    rows = spark.range(2, numPartitions=2).selectExpr("string(id) AS value")
    try:
        rows.write.format("liftlog").mode("append").options(brokers=broker, stream=TARGET).save()
    except Exception as error:
        Path(folder, "failed").write_text(str(error))
    eventually(Path(folder, "late").exists, timeout_s=120, what="the late task")


if __name__ == "__main__":
    main(*sys.argv[1:])
