"""Goal: sinks do not wait for another broker when they stop, nor when it leads no longer what it was asked about."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.api.errors import NotReady
from broker.common.waiting import THREADS
from broker.node.sinks.service import PlacedSinks


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
        PlacedSinks._waited(cast(PlacedSinks, sinks), answer, lambda: False)
    assert caplog.records == []
    asked.close()
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_leader_that_is_silent_is_asked_no_longer_than_it_leads() -> None:
    """K9. It was waited for for a minute, and each other round with it."""
    loop, asked, ended = asyncio.new_event_loop(), threading.Event(), threading.Event()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def silent(*_: Any, **__: Any) -> Any:
        asked.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    partition = SimpleNamespace(leader="b")
    catalog = SimpleNamespace(
        cluster=SimpleNamespace(partitions={("i-orders", 0): partition}), brokers={"b": SimpleNamespace(http="b:1")}
    )
    sinks: Any = PlacedSinks.__new__(PlacedSinks)
    sinks._me, sinks._waits, sinks._is_stopping, sinks._loop = "a", THREADS, threading.Event(), loop
    sinks._service, sinks._peers = SimpleNamespace(catalog=catalog), SimpleNamespace(ask=silent)
    with ThreadPoolExecutor(1) as pool:
        question = pool.submit(sinks._stages("orders", "i-orders", 0).finish, "decision", "query", [])
        assert asked.wait(30)
        assert not question.done(), "it leads, so it is waited for"
        partition.leader = "c"
        with pytest.raises(NotReady, match="b has not answered, and leads it no longer"):
            question.result(30)
    assert ended.wait(30), "the connection is not kept for it"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
