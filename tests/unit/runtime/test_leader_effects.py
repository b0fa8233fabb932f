"""Goal: what the catalog answers to one log of a replica is never told to the next one, whose questions may have the
same numbers: its leader would stop counting a member that the catalog is about to add. And no trim outlives the
leadership that it was asked in.

Method: the effects of a leader's core, with partitions that note what they are told, and a catalog that answers when
the test lets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.api.errors import DiskFull
from broker.metadata.partition import PartitionState
from broker.node.isr_changes import IsrChanges
from broker.node.leader_effects import LeaderEffects
from broker.node.partitions.partition import Partition
from broker.node.wiring import Followers, Host
from broker.replication.events import AskIsr, StartMoved, Trim, TrimRefused
from tests.support.processes import eventually

AT = ("i", 0)


class Noting:
    """A partition, and who answers its followers."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int | None]] = []

    def isr_answered(self, state: PartitionState, request: int | None = None) -> None:
        self.told.append((state.leader_epoch, request))

    def close(self) -> None:
        pass


class Catalog:
    """Each question waits for an answer of its own. `b` is live, `c` held for dead, both under registration 3."""

    catalog: Any

    def __init__(self) -> None:
        brokers = {name: SimpleNamespace(registration=3, is_live=name == "b") for name in "bc"}
        state = PartitionState(replicas=("a", "b", "c"), isr=("a",), leader="a", leader_epoch=5, partition_epoch=7)
        self.catalog = SimpleNamespace(
            brokers=brokers, cluster=SimpleNamespace(partitions={AT: state}, feature_level=1)
        )
        self.asked: list[tuple[dict[str, Any], Queue[PartitionState]]] = []
        self.touched = None

    def execute(self, command: Mapping[str, Any], **_: object) -> Any:
        answer: Queue[PartitionState] = Queue()
        self.asked.append((dict(command), answer))
        return {"state": answer.get(timeout=60).as_dict()}

    def subscribe(self, callback: Callable[[], None]) -> None:
        raise AssertionError("nobody here does")

    def answer(self, number: int, epoch: int) -> None:
        state = PartitionState(replicas=("a", "b"), isr=("a",), leader="a", leader_epoch=epoch, partition_epoch=7)
        self.asked[number][1].put(state)


@pytest.fixture
def commands() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_a_late_answer_is_not_for_the_log_that_was_made_since(commands: ThreadPoolExecutor) -> None:
    catalog, first, second = Catalog(), Noting(), Noting()
    host = cast(Host, SimpleNamespace(me="a", service=catalog, commands=commands))
    changes = IsrChanges("a", catalog, commands)
    effects = LeaderEffects(host, AT, changes, ask_turn=lambda: None, step_out=lambda why: None)

    def begin(partition: Noting, epoch: int) -> None:
        effects.begin(cast(Partition, partition), cast(Followers, partition))
        effects.do(AskIsr(request=1, epoch=epoch, partition_epoch=7, add="b", incarnation=(3, 0)))

    begin(first, 5)
    eventually(lambda: len(catalog.asked) == 1, what="the first question")
    effects.end()  # a damaged replica has stepped out, and begins anew; later it leads again
    begin(second, 9)
    eventually(lambda: len(catalog.asked) == 2, what="the question of the second log, beside the first one's")
    catalog.answer(0, epoch=9)  # a refusal of what the first one had asked, judged when the second one leads
    effects.do(AskIsr(request=1, epoch=9, partition_epoch=7, add="b", incarnation=(3, 0)))
    catalog.answer(1, epoch=9)
    eventually(lambda: second.told, what="the answer to the second log")
    commands.shutdown()
    assert first.told == []
    assert sorted(second.told, key=str) == [(9, 1), (9, None)]  # the first is news of the catalog, and no answer
    assert len(catalog.asked) == 2


@pytest.mark.parametrize(("add", "registration", "is_asked"), [("b", 3, True), ("c", 3, False), ("c", 4, True)])
def test_who_is_held_for_dead_is_refused_without_a_question(
    commands: ThreadPoolExecutor, add: str, registration: int, is_asked: bool
) -> None:
    """Under another registration it may have come back, and this broker has not heard of it."""
    catalog, partition = Catalog(), Noting()
    host = cast(Host, SimpleNamespace(me="a", service=catalog, commands=commands))
    changes = IsrChanges("a", catalog, commands)
    effects = LeaderEffects(host, AT, changes, ask_turn=lambda: None, step_out=lambda why: None)
    effects.begin(cast(Partition, partition), cast(Followers, partition))
    effects.do(AskIsr(request=1, epoch=5, partition_epoch=7, add=add, incarnation=(registration, 0)))
    if is_asked:
        eventually(lambda: catalog.asked, what="the question")
        catalog.answer(0, epoch=5)
    eventually(lambda: partition.told == [(5, 1)], what="the answer")
    assert len(catalog.asked) == is_asked


class Trimmed:
    """A partition whose disk refuses a trim until it is told not to."""

    def __init__(self) -> None:
        self.leads, self.leader_epoch, self.refuses = True, 5, True
        self.kept_start_offset = 0
        self.log = self.checkpoints = self.replica = self
        self.stepped: list[object] = []

    def trim(self, start: int) -> int:
        if self.refuses:
            raise DiskFull("made to refuse")
        self.kept_start_offset = start
        return start

    def look_at_failure(self) -> None:
        pass

    def step(self, event: object) -> None:
        self.stepped.append(event)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("leads_again", [False, True])
def test_a_trim_that_the_disk_refused_is_not_done_in_another_leadership(
    caplog: pytest.LogCaptureFixture, leads_again: bool
) -> None:
    """W3. It is tried some times each second, and said once."""
    partition = Trimmed()
    effects = LeaderEffects(
        cast(Host, None), AT, cast(IsrChanges, None), ask_turn=lambda: None, step_out=lambda why: None
    )
    effects.begin(cast(Partition, partition), cast(Followers, partition))
    effects.do(Trim(7))
    assert not effects.trim()
    assert not effects.trim()
    assert caplog.text.count("replica.not_trimmed") == 1
    assert [type(event) for event in partition.stepped] == [TrimRefused, TrimRefused]
    partition.stepped.clear()
    partition.refuses = False
    if leads_again:
        partition.leader_epoch = 9
    assert effects.trim()
    assert partition.kept_start_offset == (0 if leads_again else 7)
    assert partition.stepped == ([] if leads_again else [StartMoved(7)])


def test_a_trim_of_what_retention_has_let_go_is_over_at_once() -> None:
    """Its core has not heard of that: it is told at a tick, and who trims need not wait for one."""
    partition = Trimmed()
    effects = LeaderEffects(
        cast(Host, None), AT, cast(IsrChanges, None), ask_turn=lambda: None, step_out=lambda why: None
    )
    effects.begin(cast(Partition, partition), cast(Followers, partition))
    effects.do(Trim(7))
    partition.kept_start_offset = 9
    assert effects.trim()
    assert partition.stepped == [StartMoved(9)]
