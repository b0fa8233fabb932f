"""The options of mode=table: the newest row of each key. Those that mean nothing there are refused (`parsing.P1`).

mode        batch        log       log, table
asOf        batch        latest    JSON of offsets, milliseconds since 1970 UTC, 2026-11-27T02:00:00Z
sharedKeys  batch        refuse    refuse, keep
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from broker.api.errors import InvalidRequest, NotSupported
from broker.client.positions import timestamp_us
from spark_liftlog.parsing import OFFSET_MAX, Kind, invalid, one_of, whole
from spark_liftlog.reading.where import ByPartition, ByTime, Where

_BEGINS: Final = "a table is made of the whole log; asOf says up to where"
_WHOLE: Final = "a task reads whole partitions of a table"
_REFUSED: Final[Mapping[str, str]] = {
    "startingOffsets": _BEGINS,
    "startingTimestamp": _BEGINS,
    "startingOffsetsByTimestamp": _BEGINS,
    "endingOffsets": "asOf takes its place in a table",
    "endingTimestamp": "asOf takes its place in a table",
    "endingOffsetsByTimestamp": "asOf takes its place in a table",
    "key": "choose in the query, with where()",
    "minPartitions": _WHOLE,
    "maxRecordsPerPartition": _WHOLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """What is asked of a table.

    Attributes:
        is_as_of: Its end was asked for.
        keeps_shared_keys: A key may have a row in several partitions; tombstones stay, so that the query can choose.
    """

    is_as_of: bool
    keeps_shared_keys: bool


def table_options(options: Mapping[str, str], kind: Kind) -> TableOptions | None:
    """None: the log is read.

    Raises:
        InvalidSetting: a value is none of those that are allowed, or options contradict each other.
        NotSupported: a stream is to be read as a table.
    """
    is_table = one_of(options, "mode", ("log", "table")) == "table"
    if is_table and kind == "stream":
        raise NotSupported(
            "option mode='table': a streaming query reads changes, and a table has none; read it with spark.read, as"
            " the static side of a join or in foreachBatch, or keep the newest row of each key in the query"
        )
    if not is_table:
        for name in ("asOf", "sharedKeys"):
            if name in options:
                raise invalid(name, options[name], "means something with mode=table only")
        return None
    for name, why in _REFUSED.items():
        if name in options:
            raise invalid(name, options[name], f"it means nothing with mode=table: {why}")
    if options.get("readFrom", "").strip().lower() == "nearest":
        raise invalid("readFrom", "nearest", "a table is read from leaders: replicas are compacted each by itself")
    return TableOptions(
        is_as_of="asOf" in options, keeps_shared_keys=one_of(options, "sharedKeys", ("refuse", "keep")) == "keep"
    )


def as_of(options: Mapping[str, str], by_partition: Callable[[str], ByPartition]) -> Where:
    """Where a table ends. Raises InvalidSetting.

    Args:
        by_partition: Reads an option that is a JSON of offsets.
    """
    value = options.get("asOf")
    if value is None:
        return "latest"
    if value.strip().startswith("{"):
        return by_partition("asOf")
    if value.strip().isdecimal():
        at_ms = whole(options, "asOf", 0, OFFSET_MAX // 1000, unit="milliseconds since 1970 UTC")
        return ByTime(at_ms=at_ms or 0, strategy="latest")
    try:
        at_us = timestamp_us(datetime.fromisoformat(value.strip()))
    except InvalidRequest:
        raise invalid("asOf", value, "the time has no time zone: end it with Z or +00:00") from None
    except ValueError:
        rule = 'must be JSON such as {"orders": {"0": 42}}, milliseconds since 1970 UTC, or 2026-11-27T02:00:00Z'
        raise invalid("asOf", value, rule) from None
    if at_us < 0:
        raise invalid("asOf", value, "must not be before 1970")
    return ByTime(at_ms=-(-at_us // 1000), strategy="latest")
