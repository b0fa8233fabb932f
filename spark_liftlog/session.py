"""Prepare a Spark session for liftlog: register the format, and set two options that make it ten times as fast.

    builder = spark_liftlog.configure(SparkSession.builder)
    spark = builder.getOrCreate()

Spark hands rows to a Python sink in Arrow batches. It bounds a batch by rows and by bytes, and counts
the bytes again for every row. That is quadratic, and 6 to 13 times slower than without the bound.
Without it only the number of rows bounds a batch, so the two must be set together: rows of 1 MiB in
batches of 10,000 end the JVM.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from broker.api.errors import InvalidSetting
from spark_liftlog.errors import for_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_BYTES: Final = 32 << 20
ROWS_MIN: Final = 16
ROWS_MAX: Final = 10_000
NO_BYTE_BOUND: Final = "2147483647b"

log = logging.getLogger("spark_liftlog")


def register(spark: SparkSession) -> None:
    """Make `format("liftlog")` known to this session, if Spark did not find it by itself, and to the calling thread.

    Of each thread that the program has started Spark looks for a sink in the session that was made active there. It
    makes none active by itself, so a write there ends with DATA_SOURCE_NOT_FOUND.
    """
    from spark_liftlog.datasource import LiftlogDataSource

    spark.dataSource.register(LiftlogDataSource)
    spark.createDataFrame([], "nothing INT")  # this makes the session active in the JVM's thread


def configure(builder: SparkSession.Builder, max_value_bytes: int = 16_384) -> SparkSession.Builder:
    """Set the options that make Python sources and sinks fast, before the session is created.

    They hold for the whole session, so UDFs, toPandas and other sources see them too:
      spark.sql.execution.arrow.maxBytesPerBatch     off: its check is quadratic in the rows of a batch
      spark.sql.execution.arrow.maxRecordsPerBatch   32 MiB / max_value_bytes, 16 to 10,000
      spark.python.unix.domain.socket.enabled        true: 25 to 40 % faster than loopback TCP
      PYSPARK_PYTHON (environment)                   this interpreter, if unset: Spark runs `python3` of the
                                                     PATH otherwise, which may not have liftlog

    Args:
        builder: `SparkSession.builder`.
        max_value_bytes: Approximate size of the largest value that will be written, in bytes. If it is too small, the
            JVM may run out of memory. If it is too large, batches are small.
    Returns:
        The same builder.
    """
    if max_value_bytes < 1:
        raise for_spark(InvalidSetting(f"max_value_bytes={max_value_bytes}: must be 1 or more", key="max_value_bytes"))
    if why := _too_late(builder):
        log.warning("configure.ignored reason=%s", why)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    rows = min(max(BATCH_BYTES // max_value_bytes, ROWS_MIN), ROWS_MAX)
    settings: dict[str, Any] = {
        "spark.sql.execution.arrow.maxBytesPerBatch": NO_BYTE_BOUND,
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(rows),
        "spark.python.unix.domain.socket.enabled": "true",
    }
    return builder.config(map=settings)


def _too_late(builder: SparkSession.Builder) -> str | None:
    """The reason why some settings cannot take effect; None: all can."""
    options = getattr(builder, "_options", {})
    if "spark.remote" in options or "SPARK_REMOTE" in os.environ:
        return "a Connect server exists already and keeps its own settings: set them where it is started"
    from pyspark import SparkContext

    if getattr(SparkContext, "_active_spark_context", None) is not None:
        return "a Spark session is running already: sockets and PYSPARK_PYTHON stay as they are"
    return None
