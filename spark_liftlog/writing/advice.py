"""What a broker's refusal of a sink means for a Spark query: which options decide, and what has to be done first."""

from __future__ import annotations

from typing import TypeVar

from broker.api.errors import LiftlogError, RequestTooLarge, SinkBatchesMissing, SinkRowsDiffer

E = TypeVar("E", bound=LiftlogError)


def advised(error: E) -> E:
    """The error with what Spark's users can do about it."""
    text = _advice(error)
    return error if text is None else type(error)(f"{error}; {text}", **error.fields)


def _advice(error: LiftlogError) -> str | None:
    if isinstance(error, SinkRowsDiffer):
        return "in Spark that is the option onRepeatWithOtherRows=keepFirst"
    if isinstance(error, SinkBatchesMissing):
        return "or set the option onMissingBatches=accept for one run, to go on without them"
    if isinstance(error, RequestTooLarge) and error.fields.get("key") == "sinks.group_bytes_max":
        return (
            "a micro-batch that is planned comes again with the same rows: raise sinks.group_bytes_max at the broker"
            " until it is through, and keep the next ones smaller with the source's option maxBytesPerTrigger or"
            " maxOffsetsPerTrigger"
        )
    return None
