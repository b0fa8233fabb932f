"""The queries whose checkpoints are kept; run by the commit that makes them, and by this one. Not as a module:

    cd FOLDER && PYTHONPATH=CHECKOUT python tests/folders/queries.py <broker> <query, or all> [before|after|written]

Each is run until there is nothing left. Its checkpoint is the folder of its name, by a path that is not absolute: the
sink knows a checkpoint by its path. With a third word the driver is killed at the next batch: before the sink's commit,
after it and before Spark's, or when `foreachBatch` has written.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.types import StructType

import spark_liftlog
from spark_liftlog.datasource import LiftlogDataSource
from spark_liftlog.writing.sink_options import sink_options
from spark_liftlog.writing.writer import LiftlogStreamWriter

SOURCES = ("source-a", "source-b")
QUERIES = ("ended", "decided", "staged", "each")
"""Each writes all that is in the sources into `sink-NAME`."""
KILLS = {"decided": "after", "staged": "before", "each": "written"}
BATCH_ROWS = 40
FOLDER, KILL = "LIFTLOG_TEST_FOLDER", "LIFTLOG_TEST_KILL"


class KillableWriter(LiftlogStreamWriter):
    """Kills the driver at its commit."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        kill_if("before")
        super().commit(messages, batchId)
        kill_if("after")


class KillableSource(LiftlogDataSource):
    """`format("liftlog")` with that writer."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> KillableWriter:
        return KillableWriter(sink_options(self.options, "stream"), schema, overwrite=overwrite)


def kill_if(moment: str) -> None:
    """The driver's Java, and this process, which would go on for a moment."""
    if os.environ.get(KILL) == moment:
        os.kill(int(Path(os.environ[FOLDER], "jvm").read_text()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def writer_of(spark: SparkSession, broker: str, name: str) -> DataStreamWriter:
    source = {"brokers": broker, "consumer": name, "startingOffsets": "earliest"}
    names = {"streamPattern": "source-.*"} if name == "ended" else {"streams": ",".join(SOURCES)}
    reader = spark.readStream.format("liftlog").options(**source, **names, maxOffsetsPerTrigger=str(BATCH_ROWS))
    rows = reader.load().repartition(2, F.rand()).select("key", "value", "headers")
    target = {"brokers": broker, "stream": f"sink-{name}"}
    if name == "each":
        writer = rows.writeStream.foreachBatch(partial(write_each, target=target))
    else:
        writer = rows.writeStream.format("liftlog").options(**target)
        if name == "staged":
            writer = writer.option("sinkId", "named")
    return writer.option("checkpointLocation", name).trigger(availableNow=True)


def write_each(frame: DataFrame, batch_id: int, *, target: dict[str, str]) -> None:
    transaction = {"txnAppId": "each", "txnVersion": str(batch_id)}
    frame.write.format("liftlog").mode("append").options(**target, **transaction).save()
    kill_if("written")


def main(broker: str, which: str, kill: str = "") -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ[FOLDER], os.environ[KILL] = str(Path.cwd()), kill
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(Path.cwd() / "local"))
    )
    spark = spark_liftlog.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    Path("jvm").write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
    if kill:
        spark.dataSource.register(KillableSource)
    for name in QUERIES if which == "all" else (which,):
        assert writer_of(spark, broker, name).start().awaitTermination(240), f"{name}: still running"


if __name__ == "__main__":
    main(*sys.argv[1:])
