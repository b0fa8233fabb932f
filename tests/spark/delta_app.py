"""The job of test_delta.py: a stream into a Delta table, killed after Delta's commit of a batch and before Spark's own.

python -m tests.spark.delta_app <broker> <folder> <folder of jars> stream|transaction|plain kill|finish
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import spark_liftlog

SOURCE = "delta-source"
ROWS_OF_A_BATCH = 1000


def batches(table: Path) -> list[int]:
    """The batch of each commit of the table that names a transaction, in the order of the commits."""
    found = []
    for log in sorted(table.glob("_delta_log/*.json")):
        for line in log.read_text().splitlines():
            found += [action["txn"]["version"] for action in [json.loads(line)] if "txn" in action]
    return found


def commits(table: Path) -> int:
    return len(list(table.glob("_delta_log/*.json")))


def _kill_between(folder: Path, jvm: int) -> None:
    """Kill the driver when the table has one batch more than Spark's log of commits, from the third batch on."""
    while True:
        recorded = folder / "checkpoint" / "commits" / str(commits(folder / "table") - 1)
        if commits(folder / "table") > 2 and not recorded.exists():
            os.kill(jvm, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.001)


def main(broker: str, folder: str, jars: str, how: str, end: str) -> None:
    """All there is, in batches; each batch is one commit of the table."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    table = f"{folder}/table"
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.jars", ",".join(map(str, Path(jars).glob("*.jar"))))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    spark = spark_liftlog.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if end == "kill":
        jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
        threading.Thread(target=_kill_between, args=(Path(folder), jvm), daemon=True).start()

    def write(batch: DataFrame, number: int) -> None:
        options = {"txnAppId": "delta-test", "txnVersion": str(number)} if how == "transaction" else {}
        batch.write.format("delta").mode("append").options(**options).save(table)

    options = {"brokers": broker, "stream": SOURCE, "maxOffsetsPerTrigger": str(ROWS_OF_A_BATCH)}
    rows = spark.readStream.format("liftlog").options(**options, startingOffsets="earliest").load()
    writer = rows.select("value").writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    writer = writer.trigger(availableNow=True)
    query = writer.format("delta").start(table) if how == "stream" else writer.foreachBatch(write).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
