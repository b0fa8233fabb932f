"""Goal: what options, conditions, pushed filters and columns choose is what a choice after a read of all chooses.

Method: random streams in a real broker, of batches of any size, with trims; random questions. The source is asked as
Spark asks, its tasks are pickled and read; the Python client is asked beside it. The choice is made again by the slow
second implementation of test_spark_filters.py, one row at a time. Compaction and lost ranges: tests/properties/storage.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from broker.client.client import Client, connect
from spark_liftlog.options import SourceOptions, source_options
from spark_liftlog.reading.batch_reader import LiftlogReader
from spark_liftlog.reading.filters import pushed
from spark_liftlog.schema import ROW, row_of
from tests.properties.storage.test_select import fits
from tests.support.effort import examples, first_short, seeded
from tests.support.processes import BrokerProcess
from tests.unit.spark_liftlog.test_spark_filters import KEYS, STREAMS, Row, at, filter_of, holds, rows_of

PARTITIONS = 3
PATTERNS = ("a", "a.b", "*.b", "a.*", "a.>", ">", "a.*.c", "b.>", "none.>")
PLACE = ("stream", "partition", "offset")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    process = BrokerProcess(tmp_path_factory.mktemp("alone"), None).start()
    with connect(process.address) as client:
        yield client
    process.stop()


def filled(client: Client, rng: random.Random) -> list[Row]:
    """Streams with random rows: each partition has those from some offset on, in batches of any size."""
    rows = rows_of(rng)
    for stream in STREAMS:
        client.delete_stream(stream, missing_ok=True)
        client.create_stream(stream, subject=None, partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            there = [row for row in rows if (row["stream"], row["partition"]) == (stream, partition)]
            for row in there:
                row["value"] = row["value"] if row["key"] is not None else b"v"
            first = there[0]["offset"] if there else 0
            gone = [{**there[0], "timestamp": at(-100), "key": b"gone"}] * first if there else []
            left = gone + there
            while left:
                count = rng.randint(1, len(left))
                append(client, stream, partition, left[:count])
                left = left[count:]
            if first:
                client.trim(stream, before=first, partitions=[partition])
    return rows


def append(client: Client, stream: str, partition: int, rows: list[Row]) -> None:
    columns = {
        "timestamp": pa.array([row["timestamp"] for row in rows], pa.timestamp("us", "UTC")),
        "subject": pa.array([row["subject"] for row in rows]),
        "key": pa.array([row["key"] for row in rows], pa.binary()),
        "value": pa.array([row["value"] for row in rows], pa.binary()),
    }
    client.append(stream, partition, pa.record_batch(columns))


def wanted_by(rng: random.Random) -> dict[str, Any]:
    """Conditions, as `client.read` takes them."""
    found: dict[str, Any] = {}
    if rng.random() < 0.5:
        found["subject"] = rng.sample(PATTERNS, rng.randint(1, 3))
    if rng.random() < 0.4:
        found["key"] = rng.choice(KEYS[1:])
    for name in ("since", "until"):
        if rng.random() < 0.3:
            found[name] = at(rng.randrange(-2, 14))
    return found


def is_wanted(row: Row, conditions: dict[str, Any]) -> bool:
    subject: list[str] = row["subject"].split(".")
    time: datetime = row["timestamp"]
    return (
        ("subject" not in conditions or any(fits(each.split("."), subject) for each in conditions["subject"]))
        and ("key" not in conditions or row["key"] == conditions["key"])
        and ("since" not in conditions or time >= conditions["since"])
        and ("until" not in conditions or time < conditions["until"])
    )


def by_spark(options: SourceOptions, columns: list[str]) -> list[Row]:
    """What tasks read, each from its pickle."""
    reader = LiftlogReader(options, row_of(columns))
    found = []
    for task in reader.partitions():
        there: LiftlogReader = pickle.loads(pickle.dumps(reader))
        for batch in there.read(pickle.loads(pickle.dumps(task))):
            found += batch.to_pylist()
    return sorted(found, key=lambda row: [row[name] for name in PLACE])


@pytest.mark.parametrize("number", first_short(range(examples(6)), count=2))
def test_what_is_chosen_is_a_choice_of_all(alone: Client, number: int) -> None:
    rng = random.Random(seeded(35) * 1000 + number)
    rows = filled(alone, rng)
    pushed_count = 0
    for _ in range(12):
        given = {"brokers": str(alone.brokers), "streams": ",".join(STREAMS), "maxPartitions": str(rng.choice((1, 3)))}
        conditions = {name: value for name, value in wanted_by(rng).items() if name in ("subject", "key")}
        if "subject" in conditions:
            given["subjects"] = ",".join(conditions["subject"])
        if conditions.get("key") == b"\xff":
            del conditions["key"]  # an option is text
        if "key" in conditions:
            given["key"] = conditions["key"].decode()
        numbers = {stream: sorted(rng.sample(range(PARTITIONS), rng.randint(1, 3))) for stream in STREAMS}
        if rng.random() < 0.3:
            given["partitions"] = json.dumps(numbers)
        else:
            numbers = {stream: list(range(PARTITIONS)) for stream in STREAMS}
        filters = [filter_of(rng) for _ in range(rng.randrange(4))]
        options, rest = pushed(source_options(given, "batch"), filters)
        pushed_count += len(filters) - len(rest)
        used = {each.lower() for one in filters for each in getattr(one, "attribute", ())}
        used |= {one.child.attribute[0].lower() for one in filters if hasattr(one, "child")}
        more = {name for name in ROW.names if rng.random() < 0.4 and name != "headers"}
        columns = [name for name in ROW.names if name in {*PLACE, *used, *more}]
        found = [row for row in by_spark(options, columns) if all(holds(one, row) for one in rest)]
        expected = [
            {name: row[name] for name in columns}
            for row in rows
            if row["partition"] in numbers[row["stream"]]
            and is_wanted(row, conditions)
            and all(holds(one, row) for one in filters)
        ]
        assert found == expected, (given, filters, rest, columns)
    assert pushed_count


@pytest.mark.parametrize("number", first_short(range(examples(6)), count=2))
def test_the_client_chooses_alike(alone: Client, number: int) -> None:
    rng = random.Random(seeded(36) * 1000 + number)
    rows = filled(alone, rng)
    for _ in range(12):
        stream, conditions = rng.choice(STREAMS), wanted_by(rng)
        columns = [name for name in ("offset", "timestamp", "subject", "key", "value") if rng.random() < 0.5]
        asked = {**conditions, **({"columns": [*columns, "partition"]} if columns else {})}
        table = alone.read(stream, **asked).to_table()
        names = [name for name in table.column_names if name in rows[0]] if rows else []
        expected = [
            {name: row[name] for name in names}
            for row in rows
            if row["stream"] == stream and is_wanted(row, conditions)
        ]
        assert table.select(names).to_pylist() == expected, (stream, asked)
