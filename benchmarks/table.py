"""Table: a client reads the newest value of each key of a whole log (`client.table`).

The log has ten records for each key in two partitions, values of 100 bytes, in no order; it is in the page cache and is
not compacted. The read is a process of its own: `rss_mib` is the greatest memory that the kernel has seen of it, with
the interpreter and the result. Beside it stands `read`: the same process takes all batches and keeps none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import ROOT, Case, Measures, Side, Target
from benchmarks.ours import Liftlog
from benchmarks.proc import rss_peak_mib
from broker.client.client import connect

SEED = 8
STREAM = "table"
PARTITIONS = 2
VALUE_BYTES = 100
ROWS_PER_APPEND = 100_000


def cases(*, tiny: bool) -> Sequence[Case]:
    keys, records = (1_000, 10_000) if tiny else (1_000_000, 10_000_000)
    return [
        Case(
            name=f"table-{keys}-keys",
            metric="seconds",
            unit="s",
            parameters={"keys": keys, "records": records, "value_bytes": VALUE_BYTES, "seed": SEED},
            open=_opener(keys, records),
            targets=(Target(of="seconds", most=30.0), Target(of="rss_mib", most=4096.0)),
        )
    ]


def _opener(keys: int, records: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        with Liftlog(folder) as place:
            fill(place.address, keys, records)

            def turn(what: str) -> Measures:
                command = [sys.executable, "-m", "benchmarks.table", what, place.address]
                done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
                found: Measures = json.loads(done.stdout)
                return found

            yield {"liftlog": lambda: turn("table"), "read": lambda: turn("read")}

    return open_sides


def fill(address: str, keys: int, records: int) -> None:
    """Append the records. Each key has one at least; which partition it is in its number says."""
    luck = np.random.default_rng(SEED)
    numbers = np.concatenate([np.arange(keys), luck.integers(0, keys, records - keys)])
    luck.shuffle(numbers)
    with connect(address) as client:
        client.create_stream(STREAM, subject=None, partitions=PARTITIONS, partition_by="key")
        for partition in range(PARTITIONS):
            mine = numbers[numbers % PARTITIONS == partition]
            for at in range(0, len(mine), ROWS_PER_APPEND):
                some = pa.array(mine[at : at + ROWS_PER_APPEND])
                values = pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(VALUE_BYTES), len(some), [None, pa.py_buffer(luck.bytes(VALUE_BYTES * len(some)))]
                )
                columns = {"key": some.cast(pa.string()).cast(pa.binary()), "value": values.cast(pa.binary())}
                client.append(STREAM, partition, pa.record_batch(columns))


def main(what: str, address: str) -> None:
    started_s = time.monotonic()
    with connect(address) as client:
        rows = client.table(STREAM).to_table().to_batches() if what == "table" else client.read(STREAM)
        found = sum(batch.num_rows for batch in rows)
    seconds = time.monotonic() - started_s
    print(json.dumps({"seconds": seconds, "rows": found, "rss_mib": rss_peak_mib(os.getpid())}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
