"""liftlog for Spark: `format("liftlog")`, batch and stream, source and sink.

    spark.readStream.format("liftlog").option("stream", "orders").load()
    df.writeStream.format("liftlog").option("stream", "enriched").option("checkpointLocation", "…").start()

Spark finds the format by itself when this distribution is installed (module `pyspark_liftlog`);
`register(spark)` is for where it does not. User's page: docs/spark.md.

    source.py         the DataSource: which reader or writer, checked options
    session.py        register, configure
    options.py        the options                    schema.py       the row, the projection
    batch_reader.py   spark.read                     stream_reader.py spark.readStream
    driver.py         a stream's driver side         advance.py      where the next batch ends, and losses
    offsets.py        the offset JSON                positions.py    option values made concrete
    heads.py          what there is to read, cached  progress.py     how far the query is, published
    plan.py           ranges to tasks                reading.py      what an executor does
    writer.py         the sink                       partitioner.py  which partition a row of it goes to
    cluster.py        what the driver asks brokers   query_lag.py    how far behind a query is
    errors.py         LIFTLOG_<REASON>               ahead.py         a thread that reads ahead of Spark

Names are loaded when they are asked for: importing this costs and risks nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.client.client import connect
    from spark_liftlog.query_lag import Lag, lag
    from spark_liftlog.session import configure, register
    from spark_liftlog.source import LiftlogDataSource

__all__ = ["Lag", "LiftlogDataSource", "configure", "connect", "lag", "register"]

_HOMES: Final = {
    "Lag": "spark_liftlog.query_lag",
    "LiftlogDataSource": "spark_liftlog.source",
    "configure": "spark_liftlog.session",
    "connect": "broker.client.client",
    "lag": "spark_liftlog.query_lag",
    "register": "spark_liftlog.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
