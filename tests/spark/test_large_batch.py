"""A micro-batch of a million rows needs no memory for all of them, in no process but the one that writes the log.

Method: a broker of its own, and a query that reads and writes everything in one batch; each process's greatest memory
since the query began.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from broker.client.client import connect
from tests.spark.memory import MIB, begin_anew, held, what
from tests.spark.stalls import descendants
from tests.spark.streams import Stream
from tests.spark.test_exactly_once import run_into
from tests.support.processes import BrokerProcess

ROWS = 1_000_000
PARTITIONS = 2
VALUE_BYTES = 100
PYTHON_BYTES_MAX = 400 * MIB
"""A worker imports pandas and Arrow for some 150 MiB of it, and holds some batches of 2 to 4 MiB."""
BROKER_BYTES_MAX = 600 * MIB


@pytest.mark.timeout(600)
def test_a_million_rows_in_one_batch(spark: SparkSession, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", None).start()
    try:
        with connect(broker.address) as client:
            source, target = (Stream.create(client, name, partitions=PARTITIONS) for name in ("large", "large-once"))
            for partition in range(PARTITIONS):
                for first in range(partition, ROWS, PARTITIONS * 50_000):
                    numbers = range(first, first + PARTITIONS * 50_000, PARTITIONS)
                    values = [str(n).rjust(VALUE_BYTES, "0").encode() for n in numbers]
                    client.append(source.name, partition, pa.RecordBatch.from_pydict({"value": values}))
            jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
            pythons = [os.getpid(), broker.pid, *descendants(jvm, "python")]
            for pid in pythons:
                begin_anew(pid)
            frame = source.follow(spark).select("value")
            run_into(target, frame, str(tmp_path / "checkpoint"))
            (sink,) = client.sinks()
            assert sink.last is not None
            assert (sink.last.batch_id, sink.last.rows) == (0, ROWS), "it was one batch"
            most = {f"{pid} {what(pid)}": held(pid)["bytes_max"] for pid in descendants(jvm, "python")}
            most |= {"broker": held(broker.pid)["bytes_max"], "driver": held(os.getpid())["bytes_max"]}
            numbers = pc.cast(pc.cast(client.read(target.name).to_table().column("value"), pa.string()), pa.int64())
            assert pc.count_distinct(numbers).as_py() == len(numbers) == ROWS
            assert pc.min_max(numbers).as_py() == {"min": 0, "max": ROWS - 1}
    finally:
        broker.stop()
    for name, bytes_max in most.items():
        if name != "driver":  # the tests' own process
            limit = BROKER_BYTES_MAX if name == "broker" else PYTHON_BYTES_MAX
            assert bytes_max <= limit, f"{name} had {bytes_max // MIB} MiB"
