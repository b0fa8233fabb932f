"""The network's side of pins: a task asks which state its load has in this micro-batch, and pins one if it has none.

    task     GET  /v1/pins/spark-<query>.<frame>      the text of pins.py, and its version
             POST /v1/pins/spark-<query>.<frame>      once for each load and batch: replaced if nobody else was first

Q1  The leader of the offset stream compares and stores. It is waited for while it is away: a batch that does not know
    its state would read another one.
Q2  A broker that does not know pins, a frame that is too large for one, and one that a batch loads too often, are told
    once. Each task looks for itself then, as it did before there were pins.
Q3  Names begin with `PREFIX`, as those of consumers that a query has not named: one grant covers both. Earlier builds
    had none. Their pin counts where there is no other yet, so that a batch that was begun with one goes on.
Q4  Once a pin has expired nobody knows whether its batch was begun. So a batch that is not the first of its query, and
    of whose frame nothing was pinned before, is told of: a sink that compares no rows would take others without a word.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pyspark import TaskContext

from broker.api.answers import PIN_LENGTH_MAX, PinnedText
from broker.api.errors import InvalidRequest, Unauthorized
from broker.client.consumers import OFFSETS
from broker.client.http.calls import Calls, path, understand
from spark_liftlog.reading.advance import Heads
from spark_liftlog.reading.pins import LOADS_MAX, Agreed, Batch, agreed, decoded, encoded, pin
from spark_liftlog.reading.refresh import FramePlan

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
PREFIX: Final = "spark-"
JOB_GROUP: Final = "spark.jobGroup.id"
"""A streaming query sets it to the id of its run, a UUID; what a program sets is anything."""

log = logging.getLogger("spark_liftlog")

_told: set[str] = set()


def batch_here() -> Batch | None:
    """The micro-batch of this task; None: it is one of another job."""
    context = TaskContext.get()
    if context is None or (query := context.getLocalProperty(QUERY_ID)) is None:
        return None
    number, group = context.getLocalProperty(BATCH_ID), context.getLocalProperty(JOB_GROUP)
    return Batch(query=query, number=-1 if number is None else int(number), run=_run(group))


def _run(group: str | None) -> str:
    try:
        return "" if group is None else str(uuid.UUID(group))
    except ValueError:
        return ""


def agree(calls: Calls, frame: FramePlan, batch: Batch, now: Callable[[], Heads]) -> Agreed | None:
    """The state of the frame in the batch, pinned by whoever asks first; None: it cannot be pinned (Q2).

    Args:
        now: What the whole frame would read now; called if nobody has asked before.
    Raises:
        Retryable: nobody keeps pins for so long that the deadline has passed (Q1).
    """
    name = f"{batch.query}.{frame.name}"
    target = path("pins", PREFIX + name)
    try:
        found = _read(calls, target)
        pinned = decoded(found.text)
        if not found.version and PREFIX:
            with suppress(Unauthorized):
                pinned = decoded(_read(calls, path("pins", name)).text)  # Q3
        is_missing = not pinned and batch.number > 0
        while True:
            known = agreed(pinned, batch, frame.load)
            if known is not None:
                _pinned(frame, batch, is_missing)
                return known
            before = pinned
            pinned, made = pin(before, batch, frame.load, frame.plan, now)
            if pinned == before:  # it is one of too many loads
                if not any(made.state in one.states for one in pinned):
                    _not_pinned(frame, f"a batch has more than {LOADS_MAX} loads of it")
                return made
            text = encoded(pinned)
            if len(text) > PIN_LENGTH_MAX:
                text = encoded(pinned[-1:])
            if len(text) > PIN_LENGTH_MAX:
                _not_pinned(frame, f"it takes {len(text)} characters, {PIN_LENGTH_MAX} are allowed")
                return None
            answer = calls.json("POST", target, {"text": text, "version": found.version}, key=OFFSETS)
            found = understand(PinnedText, answer, where="placing a pin")
            if found.placed:
                _pinned(frame, batch, is_missing)
                return made
            pinned = decoded(found.text)
    except InvalidRequest as error:
        if type(error) is InvalidRequest and "path" in error.fields:
            _not_pinned(frame, f"the broker is of an earlier release: {error}")
            return None
        raise


def _read(calls: Calls, target: str) -> PinnedText:
    return understand(PinnedText, calls.json("GET", target, key=OFFSETS), where="reading a pin")


def _pinned(frame: FramePlan, batch: Batch, was_missing: bool) -> None:
    """Q4. It is pinned by now."""
    if was_missing and _is_news(f"{batch.query}.{frame.name}"):
        log.warning("source.pin_missing streams=%s batch=%d", frame.selection, batch.number)


def _not_pinned(frame: FramePlan, why: str) -> None:
    if _is_news(frame.name):
        log.warning("source.not_pinned streams=%s reason=%s", frame.selection, why)


def _is_news(what: str) -> bool:
    """Once in a process."""
    is_news = what not in _told
    _told.add(what)
    return is_news
