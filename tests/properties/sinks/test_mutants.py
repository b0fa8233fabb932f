"""Each rule of the protocol, broken on purpose, is found: the tests can fail.

The first ones are found by the power cuts of test_crash; the first step at which it shows ends the search. The others
concern orders that a single run does not reach, and are found by the scenarios that are named with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from broker.api.errors import CorruptLog, LiftlogError, StageLost
from broker.node.partitions.partition import Partition
from broker.node.sinks.coordinator import Sinks
from broker.node.sinks.rounds import SinkRounds
from broker.node.sinks.stage_log import StageLog
from broker.node.sinks.stages import StageStore
from broker.sinks.ledger import CommitRequest, Ledger
from broker.sinks.notes import StagePinned
from broker.sinks.stages import StageTable
from broker.sinks.state import SinkState
from tests.properties.sinks import scenarios as play
from tests.properties.sinks.test_crash import STEPS, check_after, crash, fail_and_cut, live, prepared
from tests.support.sinks import Attempt, World


def is_found(*, bundles: bool = False) -> bool:
    try:
        live(prepared(), World(), bundles=bundles)
        for step in range(STEPS, 0, -1):
            try:
                disk, world = crash(step, bundles=bundles)
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


@pytest.mark.slow
@pytest.mark.long
def test_a_group_that_is_not_looked_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StageStore, "_find", nothing_found)
    assert is_found()


def test_notes_that_are_not_durable_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pin, a part or a finished note is gone after the cut, and was answered."""
    monkeypatch.setattr(StageLog, "make_durable", skip)
    assert is_found()


def test_a_pin_that_leaves_bundles_as_they_are_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StageStore, "make_durable", skip)
    assert is_found(bundles=True)


def test_a_pin_that_takes_a_failed_fsync_for_done_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    make_durable = StageLog.make_durable

    def try_it(self: StageLog, generation: int) -> None:
        with suppress(LiftlogError):
            make_durable(self, generation)

    monkeypatch.setattr(StageLog, "make_durable", try_it)
    with pytest.raises(CorruptLog, match="was decided with"):
        list(map(fail_and_cut, range(60)))


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
    judge = Ledger.judge

    def always_new(self: Ledger, *args: Any, **kwargs: Any) -> str:
        judge(self, *args, **kwargs)
        return "new"

    monkeypatch.setattr(Ledger, "judge", always_new)
    assert is_found()


def test_a_part_that_is_stored_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StageTable, "has_part", lambda *_: False)
    assert is_found()


# --- found by scenarios

Patch = pytest.MonkeyPatch


def kept_pins(patch: Patch) -> None:
    """A stage that is pinned keeps its pin, whoever commits it."""
    check = StageTable.check_pin

    def newest(self: StageTable, stage: str, *, epoch: int, **more: Any) -> StagePinned | None:
        pin = check(self, stage, epoch=epoch, **more)
        return pin and replace(pin, epoch=epoch)

    patch.setattr(StageTable, "check_pin", newest)


def newer_is_over(patch: Patch) -> None:
    """A pin epoch above the current one counts as over."""
    is_open = Ledger.is_open

    def known_only(self: Ledger, pin: StagePinned) -> bool:
        state = self.states.get(pin.sink)
        return is_open(self, pin) and (state is None or pin.epoch <= state.epoch or state.names(pin.stage))

    patch.setattr(Ledger, "is_open", known_only)


def late_batch_is_over(patch: Patch) -> None:
    """The batch id is looked at before the epoch."""
    is_open = Ledger.is_open

    def by_batch(self: Ledger, pin: StagePinned) -> bool:
        state = self.states.get(pin.sink)
        late = state is not None and state.last is not None and pin.batch_id <= state.last.batch_id
        return is_open(self, pin) and (not late or self.is_named(pin))

    patch.setattr(Ledger, "is_open", by_batch)


def unknown_is_over(patch: Patch) -> None:
    """An unknown sink decides nothing any more."""
    is_open = Ledger.is_open
    patch.setattr(Ledger, "is_open", lambda self, pin: pin.sink in self.states and is_open(self, pin))


def drop_whatever_is_there(patch: Patch) -> None:
    """A drop does not look at the pin epoch that was judged."""

    def drop(self: StageStore, stages: Mapping[str, int], *, sink: str, why: str, leader_epoch: int, **_: Any) -> int:
        return self._drop(lambda _: True, stages, sink=sink, why=why, leader_epoch=leader_epoch)

    patch.setattr(StageStore, "drop", drop)


def drop_in_any_leadership(patch: Patch) -> None:
    patch.setattr(StageLog, "check_epoch", skip)


def append_in_any_leadership(patch: Patch) -> None:
    append = Partition.append_now

    def unjudged(self: Partition, *args: Any, leader_epoch: int | None = None, **more: Any) -> Any:
        return append(self, *args, **more)

    patch.setattr(Partition, "append_now", unjudged)
    patch.setattr(StageLog, "check_epoch", skip)


def fence_one_owner(patch: Patch) -> None:
    """The fence of an idle pin takes its owner away, and leaves the others."""

    def fenced(self: Ledger, sink: str, *, epoch: int, now_us: int) -> SinkState:
        state = self.get(sink)
        idle = max(state.owners.values())
        return replace(state, owners={o: e for o, e in state.owners.items() if e != idle})

    is_open = Ledger.is_open

    def owned(self: Ledger, pin: StagePinned) -> bool:
        state = self.get(pin.sink)
        return is_open(self, pin) and (state.names(pin.stage) or pin.epoch in state.owners.values())

    patch.setattr(Ledger, "fenced", fenced)
    patch.setattr(Ledger, "is_open", owned)


def fence_nobody(patch: Patch) -> None:
    patch.setattr(SinkRounds, "_fence_idle", skip)


def older_pin_is_answered(patch: Patch) -> None:
    """A pin of an older epoch is answered as pinned already."""
    check = StageTable.check_pin

    def any_epoch(self: StageTable, stage: str, *, epoch: int, **more: Any) -> StagePinned | None:
        try:
            return check(self, stage, epoch=epoch, **more)
        except StageLost:
            return check(self, stage, epoch=1 << 60, **more)

    patch.setattr(StageTable, "check_pin", any_epoch)


def search_from_the_newest_pin(patch: Patch) -> None:
    """A renewed pin forgets where its group was looked for."""
    check = StageTable.check_pin

    def elsewhere(self: StageTable, stage: str, **more: Any) -> StagePinned | None:
        pin = check(self, stage, **more)
        return pin and replace(pin, search_from=1 << 60)

    patch.setattr(StageTable, "check_pin", elsewhere)


def search_from_the_high_watermark(patch: Patch) -> None:
    """Though it may be above the durable end."""
    ready = StageLog.ready

    def as_if_durable(self: StageLog) -> StageTable:
        table = ready(self)
        self._main.log.state.durable_end = max(self._main.log.state.durable_end, self._main.log.state.high_watermark)
        return table

    patch.setattr(StageLog, "ready", as_if_durable)


def renewed_is_untried(patch: Patch) -> None:
    """A stage that is pinned anew counts as never tried."""
    pin = StageStore.pin

    def fresh(self: StageStore, stages: Any, **more: Any) -> Any:
        refs = pin(self, stages, **more)
        self._untried |= {stage for stage, _ in stages}
        return refs

    patch.setattr(StageStore, "pin", fresh)


def untried_for_ever(patch: Patch) -> None:
    patch.setattr(StageStore, "_lead", skip)


def floor_of_nothing(patch: Patch) -> None:
    patch.setattr(StageTable, "floor", skip)


def away_is_gone(patch: Patch) -> None:
    patch.setattr(Sinks, "_is_gone", lambda *_: True)


def epoch_for_each_open(patch: Patch) -> None:
    patch.setattr(Ledger, "epoch_of", skip)


def open_makes_current(patch: Patch) -> None:
    opened = Ledger.opened

    def fencing(self: Ledger, sink: str, owner: str, **more: Any) -> SinkState:
        state = opened(self, sink, owner, **more)
        return replace(state, epoch=state.owners[owner])

    patch.setattr(Ledger, "opened", fencing)


def any_epoch_that_is_high_enough(patch: Patch) -> None:
    judge = Ledger.judge

    def without_owner(self: Ledger, sink: str, commit: CommitRequest) -> str:
        self.apply(replace(self.get(sink), owners={**self.get(sink).owners, commit.owner: commit.epoch}))
        return judge(self, sink, commit)

    patch.setattr(Ledger, "judge", without_owner)


def epochs_are_counted(patch: Patch) -> None:
    """From 1 on for each sink, as they were."""
    opened = Ledger.opened
    patch.setattr(Ledger, "opened", lambda self, sink, owner, **m: opened(self, sink, owner, **{**m, "epoch": 0}))


def old_epochs_survive_a_reset(patch: Patch) -> None:
    reset = Ledger.reset

    def same_epoch(self: Ledger, sink: str, batch_id: int, **more: Any) -> SinkState:
        return replace(reset(self, sink, batch_id, **more), epoch=self.get(sink).epoch)

    patch.setattr(Ledger, "reset", same_epoch)


def judged_once(patch: Patch) -> None:
    """Not again where the decision is appended."""
    decided = Ledger.decided

    def trusting(self: Ledger, sink: str, commit: CommitRequest, decision: Any) -> SinkState:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Ledger, "judge", lambda *_: "new")
            return decided(self, sink, commit, decision)

    patch.setattr(Ledger, "decided", trusting)


def superseded_though_pinned(patch: Patch) -> None:
    def all_older(self: StageTable, sink: str, epoch: int) -> list[str]:
        return [s.stage for s in self.stages.values() if s.sink == sink and s.epoch < epoch]

    def abort(self: StageStore, stages: Any, *, sink: str) -> int:
        return self._drop(lambda _: True, stages, sink=sink, why="aborted")

    patch.setattr(StageTable, "superseded", all_older)
    patch.setattr(StageStore, "abort", abort)


def repetition_leaves_the_owner(patch: Patch) -> None:
    """Only a new decision makes its owner current."""
    made = Ledger.made_current

    def unless_repeated(self: Ledger, sink: str, commit: CommitRequest, *, now_us: int) -> SinkState:
        state = self.get(sink)
        is_repeated = state.last is not None and state.last.batch_id == commit.batch_id
        return replace(state, changed_us=now_us) if is_repeated else made(self, sink, commit, now_us=now_us)

    patch.setattr(Ledger, "made_current", unless_repeated)


def rows_do_not_matter(patch: Patch) -> None:
    judge = Ledger.judge
    patch.setattr(Ledger, "judge", lambda self, sink, commit: judge(self, sink, replace(commit, keeps_first=True)))


def digests_do_not_matter(patch: Patch) -> None:
    judge = Ledger.judge
    patch.setattr(Ledger, "judge", lambda self, sink, commit: judge(self, sink, replace(commit, digest="")))


def digest_of_where_rows_stand(patch: Patch) -> None:
    patch.setattr(Attempt, "digest", property(lambda self: str(self.number)))


def gaps_do_not_matter(patch: Patch) -> None:
    judge = Ledger.judge
    patch.setattr(Ledger, "judge", lambda self, sink, commit: judge(self, sink, replace(commit, follows=None)))


def removed_though_unfinished(patch: Patch) -> None:
    patch.setattr(Ledger, "check_done", skip)


def no_grace(patch: Patch) -> None:
    patch.setattr(SinkRounds, "_is_over", lambda _, state: state.is_one_shot and state.is_done)


def pins_make_room(patch: Patch) -> None:
    def making_room(self: StageTable, owners: Any, bytes_max: int) -> list[str]:
        return [stage.stage for stage in self.stages.values() if (stage.sink, stage.epoch) in owners]

    patch.setattr(StageTable, "making_room", making_room)


MUTANTS: list[tuple[Callable[[Patch], None], Callable[[], None]]] = [
    (kept_pins, play.sweep_between_pin_and_decision),
    (newer_is_over, play.newer_epoch_is_swept),
    (late_batch_is_over, play.stale_sweep_after_a_reset),
    (unknown_is_over, play.stale_sweep_of_a_sink_it_does_not_know),
    (drop_whatever_is_there, play.late_drop),
    (drop_whatever_is_there, play.late_drop_of_a_repetition),
    (drop_in_any_leadership, play.drop_of_another_leadership),
    (append_in_any_leadership, play.searched_in_another_leadership),
    (append_in_any_leadership, play.judged_before_a_take_over),
    (fence_one_owner, play.idle_pin_of_two_runs),
    (fence_nobody, play.idle_pin_below_the_current_run),
    (fence_nobody, play.pins_of_a_sink_that_nobody_knows),
    (older_pin_is_answered, play.late_pin_of_an_older_run),
    (search_from_the_newest_pin, play.pinned_anew_beside_its_own_group),
    (search_from_the_high_watermark, play.power_cut_below_the_high_watermark),
    (renewed_is_untried, play.pinned_anew_beside_its_own_group),
    (floor_of_nothing, play.pinned_anew_beside_its_own_group),
    (untried_for_ever, play.never_tried_by_this_leadership),
    (away_is_gone, play.stream_is_not_open),
    (epoch_for_each_open, play.tasks_open_for_themselves),
    (epoch_for_each_open, play.superseded_run_opens_again),
    (open_makes_current, play.late_task_of_a_dead_run_opens),
    (any_epoch_that_is_high_enough, play.zombie_of_a_deleted_sink),
    (epochs_are_counted, play.zombie_of_a_deleted_sink),
    (old_epochs_survive_a_reset, play.zombie_after_a_reset),
    (judged_once, play.overtaken_between_pin_and_decision),
    (superseded_though_pinned, play.heir_commits_what_was_staged_before),
    (repetition_leaves_the_owner, play.repetition_by_an_heir),
    (rows_do_not_matter, play.rolled_back_by_one_batch),
    (digests_do_not_matter, play.planned_anew_with_as_many_rows),
    (digest_of_where_rows_stand, play.planned_anew_with_as_many_rows),
    (gaps_do_not_matter, play.restored_from_an_older_copy),
    (removed_though_unfinished, play.deleted_while_unfinished),
    (no_grace, play.job_repeats_its_commit),
    (pins_make_room, play.silent_one_comes_back),
]


@pytest.mark.parametrize("mutant,scenario", MUTANTS, ids=lambda value: value.__name__)
def test_a_rule_that_is_broken_is_found(
    mutant: Callable[[Patch], None], scenario: Callable[[], None], monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)):
        scenario()


def test_each_scenario_finds_a_mutant() -> None:
    assert {scenario for _, scenario in MUTANTS} == set(play.SCENARIOS)
