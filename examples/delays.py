"""How late flights leave, per airport and hour: by Spark as the flights come in, by pandas from the file.

    records ──► flights ──► windows of one hour of event time ──► records (key, value) for a second stream
                from_json          closed by the watermark              to_json

The watermark. Spark closes a window once it has seen a flight that is WATERMARK later than its end, and
drops a flight that comes for a closed window. So WATERMARK must exceed what flights can be out of order,
and here they are: each partition is in order of time, but a bounded batch (maxOffsetsPerTrigger) takes
the same *fraction* of every partition, and the same fraction of the year is not the same date everywhere:

    partition 0, EWR and LGA   │▒▒▒▒▒▒▒▒▒▒▒▒▒▒      │   70 % read: up to 14 September
    partition 1, JFK           │▒▒▒▒▒▒▒▒▒▒▒▒▒▒      │   70 % read: up to 9 September, 5 days behind

The worst of the year is 136 hours (`drift_hours`). Seven days are more: no flight of the file is ever late,
however large the batches are. (A stream that is read while it is written drifts far less.)

In append mode a window is written once, when it is closed; so the last week's windows wait for a flight
that comes later than the watermark. In an example that ends, `closing_messages` sends one.

D1  Spark and pandas agree: counts exactly, means to MEAN_TOLERANCE. Delays are whole minutes, so their
    sums are exact whatever the order, and a mean is one division.
D2  A flight that was cancelled counts as a flight and has no delay; an hour in which nothing left has
    flights and no mean.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from examples import flights

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WATERMARK: Final = timedelta(days=7)
MEAN_TOLERANCE: Final = 1e-9
KEY: Final = ["origin", "start"]
COLUMNS: Final = [*KEY, "flights", "departed", "delay_minutes_mean", "delay_minutes_max"]
"""Of a window: its airport, its beginning (UTC), and what happened in that hour by schedule."""

SPARK_SCHEMA: Final = (
    "origin string, start timestamp, flights long, departed long, delay_minutes_mean double, delay_minutes_max long"
)


def decoded(records: DataFrame) -> DataFrame:
    """The flights in a stream's records, one column per field of the payload."""
    from pyspark.sql import functions as F

    flight = F.from_json(F.col("value").cast("string"), flights.SPARK_SCHEMA)
    return records.select(flight.alias("flight")).select("flight.*")


def windows(decoded_flights: DataFrame) -> DataFrame:
    """Delay per airport and hour: the streaming aggregate. Columns: COLUMNS."""
    from pyspark.sql import functions as F

    hour = F.window("event_time", "1 hour")
    late = f"{WATERMARK.total_seconds():.0f} seconds"
    return (
        decoded_flights.withWatermark("event_time", late)
        .groupBy("origin", hour.alias("hour"))
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.avg("dep_delay").alias("delay_minutes_mean"),
            F.max("dep_delay").alias("delay_minutes_max"),
        )
        .withColumn("start", F.col("hour.start"))
        .select(*COLUMNS)
    )


def encoded(window_rows: DataFrame) -> DataFrame:
    """Windows as records: the airport as key, the row in JSON as value."""
    from pyspark.sql import functions as F

    value = F.to_json(F.struct(*COLUMNS))
    return window_rows.select(F.col("origin").cast("binary").alias("key"), value.cast("binary").alias("value"))


def windows_by_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    """The same aggregate from the file. One row per window, in order of KEY; columns COLUMNS."""
    by_window = frame.assign(start=frame["event_time"].dt.floor("h")).groupby(KEY)["dep_delay"]
    counted = by_window.agg(flights="size", departed="count", delay_minutes_mean="mean", delay_minutes_max="max")
    return _typed(counted.reset_index())


def from_values(values: Iterable[bytes]) -> pd.DataFrame:
    """Windows from the values of records. Columns and types as `windows_by_pandas`, order as given."""
    return _typed(pd.DataFrame([json.loads(value) for value in values], columns=COLUMNS))


def from_spark(window_rows: DataFrame) -> pd.DataFrame:
    """Windows from a batch frame of records, decoded by Spark. As `from_values`."""
    from pyspark.sql import functions as F

    window = F.from_json(F.col("value").cast("string"), SPARK_SCHEMA)
    return _typed(window_rows.select(window.alias("window")).select("window.*").toPandas())


def differences(expected: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Where two sets of windows differ; empty if they agree (D1).

    Returns:
        One row per difference: KEY, `problem`, and each of the other columns as `…_expected` and `…_found`.
    """
    both = expected.merge(found, on=KEY, how="outer", suffixes=("_expected", "_found"), indicator=True)
    problem = pd.Series("", index=both.index)
    counts = ("flights", "departed", "delay_minutes_max")
    for name in counts:
        problem[_differs(both, name, 0.0)] = f"{name} differ"
    problem[_differs(both, "delay_minutes_mean", MEAN_TOLERANCE)] = "delay_minutes_mean differ"
    problem[both["_merge"] == "left_only"] = "missing"
    problem[both["_merge"] == "right_only"] = "not in the file"
    problem[both.duplicated(KEY, keep=False)] = "written more than once"
    found_wrong = both.assign(problem=problem)[problem != ""]
    order = [*KEY, "problem", *(f"{name}_{side}" for name in COLUMNS[2:] for side in ("expected", "found"))]
    return found_wrong[order].reset_index(drop=True)


def closing_messages(frame: pd.DataFrame) -> list[tuple[str, bytes]]:
    """What ends the example, once Spark has seen all of the frame: a flight that is too late, and a sentinel.

    The first belongs to a window that the watermark has closed, a day before it: Spark must drop it. The second is
    WATERMARK and a day later than the last flight, so that every window before it closes; its own stays open and is
    never written.
    """
    last, far = frame["event_time"].iloc[-1], WATERMARK + timedelta(days=1)
    return [
        flights.message(_text(last - far), "EWR", "ZZ", dep_delay=999_999),
        flights.message(_text(last + far), "EWR", "ZZ"),
    ]


def drift_hours(frame: pd.DataFrame, partitions: int) -> float:
    """How far partitions by airport are apart in event time, at the same fraction of each; the worst, in hours.

    Partition by `token:2`, which is CRC-32 of the airport modulo the partitions.
    """
    partition = frame["origin"].map(
        {origin: zlib.crc32(origin.encode()) % partitions for origin in set(frame["origin"])}
    )
    fractions = np.linspace(0.0, 1.0, 20_000, endpoint=False)
    dates = [
        times.to_numpy("datetime64[s]")[(fractions * len(times)).astype(int)].astype("int64")
        for _, times in frame.groupby(partition)["event_time"]
    ]
    return float(np.ptp(np.array(dates), axis=0).max()) / 3_600


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Types that compare: Spark and JSON each have their own idea of times and of missing numbers."""
    typed = pd.DataFrame(
        {
            "origin": frame["origin"].astype(str),
            "start": pd.to_datetime(frame["start"], utc=True).astype("datetime64[ns, UTC]"),
            "flights": frame["flights"].astype("Int64"),
            "departed": frame["departed"].astype("Int64"),
            "delay_minutes_mean": frame["delay_minutes_mean"].astype("float64"),
            "delay_minutes_max": frame["delay_minutes_max"].astype("Int64"),
        }
    )
    return typed[COLUMNS]


def _differs(both: pd.DataFrame, name: str, tolerance: float) -> pd.Series:
    expected = both[f"{name}_expected"].astype("Float64")
    found = both[f"{name}_found"].astype("Float64")
    same = ((expected - found).abs() <= tolerance).fillna(False) | (expected.isna() & found.isna())
    return ~same.astype(bool)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
