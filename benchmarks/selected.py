"""Selected: a client reads one subject of a hundred, or one key, and the broker leaves out the rest.

The log has records of 100 bytes with a subject at random and a key that no other has; it is in the page cache. Beside
`liftlog` stands `all`: the same client reads everything and chooses itself. The first turn of `liftlog` finds no
filters of batches (`broker/storage/blooms.py`): it makes them, and is kept as `first_s`. For a subject at random they
tell nothing, as each batch has it. `times` wants offset and timestamp of such records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.ours import Liftlog
from broker.client.client import Client, connect

SEED = 9
STREAM = "selected"
SUBJECTS = 100
VALUE_BYTES = 100
ROWS_PER_APPEND = 100_000


def cases(*, tiny: bool) -> Sequence[Case]:
    records = 20_000 if tiny else 10_000_000
    parameters = {"records": records, "value_bytes": VALUE_BYTES, "subjects": SUBJECTS, "seed": SEED}
    return [
        Case(
            name=f"selected-{what}-of-{records}",
            metric="seconds",
            unit="s",
            parameters=parameters,
            open=_opener(what, records),
            targets=targets,
        )
        for what, targets in (
            ("subject", (Target(of="liftlog/all", most=0.2),)),
            ("times", (Target(of="liftlog/all", most=0.2),)),
            ("key", (Target(of="seconds", most=0.3),)),
        )
    ]


def _opener(what: str, records: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        with Liftlog(folder) as place, connect(place.address) as client:
            fill(client, records)
            number = records // 2
            asked: dict[str, Any] = {"key": _key(number)} if what == "key" else {"subject": "selected.7"}
            count = 1 if what == "key" else records // SUBJECTS
            wanted = {**asked, "columns": ["offset", "timestamp"]} if what == "times" else asked
            first = _read(client, count, wanted)

            def ours() -> Measures:
                return {**_read(client, count, wanted), "first_s": first["seconds"]}

            yield {"liftlog": ours, "all": lambda: _read_all(client, count, what, asked)}

    return open_sides


def _key(number: int) -> bytes:
    return b"key-%010d" % number


def fill(client: Client, records: int) -> None:
    """Append the records: record n has key n, and a subject at random, each equally often."""
    luck = np.random.default_rng(SEED)
    subjects = np.arange(records) % SUBJECTS
    luck.shuffle(subjects)
    names = pa.array([f"selected.{n}" for n in range(SUBJECTS)])
    client.create_stream(STREAM, subject="selected.>")
    for at in range(0, records, ROWS_PER_APPEND):
        some = pa.array(subjects[at : at + ROWS_PER_APPEND])
        n = len(some)
        values = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(VALUE_BYTES), n, [None, pa.py_buffer(luck.bytes(VALUE_BYTES * n))]
        )
        keys = pa.array([_key(at + i) for i in range(n)], pa.binary())
        columns = {"subject": names.take(some), "key": keys, "value": values.cast(pa.binary())}
        client.append(STREAM, 0, pa.record_batch(columns))


def _read(client: Client, count: int, asked: Mapping[str, Any]) -> Measures:
    started_s = time.monotonic()
    rows = size = 0
    for batch in client.read(STREAM, **asked):
        rows += batch.num_rows
        size += batch.nbytes
    return _measures(rows, count, size, time.monotonic() - started_s)


def _read_all(client: Client, count: int, what: str, asked: Mapping[str, Any]) -> Measures:
    started_s = time.monotonic()
    rows = size = 0
    column = "key" if what == "key" else "subject"
    wanted = pa.scalar(asked[column], pa.binary() if what == "key" else pa.string())
    for batch in client.read(STREAM):
        rows += batch.filter(pc.equal(batch.column(column), wanted)).num_rows
        size += batch.nbytes
    return _measures(rows, count, size, time.monotonic() - started_s)


def _measures(rows: int, count: int, size: int, seconds: float) -> Measures:
    if rows != count:
        raise RuntimeError(f"{rows} records were read, {count} are there")
    return {"seconds": seconds, "mb": size / 1e6}
