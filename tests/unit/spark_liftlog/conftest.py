"""Brokers that are played say nothing of their sessions."""

from __future__ import annotations

import pytest

from spark_liftlog.reading import asking_again


@pytest.fixture(autouse=True)
def nobody_says_how_long_sessions_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking_again, "longest_session_s", lambda brokers, interrupt: 0.0)
