"""Goal: what a broker asks of the catalog is asked once at a time for each key, and again if it failed; and many
partitions ask by few commands.

Method: an executor whose work is done when the test says so; a catalog that answers, refuses, or breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from broker.api.errors import LiftlogError, NotReady
from broker.metadata.partition import Place
from broker.node.asks import Asks, BatchedAsks


class Later(Executor):
    """Work that waits until it is done by `work`."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], Any]] = []
        self.is_over = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.is_over:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self.waiting.append(lambda: fn(*args, **kwargs))
        return Future()

    def work(self) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()


class Catalog:
    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def execute(self, command: Mapping[str, Any], **_: Any) -> Any:
        self.asked.append(dict(command))
        if self.error is not None:
            raise self.error
        return {"number": len(self.asked)}


class Asked:
    def __init__(self) -> None:
        self.catalog, self.later, self.told = Catalog(), Later(), list[Any]()
        self.asks = Asks(self.catalog, self.later)  # type: ignore[arg-type]

    def ask(self, key: str, number: int = 0) -> None:
        self.asks.ask(key, "note", lambda: {"number": number}, failed=self._failed, answered=self._answered)

    def _failed(self, error: LiftlogError) -> None:
        self.told.append((error.reason, "a" in self.asks))

    def _answered(self, said: Mapping[str, Any]) -> None:
        self.told.append((said["number"], "a" in self.asks))


@pytest.fixture
def asked() -> Asked:
    return Asked()


def numbers(asked: Asked) -> list[int]:
    return [command["number"] for command in asked.catalog.asked]


def test_what_is_under_way_is_not_asked_again_and_another_key_is(asked: Asked) -> None:
    """A1."""
    asked.ask("a", 1)
    asked.ask("a", 2)
    asked.ask("b", 3)
    assert ("a" in asked.asks, "b" in asked.asks, "c" in asked.asks) == (True, True, False)
    asked.later.work()
    assert numbers(asked) == [1, 3]
    assert asked.catalog.asked[0] == {"v": asked.catalog.asked[0]["v"], "kind": "note", "number": 1}
    assert ("a" in asked.asks, "b" in asked.asks) == (False, False)
    asked.ask("a", 4)
    asked.later.work()
    assert numbers(asked) == [1, 3, 4]


def test_who_asked_is_told_before_it_is_over(asked: Asked) -> None:
    """A3."""
    asked.ask("a")
    asked.later.work()
    asked.catalog.error = NotReady("no controller")
    asked.ask("a")
    asked.later.work()
    assert asked.told == [(1, True), ("not_ready", True)]


def test_a_question_that_failed_is_asked_again_by_whoever_looks_next(asked: Asked) -> None:
    """A2."""
    asked.catalog.error = NotReady("no controller")
    for number in range(2):
        asked.ask("a", number)
        asked.later.work()
    assert numbers(asked) == [0, 1]


def test_a_fault_of_ours_and_a_stop_leave_nothing_under_way(asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
    """A3."""
    asked.catalog.error = ZeroDivisionError()
    asked.ask("a")
    asked.later.work()
    assert "a" not in asked.asks
    (record,) = caplog.records
    assert (record.message, record.exc_info and record.exc_info[0]) == (
        "catalog.ask_bug kind=note key=a",
        ZeroDivisionError,
    )
    asked.later.is_over = True
    asked.ask("a")
    assert "a" not in asked.asks


def test_its_values_are_made_where_it_is_asked(asked: Asked) -> None:
    """So what has changed while it waited for a thread counts."""
    now = {"number": 1}
    asked.asks.ask("a", "note", lambda: now, failed=asked._failed)
    now["number"] = 2
    asked.later.work()
    assert numbers(asked) == [2]


class Batched(Asked):
    """Questions of many partitions, three by one command."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[tuple[dict[Place, int], str]] = []
        self.batched = BatchedAsks[int](
            self.asks,
            "note",
            lambda asked: {"asked": dict(asked)},
            at_once=3,
            failed=lambda asked, error: self.failures.append((dict(asked), error.reason)),
            answered=lambda asked, said: self.told.append((dict(asked), said["number"])),
        )

    def sent(self) -> list[dict[Place, int]]:
        """What each command has asked for."""
        return [command["asked"] for command in self.catalog.asked]


def at(number: int) -> Place:
    return "s", number


@pytest.fixture
def batched() -> Batched:
    return Batched()


def test_what_is_added_while_a_command_is_under_way_goes_by_the_next_ones(batched: Batched) -> None:
    """A4."""
    for number in range(6):
        batched.batched.ask(at(number), number)
    assert len(batched.later.waiting) == 1
    for count in (1, 2, 3):
        batched.later.work()
        assert len(batched.sent()) == count
    assert batched.sent() == [{at(0): 0}, {at(1): 1, at(2): 2, at(3): 3}, {at(4): 4, at(5): 5}]
    assert batched.told == [(asked, 1 + number) for number, asked in enumerate(batched.sent())]
    assert batched.later.waiting == []
    batched.batched.ask(at(0), 0)
    batched.later.work()
    assert batched.sent()[3:] == [{at(0): 0}]


def test_the_same_is_not_asked_again_and_the_latest_of_what_waits_counts(batched: Batched) -> None:
    """A1, A4."""
    for number in (0, 1):
        batched.batched.ask(at(number), 7)
    batched.batched.ask(at(0), 7)
    for newer in (8, 9):
        batched.batched.ask(at(1), newer)
    batched.later.work()
    batched.batched.ask(at(0), 7)  # by now it is not under way
    while batched.later.waiting:
        batched.later.work()
    assert batched.sent() == [{at(0): 7}, {at(1): 9}, {at(0): 7}]


@pytest.mark.parametrize("error", [NotReady("no controller"), ZeroDivisionError()])
def test_a_command_that_failed_holds_up_no_later_one(batched: Batched, error: Exception) -> None:
    """A3."""
    batched.catalog.error = error
    for number in range(2):
        batched.batched.ask(at(number), number)
    batched.later.work()
    assert batched.failures == ([({at(0): 0}, "not_ready")] if isinstance(error, LiftlogError) else [])
    batched.catalog.error = None
    batched.later.work()
    assert batched.sent() == [{at(0): 0}, {at(1): 1}]
    assert batched.told == [({at(1): 1}, 2)]
