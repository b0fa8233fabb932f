"""The options of the source: names, defaults, limits, errors, in one place. The sink's: writing/sink_options.py.

    option                 source           default              values
    brokers                batch  stream    localhost:9293       HTTP addresses, comma separated
    stream (or the path)   batch  stream    required             a stream's name
    startingOffsets        batch  stream    earliest | latest    earliest, latest (stream only), JSON
    endingOffsets          batch            latest               latest, JSON
    maxOffsetsPerTrigger          stream    no limit             records, 1 to 2^63 - 1
    minPartitions          batch  stream    1                    input partitions, 1 to 100,000
    maxPartitions          batch  stream    2 x cores            input partitions, 1 to 100,000
    resolve                batch            auto                 auto, plan, read: when "latest" is looked up
    failOnDataLoss         batch  stream    true                 true, false
    consumer                      stream    spark-<uuid>         a name; progress is stored under it
    commitOffsets                 stream    true                 true, false
    batchRows              batch  stream    65536                rows, 1 to 1,048,576

Names are case-insensitive (Spark hands them over in lower
case), values are text. A JSON of offsets is Kafka's: {"orders": {"0": 23, "1": -2}}, where -2 is
earliest and -1 latest, and every partition of the stream is named.
They are honoured or refused, never ignored: `parsing.P1`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from broker.api.errors import InvalidSetting
from broker.api.plain import parse_json
from broker.api.stream import check_name
from spark_liftlog.parsing import OFFSET_MAX, Kind, brokers_in, invalid, known, of_kind, one_of, stream_in, truth, whole

EARLIEST: Final = -2
LATEST: Final = -1
PARTITIONS_MAX: Final = 100_000
BATCH_ROWS_MAX: Final = 1 << 20

Where: TypeAlias = str | dict[int, int]
"""`earliest`, `latest`, or per partition an offset, EARLIEST or LATEST."""

_BOTH: Final = frozenset(("batch", "stream"))
_SOURCE: Final[Mapping[str, frozenset[str]]] = {
    "brokers": _BOTH,
    "stream": _BOTH,
    "startingOffsets": _BOTH,
    "endingOffsets": frozenset(("batch",)),
    "maxOffsetsPerTrigger": frozenset(("stream",)),
    "minPartitions": _BOTH,
    "maxPartitions": _BOTH,
    "resolve": frozenset(("batch",)),
    "failOnDataLoss": _BOTH,
    "consumer": frozenset(("stream",)),
    "commitOffsets": frozenset(("stream",)),
    "batchRows": _BOTH,
}
SOURCE_OPTIONS: Final = tuple(_SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The source's options, checked. The table above says what they mean.

    Attributes:
        consumer: None: a name is made with the first offset.
        max_offsets_per_trigger: None: no limit.
    """

    brokers: str
    stream: str
    starting_offsets: Where
    ending_offsets: Where
    max_offsets_per_trigger: int | None
    min_partitions: int
    max_partitions: int
    resolve: str
    fail_on_data_loss: bool
    consumer: str | None
    commit_offsets: bool
    batch_rows: int


def source_options(given: Mapping[str, str], kind: Kind) -> SourceOptions:
    """Check the options of a read.

    Raises:
        UnknownSetting: an option that the source does not have, or not for this kind of read.
        InvalidSetting: a value of a wrong form or beyond its limit, or no stream.
        InvalidName: a stream or consumer name that cannot be one.
    """
    options = known(given, SOURCE_OPTIONS, what="the liftlog source")
    of_kind(options, _SOURCE, kind, words=("spark.read", "spark.readStream"))
    stream = stream_in(options, given, internal=True)
    if stream is None:
        raise InvalidSetting(
            """no stream is named: .option("stream", "orders"), or of a table in SQL: FROM t WITH (stream='orders')""",
            key="stream",
            value=None,
        )
    minimum = whole(options, "minPartitions", 1, PARTITIONS_MAX)
    maximum = whole(options, "maxPartitions", 1, PARTITIONS_MAX)
    if minimum is not None and maximum is not None and minimum > maximum:
        raise invalid("minPartitions", str(minimum), f"must not exceed maxPartitions={maximum}")
    consumer = options.get("consumer")
    return SourceOptions(
        brokers=brokers_in(options),
        stream=stream,
        starting_offsets=_where(options, "startingOffsets", stream, kind),
        ending_offsets=_where(options, "endingOffsets", stream, kind),
        max_offsets_per_trigger=whole(options, "maxOffsetsPerTrigger", 1, OFFSET_MAX),
        min_partitions=minimum or 1,
        max_partitions=maximum or max(minimum or 1, 2 * cores()),
        resolve=one_of(options, "resolve", ("auto", "plan", "read")),
        fail_on_data_loss=truth(options, "failOnDataLoss", default=True),
        consumer=None if consumer is None else check_name(consumer, what="consumer"),
        commit_offsets=truth(options, "commitOffsets", default=True),
        batch_rows=whole(options, "batchRows", 1, BATCH_ROWS_MAX) or 1 << 16,
    )


def check_names(given: Mapping[str, str]) -> None:
    """Refuse option names that no kind of read has; `load()` asks before it knows which kind it will be.

    CREATE TABLE asks, too, and hands over the table's properties (`provider` among them) with the options, each of
    which is there a second time as `option.<name>`.

    Raises:
        UnknownSetting: the first such option.
    """
    if "provider" in given:
        given = {name: value for name, value in given.items() if f"option.{name}" in given}
    known(given, SOURCE_OPTIONS, what="the liftlog source")


def cores() -> int:
    """Cores that this process may use: a driver's guess at what the executors have."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _where(options: Mapping[str, str], name: str, stream: str, kind: Kind) -> Where:
    starts = name == "startingOffsets"
    value = options.get(name)
    if value is None:
        return "earliest" if starts and kind == "batch" else "latest"
    text = value.strip()
    allowed = ("earliest", "latest") if kind == "stream" else ("earliest",) if starts else ("latest",)
    if text.lower() in allowed:
        return text.lower()
    form = f'must be {" or ".join(allowed)} or JSON such as {{"{stream}": {{"0": 42, "1": 7}}}}'
    if not text.startswith("{"):
        raise invalid(name, value, form, limit=list(allowed))
    try:
        streams = parse_json(text, object_pairs_hook=_without_repeats)
    except ValueError as error:
        raise invalid(name, value, f"{form}; it is no JSON: {error}") from None
    if set(streams) != {stream}:
        raise invalid(name, value, f"{form}; it names {sorted(streams)}, the stream is {stream!r}")
    symbolic = {EARLIEST, LATEST} if kind == "stream" else {EARLIEST} if starts else {LATEST}
    return _partition_offsets(name, value, streams[stream], symbolic)


def _partition_offsets(name: str, value: str, partitions: Any, symbolic: set[int]) -> dict[int, int]:
    rule = "a partition is written as a number in quotes, an offset as a whole number from 0, or " + " or ".join(
        f"{n} ({'earliest' if n == EARLIEST else 'latest'})" for n in sorted(symbolic)
    )
    if not isinstance(partitions, dict) or not partitions:
        raise invalid(name, value, f"the stream's value must be an object of partitions; {rule}")
    found = {}
    for partition, offset in partitions.items():
        if not (partition.isascii() and partition.isdecimal() and len(partition) <= 6):
            raise invalid(name, value, f"{partition!r} is no partition; {rule}")
        if int(partition) in found:
            raise invalid(name, value, f"partition {int(partition)} is named twice")
        if (
            isinstance(offset, bool)
            or not isinstance(offset, int)
            or not (offset in symbolic or 0 <= offset <= OFFSET_MAX)
        ):
            raise invalid(name, value, f"{offset!r} is no offset of partition {partition}; {rule}")
        found[int(partition)] = offset
    return dict(sorted(found.items()))


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found
