"""The flights, loaded once for all tests of the examples."""

from __future__ import annotations

import pandas as pd
import pytest

from examples import flights


@pytest.fixture(scope="session")
def all_flights() -> pd.DataFrame:
    return flights.load()


@pytest.fixture(scope="session")
def a_week(all_flights: pd.DataFrame) -> pd.DataFrame:
    """The first days of February: a snow storm, many cancelled flights."""
    days = all_flights["event_time"].between("2013-02-05", "2013-02-12", inclusive="left")
    return all_flights[days].reset_index(drop=True)
