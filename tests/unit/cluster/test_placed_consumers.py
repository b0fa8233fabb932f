"""Which table of consumer offsets is answered from, while leaderships begin and the log is read (O1 and O4 of
`node.offsets`).

Method: reads of the log run when a test says so, and say when they are half way.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.errors import NotReady
from broker.node import offsets
from broker.node.offsets import PlacedConsumers


class Reads:
    """An executor whose work waits. `half_way`: called by each read, after it has begun."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.half_way: list[Callable[[], None]] = []

    def submit(self, read: Callable[..., None], *given: Any) -> None:
        self.waiting.append(lambda: read(*given))

    def run(self) -> None:
        self.waiting.pop(0)()

    def table(self, partition: Any, *, leader_epoch: int) -> Any:
        if self.half_way:
            self.half_way.pop(0)()
        return SimpleNamespace(at=(partition, leader_epoch))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    made = Reads()
    monkeypatch.setattr(offsets, "Consumers", made.table)
    monkeypatch.setattr(offsets, "WholeRead", lambda _: SimpleNamespace(check=lambda: None))
    return made


def test_a_table_that_commits_have_gone_to_is_not_replaced(reads: Reads) -> None:
    """Seen under an operator's attack: a leadership began while the log was read for the one before, and it was read
    twice. The second read did not hold the commits after the first: a committed offset went back."""
    partition = SimpleNamespace(leader_epoch=1, end=0)
    placed = PlacedConsumers(lambda *_: partition, reads, lambda: "")  # type: ignore[arg-type,return-value]

    def is_not_ready() -> None:
        with pytest.raises(NotReady):
            placed.here()

    def another_leadership() -> None:
        partition.leader_epoch = 2
        is_not_ready()

    is_not_ready()
    reads.half_way.append(another_leadership)
    reads.run()
    is_not_ready()
    reads.run()
    answered_from = placed.here()
    while reads.waiting:
        reads.run()
    assert placed.here() is answered_from


def test_a_read_that_ends_late_replaces_no_table_of_a_later_leadership(reads: Reads) -> None:
    partition = SimpleNamespace(leader_epoch=1, end=0)
    placed = PlacedConsumers(lambda *_: partition, reads, lambda: "")  # type: ignore[arg-type,return-value]
    found: list[Any] = []

    def another_leadership() -> None:
        partition.leader_epoch = 2
        with pytest.raises(NotReady):
            placed.here()
        reads.run()
        found.append(placed.here())

    with pytest.raises(NotReady):
        placed.here()
    reads.half_way.append(another_leadership)
    reads.run()
    assert [placed.here()] == found
    assert reads.waiting == []


def test_a_read_that_failed_is_tried_again(reads: Reads) -> None:
    partition = SimpleNamespace(leader_epoch=1, end=0)
    placed = PlacedConsumers(lambda *_: partition, reads, lambda: "")  # type: ignore[arg-type,return-value]

    def fails() -> None:
        raise OSError("the disk")

    reads.half_way.append(fails)
    for _ in range(2):
        with pytest.raises(NotReady):
            placed.here()
        reads.run()
    placed.here()
