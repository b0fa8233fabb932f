"""Payloads: values of 200 bytes that are JSON objects of six members become columns.

`payload-client`: a Python process reads a stream with `payload="json"`; messages by the CPU time of the process, which
has one thread at work. `bytes` is the same read without a payload. `pyarrow.json` decodes the values of that read in
blocks, on one thread; it knows no bad rows.

`payload-spark`: a batch query with one task into the noop sink, messages by its time. `from_json` is Spark's own
function on the values of the same stream, in the same session; it works in the JVM, on the other core.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json

from benchmarks.harness import ROOT, Case, Measures, Side, Target
from benchmarks.ours import Liftlog
from benchmarks.spark_read import _Spark
from broker.client.client import connect

SEED = 9
STREAM = "payloads"
VALUE_BYTES = 200
ROWS_PER_APPEND = 50_000
SCHEMA = pa.schema(
    {
        "item": pa.int64(),
        "price": pa.float64(),
        "name": pa.string(),
        "ok": pa.bool_(),
        "at": pa.timestamp("us", tz="UTC"),
        "note": pa.string(),
    }
)
TURNS = ("json", "bytes", "arrow")
DDL = "item BIGINT, price DOUBLE, name STRING, ok BOOLEAN, at TIMESTAMP, note STRING"


def cases(*, tiny: bool) -> Sequence[Case]:
    rows = ROWS_PER_APPEND if tiny else 1_000_000
    parameters = {"value_bytes": VALUE_BYTES, "rows": rows, "columns": len(SCHEMA), "seed": SEED}
    client = Case(
        name="payload-client",
        metric="rate",
        unit="messages/s",
        parameters=parameters,
        open=partial(_client, rows),
        targets=(Target(of="rate", least=800_000.0),),
    )
    spark = Case(
        name="payload-spark",
        metric="rate",
        unit="messages/s",
        parameters=parameters,
        open=partial(_spark, rows),
        targets=(Target(of="rate", least=800_000.0),),
    )
    return [client] if tiny else [client, spark]


@contextmanager
def _client(rows: int, folder: Path) -> Iterator[Mapping[str, Side]]:
    with Liftlog(folder) as place:
        fill(place.address, rows)

        def turn(what: str) -> Measures:
            command = [sys.executable, "-m", "benchmarks.payloads", what, place.address, str(rows)]
            done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
            found: Measures = json.loads(done.stdout)
            return found

        yield {
            name: partial(turn, what) for name, what in zip(("liftlog", "bytes", "pyarrow.json"), TURNS, strict=True)
        }


@contextmanager
def _spark(rows: int, folder: Path) -> Iterator[Mapping[str, Side]]:
    with ExitStack() as stack:
        place = stack.enter_context(Liftlog(folder))
        fill(place.address, rows)
        spark = stack.enter_context(_Spark(folder, ()))
        common = {"kind": "batch", "tasks": 1, "rows": rows, "source": "liftlog", "brokers": place.address}
        sides: dict[str, Side] = {
            name: partial(spark.run, {**common, "stream": STREAM, "json": DDL, "by": name})
            for name in ("liftlog", "from_json")
        }
        for side in (*sides.values(), *sides.values()):
            side()  # warms up the JVM
        yield sides


def fill(address: str, rows: int) -> None:
    """Append the objects, each of VALUE_BYTES."""
    luck = random.Random(SEED)
    with connect(address) as client:
        client.create_stream(STREAM)
        for first in range(0, rows, ROWS_PER_APPEND):
            values = [value(luck, number) for number in range(first, min(first + ROWS_PER_APPEND, rows))]
            client.append(STREAM, 0, pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())}))


def value(luck: random.Random, number: int) -> bytes:
    """An object as a shop would publish it."""
    hour, minute, second, ms = (luck.randrange(limit) for limit in (24, 60, 60, 1000))
    members = {
        "item": number,
        "price": round(luck.uniform(0, 1000), 2),
        "name": f"customer-{luck.randrange(10**6):06}",
        "ok": luck.random() < 0.5,
        "at": f"2026-11-27T{hour:02}:{minute:02}:{second:02}.{ms:03}Z",
        "note": "",
    }
    members["note"] = "x" * (VALUE_BYTES - len(json.dumps(members)))
    return json.dumps(members).encode()


def main(what: str, address: str, rows: int) -> None:
    """Read the whole stream once; print messages by CPU time."""
    asked: dict[str, Any] = {"payload": "json", "schema": SCHEMA} if what == "json" else {}
    options = pyarrow.json.ParseOptions(explicit_schema=SCHEMA)
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=64 << 20)
    with connect(address) as client:
        started_s, count = time.process_time(), 0
        for batch in client.read(STREAM, columns=None if what == "json" else ["value"], **asked):
            count += batch.num_rows
            if what == "arrow":
                joined = b"\n".join(batch.column("value").to_pylist())
                pyarrow.json.read_json(pa.py_buffer(joined), read_options=reading, parse_options=options)
        seconds = time.process_time() - started_s
    if count != rows:
        raise RuntimeError(f"{count} rows were read, {rows} are there")
    print(json.dumps({"rate": rows / seconds, "cpu_s": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
