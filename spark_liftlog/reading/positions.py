"""Option values and ranges, made concrete by asking the brokers once. For batch and stream alike."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from broker.api.errors import (
    InvalidSetting,
    LiftlogError,
    NotReady,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownStream,
)
from spark_liftlog.reading.advance import Head, Heads
from spark_liftlog.reading.cluster import At, Cluster, Resolved
from spark_liftlog.reading.offsets import Key, ReadPosition
from spark_liftlog.reading.plan import Range
from spark_liftlog.reading.selection import Selection
from spark_liftlog.reading.where import EARLIEST, LATEST, ByPartition, ByTime, Where, option_of

log = logging.getLogger("spark_liftlog")


def keys_of(
    cluster: Cluster, selection: Selection, heads: Heads, again: Callable[[], Heads]
) -> tuple[list[Key], Heads]:
    """The partitions that are read, in order, and heads that have them.

    Args:
        again: Newer heads. Brokers differ for a moment after a stream was made.
    Raises:
        UnknownStream: a stream that is named does not exist.
        UnknownPartition: a partition that is named does not.
        Retryable: it does, but cannot be read at present.
    """
    asking = cluster.asking_again()
    while (key := selection.lacking(heads)) is not None:
        (found,) = cluster.resolve([(key, "earliest")], known=heads.incarnations)
        if isinstance(found.error, UnknownStream):
            raise _no_stream(cluster, selection, key[0])
        if isinstance(found.error, UnknownPartition):
            raise UnknownPartition(f"option partitions: {found.error}", **found.error.fields)
        if found.error is not None:
            raise found.error
        if not asking.again():
            raise NotReady(f"stream {key[0]!r} partition {key[1]} was created a moment ago", stream=key[0])
        heads = again()
    return sorted(heads.partitions), heads


def _no_stream(cluster: Cluster, selection: Selection, stream: str) -> UnknownStream:
    """An option names a stream that does not exist: with the name of one that does."""
    nearest: list[str] = []
    with suppress(LiftlogError):  # the hint is not worth another error
        nearest = difflib.get_close_matches(stream, cluster.heads_now(["*"])[1].incarnations, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return UnknownStream(f"option {selection.option}: no stream {stream!r}{hint}", stream=stream)


def resolve_where(
    cluster: Cluster,
    keys: Sequence[Key],
    where: Where,
    *,
    side: str,
    fail_on_data_loss: bool,
    known: Mapping[str, str],
) -> dict[Key, Resolved]:
    """The positions that an option stands for, for every partition that is read.

    Args:
        side: `starting`, `ending` or `asOf`, for errors.
        known: The streams' incarnations, as `Cluster.resolve` has them.
        fail_on_data_loss: False: an offset out of range becomes the nearest valid one, with a warning.
    Raises:
        UnknownStream: there is no such stream.
        InvalidSetting: a JSON that leaves out a partition, or names one that is not read.
        OffsetOutOfRange: an offset that the log does not have, or a time after its last record.
    """
    option = option_of(side, where)
    asked = [(key, at) for key, at in zip(keys, _asked(keys, where, option), strict=True)]
    found: dict[Key, Resolved] = {}
    for (key, wanted), resolved in zip(asked, cluster.resolve(asked, known=known), strict=True):
        if not isinstance(wanted, str) and "offset" in wanted:
            found[key] = _within(key, wanted["offset"], resolved, option, fail_on_data_loss)
            continue
        if resolved.error is not None:
            raise resolved.error
        if resolved.is_beyond and isinstance(where, ByTime) and where.strategy == "error":
            raise _too_late(key, resolved.head, option)
        found[key] = resolved
    return found


def _too_late(key: Key, head: Head, option: str) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"option {option}: stream {key[0]!r} partition {key[1]} has no record at or after that time; valid"
        f" offsets are {head.log_start_offset} to {head.high_watermark};"
        " startingOffsetsByTimestampStrategy=latest begins at the end of such partitions",
        stream=key[0],
        partition=key[1],
        log_start_offset=head.log_start_offset,
        high_watermark=head.high_watermark,
    )


def _asked(keys: Sequence[Key], where: Where, option: str) -> list[At]:
    """The questions, one for each partition."""
    if isinstance(where, str):
        return [where for _ in keys]
    if isinstance(where, ByTime):
        if isinstance(where.at_ms, int):
            return [{"timestamp_us": where.at_ms * 1000} for _ in keys]
        _check_partitions(keys, where.at_ms, option)
        return [{"timestamp_us": where.at_ms[stream][partition] * 1000} for stream, partition in keys]
    _check_partitions(keys, where, option)
    symbolic: dict[int, At] = {EARLIEST: "earliest", LATEST: "latest"}
    return [symbolic.get(at := where[stream][partition]) or {"offset": at} for stream, partition in keys]


def _within(key: Key, wanted: int, resolved: Resolved, option: str, fail_on_data_loss: bool) -> Resolved:
    head = resolved.head
    if resolved.error is not None and not isinstance(resolved.error, OffsetOutOfRange):
        raise resolved.error
    if head.log_start_offset <= wanted <= head.high_watermark:
        return resolved
    nearest = min(max(wanted, head.log_start_offset), head.high_watermark)
    error = OffsetOutOfRange(
        f"option {option}: stream {key[0]!r} partition {key[1]} has no offset {wanted}; valid offsets are"
        f" {head.log_start_offset} to {head.high_watermark}; failOnDataLoss=false takes {nearest} instead",
        stream=key[0],
        partition=key[1],
        log_start_offset=head.log_start_offset,
        high_watermark=head.high_watermark,
    )
    if fail_on_data_loss:
        raise error
    log.warning("source.data_loss error=%s", error)
    bytes_ahead = resolved.bytes_ahead if nearest == head.log_start_offset else 0
    return replace(resolved, position=ReadPosition(nearest), bytes_ahead=bytes_ahead, error=None)


def _check_partitions(keys: Sequence[Key], named: ByPartition, option: str) -> None:
    there: dict[str, set[int]] = {}
    for stream, partition in keys:
        there.setdefault(stream, set()).add(partition)
    for stream in sorted(there.keys() | named.keys()):
        read, given = there.get(stream, set()), set(named.get(stream, {}))
        if read == given:
            continue
        unknown, missing = sorted(given - read), sorted(read - given)
        what = f"partition {unknown[0]} is not one that is read" if unknown else f"partition {missing[0]} is not named"
        those = f"partitions {', '.join(map(str, sorted(read)))} are" if read else "no partition is"
        raise InvalidSetting(
            f"option {option}: {what}; of stream {stream!r} {those} read, and each must be named", key=option
        )


def weighed(cluster: Cluster, ranges: Sequence[Range]) -> tuple[list[Range], dict[Key, int]]:
    """The ranges with about how many bytes each is, what balances the tasks; and the epochs of their last records.

    One call; raises as `resolve`.

    Args:
        ranges: One of each partition at most.
    """
    full = [r for r in ranges if r.record_count > 0]
    asked: list[tuple[Key, At]] = []
    for r in full:
        key = (r.stream, r.partition)
        asked += [(key, {"offset": r.start}), (key, {"offset": r.end})]
    answers = cluster.resolve(asked, known={r.stream: r.incarnation for r in full})
    sized = [
        replace(r, byte_count=max(0, start.bytes_ahead - end.bytes_ahead))
        for r, start, end in zip(full, answers[::2], answers[1::2], strict=True)
    ]
    epochs = {
        (r.stream, r.partition): -1
        if end.error is not None or end.incarnation != r.incarnation  # the task says what is wrong
        else end.position.leader_epoch
        for r, end in zip(full, answers[1::2], strict=True)
    }
    return sized, epochs
