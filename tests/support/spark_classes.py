"""Half of what it costs to start Spark is that its JVM loads classes: an archive of them saves that.

The shards with Spark start some hundred JVMs, and make the archive beside their first tests if there is none of this
Spark. A JVM that has another Java or other classes leaves it aside, without a word.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(sys.prefix) / f"spark-{version('pyspark')}.jsa"
OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"
"""A JVM that lives for half a minute spends half of its CPU time on optimising code, and on the collector's threads."""
USES: Final = f'{OPTIONS} "-XX:SharedArchiveFile={ARCHIVE}"'
"""The value of JDK_JAVA_OPTIONS, which each `java` reads: driver, launcher, standalone master and worker, executor. It
writes a line about it to its stderr."""


def make() -> subprocess.Popen[bytes] | None:
    """Begin to make the archive; None: it is there."""
    if ARCHIVE.exists():
        return None
    command = [sys.executable, "-m", "tests.support.spark_classes"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    """Run a batch and a stream. The classes that they load are archived when the JVM ends."""
    half = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ.pop("JDK_JAVA_OPTIONS", None)  # of those who use the archive
    os.environ |= {"SPARK_SUBMIT_OPTS": f"{OPTIONS} -XX:ArchiveClassesAtExit={half}", "PYSPARK_PYTHON": sys.executable}
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.range(100).selectExpr("id", "id % 7 as k").groupBy("k").count().toArrow()
    spark.range(100).mapInArrow(lambda batches: batches, "id long").count()
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = stream.writeStream.format("memory").queryName("q").trigger(availableNow=True).start()
    query.awaitTermination(60)
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # it ends
    gateway.proc.wait()
    half.rename(ARCHIVE)


if __name__ == "__main__" and not ARCHIVE.exists():
    main()
