"""Waiting for a change: never missed, never woken by what nobody waits for, from any thread."""

from __future__ import annotations

import asyncio
import threading

from broker.node.partitions.watch import ChangeHub


async def test_waiter_returns_when_its_condition_holds() -> None:
    hub = ChangeHub(asyncio.get_running_loop())
    reached = [0]

    def advance() -> None:
        for value in range(1, 101):
            reached[0] = value
            hub.note("p")
            hub.note("other")

    waiting = [asyncio.create_task(hub.wait("p", lambda n=n: reached[0] >= n, 60)) for n in (1, 50, 100)]
    thread = threading.Thread(target=advance)
    thread.start()
    await asyncio.gather(*waiting)
    thread.join()
    assert reached[0] == 100
    assert hub._waiters == {}


async def test_waiter_gives_up_when_time_is_up_and_leaves_nothing_behind() -> None:
    hub = ChangeHub(asyncio.get_running_loop())
    await hub.wait("p", lambda: False, 0.01)
    await hub.wait("p", lambda: False, 0)
    task = asyncio.create_task(hub.wait("p", lambda: False, 60))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert hub._waiters == {}
    assert hub._waiter_count == 0


async def test_change_between_looking_and_waiting_is_not_missed() -> None:
    """The condition turns true, and is noted, while it is being looked at."""
    hub = ChangeHub(asyncio.get_running_loop())
    looks = []

    def done() -> bool:
        looks.append(len(looks))
        if len(looks) == 1:
            hub.note("p")
            return False
        return True

    await hub.wait("p", done, 60)
    assert len(looks) == 2


async def test_who_watches_a_stream_is_woken_by_it_and_by_what_concerns_all_and_by_no_other() -> None:
    """W1."""
    hub = ChangeHub(asyncio.get_running_loop())
    woken: list[bool] = []
    with hub.watching() as watcher:
        watcher.streams = {"a"}
        for keys in (("b",), ("p", "b"), ("p", "a"), (hub.ALL,), ("b",)):
            hub.note(*keys)
            await asyncio.sleep(0)  # `_wake` runs
            woken.append(watcher._is_told)
            if woken[-1]:
                await watcher.wait(60)
    assert woken == [False, False, True, True, False]
    assert not hub._watchers
    assert hub._waiter_count == 0
