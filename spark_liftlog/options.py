"""The options of the source and the sink: names, defaults, limits, errors, in one place.

    option                 source           default              values
    brokers                batch  stream    localhost:9293       HTTP addresses, comma separated
    stream (or the path)   batch  stream    required             a stream's name
    startingOffsets        batch  stream    earliest | latest    earliest, latest (stream only), JSON
    endingOffsets          batch            latest               latest, JSON
    maxOffsetsPerTrigger          stream    no limit             records, 1 to 2^63 - 1
    minPartitions          batch  stream    1                    input partitions, 1 to 100,000
    maxPartitions          batch  stream    2 x cores            input partitions, 1 to 100,000
    failOnDataLoss         batch  stream    true                 true, false
    consumer                      stream    spark-<uuid>         a name; progress is stored under it
    commitOffsets                 stream    true                 true, false
    batchRows              batch  stream    65536                rows, 1 to 1,048,576

The sink takes `brokers` and `stream`. Names are case-insensitive (Spark hands them over in lower
case), values are text. A JSON of offsets is Kafka's: {"orders": {"0": 23, "1": -2}}, where -2 is
earliest and -1 latest, and every partition of the stream is named.

P1  An option is honoured or refused, never ignored: one that nobody knows, and one that belongs
    to another kind of read, is an error that names it. Only what Spark itself passes is let by.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from broker.api.errors import InvalidSetting, UnknownSetting
from broker.api.http import DEFAULT_PORT
from broker.api.plain import parse_json
from broker.api.stream import check_name

EARLIEST: Final = -2
LATEST: Final = -1
PARTITIONS_MAX: Final = 100_000
BATCH_ROWS_MAX: Final = 1 << 20
OFFSET_MAX: Final = (1 << 63) - 1

Kind: TypeAlias = Literal["batch", "stream"]
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
    "failOnDataLoss": _BOTH,
    "consumer": frozenset(("stream",)),
    "commitOffsets": frozenset(("stream",)),
    "batchRows": _BOTH,
}
SOURCE_OPTIONS: Final = tuple(_SOURCE)
SINK_OPTIONS: Final = ("brokers", "stream")

# `path` is the argument of load() and save(); the others are how Spark tells a sink about the query.
_FROM_SPARK: Final = frozenset(("path", "checkpointlocation", "queryname"))


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
    fail_on_data_loss: bool
    consumer: str | None
    commit_offsets: bool
    batch_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The sink's options, checked."""

    brokers: str
    stream: str


def source_options(given: Mapping[str, str], kind: Kind) -> SourceOptions:
    """Check the options of a read.

    Raises:
        UnknownSetting: an option that the source does not have, or not for this kind of read.
        InvalidSetting: a value of a wrong form or beyond its limit, or no stream.
        InvalidName: a stream or consumer name that cannot be one.
    """
    options = _known(given, SOURCE_OPTIONS, what="the liftlog source")
    for name in options:
        if kind not in _SOURCE[name]:
            other = "readStream" if kind == "batch" else "read"
            this = "read" if kind == "batch" else "readStream"
            raise UnknownSetting(
                f"option {name!r} means something for spark.{other} only, this is spark.{this}", key=name, nearest=None
            )
    stream = _stream(options, given, internal=True)
    minimum = _whole(options, "minPartitions", 1, PARTITIONS_MAX)
    maximum = _whole(options, "maxPartitions", 1, PARTITIONS_MAX)
    if minimum is not None and maximum is not None and minimum > maximum:
        raise _invalid("minPartitions", str(minimum), f"must not exceed maxPartitions={maximum}")
    consumer = options.get("consumer")
    return SourceOptions(
        brokers=_brokers(options),
        stream=stream,
        starting_offsets=_where(options, "startingOffsets", stream, kind),
        ending_offsets=_where(options, "endingOffsets", stream, kind),
        max_offsets_per_trigger=_whole(options, "maxOffsetsPerTrigger", 1, OFFSET_MAX),
        min_partitions=minimum or 1,
        max_partitions=maximum or max(minimum or 1, 2 * cores()),
        fail_on_data_loss=_truth(options, "failOnDataLoss", default=True),
        consumer=None if consumer is None else check_name(consumer, what="consumer"),
        commit_offsets=_truth(options, "commitOffsets", default=True),
        batch_rows=_whole(options, "batchRows", 1, BATCH_ROWS_MAX) or 1 << 16,
    )


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write. Raises as `source_options`."""
    options = _known(given, SINK_OPTIONS, what="the liftlog sink")
    return SinkOptions(brokers=_brokers(options), stream=_stream(options, given, internal=False))


def check_names(given: Mapping[str, str]) -> None:
    """Refuse option names that no kind of read has; `load()` asks before it knows which kind it will be.

    CREATE TABLE asks, too, and hands over the table's properties (`provider` among them) with the options, each of
    which is there a second time as `option.<name>`.

    Raises:
        UnknownSetting: the first such option.
    """
    if "provider" in given:
        given = {name: value for name, value in given.items() if f"option.{name}" in given}
    _known(given, SOURCE_OPTIONS, what="the liftlog source")


def cores() -> int:
    """Cores that this process may use: a driver's guess at what the executors have."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _known(given: Mapping[str, str], names: tuple[str, ...], *, what: str) -> dict[str, str]:
    """The given options under their proper names (P1)."""
    proper = {name.lower(): name for name in names}
    found = {}
    for key, value in given.items():
        lower = key.lower()
        if lower in proper:
            found[proper[lower]] = value
        elif lower not in _FROM_SPARK:
            nearest = proper.get(next(iter(difflib.get_close_matches(lower, proper, n=1)), ""))
            hint = f"; did you mean {nearest!r}?" if nearest else f"; it has {', '.join(names)}"
            raise UnknownSetting(f"{what} has no option {key!r}{hint}", key=key, nearest=nearest)
    return found


def _stream(options: Mapping[str, str], given: Mapping[str, str], *, internal: bool) -> str:
    path = next((value for key, value in given.items() if key.lower() == "path"), None)
    name = options.get("stream", path)
    if name is None:
        raise InvalidSetting(
            """no stream is named: .option("stream", "orders"), or of a table in SQL: FROM t WITH (stream='orders')""",
            key="stream",
            value=None,
        )
    if path is not None and path != name:
        raise _invalid("stream", name, f"load() or save() names another stream, {path!r}")
    return check_name(name, internal=internal)


def _brokers(options: Mapping[str, str]) -> str:
    value = options.get("brokers", f"localhost:{DEFAULT_PORT}")
    addresses = [address.strip() for address in value.split(",")]
    if not all(addresses):
        raise _invalid("brokers", value, "must be HTTP addresses separated by commas, host:port,host:port")
    return ",".join(addresses)


def _whole(options: Mapping[str, str], name: str, least: int, greatest: int) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    text = value.strip()
    # isdecimal alone lets other scripts' digits through; 20 digits hold every number within a limit.
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and least <= int(text) <= greatest):
        raise _invalid(name, value, f"must be a whole number from {least} to {greatest}", limit=[least, greatest])
    return int(text)


def _truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value.strip().lower() not in ("true", "false"):
        raise _invalid(name, value, "must be true or false", limit=["true", "false"])
    return value.strip().lower() == "true"


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
        raise _invalid(name, value, form, limit=list(allowed))
    try:
        streams = parse_json(text, object_pairs_hook=_without_repeats)
    except ValueError as error:
        raise _invalid(name, value, f"{form}; it is no JSON: {error}") from None
    if set(streams) != {stream}:
        raise _invalid(name, value, f"{form}; it names {sorted(streams)}, the stream is {stream!r}")
    symbolic = {EARLIEST, LATEST} if kind == "stream" else {EARLIEST} if starts else {LATEST}
    return _partition_offsets(name, value, streams[stream], symbolic)


def _partition_offsets(name: str, value: str, partitions: Any, symbolic: set[int]) -> dict[int, int]:
    rule = "a partition is written as a number in quotes, an offset as a whole number from 0, or " + " or ".join(
        f"{n} ({'earliest' if n == EARLIEST else 'latest'})" for n in sorted(symbolic)
    )
    if not isinstance(partitions, dict) or not partitions:
        raise _invalid(name, value, f"the stream's value must be an object of partitions; {rule}")
    found = {}
    for partition, offset in partitions.items():
        if not (partition.isascii() and partition.isdecimal() and len(partition) <= 6):
            raise _invalid(name, value, f"{partition!r} is no partition; {rule}")
        if int(partition) in found:
            raise _invalid(name, value, f"partition {int(partition)} is named twice")
        if (
            isinstance(offset, bool)
            or not isinstance(offset, int)
            or not (offset in symbolic or 0 <= offset <= OFFSET_MAX)
        ):
            raise _invalid(name, value, f"{offset!r} is no offset of partition {partition}; {rule}")
        found[int(partition)] = offset
    return dict(sorted(found.items()))


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _invalid(name: str, value: str, rule: str, **fields: Any) -> InvalidSetting:
    shown = value if len(value) <= 200 else value[:200] + "…"
    return InvalidSetting(f"option {name}={shown!r}: {rule}", key=name, value=shown, **fields)
