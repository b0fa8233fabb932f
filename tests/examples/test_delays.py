"""Goal: Spark's windows are pandas' windows, and nothing that differs goes unseen.

Method: the streaming query on real Spark with files as source and sink; each pair of files is a bounded
batch, the same fraction of two partitions, as liftlog's source divides them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from examples import delays, flights

BATCHES = 4


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    """A session of its own in whatever Spark the test process has; it stays for other tests."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.log.level", "ERROR").getOrCreate().newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    return session


def write(folder: Path, age_s: int, messages: Iterable[tuple[str, bytes]]) -> None:
    """A file of records; Spark reads files in order of their age."""
    path = folder / f"{age_s:06}.parquet"
    pq.write_table(pa.table({"value": pa.array([payload for _, payload in messages], pa.binary())}), path)
    os.utime(path, (age_s, age_s))


def run(spark: SparkSession, source: Path, sink: Path) -> int:
    """The query to its end; returns how many rows were dropped as too late."""
    records = spark.readStream.schema("value binary").option("maxFilesPerTrigger", 2).parquet(str(source))
    writer = delays.encoded(delays.windows(delays.decoded(records))).writeStream.format("parquet")
    options = {"path": str(sink / "windows"), "checkpointLocation": str(sink / "checkpoint")}
    query = writer.options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(state.numRowsDroppedByWatermark for p in query.recentProgress for state in p.stateOperators)


def test_the_streaming_query_gives_the_windows_that_pandas_computes(
    spark: SparkSession, a_week: pd.DataFrame, tmp_path: Path
) -> None:
    source, sink = tmp_path / "source", tmp_path / "sink"
    source.mkdir()
    partitions = [a_week[a_week["origin"] == "JFK"], a_week[a_week["origin"] != "JFK"]]
    for batch in range(BATCHES):
        for number, rows in enumerate(partitions):
            part = rows.iloc[len(rows) * batch // BATCHES : len(rows) * (batch + 1) // BATCHES]
            write(source, 2 * batch + number + 1, flights.messages(part))
    assert run(spark, source, sink) == 0
    write(source, 100, delays.closing_messages(a_week))
    assert run(spark, source, sink) == 1, "the flight that is too late is dropped, and only that"

    found = spark.read.parquet(str(sink / "windows"))
    expected = delays.windows_by_pandas(a_week)
    assert expected["delay_minutes_mean"].isna().any(), "an hour without departures is among the tested"
    assert delays.differences(expected, delays.from_spark(found)).empty
    values = [bytes(row.value) for row in found.collect()]
    assert delays.differences(expected, delays.from_values(values)).empty
    assert {bytes(row.key) for row in found.collect()} == {b"EWR", b"JFK", b"LGA"}


def test_partitions_drift_apart_by_less_than_the_watermark(all_flights: pd.DataFrame) -> None:
    """What makes the comparison exact on the whole year: at no fraction of it is one partition a watermark behind."""
    for partitions in (2, 3, 4):
        assert delays.drift_hours(all_flights, partitions) < delays.WATERMARK.total_seconds() / 3_600
    assert 136 < delays.drift_hours(all_flights, 2) < 137, "the figure in the module's text"


def test_pandas_counts_every_flight_once(all_flights: pd.DataFrame) -> None:
    windows = delays.windows_by_pandas(all_flights)
    assert (len(windows), windows["flights"].sum()) == (19_486, 336_776)
    assert windows["departed"].sum() == all_flights["dep_delay"].notna().sum() == 328_521
    assert not windows.duplicated(delays.KEY).any()


def test_equal_windows_do_not_differ_in_any_order(a_week: pd.DataFrame) -> None:
    windows = delays.windows_by_pandas(a_week)
    assert delays.differences(windows, windows.sample(frac=1, random_state=1)).empty


@pytest.mark.parametrize(
    "column, change, problem",
    [
        ("flights", 1, "flights differ"),
        ("departed", -1, "departed differ"),
        ("delay_minutes_max", 1, "delay_minutes_max differ"),
        ("delay_minutes_mean", 1e-8, "delay_minutes_mean differ"),
        ("delay_minutes_mean", float("nan"), "delay_minutes_mean differ"),
    ],
)
def test_one_wrong_number_is_one_difference(a_week: pd.DataFrame, column: str, change: float, problem: str) -> None:
    windows = delays.windows_by_pandas(a_week)
    wrong = windows.copy()
    wrong.loc[17, column] += change
    found = delays.differences(windows, wrong)
    assert found[[*delays.KEY, "problem"]].values.tolist() == [[*windows.loc[17, delays.KEY], problem]]


def test_a_mean_may_differ_in_the_last_bits(a_week: pd.DataFrame) -> None:
    windows = delays.windows_by_pandas(a_week)
    other = windows.assign(delay_minutes_mean=windows["delay_minutes_mean"] + 1e-10)
    assert delays.differences(windows, other).empty


def test_a_window_that_is_missing_extra_or_there_twice_is_a_difference(a_week: pd.DataFrame) -> None:
    windows = delays.windows_by_pandas(a_week)
    assert delays.differences(windows, windows.drop(3))["problem"].tolist() == ["missing"]
    assert delays.differences(windows.drop(3), windows)["problem"].tolist() == ["not in the file"]
    twice = pd.concat([windows, windows.iloc[[3]]])
    assert set(delays.differences(windows, twice)["problem"]) == {"written more than once"}
    assert len(delays.differences(windows, windows.iloc[:0])) == len(windows)
