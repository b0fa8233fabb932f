"""Which owners are silent, and whose stages make room for others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from broker.api.errors import NotReady, SinkFenced, StageLost, StagesFull, UnknownSink
from broker.node.sinks import coordinator
from broker.node.sinks.coordinator import renew_ms
from broker.node.sinks.room import put_with_room, silent_first
from broker.node.sinks.stages import StageLimits, StageStore
from broker.sinks.silence import PATIENCE, Holding, Signs
from broker.sinks.state import SinkState
from tests.support.simdisk import SimDisk
from tests.support.sinks import SINK, STREAM, Driver, Rig, World, rows_of

LIMIT_US = StageLimits().owner_silent_ms * 1_000
STATES = {"s": SinkState(sink="s", owners={"a": 1, "b": 2, "c": 3}, epoch=1)}


class Signed:
    """Signs of sink `s` by a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_us = 5
        self.signs = Signs(100, lambda: self.now_us, 7)

    def silent(self, epoch: int, *, leader_epoch: int = 7, sink: str = "s") -> tuple[int, bool]:
        (found,) = self.signs.look(leader_epoch, STATES, [(sink, epoch)])
        return found.silent_us, found.is_silent


def test_an_owner_that_renews_is_silent_after_the_limit() -> None:
    signed = Signed()
    signed.now_us += 1_000
    signed.signs.heard(7, ("s", 1), renews=True)
    signed.now_us += 99
    assert signed.silent(1) == (99, False)
    signed.now_us += 1
    assert signed.silent(1) == (100, True)
    signed.signs.heard(7, ("s", 1))
    assert signed.silent(1) == (0, False), "any sign of life counts"


def test_one_that_never_renewed_has_more_patience() -> None:
    signed = Signed()
    signed.signs.heard(7, ("s", 2))
    signed.now_us += 100 * PATIENCE - 1
    assert signed.silent(2) == (100 * PATIENCE - 1, False)
    signed.now_us += 1
    assert signed.silent(2)[1]
    assert signed.silent(3)[1], "also one that was never heard of"


def test_a_new_coordinator_takes_all_for_fresh_and_not_for_ever() -> None:
    signed = Signed()
    signed.signs.heard(7, ("s", 1), renews=True)
    signed.now_us += 1_000_000
    assert signed.silent(1, leader_epoch=8) == (0, False), "its predecessor heard of them, it did not"
    signed.signs.heard(8, ("s", 1), renews=True)
    signed.now_us += 100
    assert signed.silent(1, leader_epoch=8)[1]
    assert not signed.silent(2, leader_epoch=8)[1]
    signed.now_us += 100 * PATIENCE
    assert signed.silent(2, leader_epoch=8)[1]


def test_who_can_commit_nothing_any_more_is_silent_at_once() -> None:
    signed = Signed()
    assert not signed.silent(1)[1]
    assert signed.silent(0)[1], "superseded"
    assert signed.silent(9)[1], "forgotten, or never given"
    assert signed.silent(1, sink="deleted")[1]


def test_signs_are_kept_of_those_alone_who_may_commit() -> None:
    signed = Signed()
    for epoch in (1, 9):
        signed.signs.heard(7, ("s", epoch), renews=True)
    signed.signs.keep(7, STATES.values())
    assert signed.signs._heard == {("s", 1): 5}
    assert signed.signs._renewing == {("s", 1)}


def test_renewals_come_several_times_within_the_limit() -> None:
    assert renew_ms(StageLimits()) == 10_000
    assert renew_ms(StageLimits(owner_silent_ms=1_200)) == 200


# --- room


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig(SimDisk(), limits=StageLimits(stage_bytes_max=1))  # one part fills a partition
    yield rig
    rig.drop()


class Job:
    """A run of a sink of its own."""

    def __init__(self, rig: Rig, sink: str, *, renews: bool = True) -> None:
        self.rig, self.sink = rig, sink
        self.epoch = rig.sinks.open(sink, "run").epoch
        self.stages = 0
        if renews:
            self.renew()

    def renew(self) -> None:
        self.rig.sinks.renew(self.sink, "run")

    def stage(self, value: bytes = b"x", *, part: int = 0, is_last: bool = True) -> str:
        """One part of a new stage in partition 0; part 0 begins one."""
        self.stages += part == 0
        stage = f"{self.epoch:016x}{self.stages:016x}"
        store = self.rig.store(STREAM, 0)
        _, generation = put_with_room(
            store,
            self.rig.sinks.silences,
            [rows_of([value])],
            lambda: self.rig.sinks.check_stage(self.sink, self.epoch),
            sink=self.sink,
            epoch=self.epoch,
            stage=stage,
            part=part,
            is_last=is_last,
        )
        store.make_durable(generation)
        return stage

    def pin(self, stage: str) -> None:
        self.rig.store(STREAM, 0).pin([(stage, 1)], sink=self.sink, epoch=self.epoch, batch_id=0)


def staged(rig: Rig) -> set[str]:
    return {stage.stage for stage in rig.store(STREAM, 0).staged().stages}


def test_what_a_dead_job_holds_goes_before_a_healthy_one_is_refused(rig: Rig) -> None:
    dead = Job(rig, "dead").stage()
    healthy = Job(rig, "healthy")
    with pytest.raises(StagesFull, match=r"sink 'dead' \(\d+ bytes\).*sinks\.owner_silent_ms.*liftlog sink") as told:
        healthy.stage()
    assert told.value.fields["sinks"] == ["dead"]
    assert staged(rig) == {dead}, "it may live"
    rig.now_us += LIMIT_US
    assert {healthy.stage()} == staged(rig)


def test_who_renews_keeps_what_it_has_staged_however_long(rig: Rig) -> None:
    living, other = Job(rig, "living"), Job(rig, "other")
    kept = living.stage()
    for _ in range(40):
        rig.now_us += LIMIT_US // 2
        living.renew()
        with pytest.raises(StagesFull):
            other.stage()
    assert staged(rig) == {kept}


def test_a_client_that_never_renews_has_more_patience(rig: Rig) -> None:
    old, other = Job(rig, "old", renews=False), Job(rig, "other")
    old.stage()
    rig.now_us += LIMIT_US * PATIENCE - 1
    with pytest.raises(StagesFull):
        other.stage()
    rig.now_us += 1
    assert {other.stage()} == staged(rig)


def test_the_longest_silent_go_first_and_no_more_than_need_be(rig: Rig) -> None:
    store = rig.store(STREAM, 0)
    store.limits = replace(store.limits, stage_bytes_max=1 << 20)
    late, early = Job(rig, "late"), Job(rig, "early")
    early.stage()
    rig.now_us += 1
    late.renew()
    kept = late.stage()
    rig.now_us += LIMIT_US
    assert silent_first(store, rig.sinks.silences) == [("early", early.epoch), ("late", late.epoch)]
    store.limits = replace(store.limits, stage_bytes_max=store.byte_count())
    assert {Job(rig, "healthy").stage(), kept} == staged(rig)


def test_what_is_pinned_stays_however_silent_its_owner_is(rig: Rig) -> None:
    job = Job(rig, "silent")
    stage = job.stage()
    job.pin(stage)
    rig.now_us += LIMIT_US * PATIENCE
    with pytest.raises(StagesFull):
        Job(rig, "healthy").stage()
    assert staged(rig) == {stage}


def test_one_that_pins_between_question_and_drop_keeps_its_stage(rig: Rig) -> None:
    job = Job(rig, "silent")
    stage = job.stage()
    rig.now_us += LIMIT_US
    silent = silent_first(rig.store(STREAM, 0), rig.sinks.silences)
    assert silent == [("silent", job.epoch)]
    job.pin(stage)
    assert rig.store(STREAM, 0).make_room(silent) == 0
    assert staged(rig) == {stage}


def test_nobody_goes_while_the_coordinator_does_not_answer(rig: Rig) -> None:
    Job(rig, "silent").stage()
    rig.now_us += LIMIT_US

    def away(_: object) -> list[object]:
        raise NotReady("nobody leads")

    assert silent_first(rig.store(STREAM, 0), away) == []  # type: ignore[arg-type]


def test_a_run_that_was_frozen_is_refused_and_writes_its_batch_anew() -> None:
    """It comes back with stages that have gone: nothing is decided; staged anew, the same batch id is written once."""
    rig, world = Rig(SimDisk()), World(rows=6)
    frozen = Driver(world, rig, 0)
    attempt = world.attempt(0)
    frozen.stage(attempt)
    rig.now_us += LIMIT_US * PATIENCE
    for store in rig.stores():
        store.limits = replace(store.limits, stage_bytes_max=1)
        store.make_room(silent_first(store, rig.sinks.silences))
        store.limits = StageLimits()
    with pytest.raises(StageLost, match="others needed the room"):
        frozen.commit(attempt)
    rig.sinks.abort(SINK, attempt.named())
    frozen.write()
    world.check_complete(rig, 1)
    rig.drop()


def test_parts_that_come_late_do_not_bring_a_stage_back(rig: Rig) -> None:
    job = Job(rig, "slow")
    job.stage(is_last=False)
    rig.now_us += LIMIT_US
    Job(rig, "healthy").stage()
    with pytest.raises(StageLost, match="others needed the room"):
        job.stage(part=1)


def test_renewing_needs_an_owner_that_may_commit(rig: Rig) -> None:
    with pytest.raises(UnknownSink):
        rig.sinks.renew("nobody", "run")
    Job(rig, "s")
    with pytest.raises(SinkFenced, match="has not opened"):
        rig.sinks.renew("s", "another")


def test_a_list_of_what_is_staged_waits_for_nobody_who_does_not_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    Job(rig, "s").stage()
    monkeypatch.setattr(coordinator, "LOOK_S", -1.0)
    assert rig.sinks.holdings() == {}
    monkeypatch.undo()

    def away(_: StageStore) -> list[Holding]:
        raise NotReady("nobody leads it")

    monkeypatch.setattr(StageStore, "holdings", away)
    assert rig.sinks.holdings() == {}


def test_what_is_staged_is_told_by_owner(rig: Rig) -> None:
    job = Job(rig, "s")
    stage = job.stage()
    job.pin(stage)
    rig.now_us += LIMIT_US
    ((owner, (held, silence)),) = rig.sinks.holdings().items()
    assert owner == ("s", job.epoch)
    assert (held.stages, held.pinned) == (1, 1)
    assert held.byte_count == rig.store(STREAM, 0).byte_count()
    assert (silence.silent_us, silence.is_silent) == (LIMIT_US, True)
