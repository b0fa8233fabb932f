"""kill -9 of a broker, again and again, while everything goes on at once; then its files are held against its acks.

    lanes         publishers over NATS, each one message after the other, with `Nats-Msg-Id`; what is not acknowledged
                  is published again under its id. Half of them to a stream that keys are compacted in.
    a query       stages batches in two partitions and commits them, as Spark does (`test_sinks.Query`)
    a history     publishers without ids and readers over HTTP, written down (`tests/history`)
    the cleaner   every 50 ms: rolls, checkpoints, compaction

Afterwards pyarrow alone reads the segment files: none of liftlog's code takes part.

X1  Every acknowledged record is at the offset of its ack. In the compacted stream: unless its key has a newer one.
X2  No record is there twice: an id that was published again is one record.
X3  Records of a lane are in the order in which it published; offsets rise.
X4  Every sink batch that was decided is there once, whole, of one attempt, one commit group per partition.
X5  The newest acknowledged record of each key is there, or a later one.
X6  The history has no fault: nothing that was acknowledged is unseen, moved, doubled or out of order for any reader.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import nats
import nats.errors
import pyarrow as pa

from tests.cluster.test_sinks import ROWS, Query
from tests.history.judge import faults, judge
from tests.history.ops import read
from tests.history.record import Recorder
from tests.history.users import Pollers, Senders, read_to_the_end
from tests.support.acks import offset_of
from tests.support.processes import BrokerProcess, NatsServer, eventually

LANES = 6
KEYS = 5
PLAIN, KEYED, TOLD = "plain", "keyed", "told"
TOLD_PARTITIONS = 2
SMALL = {"segment_bytes": 1 << 16}
COMPACTED = {**SMALL, "cleanup": "compact", "min_cleanable_dirty_percent": 1}


@dataclass
class Lane:
    """One publisher: what it was told. `acks` are (number, offset), in the order of their publishing."""

    name: str
    stream: str
    acks: list[tuple[int, int]] = field(default_factory=list)
    duplicate_acks: int = 0
    republished: int = 0

    def key(self, number: int) -> str:
        return f"{self.name}.{number % KEYS}"

    async def run(self, url: str, stop: threading.Event) -> None:
        client = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
        number = tries = 0
        while not stop.is_set():
            headers = {"Nats-Msg-Id": f"{self.name}-{number}", "Liftlog-Key": self.key(number)}
            tries += 1
            try:
                answer = await client.request(
                    self.stream, b"%s/%d" % (self.name.encode(), number), timeout=0.5, headers=headers
                )
            except (nats.errors.Error, OSError):
                await asyncio.sleep(0.01)
                continue
            body = json.loads(answer.data)
            if "error" in body:  # it is going away: nothing was stored, or it is not known yet
                await asyncio.sleep(0.01)
                continue
            self.acks.append((number, offset_of(body)))
            self.duplicate_acks += bool(body.get("duplicate"))
            self.republished += tries > 1
            number, tries = number + 1, 0
        await client.close()


class Publishers:
    """All lanes, in a thread with a loop of its own."""

    def __init__(self, url: str) -> None:
        self.lanes = [Lane(f"l{i}", (PLAIN, KEYED)[i % 2]) for i in range(LANES)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url,), daemon=True)
        self._thread.start()

    def _run(self, url: str) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*(lane.run(url, self._stop) for lane in self.lanes))

        asyncio.run(all_of_them())

    @property
    def acks(self) -> int:
        return sum(len(lane.acks) for lane in self.lanes)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@dataclass(frozen=True)
class Figures:
    """The figures of a run.

    `republished`: records that took more than one try until their ack came. `operations`: lines of the history.
    """

    rounds: int
    acks: int
    records: int
    republished: int
    duplicate_acks: int
    sink_batches: int
    operations: int
    compactions: int
    segments: int
    seconds: float

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:,.0f}" for name, value in vars(self).items())


def run(folder: Path, rounds: int, seed: int, history: Path | None = None) -> Figures:
    """Kill a broker so often; raise AssertionError for X1 to X6. `history`: as for `chaos.run`."""
    with Recorder(history or folder / "history.jsonl") as recorder:
        figures = _run(folder, rounds, seed, recorder)
    with recorder.path.open() as lines:
        found = judge(read(lines))
    assert not faults(found), f"X6: {[(name, found[name][:3]) for name in faults(found)]}, see {recorder.path}"
    return figures


def _run(folder: Path, rounds: int, seed: int, recorder: Recorder) -> Figures:
    rng = random.Random(seed)
    began_s = time.monotonic()
    nats_server = NatsServer(folder / "nats").start()
    broker = BrokerProcess(folder / "broker", nats_server, env={"LIFTLOG_CLEANER_INTERVAL_MS": "50"}).start()
    publishers, query, senders, pollers = None, None, None, None
    try:
        broker.request("POST", "/v1/streams", {"name": PLAIN, "subject": PLAIN, **SMALL})
        broker.request("POST", "/v1/streams", {"name": KEYED, "subject": KEYED, **COMPACTED})
        broker.request("POST", "/v1/streams", {"name": "s", "subject": None, "partitions": 2, **SMALL})
        told = {"name": TOLD, "subject": TOLD, "partitions": TOLD_PARTITIONS, "partition_by": "subject_suffix"}
        broker.request("POST", "/v1/streams", {**told, **SMALL})
        publishers, query = Publishers(nats_server.url), Query(broker.address, rng)
        senders = Senders(recorder, nats_server.url, subject_of=subject_of, partitions=TOLD_PARTITIONS)
        pollers = Pollers(recorder, [broker.address], TOLD, TOLD_PARTITIONS, count=2)

        def go_on(acks: int, batches: int) -> None:
            assert publishers is not None
            assert query is not None
            assert senders is not None
            acked = senders.acked
            goal, last = publishers.acks + acks, query.acked + batches
            eventually(
                lambda: publishers.acks >= goal and query.acked >= last and senders.acked > acked,
                timeout_s=120,
                what="all go on",
            )

        for _ in range(rounds):
            go_on(rng.randint(30, 150), rng.randint(0, 3))
            time.sleep(rng.uniform(0, 0.03))  # any moment
            broker.kill9()
            if rng.random() < 0.2:  # and again while it recovers
                broker.start(wait=False)
                time.sleep(rng.uniform(0.3, 1.0))
                broker.kill9()
            broker.start()
        go_on(100, 2)
        eventually(lambda: "compaction.done" in broker.output(), what="a pass of compaction, while all go on")
        publishers.stop()
        query.stop()
        senders.stop()
        pollers.stop()
        assert read_to_the_end(recorder, [broker.address], TOLD, TOLD_PARTITIONS) >= senders.acked
        assert broker.stop() == 0
        output = broker.output()
    finally:
        for running in (publishers, query, senders, pollers):
            if running is not None:
                running._stop.set()
        broker.stop()
        nats_server.stop()
    for word in ("Traceback", "_bug"):
        assert word not in output, output[output.index(word) - 2_000 :][:6_000]
    streams = folder / "broker" / "data" / "streams"
    records = 0
    for stream in (PLAIN, KEYED):
        (path,) = (streams / stream).glob("*/0")
        found = records_of(path)
        records += len(found)
        check_lanes(found, [lane for lane in publishers.lanes if lane.stream == stream], stream == KEYED)
    return Figures(
        rounds=rounds,
        acks=publishers.acks,
        records=records,
        republished=sum(lane.republished for lane in publishers.lanes),
        duplicate_acks=sum(lane.duplicate_acks for lane in publishers.lanes),
        sink_batches=check_batches(streams / "s", query),
        operations=recorder.count,
        compactions=output.count("compaction.done"),
        segments=len(list(streams.rglob("*.arrows"))),
        seconds=time.monotonic() - began_s,
    )


def subject_of(partition: int) -> str:
    """The subject of a partition of the stream whose history is kept."""
    return f"{TOLD}.{partition}" if partition else TOLD


def records_of(folder: Path) -> list[tuple[int, str, int]]:
    """(offset, lane, number) of all records of a partition, in the order of its files."""
    found: list[tuple[int, str, int]] = []
    for segment in sorted(folder.glob("*.arrows")):
        with pa.ipc.open_stream(segment.read_bytes()) as stream:
            table = stream.read_all()
        values = [value.decode().split("/") for value in table.column("value").to_pylist()]
        offsets = table.column("offset").to_pylist()
        found += [(at, lane, int(number)) for at, (lane, number) in zip(offsets, values, strict=True)]
    return found


def check_lanes(found: list[tuple[int, str, int]], lanes: list[Lane], is_compacted: bool) -> None:
    """X1, X2, X3, X5."""
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets)), "X3: offsets do not rise"
    if not is_compacted:
        assert offsets == list(range(len(offsets))), "X1: a gap"
    stored = {offset: (lane, number) for offset, lane, number in found}
    for lane in lanes:
        mine = [number for _, name, number in found if name == lane.name]
        assert mine == sorted(mine), f"X3: lane {lane.name} is out of order"
        newest: dict[str, int] = {}
        for number in mine:
            newest[lane.key(number)] = max(number, newest.get(lane.key(number), -1))
        for number, offset in lane.acks:
            at = stored.get(offset)
            if at is None and is_compacted:
                assert newest.get(lane.key(number), -1) > number, f"X5: {lane.name}/{number} is gone, none is newer"
            else:
                assert at == (lane.name, number), f"X1: {lane.name}/{number} was acked at {offset}, there is {at}"
    counts = Counter((lane, number) for _, lane, number in found)
    twice = [place for place, count in counts.items() if count > 1]
    assert not twice, f"X2: stored twice: {twice[:5]} of {len(twice)}"


def groups_of(folder: Path) -> list[tuple[str, list[bytes]]]:
    """Decision and values of each commit group of a partition, by the header value that pyarrow hands out."""
    found: list[tuple[str, list[bytes]]] = []
    due = 0
    for segment in sorted(folder.glob("*.arrows")):
        with pa.ipc.open_stream(segment.read_bytes()) as stream:
            while (rows := next_of(stream)) is not None:
                header = rows.custom_metadata[b"liftlog"].decode()
                index, count, decision = int(header[120:128], 16), int(header[128:136], 16), header[136:168]
                if index == 0:
                    assert due == 0, "X4: a group ends early"
                    found.append((decision, []))
                    due = count
                assert found[-1][0] == decision, "X4: a group is interrupted"
                found[-1][1].extend(rows.batch.column("value").to_pylist())
                due -= 1
    assert due == 0, "X4: the last group ends early"
    return found


def next_of(stream: pa.RecordBatchReader) -> pa.RecordBatchWithMetadata | None:
    try:
        return stream.read_next_batch_with_custom_metadata()
    except StopIteration:
        return None


def check_batches(folder: Path, query: Query) -> int:
    """X4; return how many batches there are."""
    seen: Counter[tuple[int, int]] = Counter()
    attempts: dict[int, set[int]] = {}
    decisions: Counter[tuple[int, str]] = Counter()
    for partition in range(2):
        (path,) = folder.glob(f"*/{partition}")
        for decision, values in groups_of(path):
            decisions[partition, decision] += 1
            for value in values:
                batch_id, row, attempt = map(int, value.split(b"/"))
                seen[batch_id, row] += 1
                attempts.setdefault(batch_id, set()).add(attempt)
    assert set(decisions.values()) <= {1}, "X4: a decision has two commit groups in a partition"
    assert set(seen.values()) <= {1}, "X4: a row is there twice"
    assert all(len(found) == 1 for found in attempts.values()), f"X4: mixed attempts {attempts}"
    last = max(attempts)
    assert query.acked <= last <= query.acked + 1
    assert set(seen) == {(batch_id, row) for batch_id in range(last + 1) for row in range(ROWS)}, "X4: not whole"
    return last + 1
