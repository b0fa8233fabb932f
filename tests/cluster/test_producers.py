"""An idempotent producer and a broker that is killed under it.

Goal: every record once, in order, without anything but the client's own retries.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from broker.api.errors import LiftlogError, ProducerFenced, UnknownProducer
from broker.client import connect
from broker.client.writing.append import Stamp
from tests.support.processes import BrokerProcess, eventually


def test_kill_9_in_the_middle_of_a_producing_client_neither_loses_nor_doubles_a_record(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", None).start()
    sent = 0
    done = threading.Event()
    try:
        broker.request("POST", "/v1/streams", {"name": "s", "segment_bytes": 1 << 16, "partitions": 2})
        with connect(broker.address) as client, client.producer("s", batch_records=20, linger_ms=1) as producer:

            def run() -> None:
                nonlocal sent
                while not done.is_set():
                    producer.send(b"%d" % sent, key=b"k")
                    sent += 1

            sending = threading.Thread(target=run)
            sending.start()
            try:
                for goal in (500, 1_500, 2_500):
                    eventually(lambda goal=goal: sent > goal, timeout_s=120, what=f"{goal} records sent")
                    broker.kill9()
                    broker.start()
                eventually(lambda: sent > 3_500, timeout_s=120, what="the last records sent")
            finally:
                done.set()
                sending.join(60)
            producer.flush(60)
            found = [client.read("s", partitions=[p]).to_table().column("value").to_pylist() for p in (0, 1)]
        numbers = [[int(value) for value in values] for values in found]
        assert all(values == sorted(values) for values in numbers)
        assert sorted(numbers[0] + numbers[1]) == list(range(sent))
    finally:
        broker.stop()


@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_ids_epochs_and_sequences_survive_a_restart(tmp_path: Path, stop: str) -> None:
    rows = pa.table({"value": [b"x", b"y"]})
    broker = BrokerProcess(tmp_path / "broker", None).start()
    try:
        with connect(broker.address) as client:
            client.create_stream("s")
            assert client.register_producer("job") == (1, 0)
            assert client.register_producer("job") == (1, 1)
            assert client.append("s", 0, rows, stamp=Stamp(1, 1, 0)).first_offset == 0
            if stop == "clean":
                assert broker.stop() == 0
            else:
                broker.kill9()
            broker.start()
            again = client.append("s", 0, rows, stamp=Stamp(1, 1, 0))
            assert (again.first_offset, again.duplicate) == (0, True)
            with pytest.raises(ProducerFenced):
                client.append("s", 0, rows, stamp=Stamp(1, 0, 1))
            with pytest.raises(UnknownProducer):
                client.append("s", 0, rows, stamp=Stamp(2, 0, 0))
            assert client.register_producer() == (2, 0)
            assert client.append("s", 0, rows, stamp=Stamp(2, 0, 0)).first_offset == 2
            assert client.register_producer("job") == (1, 2)
    finally:
        broker.stop()


def test_a_partition_keeps_as_many_producers_as_the_configuration_says_also_after_an_alter(tmp_path: Path) -> None:
    rows = pa.table({"value": [b"x"]})
    broker = BrokerProcess(tmp_path / "broker", None, env={"LIFTLOG_PRODUCERS_IDS_MAX": "1"}).start()
    try:
        with connect(broker.address, deadline_s=0) as client:
            client.create_stream("s")
            for _ in range(2):
                client.register_producer()
            client.append("s", 0, rows, stamp=Stamp(1, 0, 0))
            client.alter("s", segment_bytes=2 << 20)
            with pytest.raises(LiftlogError, match=r"producers\.ids_max=1"):
                client.append("s", 0, rows, stamp=Stamp(2, 0, 0))
    finally:
        broker.stop()
