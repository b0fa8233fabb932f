"""Who may decide what: every transition of a sink's state, and every refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.api.errors import (
    CorruptLog,
    InvalidRequest,
    LiftlogError,
    NotReady,
    SinkBatchRegressed,
    SinkFenced,
    SinkForked,
    UnknownFormatVersion,
    UnknownSink,
)
from broker.sinks.ledger import Decision, Ledger, SinkState, StageRef, check_rows, decision_id, state_rows
from broker.sinks.notes import StagePinned

REF = StageRef(stream="s", incarnation="i", partition=0, stage="a" * 32, parts=1, rows=3, end_offset=0)


def decision(
    batch_id: int, *, epoch: int = 1, checkpoint: str = "/c", stages: tuple[StageRef, ...] = (REF,)
) -> Decision:
    return Decision(
        batch_id=batch_id,
        decision=decision_id("q", epoch=epoch, batch_id=batch_id, stages=stages, decided_us=0),
        epoch=epoch,
        stages=stages,
        rows=3,
        digest="d",
        attributes={"checkpoint": checkpoint},
        decided_us=0,
    )


@pytest.fixture
def ledger() -> Ledger:
    found = Ledger()
    found.apply(found.opened("q", now_us=0))
    return found


def decide(ledger: Ledger, batch_id: int, **more: object) -> SinkState:
    state = ledger.decided("q", decision(batch_id, **more))  # type: ignore[arg-type]
    ledger.apply(state)
    return state


def complete(ledger: Ledger) -> None:
    last = ledger.get("q").last
    assert last is not None
    ledger.apply(ledger.completed("q", last.decision, now_us=1))


def judge(ledger: Ledger, batch_id: int, *, epoch: int = 1, checkpoint: str = "/c") -> str:
    return ledger.judge("q", epoch=epoch, batch_id=batch_id, attributes={"checkpoint": checkpoint})


def test_each_open_has_an_epoch_of_its_own(ledger: Ledger) -> None:
    assert ledger.get("q").epoch == 1
    assert ledger.opened("q", now_us=0).epoch == 2
    assert ledger.opened("another", now_us=0).epoch == 1


def test_what_was_never_opened_cannot_commit() -> None:
    with pytest.raises(UnknownSink):
        judge(Ledger(), 0)


@pytest.mark.parametrize("epoch", [0, 2])
def test_only_the_newest_epoch_decides(ledger: Ledger, epoch: int) -> None:
    with pytest.raises(SinkFenced) as error:
        judge(ledger, 0, epoch=epoch)
    assert error.value.epoch == 1


def test_a_decision_is_unfinished_until_it_is_completed(ledger: Ledger) -> None:
    decide(ledger, 0)
    assert [state.sink for state in ledger.unfinished()] == ["q"]
    complete(ledger)
    assert ledger.unfinished() == []


def test_a_decision_without_stages_is_complete_at_once(ledger: Ledger) -> None:
    assert decide(ledger, 0, stages=()).is_done


def test_the_next_batch_waits_for_the_one_before(ledger: Ledger) -> None:
    decide(ledger, 0)
    assert judge(ledger, 1) == "new"
    with pytest.raises(NotReady):
        ledger.decided("q", decision(1))
    complete(ledger)
    assert decide(ledger, 1).last == decision(1)


def test_the_first_decision_of_a_batch_wins(ledger: Ledger) -> None:
    decide(ledger, 0)
    complete(ledger)
    assert judge(ledger, 0) == "repeat"
    with pytest.raises(NotReady):
        ledger.decided("q", decision(0, stages=()))


def test_a_lower_batch_id_is_refused_and_says_how_to_go_on(ledger: Ledger) -> None:
    decide(ledger, 5)
    complete(ledger)
    with pytest.raises(SinkBatchRegressed, match="reset") as error:
        judge(ledger, 4)
    assert error.value.last_batch_id == 5


@pytest.mark.parametrize("batch_id", [4, 5, 6])
def test_another_checkpoint_is_refused_whatever_the_batch(ledger: Ledger, batch_id: int) -> None:
    decide(ledger, 5)
    complete(ledger)
    with pytest.raises(SinkForked) as error:
        judge(ledger, batch_id, checkpoint="/copy")
    assert (error.value.recorded, error.value.asked) == ("/c", "/copy")


def test_a_reset_fences_and_begins_where_it_says(ledger: Ledger) -> None:
    decide(ledger, 5)
    with pytest.raises(NotReady):
        ledger.reset("q", 2, now_us=0)
    complete(ledger)
    ledger.apply(ledger.reset("q", 2, now_us=0))
    with pytest.raises(SinkFenced):
        judge(ledger, 2)
    with pytest.raises(SinkBatchRegressed):
        judge(ledger, 1, epoch=2)
    assert judge(ledger, 2, epoch=2, checkpoint="/copy") == "new"


def test_an_epoch_that_was_fenced_while_it_pinned_does_not_decide(ledger: Ledger) -> None:
    """D5: judged once, then asked again where the decision is appended."""
    assert judge(ledger, 0) == "new"
    ledger.apply(ledger.opened("q", now_us=0))
    with pytest.raises(SinkFenced):
        ledger.decided("q", decision(0))


def test_a_pin_stays_open_as_long_as_it_may_be_decided(ledger: Ledger) -> None:
    pin = StagePinned(stage="b" * 32, sink="q", epoch=1, batch_id=1, end_offset=0, pinned_us=0)
    assert ledger.is_open(pin)
    decide(ledger, 0)
    assert ledger.is_open(pin), "of a later batch"
    complete(ledger)
    decide(ledger, 1)
    assert not ledger.is_open(pin), "decided with another stage"
    assert ledger.is_open(replace(pin, stage=REF.stage)), "named"
    assert ledger.is_open(replace(pin, batch_id=2))
    ledger.apply(ledger.opened("q", now_us=0))
    assert not ledger.is_open(replace(pin, batch_id=2)), "fenced"
    assert ledger.is_open(replace(pin, stage=REF.stage)), "named, by whichever epoch"
    assert not ledger.is_open(replace(pin, sink="unknown"))


def test_the_table_is_rebuilt_from_the_newest_record_of_each_sink(ledger: Ledger) -> None:
    states = [ledger.get("q"), decide(ledger, 0)]
    complete(ledger)
    states += [ledger.get("q"), SinkState(sink="other", epoch=4)]
    again = Ledger()
    again.load(state_rows(states, timestamp_us=0))
    assert again.states == {"q": ledger.get("q"), "other": SinkState(sink="other", epoch=4)}


@pytest.mark.parametrize(
    "value,error",
    [(b"", CorruptLog), (b"[]", CorruptLog), (b'{"v":1}', CorruptLog), (b'{"v":2}', UnknownFormatVersion)],
)
def test_a_state_that_cannot_be_read_stops_the_reading(value: bytes, error: type[LiftlogError]) -> None:
    with pytest.raises(error):
        SinkState.decode(value)


def test_rows_that_do_not_add_up_are_refused() -> None:
    assert check_rows((REF, REF), None) == 6
    assert check_rows((REF, REF), 6) == 6
    with pytest.raises(InvalidRequest):
        check_rows((REF, REF), 7)


def test_decision_ids_differ_and_fit_a_header() -> None:
    ids = {decision_id("q", epoch=e, batch_id=b, stages=(REF,), decided_us=0) for e in range(9) for b in range(9)}
    assert len(ids) == 81
    assert all(0 < int(i, 16) < 1 << 128 for i in ids)
