"""A batch reader that takes filters from Spark, where Spark hands them over.

Spark refuses a reader that has `pushFilters` unless `spark.sql.python.filterPushdown.enabled` is true, also for a query
without any filter. Where it is true, and a query has a filter that can be handed over, Spark plans the read in a worker
of its own kind. Only there this reader is made.

P1  Spark 4.3 keeps the plan that was made last with the frame, and not with the query. A later query without a filter
    gets the rows that the last filters left, and a query that uses the frame twice with different filters gets those of
    the last one twice. So nothing is pushed unless the option `pushFilters` says that the frame is for one query.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

from pyspark.sql.datasource import Filter
from pyspark.sql.types import StructType

from spark_liftlog.options import SourceOptions
from spark_liftlog.reading.batch_reader import LiftlogReader
from spark_liftlog.reading.filters import pushed

WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module of that worker: a daemon of it has imported it, a process of its own runs it."""


class PushingReader(LiftlogReader):
    """Reads what the filters leave."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._options, rest = pushed(self._options, filters)
        return rest


def reader_of(options: SourceOptions, schema: StructType) -> LiftlogReader:
    """The reader for this process."""
    return (PushingReader if options.push_filters and _hands_over() else LiftlogReader)(options, schema)


def _hands_over() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return WORKER in sys.modules or (spec is not None and spec.name == WORKER)
