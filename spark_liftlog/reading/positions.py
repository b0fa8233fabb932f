"""Option values and ranges, made concrete by asking the brokers once. For batch and stream alike."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from broker.api.errors import InvalidSetting, NotReady, OffsetOutOfRange
from spark_liftlog.options import EARLIEST, LATEST, Where
from spark_liftlog.reading.advance import Heads
from spark_liftlog.reading.cluster import At, Cluster, Resolved
from spark_liftlog.reading.offsets import Key, Position
from spark_liftlog.reading.plan import Range

log = logging.getLogger("spark_liftlog")


def partitions_of(cluster: Cluster, stream: str, heads: Heads) -> list[Key]:
    """The stream's partitions, in order.

    Raises:
        UnknownStream: it does not exist.
        Retryable: it does, but cannot be read at present.
    """
    if stream not in heads.incarnations:
        (found,) = cluster.resolve([((stream, 0), "earliest")])
        raise found.error or NotReady(f"stream {stream!r} has only just appeared", stream=stream)
    return sorted(key for key in heads.partitions if key[0] == stream)


def resolve_where(
    cluster: Cluster, stream: str, heads: Heads, where: Where, *, option: str, fail_on_data_loss: bool
) -> dict[Key, Resolved]:
    """The positions that `startingOffsets` or `endingOffsets` stands for, for every partition of the stream.

    Args:
        option: Which of the two, for errors.
        fail_on_data_loss: False: an offset out of range becomes the nearest valid one, with a warning.
    Raises:
        UnknownStream: there is no such stream.
        InvalidSetting: a JSON that leaves out a partition, or names one that the stream does not have.
        OffsetOutOfRange: an offset that the log does not have.
    """
    keys = partitions_of(cluster, stream, heads)
    asked: list[tuple[Key, At]] = []
    if isinstance(where, dict):
        _check_partitions(stream, [partition for _, partition in keys], where, option)
    for key in keys:
        at = where if isinstance(where, str) else where[key[1]]
        symbolic = {EARLIEST: "earliest", LATEST: "latest"}
        asked.append((key, at if isinstance(at, str) else symbolic.get(at) or {"offset": at}))
    found: dict[Key, Resolved] = {}
    for (key, wanted), resolved in zip(asked, cluster.resolve(asked), strict=True):
        if isinstance(wanted, str):
            if resolved.error is not None:
                raise resolved.error
            found[key] = resolved
        else:
            found[key] = _within(key, wanted["offset"], resolved, option, fail_on_data_loss)
    return found


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
    return replace(resolved, position=Position(nearest), bytes_ahead=bytes_ahead, error=None)


def _check_partitions(stream: str, there: Sequence[int], named: Mapping[int, int], option: str) -> None:
    unknown = sorted(set(named) - set(there))
    missing = sorted(set(there) - set(named))
    if unknown or missing:
        what = f"partition {unknown[0]} does not exist" if unknown else f"partition {missing[0]} is not named"
        raise InvalidSetting(
            f"option {option}: {what}; stream {stream!r} has the partitions 0 to {there[-1]}, and each must be named",
            key=option,
            limit=[there[0], there[-1]],
        )


def weighed(cluster: Cluster, ranges: Sequence[Range]) -> list[Range]:
    """The ranges with about how many bytes each is: what balances the tasks. One call; raises as `resolve`."""
    full = [r for r in ranges if r.record_count > 0]
    asked: list[tuple[Key, At]] = []
    for r in full:
        key = (r.stream, r.partition)
        asked += [(key, {"offset": r.start}), (key, {"offset": r.end})]
    answers = cluster.resolve(asked)
    return [
        replace(r, byte_count=max(0, start.bytes_ahead - end.bytes_ahead))
        for r, start, end in zip(full, answers[::2], answers[1::2], strict=True)
    ]
