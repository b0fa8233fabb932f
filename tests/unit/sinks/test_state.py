"""Goal: what a commit of a sink may say can be read again from `__commits`, or no sink works after the next start.

Method: any JSON values; those that a request takes are written as a state, and read.
"""

from __future__ import annotations

from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from broker.api.misfit import Misfit
from broker.api.validation import build
from broker.serving.contract.schemas import SinkCommit
from broker.sinks.state import Decision, SinkState, StageRef

TEXTS = st.one_of(st.text(max_size=12), st.characters(categories=["Cs", "Cc", "Zs", "Lo"]), st.just("a" * 32))
NUMBERS = st.sampled_from([0, 1, 2**53, 2**63 - 1, 2**63])
ASKED = st.fixed_dictionaries(
    {
        "owner": TEXTS,
        "epoch": NUMBERS,
        "batch_id": NUMBERS,
        "stages": st.just([]),
        "rows": NUMBERS,
        "digest": TEXTS,
        "attributes": st.dictionaries(TEXTS, TEXTS, max_size=3),
    }
)


@given(asked=ASKED)
def test_what_a_commit_may_say_can_be_read_again(asked: dict[str, Any]) -> None:
    try:
        commit = build(SinkCommit, asked)
    except Misfit:
        event("refused")
        return
    stage = StageRef(stream="s", incarnation="i", partition=0, stage="t", parts=1, rows=commit.rows, search_from=0)
    state = SinkState(
        sink="a",
        epoch=commit.epoch,
        owners={commit.owner: commit.epoch},
        checkpoint=next(iter(commit.attributes.values()), None),
        last=Decision(
            batch_id=commit.batch_id,
            decision="0" * 32,
            owner=commit.owner,
            epoch=commit.epoch,
            stages=(stage,),
            rows=commit.rows,
            digest=commit.digest,
            attributes=commit.attributes,
            decided_us=1,
        ),
    )
    assert SinkState.decode(state.encode()) == state
