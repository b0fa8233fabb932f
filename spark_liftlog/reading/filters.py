"""The filters that Spark takes from a query's WHERE, as options and narrowings of a read. Pure.

    WHERE subject IN ('a', 'b') AND offset >= 100 AND timestamp < … AND value IS NOT NULL
          subjects              narrowing             narrowing         stays with Spark

    column      =, <=>, IN      <, <=, >, >=      carried by
    stream      exact                             Narrowing.streams
    partition   exact           exact             Narrowing.partitions, numbers
    offset      =, <=> exact    exact             Narrowing.offsets; IN: from the least to the greatest
    timestamp   =, <=> exact    exact             Narrowing.times; IN likewise
    subject     exact                             SourceOptions.subjects
    key         one value                         SourceOptions.key

F1  Filters are joined by AND, with each other and with what the options say: a filter only takes rows away.
F2  A filter that is not given back is applied exactly. One that leaves more rows than it should is given back, and so
    is one of which nothing is applied.
F3  A row for which a filter is NULL is taken away, as WHERE does. Only `key` of these columns may be null.
F4  Below a table (mode=table) go `stream` and `key` alone. Another filter would take away the newest row of a key, and
    show an older one; a filter on `partition`, the partition in which it would be found that a key is in several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from broker.api.conditions import KEY_LENGTH_MAX, SUBJECTS_LENGTH_MAX, Conditions, matches
from broker.api.errors import InvalidSubject
from broker.api.stream import check_subject
from spark_liftlog.options import SourceOptions
from spark_liftlog.reading.narrowing import Interval, Narrowing
from spark_liftlog.schema import NEVER_NULL

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END_OF_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC)
_OF_TABLES: Final = frozenset(("stream", "key"))

Pushed = tuple[SourceOptions, bool]
"""Options that say what a filter says, or as much of it as they can; and whether that is all of it."""


def pushed(options: SourceOptions, filters: Sequence[Filter]) -> tuple[SourceOptions, list[Filter]]:
    """The options with the filters (F1), and those filters that Spark has to apply (F2)."""
    rest = []
    for one in filters:
        found = None if isinstance(one, IsNotNull) else _with(options, one)
        if found is not None:
            options = found[0]
        if found is None or not found[1]:
            rest.append(one)
    never_null = NEVER_NULL if options.key is None else {*NEVER_NULL, "key"}
    return options, [one for one in rest if not (isinstance(one, IsNotNull) and _column(one.attribute) in never_null)]


def _column(attribute: tuple[str, ...]) -> str | None:
    """The column of the row; None: a part of one."""
    return attribute[0].lower() if len(attribute) == 1 else None


def _with(options: SourceOptions, one: Filter) -> Pushed | None:
    """The options with a filter. None: nothing of it can be said."""
    if not isinstance(
        one, EqualTo | EqualNullSafe | In | LessThan | LessThanOrEqual | GreaterThan | GreaterThanOrEqual
    ):
        return None
    column = _column(one.attribute)
    if options.table is not None and column not in _OF_TABLES:
        return None
    values = [each for each in one.value if each is not None] if isinstance(one, In) else [one.value]
    if not isinstance(one, EqualTo | EqualNullSafe | In):
        return _compared(options, column, one, values[0])
    match column:
        case "stream" if _are(values, str):
            streams = options.narrowing.streams
            return _narrowed(options, streams=_both(streams, values)), True
        case "partition" if _are(values, int):
            return _narrowed(options, numbers=_both(options.narrowing.numbers, values)), True
        case "offset" if _are(values, int):
            return _narrowed(options, offsets=options.narrowing.offsets.both(_around(values))), len(set(values)) < 2
        case "timestamp" if (times := _times(values)) is not None:
            return _narrowed(options, times=options.narrowing.times.both(_around(times))), len(set(times)) < 2
        case "subject" if _are(values, str):
            return _with_subjects(options, values)
        case "key" if _are(values, bytes) and len(set(values)) == 1:
            return _with_key(options, values[0])
    return None


def _compared(options: SourceOptions, column: str | None, one: Filter, value: Any) -> Pushed | None:
    narrowing = options.narrowing
    match column:
        case "partition" if _are([value], int):
            return _narrowed(options, partitions=narrowing.partitions.both(_side(one, value))), True
        case "offset" if _are([value], int):
            return _narrowed(options, offsets=narrowing.offsets.both(_side(one, value))), True
        case "timestamp" if (times := _times([value])) is not None:
            return _narrowed(options, times=narrowing.times.both(_side(one, times[0]))), True
    return None


def _with_subjects(options: SourceOptions, values: Sequence[str]) -> Pushed | None:
    if not all(map(_is_subject, values)):
        return None
    found = pa.array(sorted(set(values)), pa.string())
    if options.subjects:
        found = found.filter(matches(found, options.subjects))
    subjects = tuple(found.to_pylist())
    if not subjects:
        return _narrowed(options, is_empty=True), True
    if len(",".join(subjects)) > SUBJECTS_LENGTH_MAX:
        return None
    return replace(options, subjects=subjects), True


def _is_subject(value: str) -> bool:
    """Whether a pattern that matches this subject alone can be written."""
    try:
        check_subject(value, wildcards=False)
    except InvalidSubject:
        return False
    return "," not in value


def _with_key(options: SourceOptions, key: bytes) -> Pushed | None:
    if len(Conditions(key=key).as_query()["key_base64"]) > KEY_LENGTH_MAX:
        return None
    if options.key not in (None, key):
        return _narrowed(options, is_empty=True), True
    return replace(options, key=key), True


def _narrowed(options: SourceOptions, **more: Any) -> SourceOptions:
    narrowing: Narrowing = replace(options.narrowing, **more)
    return replace(options, narrowing=narrowing)


def _are(values: Sequence[Any], kind: type) -> bool:
    """Whether all are of a type, exactly: True is no number."""
    return all(type(value) is kind for value in values)


def _both(known: frozenset[Any] | None, values: Sequence[Any]) -> frozenset[Any]:
    return frozenset(values) if known is None else known & frozenset(values)


def _around(values: Sequence[int]) -> Interval:
    return Interval(min(values), max(values) + 1) if values else Interval(0, 0)


def _side(one: Filter, value: int) -> Interval:
    """The numbers that a comparison lets through."""
    match one:
        case LessThan():
            return Interval(stop=value)
        case LessThanOrEqual():
            return Interval(stop=value + 1)
        case GreaterThan():
            return Interval(value + 1)
    return Interval(value)


def _times(values: Sequence[Any]) -> list[int] | None:
    """Microseconds since 1970 UTC; None: not all are times that a request can have."""
    found = []
    for value in values:
        if type(value) is not datetime or value.tzinfo is None or not _EPOCH < value < _END_OF_TIME:
            return None
        found.append((value - _EPOCH) // timedelta(microseconds=1))
    return found
