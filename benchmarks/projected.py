"""Projected: a client reads offset and timestamp of records of 1 KiB, and the broker sends no other column.

The log is in the page cache. Beside `liftlog` stands `all`: the same client reads all columns. The first turn of
`liftlog` finds nothing remembered of the columns (`broker/storage/column_crcs.py`): the broker reads all and checks it,
and the turn is kept as `first_s`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.ours import Liftlog
from broker.client.client import Client, connect

SEED = 10
STREAM = "projected"
VALUE_BYTES = 1024
ROWS_PER_APPEND = 10_000
COLUMNS = ["offset", "timestamp"]


def cases(*, tiny: bool) -> Sequence[Case]:
    records = 20_000 if tiny else 1_000_000
    return [
        Case(
            name=f"projected-of-{records}",
            metric="seconds",
            unit="s",
            parameters={"records": records, "value_bytes": VALUE_BYTES, "columns": ",".join(COLUMNS), "seed": SEED},
            open=partial(_open_sides, records),
            targets=(Target(of="liftlog/all", most=1 / 8),),
        )
    ]


@contextmanager
def _open_sides(records: int, folder: Path) -> Iterator[Mapping[str, Side]]:
    with Liftlog(folder) as place, connect(place.address) as client:
        client.create_stream(STREAM, subject="projected.>")
        luck = np.random.default_rng(SEED)
        for at in range(0, records, ROWS_PER_APPEND):
            n = min(ROWS_PER_APPEND, records - at)
            values = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(VALUE_BYTES), n, [None, pa.py_buffer(luck.bytes(VALUE_BYTES * n))]
            )
            columns = {"subject": pa.array(["projected.a"] * n), "value": values.cast(pa.binary())}
            client.append(STREAM, 0, pa.record_batch(columns))
        first = _read(client, records, columns=COLUMNS)

        def ours() -> Measures:
            return {**_read(client, records, columns=COLUMNS), "first_s": first["seconds"]}

        yield {"liftlog": ours, "all": lambda: _read(client, records)}


def _read(client: Client, count: int, **asked: Any) -> Measures:
    started_s = time.monotonic()
    rows = size = 0
    for batch in client.read(STREAM, **asked):
        rows += batch.num_rows
        size += batch.nbytes
    if rows != count:
        raise RuntimeError(f"{rows} records were read, {count} are there")
    return {"seconds": time.monotonic() - started_s, "mb": size / 1e6}
