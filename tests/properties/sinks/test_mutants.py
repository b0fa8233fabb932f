"""Each rule of the protocol, broken on purpose, is found by the power cuts of test_crash: the test can fail.

What each wrong reading loses is what the comments say; the first step at which it shows ends the search.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.runtime.sinks import Sinks
from broker.runtime.stage_log import StageLog
from broker.runtime.stages import StageStore
from broker.sinks.stages import StageTable
from tests.properties.sinks.test_crash import STEPS, check_after, crash, live, prepared
from tests.support.sinks import World


def is_found() -> bool:
    try:
        live(prepared(), World())
        for step in range(STEPS, 0, -1):
            try:
                disk, world = crash(step)
            except pytest.fail.Exception:  # the mutant makes fewer steps
                continue
            check_after(disk.after_crash("lost", seed=step), world)
    except Exception:
        return True
    return False


def skip(*_: Any, **__: Any) -> None:
    """Does nothing."""


def nothing_found(*_: Any) -> None:
    """A group is never looked for: it is appended again."""


def test_a_group_that_is_not_looked_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StageStore, "_find", nothing_found)
    assert is_found()


def test_notes_that_are_not_durable_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pin, a part or a finished note is gone after the cut, and was answered."""
    monkeypatch.setattr(StageLog, "make_durable", skip)
    assert is_found()


def test_a_commit_answered_before_it_is_finished_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sinks, "complete", lambda self, sink: self.describe(sink))
    assert is_found()


def test_a_repetition_that_drops_what_the_decision_names_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_named(self: Sinks, sink: str) -> Any:
        state = self.describe(sink)
        if not state.is_done and state.last is not None:
            for ref in state.last.stages:
                store = self.stores.store(ref.stream, ref.partition)
                epoch = store.main.leader_epoch
                store.drop({ref.stage: state.last.epoch}, sink=sink, leader_epoch=epoch, why="")
        return complete(self, sink)

    complete = Sinks.complete
    monkeypatch.setattr(Sinks, "complete", drop_named)
    assert is_found()


def test_the_first_decision_not_winning_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from broker.sinks.ledger import Ledger

    judge = Ledger.judge

    def always_new(self: Ledger, *args: Any, **kwargs: Any) -> str:
        judge(self, *args, **kwargs)
        return "new"

    monkeypatch.setattr(Ledger, "judge", always_new)
    assert is_found()


def test_a_part_that_is_stored_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StageTable, "has_part", lambda *_: False)
    assert is_found()
