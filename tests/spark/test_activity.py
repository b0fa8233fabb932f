"""`__activity` in Spark. Goal: what happens to streams and groups is a table of columns, and a stream as any other.

Method: a broker that keeps it, one event of each kind, read at once and as a stream.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from broker.api.stream import ACTIVITY_STREAM
from broker.client import connect
from tests.support.processes import BrokerProcess, eventually


def told(frame: DataFrame) -> list[tuple[str, str | None, list[int] | None, str | None, bool | None]]:
    """Each event once, by its id."""
    rows = frame.dropDuplicates(["id"]).orderBy("id").select("op", "name", "partitions", "group", "expired").collect()
    return [(row.op, row.name, row.partitions, row.group, row.expired) for row in rows]


def test_what_happens_is_read_as_a_table_and_as_a_stream(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    broker = BrokerProcess(tmp_path / "broker", None, env={"LIFTLOG_ACTIVITY_ENABLED": "true"}).start()
    try:
        with connect(broker.address, deadline_s=60.0) as client:
            client.create_stream("orders", partitions=2)
            client.pause("orders")
            client.resume("orders")
            client.set_read_only("orders", True)
            client.group("billing").read("orders").close()
            client.delete_stream("orders")
            eventually(lambda: client.describe(ACTIVITY_STREAM).partitions[0].high_watermark >= 7, what="all of it")
        of = ("orders", [0, 1], None, None)
        expected = [
            ("create_stream", *of),
            ("pause_stream", *of),
            ("resume_stream", *of),
            ("set_stream_read_only", *of),
            ("join_group", None, None, "billing", None),
            ("leave_group", None, None, "billing", False),
            ("delete_stream", "orders", None, None, None),
        ]
        options = {"brokers": broker.address, "stream": ACTIVITY_STREAM, "payload": "json"}
        assert told(spark.read.format("liftlog").options(**options).load()) == expected
        followed = spark.readStream.format("liftlog").options(**options, startingOffsets="earliest").load()
        query = (
            followed.writeStream.format("memory")
            .queryName("activity")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert told(spark.table("activity")) == expected
    finally:
        broker.stop()
