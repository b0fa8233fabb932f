"""Goal: captures that are asked for in a row begin together, and everything happens in the order of the questions.

Method: a real loop in a thread, which the test holds up while it asks; what would capture notes what it is asked for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from broker.api.stream import settings_from
from broker.intake.beginnings import Beginnings
from broker.intake.captures import Captures
from broker.metadata.catalog import StreamInfo


class Noted:
    """In place of `Captures`."""

    key = staticmethod(Captures.key)

    def __init__(self) -> None:
        self.story: list[Any] = []
        self.fails: Exception | None = None
        self.waits = False

    async def begin(self, info: StreamInfo, *partitions: Any) -> None:
        self.story.append((info.name, info.settings.linger_ms, [each.partition for each in partitions]))
        if self.waits:
            await asyncio.Event().wait()
        if self.fails is not None:
            raise self.fails

    async def end(self, number: int) -> None:
        self.story.append(("end", number))


class Numbered:
    def __init__(self, partition: int) -> None:
        self.partition = partition


class Held:
    """A loop that does nothing until it is let go."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.captures: Any = Noted()
        self.beginnings = Beginnings(self.loop, self.captures)
        self.may = threading.Event()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.hold()

    def hold(self) -> None:
        self.may.clear()
        self.loop.call_soon_threadsafe(self.may.wait, 60)

    def ask(self, info: StreamInfo, number: int) -> Future[None]:
        given: Any = Numbered(number)
        return self.beginnings.ask(info, given)

    def end(self, number: int) -> Future[None]:
        return self.beginnings.then(lambda: asyncio.run_coroutine_threadsafe(self.captures.end(number), self.loop))

    def close(self) -> None:
        self.may.set()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.run_until_complete(_end_tasks())
        self.loop.close()


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    if not made.loop.is_closed():
        made.close()


def stream(name: str, **settings: Any) -> StreamInfo:
    return StreamInfo(
        name=name,
        incarnation="i",
        created_us=0,
        settings=settings_from({"subject": name, "partitions": 9, "linger_ms": 0} | settings),
    )


def test_those_of_one_stream_that_are_asked_for_in_a_row_begin_together(held: Held) -> None:
    a, b = stream("a", partition_by="key"), stream("b", partition_by="key")
    asked = [held.ask(a, 0), held.ask(b, 0), held.ask(a, 1), held.ask(b, 1), held.ask(a, 2)]
    held.may.set()
    for each in asked:
        each.result(60)
    assert held.captures.story == [("a", 0, [0, 1, 2]), ("b", 0, [0, 1])]
    held.ask(a, 3).result(60)
    assert held.captures.story[2:] == [("a", 0, [3])], "the next one wakes the loop again"


def test_with_a_subject_for_each_partition_each_begins_by_itself(held: Held) -> None:
    a = stream("a", partition_by="subject_suffix")
    asked = [held.ask(a, 0), held.ask(a, 1)]
    held.may.set()
    for each in asked:
        each.result(60)
    assert held.captures.story == [("a", 0, [0]), ("a", 0, [1])]


def test_other_settings_begin_behind_the_former_ones(held: Held) -> None:
    a, altered = stream("a", partition_by="key"), stream("a", partition_by="key", linger_ms=7)
    asked = [held.ask(a, 0), held.ask(altered, 0), held.ask(altered, 1), held.ask(a, 2)]
    held.may.set()
    for each in asked:
        each.result(60)
    assert held.captures.story == [("a", 0, [0]), ("a", 7, [0, 1]), ("a", 0, [2])]


def test_what_ends_between_two_that_begin_ends_between_them(held: Held) -> None:
    """`captures.E1`. What begins again would be ended by a question of before."""
    a = stream("a", partition_by="key")
    asked = [held.ask(a, 0), held.ask(a, 1), held.end(1), held.ask(a, 1), held.end(0)]
    held.may.set()
    for each in asked:
        each.result(60)
    assert held.captures.story == [("a", 0, [0, 1]), ("end", 1), ("a", 0, [1]), ("end", 0)]


def test_what_fails_is_said_to_all_who_asked_for_it(held: Held) -> None:
    held.captures.fails = ValueError("no")
    asked = [held.ask(stream("a", partition_by="key"), number) for number in range(3)]
    held.may.set()
    for each in asked:
        with pytest.raises(ValueError, match="no"):
            each.result(60)


def test_who_waits_as_the_loop_ends_hears_that_it_is_cancelled(held: Held) -> None:
    held.captures.waits = True
    asked = held.ask(stream("a", partition_by="key"), 0)
    held.close()
    with pytest.raises(CancelledError):
        asked.result(60)
    with pytest.raises(RuntimeError, match="closed"):
        held.ask(stream("a", partition_by="key"), 0)
