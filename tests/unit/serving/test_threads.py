"""Goal: where the system allows no more threads, what is taken is done once, and what is refused is never done.

The system refuses a thread at its start (`RuntimeError`), as it does under a limit of processes.
"""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.api.errors import Overloaded
from broker.common.waiting import ThreadWaits
from broker.control.operating import changes as control
from broker.node.serial_work import SerialWork
from broker.runtime.dataplane import DataPlane
from broker.serving.threads import CallThreads, Threads

BROKER = Path(__file__).parents[3] / "broker"


@contextmanager
def no_more_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        yield


def test_what_is_submitted_is_carried_out_once_by_the_threads_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    done, goes_on = list[int](), threading.Event()
    with Threads(4, name="few") as pool:
        pool.submit(goes_on.wait)
        with no_more_threads(monkeypatch):
            futures = [pool.submit(done.append, number) for number in range(10)]
        goes_on.set()
        assert [future.result(60) for future in futures] == [None] * 10
    assert sorted(done) == list(range(10))


def test_a_pool_without_a_thread_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with no_more_threads(monkeypatch), pytest.raises(Overloaded, match="no more threads, and 'few' has none"):
        Threads(4, name="few")


def test_once_there_are_threads_again_the_pool_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = threading.Barrier(3)
    with Threads(3, name="few") as pool:
        with no_more_threads(monkeypatch):
            first = pool.submit(meeting.wait, 60)
        others = [pool.submit(meeting.wait, 60) for _ in range(2)]
        assert sorted(future.result(60) for future in (first, *others)) == [0, 1, 2]


def test_a_call_after_a_shortage_has_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has taken what was queued is not idle: a call that came then waited for its end."""
    goes_on, begun = threading.Event(), threading.Semaphore(0)

    def lasts() -> None:
        begun.release()
        goes_on.wait(60)

    with Threads(3, name="few") as pool:
        blocked = threading.Event()
        pool.submit(blocked.wait, 60)
        with no_more_threads(monkeypatch):
            pool.submit(lasts)
        blocked.set()
        assert begun.acquire(timeout=60)
        assert pool.submit(threading.active_count).result(60)
        goes_on.set()


def test_turns_come_one_at_a_time_then_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """`serial_work.T1`. It believed that nobody was at it, while its turn was in the queue."""
    at_once, most, turns = [0], [0], threading.Semaphore(0)

    def work() -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        turns.release()
        goes_on.wait(60)
        at_once[0] -= 1

    goes_on, blocked = threading.Event(), threading.Event()
    with Threads(3, name="few") as pool:
        pool.submit(blocked.wait, 60)
        serial = SerialWork(pool, work, ThreadWaits())
        with no_more_threads(monkeypatch):
            serial.ask()
        serial.ask()
        blocked.set()
        assert turns.acquire(timeout=60)
        serial.ask()
        pool.submit(threading.get_ident).result(60)  # behind all that is in the queue
        goes_on.set()
        serial.end()
    assert most == [1]


def test_what_the_loop_of_requests_hands_to_threads_is_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plane, done = DataPlane(), list[int]()

    async def several() -> None:
        await asyncio.gather(*(asyncio.to_thread(done.append, number) for number in range(5)))

    try:
        with no_more_threads(monkeypatch):
            plane.call(several()).result(60)
    finally:
        plane.stop()
    assert sorted(done) == list(range(5))


def test_a_command_for_which_there_is_no_thread_is_refused_and_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    control.waiting.cache_clear()
    made = list[int]()
    with no_more_threads(monkeypatch), pytest.raises(Overloaded):
        asyncio.run(control.waits(lambda: made.append(1)))
    asyncio.run(control.waits(lambda: made.append(2)))
    assert made == [2]


def test_calls_of_which_nobody_hears_are_all_made_by_so_many_threads(caplog: pytest.LogCaptureFixture) -> None:
    meeting, names, done = threading.Barrier(3), set[str](), list[int]()

    def meet() -> None:
        meeting.wait(60)
        names.add(threading.current_thread().name)

    def fail() -> None:
        raise ZeroDivisionError("of a test")

    pool = CallThreads(3, name="few")
    for _ in range(3):
        pool.submit(meet)
    pool.submit(fail)
    for number in range(1_000):
        pool.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    pool.shutdown()
    assert len(names) == 3
    assert sorted(done) == list(range(1_000))
    assert "threads.call_bug" in caplog.text
    with pytest.raises(RuntimeError):
        pool.submit(fail)
    assert caplog.text.count("threads.call_bug") == 1


def test_calls_wait_for_the_threads_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    done, goes_on = list[int](), threading.Event()
    pool = CallThreads(3, name="few")
    pool.submit(lambda: [goes_on.wait(60)].clear())
    with no_more_threads(monkeypatch):
        for number in range(5):
            pool.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    goes_on.set()
    pool.shutdown()
    assert sorted(done) == list(range(5))


def test_a_broker_has_no_other_pools() -> None:
    """Beside those of clients, whose callers hear of an error and give up what they had begun."""
    makers = {
        str(path.relative_to(BROKER))
        for path in BROKER.rglob("*.py")
        if "ThreadPoolExecutor" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call | ast.ClassDef)
        for name in (node.bases if isinstance(node, ast.ClassDef) else [node.func])
        if ast.unparse(name).endswith("ThreadPoolExecutor")
    }
    assert makers == {"serving/threads.py", "client/nats_publish.py", "client/sinks.py"}
