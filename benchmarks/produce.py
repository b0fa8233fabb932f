"""Produce: a bulk producer on one machine, from records in memory to the last ack.

`liftlog` is the Python client's `producer.send_batch`, idempotent, with Arrow batches of 10,000 records; each is
answered when it is on disk. `kafka` is Kafka's Java producer in its own kafka-producer-perf-test with acks=all, where
BENCH_KAFKA_HOME names an installation: one broker, which does not fsync, and batches of 256 KiB, which suit it. Its
rate leaves out the start of the JVM. Both write to one partition, with values of the same size and no keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import kafka
from benchmarks.harness import Case, Measures, Side, Skipped, Target
from benchmarks.ours import Liftlog
from benchmarks.peers import STREAM
from benchmarks.proc import cpu_s
from benchmarks.staged import rows_of
from broker.client.client import connect

BATCH = 10_000


def cases(*, tiny: bool) -> Sequence[Case]:
    counts = {100: 20_000} if tiny else {100: 4_000_000, 1024: 500_000}
    return [
        Case(
            name=f"produce-{size}B",
            metric="rate",
            unit="records/s",
            parameters={"value_bytes": size, "records": count, "batch_records": BATCH},
            open=_opener(size, count),
            targets=(Target(of="liftlog/kafka", least=2.0),),
        )
        for size, count in counts.items()
    ]


def _opener(size: int, count: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        rows = rows_of(size, count)
        with Liftlog(folder) as place, kafka.topic(folder, size=size, count=BATCH) as topic:

            def bulk() -> Measures:
                before, used_s = place.stored(), cpu_s(place.pid)
                with connect(place.address) as client, client.producer(STREAM) as producer:
                    started_s = time.monotonic()
                    for first in range(0, count, BATCH):
                        producer.send_batch(rows.slice(first, BATCH))
                    producer.flush()
                    seconds = time.monotonic() - started_s
                lost = before + count - place.stored()
                return {
                    "rate": count / seconds,
                    "seconds": seconds,
                    "server_cpu_s": cpu_s(place.pid) - used_s,
                    "lost": lost,
                }

            def java() -> Measures:
                if isinstance(topic, Skipped):
                    raise topic
                return topic.produce(size=size, count=count)

            bulk()  # the first one loads modules
            yield {"liftlog": bulk, "kafka": java}

    return open_sides
