"""The job of test_bare_executors.py: a stream into another, in tasks that cannot import what only brokers need.

python -m tests.spark.bare_app <broker> <folder> <modules>

The modules are separated by commas. Executors find a `sitecustomize` in the folder, which refuses to import them; each
task notes that it does before it passes rows on.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import spark_liftlog

SOURCE, STREAMED, WRITTEN = "bare-source", "bare-streamed", "bare-written"
REFUSING = """import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"{{name}} is refused", name=name)

sys.meta_path.insert(0, Refusing())
"""


def refused(name: str) -> bool:
    """Whether this process cannot import it."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        return "is refused" in str(error)
    return False


def main(broker: str, folder: str, modules: str) -> None:
    """Source to sink: a streaming query, and a batch read that is written."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    names = modules.split(",")
    where = Path(folder)
    where.joinpath("sitecustomize.py").write_text(REFUSING.format(modules=set(names)))
    builder = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.executorEnv.PYTHONPATH", f"{folder}:{Path.cwd()}")
    )
    spark = spark_liftlog.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def noting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert all(map(refused, names)), f"of {names} this executor can import some"
        where.joinpath(f"bare-{os.getpid()}").touch()
        yield from batches

    def checked(frame: DataFrame) -> DataFrame:
        frame = frame.select("key", "value", "headers")
        return frame.mapInArrow(noting, frame.schema)

    options = {"brokers": broker, "stream": SOURCE}
    rows = checked(spark.readStream.format("liftlog").options(**options, startingOffsets="earliest").load())
    writer = rows.writeStream.format("liftlog").options(brokers=broker, stream=STREAMED)
    writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()
    rows = checked(spark.read.format("liftlog").options(**options).load())
    rows.write.format("liftlog").mode("append").options(brokers=broker, stream=WRITTEN).save()


if __name__ == "__main__":
    main(*sys.argv[1:])
