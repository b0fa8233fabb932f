"""Errors as Spark shows them: text only, so the code stands first in the text.

Spark drops the type of a Python exception and keeps its message, in a Java exception and a
traceback. So the message begins with `LIFTLOG_<REASON>: `, for the person, alert or retry loop that
reacts to it. REASON is the reason code of `broker.api.errors` in capitals. These reasons exist only
for Spark:

    InvalidRequest
      ModeRefused      mode             complete mode and overwrite would rewrite a log
      BadOffset        bad_offset       an offset in the checkpoint that this source did not write
      NewCheckpoint    new_checkpoint   the consumer has progress of another checkpoint, and this one is new
      RecordsExpired   records_expired  retention deleted records before the query read them
      RecordsLost      records_lost     the broker's disk lost records before the query read them
      LogTruncated     log_truncated    the log ends, or was rewritten, below what the query has read
      StateCompacted   state_compacted  compaction removed records of the state that a table is to show

E1  Every method that Spark calls is wrapped by `shown_to_spark`, so no LiftlogError leaves
    without its code. Other exceptions are our defects and pass as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from broker.api.errors import (
    CorruptLog,
    InvalidRequest,
    LiftlogError,
    NotSupported,
    OffsetOutOfRange,
    RequestTooLarge,
    SinkBatchesMissing,
    SinkDestinationNew,
    SinkRowsDiffer,
)

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=LiftlogError)

HOW_TO_GO_ON: Final = (
    "set the option failOnDataLoss=false to go on at {where}, or start with a new checkpoint and startingOffsets"
)


class ModeRefused(NotSupported):
    """An output mode or save mode that a log cannot honour."""

    reason = "mode"


class BadOffset(InvalidRequest):
    """The checkpoint holds an offset that this source did not write; `offset` is its text."""

    reason = "bad_offset"


class NewCheckpoint(InvalidRequest):
    """The query's checkpoint is new, and `consumer` has published the progress of another one."""

    reason = "new_checkpoint"


class RecordsExpired(OffsetOutOfRange):
    """Retention deleted records that the query still had to read."""

    reason = "records_expired"


class RecordsLost(InvalidRequest):
    """The broker's disk lost records. `start` and `end` (exclusive) are their range."""

    reason = "records_lost"


class LogTruncated(OffsetOutOfRange):
    """The log lost records that the query has read, and may hold other records in their place."""

    reason = "log_truncated"


class StateCompacted(OffsetOutOfRange):
    """A table was to be as of `offset`, and records below `superseded_to` are gone for newer ones."""

    reason = "state_compacted"


class LiftlogSparkError(Exception):
    """The error that Spark sees: `LIFTLOG_<REASON>: text`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)


def spark_text(error: LiftlogError) -> str:
    """The error's text with its code in front."""
    return f"LIFTLOG_{error.reason.upper()}: {error}"


def for_spark(error: LiftlogError) -> LiftlogSparkError:
    """The exception to raise instead of `error`.

    A request that must be changed needs no traceback into this package: its cause is dropped, so
    the user's screen shows the sentence and not our stack twice.
    """
    shown = LiftlogSparkError(spark_text(error))
    if isinstance(error, InvalidRequest | CorruptLog):
        shown.__suppress_context__ = True
    else:
        shown.__cause__ = error
    return shown


def shown_to_spark(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method that Spark calls (E1). Generators need `for_spark` inside them instead."""

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except LiftlogError as error:
            raise for_spark(error)  # noqa: B904 -- for_spark decides about the cause

    return wrapped


def advised(error: E) -> E:
    """A broker's refusal of a sink, with the options that decide, or what has to be done first."""
    text = _advice(error)
    return error if text is None else type(error)(f"{error}; {text}", **error.fields)


def _advice(error: LiftlogError) -> str | None:
    if isinstance(error, SinkRowsDiffer):
        return "in Spark that is the option onRepeatWithOtherRows=keepFirst"
    if isinstance(error, SinkBatchesMissing):
        return "or set the option onMissingBatches=accept for one run, to go on without them"
    if isinstance(error, SinkDestinationNew):
        return "in Spark that is the option onNewDestination=accept for one run"
    if isinstance(error, RequestTooLarge) and error.fields.get("key") == "sinks.group_bytes_max":
        return (
            "a micro-batch that is planned comes again with the same rows: raise sinks.group_bytes_max at the broker"
            " until it is through, and keep the next ones smaller with the source's option maxBytesPerTrigger or"
            " maxOffsetsPerTrigger"
        )
    return None
