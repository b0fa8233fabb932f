"""Goal: pandas computes what the file says, and no difference between two sets of windows goes unseen.

That Spark computes the same: test_quickstart.py, with everything real.
"""

from __future__ import annotations

import json

import pandas as pd
import pytest

from examples import delays


def test_partitions_drift_apart_by_less_than_the_watermark(all_flights: pd.DataFrame) -> None:
    """The comparison on the whole year is exact only because of this: no partition is ever a watermark behind."""
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


def test_windows_are_the_same_from_the_json_that_spark_writes(a_week: pd.DataFrame) -> None:
    """Spark leaves null fields out: an hour in which nothing left has no mean."""
    windows = delays.windows_by_pandas(a_week)
    assert windows["delay_minutes_mean"].isna().any()
    rows = windows.assign(start=windows["start"].dt.strftime("%Y-%m-%dT%H:%M:%SZ")).to_dict("records")
    values = [json.dumps({name: value for name, value in row.items() if not pd.isna(value)}).encode() for row in rows]
    assert delays.differences(windows, delays.from_values(values)).empty


def test_closing_messages_lie_beyond_the_watermark_on_both_sides(a_week: pd.DataFrame) -> None:
    late, sentinel = (pd.Timestamp(json.loads(payload)["event_time"]) for _, payload in delays.closing_messages(a_week))
    last = a_week["event_time"].iloc[-1]
    hour = pd.Timedelta("1h")
    assert late.floor("h") + hour <= last - delays.WATERMARK, "its window is closed once the last flight was seen"
    assert sentinel - delays.WATERMARK >= last.floor("h") + hour, "it closes the window of the last flight"
