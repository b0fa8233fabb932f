"""The job of test_pins.py: events joined with what is known of their keys, written exactly once; killed at its commit.

python -m tests.spark.join_app <broker> <folder>
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import spark_liftlog
from tests.spark.kill_app import FOLDER, KillableSource

EVENTS, NAMES, JOINED = "pins-events", "pins-names", "pins-joined"


def main(broker: str, folder: str) -> None:
    """All there is, in one batch."""
    os.environ[FOLDER] = folder
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", f"{folder}/local")
    )
    spark = spark_liftlog.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    Path(folder, "jvm").write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
    spark.dataSource.register(KillableSource)
    names = spark.read.format("liftlog").options(brokers=broker, stream=NAMES, minPartitions="3").load()
    names = names.selectExpr("key", "value AS name")
    events = spark.readStream.format("liftlog").options(brokers=broker, stream=EVENTS, startingOffsets="earliest")
    joined = events.load().select("key").join(names, "key").selectExpr("key", "name AS value")
    writer = joined.writeStream.format("liftlog").options(brokers=broker, stream=JOINED)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
