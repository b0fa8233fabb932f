"""kill -9 of the broker while a query commits staged batches to two partitions.

The query behaves as Spark does: after an error it opens the sink anew and replays the batch that was not
acknowledged, its rows spread otherwise, under new stage ids. In the end each batch is there once, all of it from one
attempt, in commit groups that nothing interrupts; read with plain pyarrow from the segment files.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa

from broker.api.batch import read_header
from broker.api.errors import LiftlogError
from broker.api.schema import END_OF_STREAM
from broker.client import Client, connect
from tests.support.messages import split_messages
from tests.support.processes import BrokerProcess, eventually

ROWS = 40
KILLS = 6


class Query:
    """Writes batch after batch until it is told to stop."""

    def __init__(self, address: str, rng: random.Random) -> None:
        self.acked = -1
        self.outcomes: Counter[str] = Counter()
        self._attempts = 0
        self._address = address
        self._rng = rng
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            with connect(self._address, timeout_s=30, deadline_s=0) as client:
                try:
                    self._write(client)
                except LiftlogError as error:
                    self.outcomes[error.reason] += 1
                    time.sleep(0.01)

    def _write(self, client: Client) -> None:
        sink = client.sink("query")
        last = sink.open().last
        assert last is None or last.batch_id >= self.acked, "an acknowledged batch is forgotten"
        while not self._stop.is_set():
            batch_id = self.acked + 1
            self._attempts += 1
            tasks: dict[int, list[bytes]] = {}
            for row in range(ROWS):
                tasks.setdefault(self._rng.randrange(4), []).append(b"%d/%d/%d" % (batch_id, row, self._attempts))
            stages = [
                sink.stage(pa.record_batch({"value": pa.array(values, pa.binary())}), "s", self._rng.randrange(2))
                for values in tasks.values()
            ]
            answer = sink.commit(batch_id, stages, digest=str(batch_id), attributes={"checkpoint": "/c"})
            self.outcomes[answer.outcome] += 1
            self.acked = batch_id

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def groups(folder: Path) -> list[tuple[int, list[bytes]]]:
    """The commit groups of one partition: decision and values."""
    found: list[tuple[int, list[bytes]]] = []
    for segment in sorted(folder.glob("*.arrows")):
        data = segment.read_bytes()
        if not data.endswith(END_OF_STREAM):
            data += END_OF_STREAM
        for message in split_messages(data):
            header = read_header(message)
            if header.group_index == 0:
                found.append((header.decision, []))
            assert header.decision == found[-1][0]
        values = pa.ipc.open_stream(data).read_all().column("value").to_pylist()
        sizes = [read_header(message) for message in split_messages(data)]
        at, number = 0, len(found) - sum(header.group_index == 0 for header in sizes) - 1
        for header in sizes:
            number += header.group_index == 0
            count = header.next_offset - header.first_offset
            found[number][1].extend(values[at : at + count])
            at += count
    return found


def test_every_staged_batch_is_there_once_after_kill_9_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(4)
    broker = BrokerProcess(tmp_path / "broker", None, env={"LIFTLOG_CLEANER_INTERVAL_MS": "50"}).start()
    query = None
    try:
        broker.request("POST", "/v1/streams", {"name": "s", "partitions": 2, "segment_bytes": 1 << 16})
        query = Query(broker.address, rng)
        for _ in range(KILLS):
            goal = query.acked + rng.randint(1, 5)
            eventually(lambda goal=goal: query.acked >= goal, what="batches go on")
            time.sleep(rng.uniform(0, 0.03))  # any moment of a commit
            broker.kill9()
            broker.start()
        goal = query.acked + 3
        eventually(lambda: query.acked >= goal and query.outcomes["committed"] > KILLS, what="batches go on")
        query.stop()
        assert broker.stop() == 0
    finally:
        if query is not None:
            query._stop.set()
        broker.stop()
    seen: Counter[tuple[int, int]] = Counter()
    attempts: dict[int, set[int]] = {}
    decisions: Counter[int] = Counter()
    for partition in range(2):
        (folder,) = (tmp_path / "broker" / "data" / "streams" / "s").glob(f"*/{partition}")
        for decision, values in groups(folder):
            decisions[decision] += 1
            for value in values:
                batch_id, row, attempt = map(int, value.split(b"/"))
                seen[batch_id, row] += 1
                attempts.setdefault(batch_id, set()).add(attempt)
    assert 0 not in decisions
    assert max(decisions.values()) <= 2, "one commit group of a decision in each partition"
    assert set(seen.values()) == {1}
    assert all(len(found) == 1 for found in attempts.values()), attempts
    last = max(attempts)
    assert query.acked <= last <= query.acked + 1
    assert set(seen) == {(batch_id, row) for batch_id in range(last + 1) for row in range(ROWS)}
