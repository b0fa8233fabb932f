"""Commits of offsets that wait for one on its way: each is answered, and what waits has an end.

Method: a partition whose appends are done when the test says so.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.errors import Overloaded
from broker.groups.offsets import ConsumerOffset
from broker.node.partitions import consumers
from broker.node.partitions.consumers import Consumers


class Held:
    """A partition, and the appends that it has been asked for."""

    def __init__(self) -> None:
        state, reader = SimpleNamespace(log_start_offset=0), SimpleNamespace(batches=lambda start: [])
        self.log = SimpleNamespace(state=state, reader=reader)
        self.replica = SimpleNamespace(wall_us=lambda: 0)
        self.appends: list[Future[Any]] = []
        self.rows: list[int] = []

    def append(self, batches: list[Any], **_: object) -> Future[Any]:
        self.appends.append(Future())
        self.rows += [batch.record_count for batch in batches]
        return self.appends[-1]


def committing(table: Consumers, number: int) -> asyncio.Task[None]:
    offset = ConsumerOffset(consumer=f"c{number}", stream="s", partition=0, offset=number)
    return asyncio.ensure_future(table.commit(offset.consumer, [offset]))


async def test_commits_that_wait_are_bounded_also_of_those_who_wait_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen by reading: clients that gave up and came again, while an append was waited for, left theirs there."""
    held = Held()
    table = Consumers(held)  # type: ignore[arg-type]
    first = committing(table, 0)
    while not held.appends:
        await asyncio.sleep(0)
    waiting = committing(table, 1)
    await asyncio.sleep(0)
    monkeypatch.setattr(consumers, "WAITING_BYTES_MAX", 3 * table._waiting_bytes)
    gone = [committing(table, number) for number in (2, 3)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    with pytest.raises(Overloaded):
        await committing(table, 4)
    held.appends[0].set_result(None)
    await first
    while len(held.appends) < 2:
        await asyncio.sleep(0)
    last = committing(table, 5)
    held.appends[1].set_result(None)
    await waiting
    while len(held.appends) < 3:
        await asyncio.sleep(0)
    held.appends[2].set_result(None)
    await last
    assert table.consumers() == ["c0", "c1", "c2", "c3", "c5"]
    assert table._waiting_bytes == 0


async def test_what_waits_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB of commits at once took the loop, which everybody waits for, for over ten seconds."""
    monkeypatch.setattr(consumers, "AT_ONCE", 5)
    held = Held()
    table = Consumers(held)  # type: ignore[arg-type]

    def of(number: int, count: int) -> asyncio.Task[None]:
        offsets = [ConsumerOffset(consumer=f"c{number}", stream="s", partition=at, offset=1) for at in range(count)]
        return asyncio.ensure_future(table.commit(f"c{number}", offsets))

    first = of(0, 1)
    while not held.appends:
        await asyncio.sleep(0)
    others = [of(number, count) for number, count in enumerate((2, 2, 2, 9, 1, 4), 1)]
    await asyncio.sleep(0)
    for number in range(5):
        while len(held.appends) <= number:
            await asyncio.sleep(0)
        held.appends[number].set_result(None)
    await asyncio.gather(first, *others)
    assert held.rows == [1, 4, 2, 9, 5]
    assert table._waiting_bytes == 0


async def test_a_fault_of_ours_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    table = Consumers(held)  # type: ignore[arg-type]

    def broken(*_: object, **__: object) -> Any:
        raise ValueError("made to fail")

    with monkeypatch.context() as patch:
        patch.setattr(consumers, "offset_rows", broken)
        with pytest.raises(ValueError, match="made to fail"):
            await asyncio.wait_for(committing(table, 0), 10)
    next_one = committing(table, 1)
    while not held.appends:
        await asyncio.sleep(0)
    held.appends[0].set_result(None)
    await next_one
    assert table.consumers() == ["c1"]
