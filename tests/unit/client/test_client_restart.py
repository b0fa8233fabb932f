"""A broker process is killed under readers and a producer: they go on by themselves when it is back.

Goal: readers see each committed offset exactly once; the producer's acknowledged records are all there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from broker.api.errors import Retryable
from broker.client.client import Client, connect
from tests.support.processes import BrokerProcess, eventually

pytestmark = pytest.mark.process


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path, None).start()
    yield broker
    if broker.process is not None:
        broker.stop()


@pytest.mark.parametrize("partitions", [1, 3])
def test_following_readers_and_a_producer_survive_a_killed_broker(broker: BrokerProcess, partitions: int) -> None:
    acknowledged: list[tuple[int, int]] = []
    seen: list[tuple[int, int]] = []
    lost: list[Retryable] = []
    ends = threading.Event()
    errors: list[BaseException] = []

    def produce(client: Client) -> None:
        with client.producer("orders", linger_ms=1, batch_records=20) as producer:
            while not ends.wait(0.005):
                future = producer.send(b"x")
                try:
                    acknowledged.append(future.result(60))
                except Retryable as error:
                    lost.append(error)
            with contextlib.suppress(Retryable):
                producer.flush()

    def follow(client: Client) -> None:
        try:
            for batch in reader:
                numbers = batch.column("partition").to_pylist() if partitions > 1 else [0] * batch.num_rows
                seen.extend(zip(numbers, batch.column("offset").to_pylist(), strict=True))
        except BaseException as error:
            errors.append(error)

    with connect(broker.address, deadline_s=120) as client:
        client.create_stream("orders", partitions=partitions)
        reader = client.read("orders", follow=True)
        threads = [threading.Thread(target=run, args=(client,), daemon=True) for run in (produce, follow)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(acknowledged) > 20, timeout_s=120)
        broker.kill9()
        broker.start()
        before = len(acknowledged)
        eventually(lambda: len(acknowledged) > before + 20, timeout_s=120)
        ends.set()
        threads[0].join(120)
        heads = {(p.partition, o) for p in client.describe("orders").partitions for o in range(p.high_watermark)}
        eventually(lambda: len(seen) >= len(heads) or errors, timeout_s=120)
        reader.close()
        threads[1].join(120)
    assert not errors
    assert all(error.sent for error in lost), "only what was cut off under way is an error: nobody knows of it"
    assert len(seen) == len(set(seen)), "an offset was handed out twice"
    assert set(seen) == heads
    assert set(acknowledged) <= heads
    for partition in range(partitions):
        assert [o for p, o in seen if p == partition] == sorted(o for p, o in seen if p == partition)


def test_a_long_bounded_read_goes_on_where_it_was_when_the_broker_was_killed(broker: BrokerProcess) -> None:
    with connect(broker.address, deadline_s=120) as client:
        client.create_stream("orders", batch_records=100)
        rows = pa.record_batch({"value": pa.array([bytes(1000)] * 20_000, pa.binary())})
        client.append("orders", 0, rows)
        reader = client.read("orders")
        offsets = next(reader).column("offset").to_pylist()
        broker.kill9()  # 20 MB do not fit into socket buffers: the rest is still there
        broker.start()
        for batch in reader:
            offsets += batch.column("offset").to_pylist()
    assert offsets == list(range(20_000))
