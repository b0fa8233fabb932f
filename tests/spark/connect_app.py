"""A session of Spark Connect that does all that source and sink offer; test_connect.py looks at what became of it.

python -m tests.spark.connect_app <broker> <folder>

Prints a JSON object: what each step returned, or its error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import spark_liftlog
from tests.support.processes import eventually

SOURCE, KEYED, STREAMED = "connect-source", "connect-keyed", "connect-streamed"
EACH, WRITTEN = "connect-each", "connect-written"
RECORDS = 100
"""In each of two partitions of the source: the values are JSON objects with the member n."""


class Steps:
    """What the session does; each step by its name."""

    def __init__(self, spark: SparkSession, broker: str, folder: str) -> None:
        self._spark, self._broker, self._folder = spark, broker, folder

    def batch_read(self) -> Any:
        return sorted(row.n for row in self._n(self._read()).collect())

    def options_of_a_read(self) -> Any:
        """Filters, ends, columns and limits of tasks, as options."""
        ends = json.dumps({SOURCE: {"0": 20, "1": 0}})
        options = {"endingOffsets": ends, "columns": "value", "subjects": "connect.0,connect.1"}
        frame = self._read(**options, maxRecordsPerPartition="7")
        return {"columns": frame.columns, "n": sorted(row.n for row in self._n(frame).collect())}

    def key(self) -> Any:
        return self._read(stream=KEYED, key="1").select(F.col("value").cast("string")).toPandas()["value"].tolist()

    def json_payload(self) -> Any:
        frame = self._read(payload="json", payloadSchema="n BIGINT")
        return sorted(row.n for row in frame.select("n", "_corrupt").where("_corrupt IS NULL").collect())

    def table(self) -> Any:
        frame = self._read(stream=KEYED, mode="table").selectExpr("string(key) AS key", "string(value) AS value")
        return dict(sorted((row.key, row.value) for row in frame.collect()))

    def views(self) -> Any:
        made = spark_liftlog.views(self._spark, brokers=self._broker, streams=[SOURCE, KEYED])
        count = self._spark.sql(f"SELECT count(*) AS n FROM `{SOURCE}`").first()
        newest = self._spark.sql(f"SELECT count(*) AS n FROM `{KEYED}_table`").first()
        assert count is not None
        assert newest is not None
        return [sorted(made), count.n, newest.n, sorted(spark_liftlog.views(self._spark, brokers=self._broker))]

    def exactly_once(self) -> Any:
        """In several batches; then once more from the checkpoint, with nothing new. Returns the last lag."""
        for _ in range(2):
            query = self._into_sink()
        lag = spark_liftlog.lag(query)
        return None if lag is None else lag.total

    def for_each_batch(self) -> Any:
        broker = self._broker

        def write(frame: DataFrame, batch_id: int) -> None:
            """Runs on the server."""
            static = frame.sparkSession.read.format("liftlog").options(brokers=broker, stream=KEYED).load()
            assert static.count() > 0
            target = frame.write.format("liftlog").mode("append").options(brokers=broker, stream=EACH)
            target.options(txnAppId="connect", txnVersion=str(batch_id)).save()

        frame = self._follow().select("key", "value")
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", f"{self._folder}/each")
        _ended(writer.trigger(availableNow=True).start())

    def batch_write(self) -> Any:
        writer = self._read().select("value").write.format("liftlog").mode("append")
        for _ in range(2):  # the second one is skipped
            writer.options(brokers=self._broker, stream=WRITTEN, txnAppId="job", txnVersion="1").save()

    def insert_into(self) -> Any:
        options = f"OPTIONS (brokers '{self._broker}', stream '{KEYED}')"
        self._spark.sql(f"CREATE TEMPORARY VIEW sink (key BINARY, value BINARY) USING liftlog {options}")
        self._spark.sql("INSERT INTO sink VALUES (X'61', X'62')")

    def lag_listener(self) -> Any:
        """What it hands to Prometheus while a query runs."""
        listener = spark_liftlog.LagListener()
        self._spark.streams.addListener(listener)
        writer = self._follow().writeStream.format("noop").queryName("listened")
        query = writer.option("checkpointLocation", f"{self._folder}/listened").start()
        try:
            line = f'spark_liftlog_lag_records{{query="listened",stream="{SOURCE}",partition="1"}} 0'
            return eventually(lambda: line in listener.prometheus(), timeout_s=60, what=line)
        finally:
            query.stop()

    def register(self) -> Any:
        """The format of this process takes the place of the server's."""
        spark_liftlog.register(self._spark)
        return self.batch_read()

    def error(self) -> Any:
        """A wrong option's text."""
        try:
            self._read(startingOfsets="earliest").count()
        except Exception as error:
            return str(error)[:500]

    def _into_sink(self) -> StreamingQuery:
        writer = self._follow().select("key", "value").writeStream.format("liftlog")
        writer = writer.options(brokers=self._broker, stream=STREAMED).trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{self._folder}/streamed").start()
        _ended(query)
        return query

    def _read(self, **options: str) -> DataFrame:
        options = {"brokers": self._broker, "stream": SOURCE, **options}
        return self._spark.read.format("liftlog").options(**options).load()

    def _follow(self) -> DataFrame:
        options = {"brokers": self._broker, "stream": SOURCE, "startingOffsets": "earliest"}
        return self._spark.readStream.format("liftlog").options(**options, maxOffsetsPerTrigger="120").load()

    @staticmethod
    def _n(frame: DataFrame) -> DataFrame:
        return frame.select(F.get_json_object(F.col("value").cast("string"), "$.n").cast("int").alias("n"))


def _ended(query: StreamingQuery) -> None:
    assert query.awaitTermination(240), "still running"


NAMES = tuple(name for name in vars(Steps) if not name.startswith("_"))


def main(broker: str, folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder.remote("local[2]")
    spark: SparkSession = builder.getOrCreate()
    steps = Steps(spark, broker, folder)
    told: dict[str, Any] = {}
    for name in NAMES:
        step: Callable[[], Any] = getattr(steps, name)
        try:
            told[name] = {"found": step()}
        except Exception:
            told[name] = {"error": traceback.format_exc()[-3000:]}
    Path(folder, "told.json").write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
