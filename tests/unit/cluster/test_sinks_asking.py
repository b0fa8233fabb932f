"""Goal: a broker that stops while its sinks wait for another broker ends the wait, and logs no error of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.runtime.cluster.sinks.service import PlacedSinks
from broker.runtime.waiting import THREADS


def test_an_answer_that_a_loop_which_has_ended_owes_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """Seed 9 of the driven simulator: the wait was cancelled at the loop, which was closed by then."""
    loop, stopping = asyncio.new_event_loop(), threading.Event()
    asked = asyncio.sleep(60)
    answer = asyncio.run_coroutine_threadsafe(asked, loop)
    loop.call_soon(loop.stop)
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    loop.close()
    stopping.set()
    sinks: Any = SimpleNamespace(_waits=THREADS, _is_stopping=stopping)
    with caplog.at_level(logging.ERROR), pytest.raises(CancelledError):
        PlacedSinks._waited(cast(PlacedSinks, sinks), answer)
    assert caplog.records == []
    asked.close()
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
