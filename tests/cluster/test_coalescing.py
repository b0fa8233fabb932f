"""A trickling stream on a real broker becomes large batches in few segments, and a reader on the way sees no change."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.client import connect
from broker.client.client import Client
from tests.support.processes import BrokerProcess, eventually

COUNT = 400
ROW_BYTES = 1_000
"""A batch of one record takes more."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path, None, env={"LIFTLOG_CLEANER_INTERVAL_MS": "50"}).start()
    yield process
    process.stop()


def partition(broker: BrokerProcess, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = broker.get(f"/v1/streams/{stream}")["partitions"][0]
    return found


def trickle(client: Client, stream: str, first: int, count: int) -> None:
    """One request, one batch, one record; an hour old, so that no window of message ids spares it."""
    hour_ago_us = time.time_ns() // 1_000 - 3_600_000_000
    for number in range(first, first + count):
        columns = {
            "timestamp": pa.array([hour_ago_us + number], pa.timestamp("us", "UTC")),
            "value": pa.array([b"%d" % number], pa.binary()),
        }
        client.append(stream, 0, pa.record_batch(columns))


class Follower(threading.Thread):
    """Reads on from where it was, and the whole again, until it is told to stop."""

    def __init__(self, address: str, stream: str) -> None:
        super().__init__()
        self.address, self.stream = address, stream
        self.stopped = threading.Event()
        self.error: BaseException | None = None
        self.seen = 0
        self.rounds = 0

    def run(self) -> None:
        try:
            with connect(self.address) as client:
                while not self.stopped.is_set():
                    for start in (self.seen, 0):
                        table = client.read(self.stream, start=start).to_table()
                        values = [int(value) for value in table.column("value").to_pylist()]
                        assert values == list(range(start, start + len(values)))
                        assert table.column("offset").to_pylist() == values
                        self.seen = max(self.seen, start + len(values))
                    self.rounds += 1
        except BaseException as error:
            self.error = error


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_trickling_stream_becomes_large_batches_while_a_reader_follows(
    broker: BrokerProcess, compression: str
) -> None:
    settings = {"segment_bytes": 1 << 16, "compression": compression}
    broker.request("POST", "/v1/streams", {"name": "slow", "subject": None, **settings})
    follower = Follower(broker.address, "slow")
    with connect(broker.address) as client:
        trickle(client, "slow", 0, 1)
        follower.start()
        try:
            trickle(client, "slow", 1, COUNT - 1)
            found = eventually(
                lambda: (p := partition(broker, "slow"))["bytes"] < COUNT * ROW_BYTES // 4 and p, what="it to shrink"
            )
            rounds = follower.rounds
            eventually(lambda: follower.rounds > rounds + 1 or follower.error, what="the reader")
        finally:
            follower.stopped.set()
            follower.join()
        assert follower.error is None
        assert follower.seen == COUNT
        assert (found["log_start_offset"], found["high_watermark"]) == (0, COUNT)
        data = broker.get("/v1/streams/slow/partitions/0/records")
        with pa.ipc.open_stream(data) as stream:  # any reader of Arrow
            sizes = [rows.num_rows for rows in stream]
        assert sum(sizes) == COUNT
        assert max(sizes) >= 50
        eventually(lambda: "coalescing.done partition=slow/0" in broker.output(), what="its line")
        broker.kill9()
        broker.start()
        trickle(client, "slow", COUNT, 1)
        values = client.read("slow").to_table().column("value").to_pylist()
        assert values == [b"%d" % i for i in range(COUNT + 1)]
        assert partition(broker, "slow")["lost_ranges"] == []
    for word in ("Traceback", "_bug", "failed", " ERROR "):
        assert word not in broker.output(), broker.output()[-4000:]


def test_switched_off_it_leaves_everything_as_it_was_appended(broker: BrokerProcess) -> None:
    settings = {"segment_bytes": 1 << 16, "coalesce_min_batch_bytes": 0}
    broker.request("POST", "/v1/streams", {"name": "off", "subject": None, **settings})
    broker.request("POST", "/v1/streams", {"name": "on", "subject": None, "segment_bytes": 1 << 16})
    with connect(broker.address) as client:
        trickle(client, "off", 0, 150)
        before = partition(broker, "off")["bytes"]
        trickle(client, "on", 0, 150)
        eventually(lambda: "coalescing.done partition=on/0" in broker.output(), what="the other stream to shrink")
        assert partition(broker, "off")["bytes"] == before
        assert "partition=off/0" not in broker.output()
