"""The job that is killed: a stream into another, through a shuffle that places rows elsewhere each time.

Its tasks have rows for nearly each partition of the sink, so that each stages bundles of several stages.

    python -m tests.spark.kill_app <broker> <folder> <master> once|follow <rows of a batch> earliest|committed <tasks>

Its sink is the real one, with two places where it can be told to kill the driver: a file `kill` in the folder says
`before` (rows are staged, nothing is committed), `late` (the same, but the Python process that commits lives on for a
moment, and commits if it can) or `after` (the sink has committed, Spark has not written that down), and the pids of who
else dies at that moment. It becomes `killed`, and says how many stages one task had made at most.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import spark_liftlog
from spark_liftlog.datasource import LiftlogDataSource
from spark_liftlog.writing.run import Written
from spark_liftlog.writing.sink_options import sink_options
from spark_liftlog.writing.writer import LiftlogStreamWriter
from tests.spark.standalone import SETTINGS

FOLDER = "LIFTLOG_TEST_FOLDER"
SOURCE, SINK, CONSUMER = "kills-source", "kills-sink", "kills"


class KillableWriter(LiftlogStreamWriter):
    """Kills the driver at its commit, if a file says so."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        stages = max((len(message.stages) for message in messages if isinstance(message, Written)), default=0)
        _kill_if(("before", "late"), stages)
        super().commit(messages, batchId)
        _kill_if(("after",), stages)


class KillableSource(LiftlogDataSource):
    """`format("liftlog")` with that writer."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> KillableWriter:
        return KillableWriter(sink_options(self.options, "stream"), schema, overwrite=overwrite)


def dawdling(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows; one task in four is late with them, and is run a second time elsewhere."""
    yield from batches
    if random.random() < 0.25:
        time.sleep(2)


def _kill_if(moments: tuple[str, ...], stages: int) -> None:
    folder = Path(os.environ[FOLDER])
    order = folder / "kill"
    if order.exists() and (words := order.read_text().split())[0] in moments:
        order.write_text(str(stages))
        order.rename(folder / "killed")
        for victim in (*map(int, words[1:]), int((folder / "jvm").read_text())):
            os.kill(victim, signal.SIGKILL)
        if words[0] != "late":  # this process is not Java's, which has died: it would go on until it notices
            os.kill(os.getpid(), signal.SIGKILL)


def main(broker: str, folder: str, master: str, mode: str, rows_max: str, starting: str, tasks: str) -> None:
    """Run until there is nothing left (`once`), or until killed. `starting` counts where there is no checkpoint."""
    os.environ[FOLDER] = folder
    os.environ["PYSPARK_PYTHON"] = sys.executable
    on_cluster = master.startswith("spark://")
    builder = (
        SparkSession.builder.master(master)
        .config(map=SETTINGS if on_cluster else {})
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", tasks)
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.executorEnv.PYTHONPATH", str(Path.cwd()))
    )
    spark = spark_liftlog.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    Path(folder, "jvm").write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
    spark.dataSource.register(KillableSource)
    options = {"brokers": broker, "stream": SOURCE, "consumer": CONSUMER, "maxOffsetsPerTrigger": rows_max}
    if starting == "committed":  # the checkpoint is lost, and the sink goes by the new query's own id
        options["onNewCheckpoint"] = "accept"
    source = spark.readStream.format("liftlog").options(**options, startingOffsets=starting)
    rows = source.load().repartition(int(tasks), F.rand())
    rows = rows.select("key", "subject", "value")
    if on_cluster:
        rows = rows.mapInArrow(dawdling, rows.schema)
    writer = rows.writeStream.format("liftlog").options(brokers=broker, stream=SINK)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    query = (writer.trigger(availableNow=True) if mode == "once" else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
