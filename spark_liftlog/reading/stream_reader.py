"""A streaming read, as Spark asks for it. query/driver.py decides the answers.

    initialOffset()               a constant: where "latest" was is not known to a restart
    latestOffset(start, limit)    learn that `start` is done; where the next batch ends
    reportLatestOffset()          the lag, for the query's progress
    commit(end)                   learn that `end` is done, one batch late; of each micro-batch of the query
    partitions(start, end)        tasks; also for a batch of an earlier run that is done again
    stop()                        publish what was learned

One instance answers these for as long as the query lives, in a process of its own. Another one is
pickled and sent to the executors, where only `read` is called. So threads and connections are made
by the first question and never by the constructor, and are left out when it is pickled.
"""

from __future__ import annotations

import gc
import logging
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark_liftlog.errors import shown_to_spark
from spark_liftlog.options import SourceOptions
from spark_liftlog.payload import projection_of
from spark_liftlog.reading.offsets import symbolic
from spark_liftlog.reading.plan import plan
from spark_liftlog.reading.query.driver import StreamDriver
from spark_liftlog.reading.task import TaskRanges, read_task

log = logging.getLogger("spark_liftlog")


class LiftlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows every partition of the streams that are read.

    Args:
        options: Checked options.
        schema: The declared schema: a projection of the row, with a payload also columns of it.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._projection = projection_of(schema, options.payload)
        self._driver: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_driver": None}

    def initialOffset(self) -> dict[str, Any]:
        return symbolic(self._options.starting)

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits, for Spark to hand back; all of them are applied here (query/admission.py)."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @shown_to_spark
    def prepareForTriggerAvailableNow(self) -> None:
        self._running().freeze()

    @shown_to_spark
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if isinstance(limit, ReadMaxRows):
            return self._running().latest(start, rows_max=limit.max_rows)
        return self._running().latest(start, is_bounded=not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        try:
            return self._running().report()
        except Exception as error:  # an error here would end the query, and nothing depends on the answer
            log.warning("lag.failed error=%s", error)
            return None

    @shown_to_spark
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        ranges = self._running().ranges(start, end)
        tasks = plan(
            ranges,
            partitions_min=options.min_partitions,
            partitions_max=options.max_partitions,
            records_max=options.max_records_per_partition,
        )
        return [TaskRanges(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._projection, options=self._options)

    def commit(self, end: dict[str, Any]) -> None:
        try:
            self._running().commit(end)
        except Exception as error:  # an error here would end the query, and publishing is best effort
            log.warning("progress.failed error=%s", error)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()

    def _running(self) -> StreamDriver:
        if self._driver is None:
            _stop_on_sigterm()
            gc.freeze()  # modules, for good: a search for cycles goes through 200,000 objects else, some 50 ms each
            self._driver = StreamDriver(self._options)
        return self._driver


def _stop_on_sigterm() -> None:
    """Let `stop` run when the query ends: Spark then sends SIGTERM, which would end Python on the spot."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
