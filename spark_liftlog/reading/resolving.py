"""What a task reads: the ranges of its plan, up to where they are open to.

    a batch job, or resolve=plan      as planned
    resolve=read                      up to where the partitions end now
    a micro-batch                     up to where its first task that asked has found them to end (pins.py)

Y1  Heads that contradict the plan are believed as the driver does (asking_again.D1).
Y2  A replay compares the log with what was read before it: a tail that was lost, and perhaps written anew, is a loss.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from broker.api.errors import LiftlogError, StaleIncarnation, UnknownStream
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls
from spark_liftlog.options import TRUNCATION_TIMEOUT_S, SourceOptions
from spark_liftlog.reading.advance import Heads, truncated
from spark_liftlog.reading.asking_again import AGAIN_S
from spark_liftlog.reading.cluster import DEADLINE_S, TIMEOUT_S, At, Cluster
from spark_liftlog.reading.offsets import Key
from spark_liftlog.reading.pinning import agree, batch_here
from spark_liftlog.reading.pins import Batch
from spark_liftlog.reading.plan import Range
from spark_liftlog.reading.refresh import FramePlan, Lost, Opening, grown, reaching, replayed

T = TypeVar("T")

log = logging.getLogger("spark_liftlog")


def resolved(
    planned: Sequence[Range], opening: Opening | None, brokers: Brokers, options: SourceOptions
) -> tuple[list[Range], bool]:
    """The ranges that a task reads; and whether it is no loss if retention takes their beginning before it does.

    Raises:
        LiftlogError: the plan does not fit the streams any more, or a replay finds less than was read before it.
    """
    batch = None if opening is None else batch_here()
    if opening is None or not (opening.always or batch):
        return [wanted for wanted in planned if wanted.record_count], False
    cluster = Cluster(brokers)
    if opening.frame is not None and batch is not None:
        calls = Calls(brokers, timeout_s=TIMEOUT_S, deadline_s=DEADLINE_S)
        found = _pinned(planned, opening, opening.frame, batch, cluster, calls, options)
        if found is not None:
            return found
    keys = {(wanted.stream, wanted.partition) for wanted in planned}
    streams = opening.watched or sorted({wanted.stream for wanted in planned} | set(opening.added))

    def matters(key: Key) -> bool:
        return key in keys or opening.takes(key[0])

    return _asked(cluster, streams, matters, lambda heads: grown(planned, opening, heads)), False


def _pinned(
    planned: Sequence[Range],
    opening: Opening,
    frame: FramePlan,
    batch: Batch,
    cluster: Cluster,
    calls: Calls,
    options: SourceOptions,
) -> tuple[list[Range], bool] | None:
    """As `resolved`, by what is pinned. None: nothing can be pinned."""
    selection = frame.selection

    def matters(key: Key) -> bool:
        return selection.has(key[0]) and selection.takes(key)

    def now() -> Heads:
        streams = selection.watched
        return _asked(cluster, streams, matters, lambda heads: reaching(selection.of(heads), opening, frame))

    found = agree(calls, frame, batch, now)
    if found is None:
        return None
    if not found.is_replay:
        return grown(planned, opening, found.state), opening.from_earliest

    def lost(error: LiftlogError) -> None:
        if options.fail_on_data_loss:
            raise error
        log.warning("source.data_loss error=%s", error)

    ranges = replayed(planned, opening, frame, found.state, lost)
    return _unchanged(ranges, found.state, cluster, lost), False


def _asked(cluster: Cluster, streams: Sequence[str], of: Callable[[Key], bool], made: Callable[[Heads], T]) -> T:
    """What is made of the heads of streams, which are asked until they fit the plan (Y1)."""

    def now() -> Heads:
        return cluster.heads_now(streams)[1]

    asking = cluster.asking_again()
    while True:
        heads = cluster.whole(now(), now, of=of)
        try:
            return made(heads)
        except (StaleIncarnation, UnknownStream):
            if not asking.again():
                raise


def _unchanged(ranges: Sequence[Range], state: Heads, cluster: Cluster, lost: Lost) -> list[Range]:
    """The ranges of a replay, as far as the log is still the one that was read (Y2).

    Nobody had records of a later epoch then. So those of up to that epoch reach as far now, or some were lost.
    """
    known = {wanted.stream: wanted.incarnation for wanted in ranges}
    heads = {
        key: head
        for key in sorted({(wanted.stream, wanted.partition) for wanted in ranges})
        if state.incarnations.get(key[0]) == known[key[0]]  # else that is the loss, and is told
        if (head := state.partitions.get(key)) is not None and head.leader_epoch >= 0
    }
    asked: list[tuple[Key, At]] = [(key, {"epoch": head.leader_epoch}) for key, head in heads.items()]
    deadline = time.monotonic() + TRUNCATION_TIMEOUT_S
    while True:
        answers = dict(zip(heads, cluster.resolve(asked, known=known) if asked else (), strict=True))
        behind = any(
            found.error is None and found.head.high_watermark < heads[key].high_watermark
            for key, found in answers.items()
        )
        if not behind or time.monotonic() > deadline:  # a leader that has just begun learns its high watermark
            break
        time.sleep(AGAIN_S)
    ends = {}
    for key, found in answers.items():
        end = found.position.offset
        if found.error is None and found.incarnation == known[key[0]] and end < heads[key].high_watermark:
            lost(truncated(key, heads[key].high_watermark, end, found.head))
            ends[key] = end
    kept = [
        replace(wanted, end=min(wanted.end, ends.get((wanted.stream, wanted.partition), wanted.end)))
        for wanted in ranges
    ]
    return [wanted for wanted in kept if wanted.record_count > 0]
