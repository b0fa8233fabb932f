"""Staged appends: the cost of a sink's batch beside a plain append of the same records, both durable, over HTTP.

The same Arrow batches to the same partition. `append` sends 32 MiB a request, one after the other, each answered when
its records are durable; `liftlog` stages them, durable but invisible, as the client's `stage` does it, 16 MiB a request
and two at a time, and commits them as one batch: `stage_s`, `commit_s`, and `seconds` for both. `cpu_s` is what the
broker's process used. The records are made before the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count as numbers
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.ours import Liftlog
from benchmarks.peers import STREAM
from benchmarks.proc import cpu_s
from broker.client.client import connect
from broker.client.writing.outgoing import pieces

SEED = 5
REQUEST_BYTES = 32 << 20


def cases(*, tiny: bool) -> Sequence[Case]:
    records = 20_000 if tiny else 1_000_000
    return [
        Case(
            name=f"staged-{size}B",
            metric="seconds",
            unit="s",
            parameters={"value_bytes": size, "records": records, "part_bytes": REQUEST_BYTES, "seed": SEED},
            open=_opener(size, records),
            targets=(Target(of="liftlog/append", most=1.3),),
        )
        for size in (100,)
    ]


def _opener(size: int, records: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        parts = list(pieces(rows_of(size, records), REQUEST_BYTES))
        batch_ids = numbers()
        with Liftlog(folder) as place, connect(place.address, timeout_s=60.0) as client:
            sink = client.sink("bench")
            sink.open()

            def measured(act: Callable[[], Measures]) -> Measures:
                before, used_s, started_s = place.stored(), cpu_s(place.pid), time.monotonic()
                extra = act()
                seconds = time.monotonic() - started_s
                lost = before + records - place.stored()
                return {"seconds": seconds, "cpu_s": cpu_s(place.pid) - used_s, "lost": lost, **extra}

            def append() -> Measures:
                for part in parts:
                    client.append(STREAM, 0, part)
                return {}

            def staged() -> Measures:
                started_s = time.monotonic()
                stage = sink.stage(parts, STREAM, 0)
                staged_s = time.monotonic()
                sink.commit(next(batch_ids), [stage])
                return {"stage_s": staged_s - started_s, "commit_s": time.monotonic() - staged_s}

            measured(append)  # the first call loads modules
            measured(staged)
            yield {"liftlog": lambda: measured(staged), "append": lambda: measured(append)}

    return open_sides


def rows_of(size: int, records: int) -> pa.RecordBatch:
    """Records with random values of `size` bytes."""
    data = np.random.default_rng(SEED).bytes(size * records)
    offsets = np.arange(records + 1, dtype=np.int32) * size
    values = pa.Array.from_buffers(pa.binary(), records, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.record_batch({"value": values})
