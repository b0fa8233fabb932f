"""Background: what compaction and scrub do to the latency of acks at half the greatest rate.

`liftlog`: while a stream of keys is compacted and the scrub reads, both at their default pace. `quiet`: without them.
The rate is half of what a window of 4,096 unacknowledged messages reaches on a quiet broker, found first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.ours import Liftlog
from benchmarks.peers import SUBJECT
from benchmarks.window import run_rate, run_window
from broker.client import connect
from tests.support.processes import eventually

SEED = 3
SIZE = 100
BUSY = {"LIFTLOG_SCRUB_INTERVAL_MS": "1", "LIFTLOG_CLEANER_INTERVAL_MS": "100"}
COMPACTED = "liftlog_compaction_read_bytes_total"
SCRUBBED = "liftlog_scrub_read_bytes_total"
QUIET = {"LIFTLOG_SCRUB_INTERVAL_MS": "0"}


def cases(*, tiny: bool) -> Sequence[Case]:
    log_bytes = 2 << 20 if tiny else 160 << 20
    seconds = 0.3 if tiny else 5.0
    return [
        Case(
            name="background-acks",
            metric="p99_ms",
            unit="ms",
            parameters={"value_bytes": SIZE, "seconds": seconds, "compacted_bytes": log_bytes},
            open=_opener(log_bytes, seconds, warm=10_000 if tiny else 500_000),
            targets=(Target(of="liftlog/quiet", most=2.0),),
        )
    ]


def _opener(log_bytes: int, seconds: float, warm: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        subject = f"{SUBJECT}.0"
        with Liftlog(folder, env=QUIET) as place:
            run = run_window(place.port, seed=SEED, size=SIZE, subject=subject, count=warm, window=4096)
            rate = run.count / run.seconds / 2

        def side(env: Mapping[str, str], *, busy: bool) -> Side:
            def turn() -> Measures:
                with Liftlog(folder, env=env) as place:
                    place.create_stream("keyed", segment_bytes=min(16 << 20, max(1 << 16, log_bytes // 8)))
                    _fill(place, log_bytes)
                    if busy:
                        settings = {"cleanup": "compact", "min_cleanable_dirty_percent": 0}
                        place.broker.request("PATCH", "/v1/streams/keyed", settings)
                    count = int(rate * seconds)
                    run = run_rate(place.port, seed=SEED, size=SIZE, subject=subject, count=count, rate=rate)
                    found = {f"p{p}_ms": run.percentile_ms(float(p)) for p in ("50", "99", "99.9")}
                    if busy:  # counted at the end of a pass: it was under way all the time
                        eventually(lambda: _counter(place, COMPACTED) > 0, timeout_s=60, what="the pass ends")
                    return {
                        **found,
                        "rate": rate,
                        "compacted_mib": _counter(place, COMPACTED) / 2**20,
                        "scrubbed_mib": _counter(place, SCRUBBED) / 2**20,
                    }

            return turn

        yield {"liftlog": side(BUSY, busy=True), "quiet": side(QUIET, busy=False)}

    return open_sides


def _fill(place: Liftlog, log_bytes: int) -> None:
    """Records of a hundred bytes under keys that come again and again."""
    rng = np.random.default_rng(SEED)
    rows = 2_000
    values = pa.array([b"v" * SIZE] * rows, pa.binary())
    with connect(place.address) as client:
        for _ in range(max(1, log_bytes // (rows * (SIZE + 60)))):
            keys = pa.array([b"%d" % key for key in rng.integers(0, 1_000_000, rows)], pa.binary())
            client.append("keyed", 0, pa.table({"key": keys, "value": values}))


def _counter(place: Liftlog, name: str) -> float:
    found = re.search(rb"^" + name.encode() + rb" (\S+)", place.broker.get("/metrics"), re.MULTILINE)
    assert found is not None
    return float(found[1])
