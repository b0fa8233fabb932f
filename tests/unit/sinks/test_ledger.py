"""Goal: only the current run decides. Method: every transition of a sink's state, and every refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.api.errors import (
    CorruptLog,
    InvalidRequest,
    LiftlogError,
    NotReady,
    SinkBatchesMissing,
    SinkBatchRegressed,
    SinkDestinationNew,
    SinkFenced,
    SinkForked,
    SinkRowsDiffer,
    StageLost,
    UnknownFormatVersion,
    UnknownSink,
)
from broker.sinks.destinations import destinations
from broker.sinks.ledger import OWNERS_MAX, CommitRequest, Ledger, check_rows
from broker.sinks.notes import StagePinned
from broker.sinks.state import Decision, SinkState, StageRef, decision_id, removal_row, state_rows

REF = StageRef(stream="s", incarnation="i", partition=0, stage="a" * 32, parts=1, rows=3, search_from=0)
PIN = StagePinned(stage="b" * 32, sink="q", epoch=1, batch_id=1, search_from=0, pinned_us=0)


def opened(ledger: Ledger, owner: str, epoch: int, *, sink: str = "q", is_one_shot: bool = False) -> SinkState:
    state = ledger.opened(sink, owner, epoch=epoch, is_one_shot=is_one_shot, now_us=0)
    ledger.apply(state)
    return state


@pytest.fixture
def ledger() -> Ledger:
    """Owner `o` has epoch 1."""
    found = Ledger()
    opened(found, "o", 1)
    return found


def commit(batch_id: int, **more: object) -> CommitRequest:
    given = {"owner": "o", "epoch": 1, "rows": 3, "checkpoint": "/c", **more}
    return CommitRequest(batch_id=batch_id, **given)  # type: ignore[arg-type]


def decision(batch_id: int, *, epoch: int = 1, stages: tuple[StageRef, ...] = (REF,), rows: int = 3) -> Decision:
    return Decision(
        batch_id=batch_id,
        decision=decision_id("q", epoch=epoch, batch_id=batch_id, stages=stages, decided_us=0),
        owner="o",
        epoch=epoch,
        stages=stages,
        rows=rows,
        digest="d",
        attributes={"checkpoint": "/c"},
        decided_us=0,
    )


def decide(ledger: Ledger, batch_id: int, *, stages: tuple[StageRef, ...] = (REF,), **more: object) -> SinkState:
    asked = commit(batch_id, **more)
    made = decision(batch_id, epoch=asked.epoch, stages=stages, rows=asked.rows)
    state = ledger.decided("q", asked, made)
    ledger.apply(state)
    return state


def complete(ledger: Ledger) -> None:
    last = ledger.get("q").last
    assert last is not None
    ledger.apply(ledger.completed("q", last.decision, now_us=1))


def judge(ledger: Ledger, batch_id: int, **more: object) -> str:
    return ledger.judge("q", commit(batch_id, **more))


# --- destinations


def anew(ref: StageRef, **changed: Any) -> StageRef:
    return replace(ref, **changed)


def test_a_decision_names_no_stream_made_anew_unless_that_is_accepted(ledger: Ledger) -> None:
    decide(ledger, 0)
    complete(ledger)
    with pytest.raises(SinkDestinationNew) as error:
        decide(ledger, 1, stages=(anew(REF, incarnation="j"),))
    assert (error.value.stream, error.value.incarnation, error.value.last_batch_id) == ("s", "i", 0)
    assert destinations(decide(ledger, 1, stages=(anew(REF, incarnation="j"),), accepts_new=True)) == {"s": "j"}


def test_two_incarnations_of_a_stream_are_never_one_decision(ledger: Ledger) -> None:
    both = (REF, anew(REF, partition=1, incarnation="j"))
    for accepts in (False, True):
        with pytest.raises(StageLost):
            decide(ledger, 0, stages=both, accepts_new=accepts)


def test_a_stream_is_remembered_until_a_reset_or_for_a_thousand_others(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.sinks.destinations.FORMER_MAX", 2)
    for number, stream in enumerate("abcb"):
        state = decide(ledger, number, stages=(anew(REF, stream=stream),))
        complete(ledger)
        assert SinkState.decode(state.encode()) == state
    decide(ledger, 4, stages=(), rows=0)
    assert destinations(ledger.get("q")) == {"c": "i", "b": "i"}, "a was written longest ago"
    ledger.apply(ledger.reset("q", 0, epoch=9, now_us=0))
    assert destinations(ledger.get("q")) == {}
    assert b"former" not in ledger.get("q").encode(), "as earlier releases write it"


# --- owners


def test_an_owner_keeps_the_epoch_that_it_was_given(ledger: Ledger) -> None:
    assert ledger.epoch_of("q", "o") == 1
    assert ledger.epoch_of("q", "another") is None
    assert ledger.epoch_of("nothing", "o") is None
    opened(ledger, "p", 7)
    assert (ledger.epoch_of("q", "o"), ledger.epoch_of("q", "p")) == (1, 7)


def test_opening_fences_nobody(ledger: Ledger) -> None:
    """A late task of a run that is over opens, and must not stop the run that took its place."""
    opened(ledger, "p", 7)
    assert ledger.get("q").epoch == 0
    assert judge(ledger, 0) == judge(ledger, 0, owner="p", epoch=7) == "new"


def test_a_commit_supersedes_who_opened_before_and_not_who_opened_after(ledger: Ledger) -> None:
    for owner, epoch in (("p", 7), ("r", 8)):
        opened(ledger, owner, epoch)
    decide(ledger, 0, owner="p", epoch=7)
    complete(ledger)
    with pytest.raises(SinkFenced, match="superseded") as error:
        judge(ledger, 1)
    assert (error.value.epoch, error.value.asked) == (7, 1)
    with pytest.raises(SinkFenced):
        ledger.epoch_of("q", "o")
    assert judge(ledger, 1, owner="p", epoch=7) == judge(ledger, 1, owner="r", epoch=8) == "new"


@pytest.mark.parametrize("owner,epoch", [("o", 0), ("o", 2), ("p", 1), ("nobody", 9), ("p", 9)])
def test_a_commit_names_an_owner_with_its_own_epoch(ledger: Ledger, owner: str, epoch: int) -> None:
    """Any epoch that is high enough is not enough."""
    opened(ledger, "p", 7)
    with pytest.raises(SinkFenced, match="not given"):
        judge(ledger, 0, owner=owner, epoch=epoch)


def test_a_repetition_makes_its_owner_current_too(ledger: Ledger) -> None:
    decide(ledger, 0)
    complete(ledger)
    opened(ledger, "p", 7)
    again = commit(0, owner="p", epoch=7)
    assert ledger.judge("q", again) == "repeat"
    ledger.apply(ledger.made_current("q", again, now_us=2))
    with pytest.raises(SinkFenced):
        judge(ledger, 1)
    assert judge(ledger, 1, owner="p", epoch=7) == "new"


def test_the_oldest_owners_are_forgotten_and_can_no_longer_commit(ledger: Ledger) -> None:
    decide(ledger, 0)
    complete(ledger)
    for n in range(2 * OWNERS_MAX):
        opened(ledger, f"p{n}", 10 + n)
    owners = ledger.get("q").owners
    assert len(owners) == OWNERS_MAX
    assert owners["o"] == 1, "who committed last is never forgotten"
    assert owners[f"p{2 * OWNERS_MAX - 1}"] == 9 + 2 * OWNERS_MAX
    with pytest.raises(SinkFenced, match="not given"):
        judge(ledger, 1, owner="p0", epoch=10)


def test_records_are_staged_under_an_epoch_that_may_still_commit(ledger: Ledger) -> None:
    opened(ledger, "p", 7)
    for epoch in (1, 7):
        ledger.check_stage("q", epoch)
    for epoch in (0, 3, 9):
        with pytest.raises(SinkFenced):
            ledger.check_stage("q", epoch)
    decide(ledger, 0, owner="p", epoch=7)
    with pytest.raises(SinkFenced):
        ledger.check_stage("q", 1)
    with pytest.raises(UnknownSink):
        ledger.check_stage("nothing", 1)


def test_no_epoch_is_given_twice_though_the_log_of_the_sinks_was_lost(ledger: Ledger) -> None:
    ledger.apply(ledger.fenced("q", epoch=90, now_us=0))
    assert opened(ledger, "p", 3).owners["p"] == 91
    assert opened(ledger, "r", 4).owners["r"] == 92


# --- decisions


def test_what_was_never_opened_cannot_commit() -> None:
    with pytest.raises(UnknownSink):
        judge(Ledger(), 0)


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
        ledger.decided("q", commit(1), decision(1))
    complete(ledger)
    assert decide(ledger, 1).last == decision(1)


def test_the_first_decision_of_a_batch_wins(ledger: Ledger) -> None:
    decide(ledger, 0)
    complete(ledger)
    assert judge(ledger, 0) == "repeat"
    with pytest.raises(NotReady):
        ledger.decided("q", commit(0), decision(0, stages=()))


def test_a_repetition_with_other_rows_is_refused_and_tells_both_numbers(ledger: Ledger) -> None:
    decide(ledger, 5)
    complete(ledger)
    with pytest.raises(SinkRowsDiffer, match="keep_first") as error:
        judge(ledger, 5, rows=4)
    assert (error.value.rows, error.value.decided_rows, error.value.batch_id) == (4, 3, 5)
    assert judge(ledger, 5, rows=4, keeps_first=True) == "repeat"


@pytest.mark.parametrize(
    "digest, differs", [("d", False), ("e", True), ("", False), ("rows1:", False), ("rows2:e", False)]
)
def test_a_repetition_with_another_digest_is_refused_if_the_two_can_be_compared(
    ledger: Ledger, digest: str, differs: bool
) -> None:
    """The ledger's has no kind: text without one is compared, text of another kind is not."""
    decide(ledger, 5)
    complete(ledger)
    if differs:
        with pytest.raises(SinkRowsDiffer, match=r"as many, but others .*keep_first") as error:
            judge(ledger, 5, digest=digest)
        assert (error.value.digest, error.value.decided_digest) == (digest, "d")
    assert judge(ledger, 5, digest=digest, keeps_first=differs) == "repeat"


def test_a_sink_that_lacks_what_a_commit_follows_is_named_until_it_is_reset(ledger: Ledger) -> None:
    with pytest.raises(SinkBatchesMissing, match="has no batch, and this commit of batch 6 follows batch 5"):
        judge(ledger, 6, follows=5)
    decide(ledger, 4)
    complete(ledger)
    with pytest.raises(SinkBatchesMissing, match=r"has batch 4 .*Reset the sink to batch 6") as error:
        judge(ledger, 6, follows=5)
    assert (error.value.batch_id, error.value.last_batch_id) == (6, 4)
    assert judge(ledger, 6) == judge(ledger, 5, follows=4) == "new"
    assert judge(ledger, 4, follows=3) == "repeat"
    ledger.apply(ledger.reset("q", 6, epoch=2, now_us=1))
    ledger.apply(ledger.opened("q", "p", epoch=3, is_one_shot=False, now_us=1))
    assert judge(ledger, 6, follows=5, owner="p", epoch=3) == "new"


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
    with pytest.raises(SinkForked, match="adopt") as error:
        judge(ledger, batch_id, checkpoint="/copy")
    assert (error.value.recorded, error.value.asked) == ("/c", "/copy")


def test_a_commit_that_names_no_checkpoint_does_not_open_the_sink_to_others(ledger: Ledger) -> None:
    decide(ledger, 5)
    complete(ledger)
    decide(ledger, 6, checkpoint=None)
    complete(ledger)
    with pytest.raises(SinkForked):
        judge(ledger, 7, checkpoint="/copy")


def test_an_adopted_sink_keeps_what_was_decided(ledger: Ledger) -> None:
    decide(ledger, 5)
    complete(ledger)
    ledger.apply(ledger.adopted("q", "/moved", now_us=0))
    assert judge(ledger, 5, checkpoint="/moved") == "repeat"
    assert judge(ledger, 6, checkpoint="/moved") == "new"
    with pytest.raises(SinkForked):
        judge(ledger, 6)
    with pytest.raises(SinkBatchRegressed):
        judge(ledger, 4, checkpoint="/moved")


def end(ledger: Ledger, sink: str, owner: str, epoch: int) -> SinkState:
    state = ledger.ended(sink, owner, epoch=epoch, now_us=7)
    ledger.apply(SinkState.decode(state.encode()))
    return state


@pytest.mark.parametrize("has_opened", [False, True])
def test_an_owner_that_has_ended_its_sink_counts_for_nothing_there(ledger: Ledger, has_opened: bool) -> None:
    """Also one that had never opened it: its tasks come late. Another owner is another run."""
    if has_opened:
        opened(ledger, "o", 5, sink="job", is_one_shot=True)
    state = end(ledger, "job", "o", 6)
    assert state.is_ended
    assert state.is_one_shot
    for epoch in (0, 5):
        assert ledger.is_superseded("job", epoch)
        with pytest.raises(SinkFenced, match="the sink was ended"):
            ledger.check_stage("job", epoch)
        with pytest.raises(SinkFenced):
            ledger.judge("job", CommitRequest(owner="o", epoch=epoch, batch_id=0, rows=0))
    with pytest.raises(SinkFenced):
        ledger.epoch_of("job", "o")
    assert ledger.ended("job", "o", epoch=9, now_us=9) is ledger.get("job"), "once more: nothing is written"
    assert ledger.epoch_of("job", "p") is None
    opened(ledger, "p", 10, sink="job", is_one_shot=True)
    ledger.check_stage("job", 10)
    with pytest.raises(SinkFenced):
        ledger.epoch_of("job", "o")


def test_a_sink_for_one_batch_is_ended_by_the_owner_that_alone_has_opened_it(ledger: Ledger) -> None:
    opened(ledger, "o", 5, sink="job", is_one_shot=True)
    with pytest.raises(SinkFenced, match="not of owner 'p' alone"):
        end(ledger, "job", "p", 6)
    with pytest.raises(InvalidRequest, match="not for one batch"):
        end(ledger, "q", "o", 6)
    opened(ledger, "p", 6, sink="job", is_one_shot=True)
    for owner in ("o", "p"):
        with pytest.raises(SinkFenced):
            end(ledger, "job", owner, 7)
    ledger.check_stage("job", 5)


def test_a_state_without_owners_is_fenced_and_not_ended(ledger: Ledger) -> None:
    """It rules out pins of a sink that is gone, and stays as long as those may."""
    ledger.apply(ledger.fenced("gone", epoch=9, now_us=0))
    assert not ledger.get("gone").is_ended
    assert end(ledger, "gone", "o", 12).epoch == 12
    with pytest.raises(SinkFenced):
        ledger.epoch_of("gone", "o")


def test_what_was_decided_stands_when_its_owner_ends_the_sink() -> None:
    ledger = Ledger()
    opened(ledger, "o", 1, is_one_shot=True)
    decide(ledger, 0)
    state = end(ledger, "q", "o", 8)
    assert state.last is not None
    assert ledger.unfinished() == [state]
    assert ledger.is_open(replace(PIN, batch_id=0, stage=REF.stage)), "the decision names it"
    assert not ledger.is_open(replace(PIN, batch_id=0))
    complete(ledger)
    assert ledger.get("q").is_done


def test_a_reset_supersedes_every_owner_and_begins_where_it_says(ledger: Ledger) -> None:
    opened(ledger, "p", 2)
    decide(ledger, 5)
    with pytest.raises(NotReady):
        ledger.reset("q", 2, epoch=9, now_us=0)
    complete(ledger)
    ledger.apply(ledger.reset("q", 2, epoch=9, now_us=0))
    for owner, epoch in (("o", 1), ("p", 2)):
        with pytest.raises(SinkFenced):
            judge(ledger, 2, owner=owner, epoch=epoch)
        with pytest.raises(SinkFenced):
            ledger.epoch_of("q", owner)
    opened(ledger, "r", 10)
    with pytest.raises(SinkBatchRegressed):
        judge(ledger, 1, owner="r", epoch=10)
    assert judge(ledger, 2, owner="r", epoch=10, checkpoint="/copy") == "new"


def test_who_was_superseded_while_it_pinned_does_not_decide(ledger: Ledger) -> None:
    """D5: judged once, then asked again where the decision is appended."""
    assert judge(ledger, 0) == "new"
    ledger.apply(ledger.fenced("q", epoch=9, now_us=0))
    with pytest.raises(SinkFenced):
        ledger.decided("q", commit(0), decision(0))


def test_a_one_shot_sink_stays_one_unless_somebody_opens_it_for_good(ledger: Ledger) -> None:
    assert opened(ledger, "o", 5, sink="job", is_one_shot=True).is_one_shot
    assert opened(ledger, "p", 6, sink="job", is_one_shot=True).is_one_shot
    assert not opened(ledger, "r", 7, sink="job").is_one_shot
    assert not opened(ledger, "x", 8, sink="q", is_one_shot=True).is_one_shot, "a query's sink never vanishes"


# --- pins


def test_a_pin_stays_open_as_long_as_it_may_be_decided(ledger: Ledger) -> None:
    decide(ledger, 0)
    assert ledger.is_open(PIN), "of a later batch"
    complete(ledger)
    decide(ledger, 1)
    assert not ledger.is_open(PIN), "decided with another stage"
    assert ledger.is_open(replace(PIN, stage=REF.stage)), "named"
    assert ledger.is_open(replace(PIN, batch_id=2))
    complete(ledger)
    opened(ledger, "p", 7)
    assert ledger.is_open(replace(PIN, batch_id=2)), "opening fences nobody"
    decide(ledger, 2, owner="p", epoch=7, stages=(replace(REF, stage="d" * 32),))
    assert not ledger.is_open(replace(PIN, batch_id=3)), "superseded"


def test_what_is_not_known_is_open(ledger: Ledger) -> None:
    """D7: only a committed state that rules it out proves that no decision can come."""
    assert ledger.is_open(replace(PIN, sink="unknown"))
    decide(ledger, 5)
    complete(ledger)
    assert ledger.is_open(replace(PIN, epoch=2)), "a newer epoch, though its batch is decided: ids begin anew"
    ledger.apply(ledger.reset("q", 0, epoch=9, now_us=0))
    assert not ledger.is_open(PIN)
    assert ledger.is_open(replace(PIN, epoch=10, batch_id=0))


def test_a_fence_rules_out_every_epoch_so_far_of_an_unknown_sink_too(ledger: Ledger) -> None:
    opened(ledger, "p", 2)
    for sink in ("q", "unknown"):
        ledger.apply(ledger.fenced(sink, epoch=5, now_us=0))
        for epoch in range(5):
            assert not ledger.is_open(replace(PIN, sink=sink, epoch=epoch, batch_id=99))
    assert ledger.get("unknown").is_one_shot, "or it would stay for ever"


# --- records


def test_the_table_is_rebuilt_from_the_newest_record_of_each_sink(ledger: Ledger) -> None:
    states = [ledger.get("q"), decide(ledger, 0)]
    complete(ledger)
    states += [ledger.get("q"), SinkState(sink="other", epoch=4), SinkState(sink="gone")]
    again = Ledger()
    again.load(state_rows(states, timestamp_us=0))
    again.load(removal_row("gone", timestamp_us=0))
    again.load(removal_row("never there", timestamp_us=0))
    assert again.states == {"q": ledger.get("q"), "other": SinkState(sink="other", epoch=4)}


def test_the_stages_of_a_decision_keep_their_order_whatever_their_places(ledger: Ledger) -> None:
    stages = tuple(replace(REF, stage=f"{n:032x}", partition=n // 2 % 3) for n in range(20))
    state = decide(ledger, 0, stages=stages)
    assert SinkState.decode(state.encode()) == state


@pytest.mark.parametrize(
    "value,error",
    [
        (b"", CorruptLog),
        (b"[]", CorruptLog),
        (b'{"v":1}', CorruptLog),
        (b'{"v":1,"sink":"q","last":null,"owners":{"o":"1"}}', CorruptLog),
        (b'{"v":1,"sink":"q","last":null,"owners":[]}', CorruptLog),
        (b'{"v":2}', UnknownFormatVersion),
    ],
)
def test_a_state_that_cannot_be_read_stops_the_reading(value: bytes, error: type[LiftlogError]) -> None:
    with pytest.raises(error):
        SinkState.decode(value)


def test_rows_that_do_not_add_up_are_refused() -> None:
    check_rows((REF, REF), 6)
    with pytest.raises(InvalidRequest):
        check_rows((REF, REF), 7)


def test_decision_ids_differ_and_fit_a_header() -> None:
    ids = {decision_id("q", epoch=e, batch_id=b, stages=(REF,), decided_us=0) for e in range(9) for b in range(9)}
    assert len(ids) == 81
    assert all(0 < int(i, 16) < 1 << 128 for i in ids)
