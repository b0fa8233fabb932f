"""Many short tasks, each of which ends in one bundle for all partitions, while the broker is killed under them.

Method: without Spark, as in test_sink_protocol.py. What all of Spark does when somebody is killed, with the
exactly-once sink: test_kills.py.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.client.client import connect
from spark_liftlog.writing.run import Written
from tests.spark.sink_tasks import PLACED, found, job, one_each
from tests.spark.streams import Stream
from tests.support.processes import BrokerProcess, eventually

PARTITIONS = 8
TASKS = 60
KILLS = 3


@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_no_row_of_short_tasks_is_missing_whenever_the_broker_dies(tmp_path: Path, guarantee: str) -> None:
    broker = BrokerProcess(tmp_path / "broker", None).start()
    try:
        with connect(broker.address, deadline_s=120) as client:
            stream = Stream.create(client, "killed", partitions=PARTITIONS)
            writer = pickle.dumps(job(stream, schema=PLACED, deliveryGuarantee=guarantee))
            written = list[Written]()
            is_over = threading.Event()

            def write(number: int) -> None:
                rows = one_each(*(f"{number}/{partition}" for partition in range(PARTITIONS)))
                written.append(pickle.loads(writer).write(iter([rows])))

            def kill() -> None:
                for kills in range(1, KILLS + 1):
                    eventually(
                        lambda least=kills * TASKS // (KILLS + 1): len(written) >= least or is_over.is_set(),
                        timeout_s=120,
                        what="tasks that are done",
                    )
                    broker.kill9()
                    broker.start()

            with ThreadPoolExecutor(5) as pool:
                killer = pool.submit(kill)
                try:
                    for task in [pool.submit(write, number) for number in range(TASKS)]:
                        task.result()
                finally:
                    is_over.set()
                killer.result()
            pickle.loads(writer).commit(written)
            rows = Counter(found(stream))
            assert rows.keys() == {f"{task}/{partition}" for task in range(TASKS) for partition in range(PARTITIONS)}
            assert guarantee == "at-least-once" or set(rows.values()) == {1}
    finally:
        broker.stop()
