"""A session of Spark Connect that reads and writes liftlog in every way; test_connect.py looks at what it wrote.

python -m tests.spark.connect_app <broker> <folder>
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

import spark_liftlog

SOURCE, SINK = "connect-source", "connect-sink"


def main(broker: str, folder: str) -> None:
    """The stream once by a query and once by a job."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    source = {"brokers": broker, "stream": SOURCE}
    target = {"brokers": broker, "stream": SINK}
    frame = spark.read.format("liftlog").options(**source).load()
    assert frame.count() == 200
    following = spark.readStream.format("liftlog").options(**source, startingOffsets="earliest").load()
    writer = following.select("key", "value").writeStream.format("liftlog").options(**target)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    lag = spark_liftlog.lag(query)
    assert lag is not None
    assert lag.total == 0
    frame.select("value").write.format("liftlog").mode("append").options(**target).save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
