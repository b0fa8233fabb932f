"""Where a sink's batches went: streams, each with its incarnation.

A stream that was deleted and made anew has its name, and none of the batches that the sink counts as written there.
Its driver goes on with the next one, so what was written before is missing without a word.

N1  A batch is not decided, and a batch that comes again is not answered as written, if it names a stream of which the
    sink's last batch there went to another incarnation, unless the commit accepts that.
N2  Batches without rows, and to other streams, do not change what is known of a stream; a reset forgets all.
N3  A decision never names two incarnations of one stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.api.errors import SinkDestinationNew, StageLost
from broker.sinks.state import Decision, SinkState, StageRef

FORMER_MAX: Final = 1000
"""Streams that a sink remembers beside those of its last decision. The ones that it wrote longest ago are forgotten."""


def destinations(state: SinkState) -> dict[str, str]:
    """The incarnation to which the last batch in each stream went. Written longest ago first."""
    last = () if state.last is None else state.last.stages
    return {**state.former, **{ref.stream: ref.incarnation for ref in last}}


def former(state: SinkState, decision: Decision) -> dict[str, str]:
    """What the state has to remember beside the decision that comes next (N2)."""
    named = {ref.stream for ref in decision.stages}
    kept = [(stream, at) for stream, at in destinations(state).items() if stream not in named]
    return dict(kept[-FORMER_MAX:])


def check_same(state: SinkState, refs: Iterable[StageRef], batch_id: int, *, accepts_new: bool) -> None:
    """Whether a decision may name these stages.

    Raises:
        SinkDestinationNew: a stream was deleted and made anew since the sink wrote it (N1).
        StageLost: or while the stages were pinned (N3).
    """
    known = {} if accepts_new else destinations(state)
    now: dict[str, str] = {}
    for stream, incarnation in {(ref.stream, ref.incarnation): None for ref in refs}:
        if known.get(stream, incarnation) != incarnation:
            raise destination_new(state, stream, batch_id)
        if now.setdefault(stream, incarnation) != incarnation:
            raise StageLost(f"stream {stream!r} was deleted and made anew while the batch was committed")


def destination_new(state: SinkState, stream: str, batch_id: int) -> SinkDestinationNew:
    """The refusal of a batch."""
    last = None if state.last is None else state.last.batch_id
    return SinkDestinationNew(
        f"sink {state.sink!r}: this commit of batch {batch_id} names stream {stream!r}, which was deleted since the"
        f" sink wrote it: a stream of that name is a new one. What the sink wrote there up to its last batch {last} is"
        " gone. To go on without, commit with on_new_destination=accept, or reset the sink to the batch to go on with."
        " To write all again, use another sink id and begin anew",
        sink=state.sink,
        stream=stream,
        incarnation=destinations(state).get(stream),
        batch_id=batch_id,
        last_batch_id=last,
    )
