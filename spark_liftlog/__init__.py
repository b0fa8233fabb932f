"""liftlog for Spark: `format("liftlog")`, batch and stream, source and sink.

    spark.readStream.format("liftlog").option("stream", "orders").load()
    df.writeStream.format("liftlog").option("stream", "enriched").option("checkpointLocation", "…").start()

Spark finds the format by itself if this distribution is installed (module `pyspark_liftlog`). If it
does not, call `register(spark)`. The page for users is docs/guides/spark.md.

    datasource.py  the DataSource: which reader or writer, checked options
    session.py     register, configure
    views.py       temporary views of streams
    options.py     the options of the source
    place.py       brokers' addresses, with the files of TLS that go with them
    parsing.py     option values: found by name, read, refused
    schema.py      the row, the projection, rows of some subjects only
    payload.py     payload=json: values as columns
    errors.py      LIFTLOG_<REASON>

    reading/       the source: what the driver plans, and what a task reads
    progress/      how far a query is, and how far behind
    writing/       the sink: rows of a frame become records of a stream

Names are loaded when they are asked for, so importing this package costs and risks nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.client.client import connect
    from spark_liftlog.datasource import LiftlogDataSource
    from spark_liftlog.progress.lag_listener import LagListener, show_progress
    from spark_liftlog.progress.query_lag import Lag, lag
    from spark_liftlog.session import configure, register
    from spark_liftlog.views import views

__all__ = [
    "Lag",
    "LagListener",
    "LiftlogDataSource",
    "configure",
    "connect",
    "lag",
    "register",
    "show_progress",
    "views",
]

_HOMES: Final = {
    "Lag": "spark_liftlog.progress.query_lag",
    "LagListener": "spark_liftlog.progress.lag_listener",
    "LiftlogDataSource": "spark_liftlog.datasource",
    "configure": "spark_liftlog.session",
    "connect": "broker.client.client",
    "lag": "spark_liftlog.progress.query_lag",
    "register": "spark_liftlog.session",
    "show_progress": "spark_liftlog.progress.lag_listener",
    "views": "spark_liftlog.views",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
