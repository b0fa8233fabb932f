"""Fetch: a plain client reads a whole stream over loopback, record batch by record batch.

Ours is `broker.client`: HTTP, every checksum verified, Arrow batches out; `gb_per_s` are the log's bytes, and
`server_cpu_s_per_gb` is what the broker's process used for them. The log was written by intake from one publisher flat
out, and is in the page cache. JetStream is read by nats.go's ordered consumer where Go is installed, and by nats-py's
pull consumer. Records per second are compared; the slower readers read fewer records.

Kafka, where BENCH_KAFKA_HOME names an installation, has one partition with values of the same size, in memory as well,
and is read by its own kafka-consumer-perf-test, which leaves checksums out, with its default settings. Its JVM needs
seconds until it is warm: it has more records to read, and its `rate` begins after half of them; `rate_whole` has all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import kafka, nats_go
from benchmarks.harness import Case, Measures, Side, Skipped, Target
from benchmarks.intake import run_intake
from benchmarks.ours import Liftlog
from benchmarks.peers import STREAM, SUBJECT, JetStream
from benchmarks.proc import cpu_s
from benchmarks.window import run_window
from broker.client.client import connect

SEED = 3
PULL = 1_000
WINDOW = 4096


def cases(*, tiny: bool) -> Sequence[Case]:
    counts = {100: 20_000, 1024: 5_000} if tiny else {100: 8_000_000, 1024: 2_000_000}
    return [
        Case(
            name=f"fetch-{size}B",
            metric="rate",
            unit="records/s",
            parameters={"value_bytes": size, "records": count, "seed": SEED},
            open=_opener(size, count, go_count=count // 8, python_count=count // 80, kafka_count=2 * count),
            targets=(
                Target(of="liftlog/kafka", least=3.0),  # P2
                Target(of="gb_per_s", least=1.5),
                Target(of="server_cpu_s_per_gb", most=0.3),
            ),
        )
        for size, count in counts.items()
    ]


def _opener(size: int, count: int, *, go_count: int, python_count: int, kafka_count: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        with (
            Liftlog(folder) as ours,
            JetStream(folder) as jetstream,
            kafka.topic(folder, size=size, count=kafka_count) as topic,
        ):
            filled = run_intake(ours, 1, size=size, count=count)
            run_window(jetstream.port, seed=SEED, size=size, subject=f"{SUBJECT}.0", count=go_count, window=WINDOW)
            read_all(ours, 1)  # the first read loads modules

            def nats_py() -> Measures:
                return asyncio.run(_pull(jetstream.url, python_count))

            def kafka_consumer() -> Measures:
                if isinstance(topic, Skipped):
                    raise topic
                return topic.consume()

            yield {
                "liftlog": lambda: read_all(ours, int(filled["stored"])),
                "jetstream-nats.go": lambda: nats_go.consume(jetstream.port, count=go_count),
                "jetstream-nats-py": nats_py,
                "kafka": kafka_consumer,
            }

    return open_sides


def read_all(place: Liftlog, count: int) -> Measures:
    """Read the first `count` records of the stream."""
    log_bytes = sum(partition["bytes"] for partition in place.broker.get(f"/v1/streams/{STREAM}")["partitions"])
    used_s, started_s = cpu_s(place.pid), time.monotonic()
    rows = batches = 0
    with connect(place.address) as client:
        for batch in client.read(STREAM, end=count):
            rows += batch.num_rows
            batches += 1
    seconds = time.monotonic() - started_s
    if rows != count:
        raise RuntimeError(f"{rows} records were read, {count} are there")
    return {
        "rate": rows / seconds,
        "gb_per_s": log_bytes / 1e9 / seconds,
        "server_cpu_s_per_gb": (cpu_s(place.pid) - used_s) / (log_bytes / 1e9),
        "batches": batches,
        "bytes_per_record": log_bytes / rows,
        "seconds": seconds,
    }


async def _pull(url: str, count: int) -> Measures:
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig

    client = await nats.connect(url)
    try:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        subscription = await client.jetstream().pull_subscribe("", stream=STREAM, config=config)
        started_s = time.monotonic()
        rows = 0
        while rows < count:
            rows += len(await subscription.fetch(min(PULL, count - rows), timeout=30))
        seconds = time.monotonic() - started_s
        return {"rate": rows / seconds, "seconds": seconds}
    finally:
        await client.close()
