"""Background: the effect of compaction and scrub on the latency of acks at half the greatest rate.

`liftlog`: while a stream of keys is compacted and the scrub reads, both at their default pace. `quiet`: without them.
The rate is half of what a window of 4,096 unacknowledged messages reaches on a quiet broker, found first (the median of
three runs). Latency counts from when a message was due, which is before it is sent: the publisher looks at its clock
once a millisecond. The first seconds of a turn do not count, on either side: buffers grow, the pass begins.

The percentile of a turn is that of all its messages, so stalls of a hundredth of its time make it. `p99_second_ms` is
the median of the percentiles of its seconds: what remains without the few that something else disturbed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Case, Measures, Side, Target, median
from benchmarks.ours import Liftlog
from benchmarks.peers import SUBJECT
from benchmarks.window import run_rate, run_window
from broker.client import connect
from tests.support.processes import eventually

SEED = 3
SIZE = 100
TICK_S = 0.001
BUSY = {"LIFTLOG_SCRUB_INTERVAL_MS": "1", "LIFTLOG_CLEANER_INTERVAL_MS": "100"}
COMPACTED = "liftlog_compaction_read_bytes_total"
SCRUBBED = "liftlog_scrub_read_bytes_total"
QUIET = {"LIFTLOG_SCRUB_INTERVAL_MS": "0"}


def cases(*, tiny: bool) -> Sequence[Case]:
    log_bytes = 2 << 20 if tiny else 360 << 20  # a pass is under way longer than a turn takes
    seconds = 0.3 if tiny else 10.0
    return [
        Case(
            name="background-acks",
            metric="p99_ms",
            unit="ms",
            parameters={"value_bytes": SIZE, "seconds": seconds, "compacted_bytes": log_bytes},
            open=_opener(log_bytes, seconds, window=10_000 if tiny else 500_000, warm_s=0.1 if tiny else 2.0),
            targets=(Target(of="liftlog/quiet", most=2.0),),
        )
    ]


def _opener(log_bytes: int, seconds: float, *, window: int, warm_s: float) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        subject = f"{SUBJECT}.0"
        with Liftlog(folder, env=QUIET) as place:
            runs = [
                run_window(place.port, seed=SEED, size=SIZE, subject=subject, count=window, window=4096)
                for _ in range(3)
            ]
        rate = median([run.count / run.seconds for run in runs]) / 2

        def side(env: Mapping[str, str], *, busy: bool) -> Side:
            def turn() -> Measures:
                with Liftlog(folder, env=env) as place:
                    place.create_stream("keyed", segment_bytes=min(16 << 20, max(1 << 16, log_bytes // 8)))
                    _fill(place, log_bytes)
                    os.sync()  # what filling it has left to write, and the last turn to free
                    if busy:
                        settings = {"cleanup": "compact", "min_cleanable_dirty_percent": 0}
                        place.broker.request("PATCH", "/v1/streams/keyed", settings)
                    skip, count = int(rate * warm_s), int(rate * (warm_s + seconds))
                    run = run_rate(
                        place.port, seed=SEED, size=SIZE, subject=subject, count=count, rate=rate, tick_s=TICK_S
                    )
                    found = {f"p{p}_ms": run.percentile_ms(float(p), skip=skip) for p in ("50", "99", "99.9")}
                    per_second = np.array_split(run.latencies_s[skip:], math.ceil(seconds))
                    ended = _counter(place, COMPACTED) > 0  # counted at the end of a pass
                    if busy:
                        eventually(lambda: _counter(place, COMPACTED) > 0, timeout_s=60, what="the pass ends")
                    return {
                        **found,
                        "p99_second_ms": median([float(np.percentile(s, 99)) * 1000 for s in per_second]),
                        "rate": rate,
                        "pass_ended": float(ended),  # 1: it was not under way all the time
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
