"""The options of the source: names, defaults, limits, errors, in one place. The sink's: writing/sink_options.py.

    option                              source           default              values
    brokers                             batch  stream    LIFTLOG_BROKERS      HTTP addresses, comma separated
    tlsCa, tlsCert, tlsKey              batch  stream    LIFTLOG_TLS_CA …     paths of PEM files, for https:// brokers
    tokenFile                           batch  stream    LIFTLOG_TOKEN_FILE   path of a file with a token
    profile                             batch  stream    LIFTLOG_PROFILE      name of a profile, or PATH#NAME
    stream (or the path)                batch  stream    one of these four    a stream's name
    streams                             batch  stream                         names, comma separated
    streamPattern                       batch  stream                         regular expression for whole names
    partitions                          batch  stream    all                  {"orders": [0, 1]}
    startingOffsets                     batch  stream    earliest | latest    earliest, latest, committed, JSON
    startingTimestamp                   batch  stream                         milliseconds since 1970 UTC
    startingOffsetsByTimestamp          batch  stream                         JSON of milliseconds
    startingOffsetsByTimestampStrategy  batch  stream    error                error, latest
    endingOffsets                       batch            latest               latest, JSON
    endingTimestamp                     batch                                 milliseconds since 1970 UTC
    endingOffsetsByTimestamp            batch                                 JSON of milliseconds
    maxOffsetsPerTrigger                       stream    no limit             records, 1 to 2^63 - 1
    maxBytesPerTrigger                         stream    no limit             bytes, 1 to 2^63 - 1; 10m, 1g
    minOffsetsPerTrigger                       stream    none                 records, 1 to 2^63 - 1
    maxTriggerDelay                            stream    15m                  500ms, 30s, 15m, 1h
    minPartitions                       batch  stream    1                    input partitions, 1 to 100,000
    maxPartitions                       batch  stream    2 x cores            input partitions, 1 to 100,000
    maxRecordsPerPartition              batch  stream    no limit             records, 1 to 2^63 - 1
    resolve                             batch            auto                 auto, plan, read
    mode, asOf, sharedKeys              batch            log                  reading/table_options.py
    failOnDataLoss                      batch  stream    true                 true, false
    truncationTimeoutMs                        stream    5000                 milliseconds, 0 to 86,400,000
    subjects                            batch  stream    all                  NATS subjects, wildcards; comma separated
    key                                 batch  stream    all                  a record's key, as text
    columns                             batch  stream    all                  names of a row's columns, comma separated
    pushFilters                         batch            false                true, false
    readFrom                            batch  stream    leader               leader, nearest
    consumer                                   stream    spark-<uuid>         a name; progress is stored under it
    commitOffsets                              stream    true                 true, false
    batchRows                           batch  stream    65536                rows, 1 to 1,048,576
    payload                             batch  stream    none                 json
    payloadSchema                       batch  stream    the stream's own     columns of the objects, in DDL
    payloadMode                         batch  stream    PERMISSIVE           PERMISSIVE, DROPMALFORMED, FAILFAST

Names are case-insensitive (Spark hands them over in lower case), values are text. A JSON of offsets is Kafka's:
{"orders": {"0": 23, "1": -2}}, where -2 is earliest and -1 latest, and every partition of each stream is named.
They are honoured or refused, never ignored: `parsing.P1`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.api.conditions import KEY_LENGTH_MAX, Conditions
from broker.api.errors import InvalidSetting, NotSupported
from broker.api.plain import parse_json
from broker.api.stream import check_name, check_subject
from spark_liftlog.parsing import (
    OFFSET_MAX,
    TIMEOUT_MS_MAX,
    Kind,
    brokers_in,
    byte_count,
    duration_s,
    invalid,
    known,
    naming,
    of_kind,
    one_of,
    stream_in,
    truth,
    whole,
)
from spark_liftlog.payload import Payload, payload_in
from spark_liftlog.place import Place
from spark_liftlog.reading.narrowing import NO_NARROWING, Narrowing
from spark_liftlog.reading.selection import Selection
from spark_liftlog.reading.table_options import TableOptions, as_of, table_options
from spark_liftlog.reading.where import EARLIEST, LATEST, ByPartition, ByTime, Where

PARTITIONS_MAX: Final = 100_000
STREAMS_MAX: Final = 256
"""So many names a broker takes in one question."""
BATCH_ROWS_MAX: Final = 1 << 20
TRIGGER_DELAY_S: Final = 900.0
TRUNCATION_TIMEOUT_S: Final = 5.0

_BOTH: Final = frozenset(("batch", "stream"))
_BATCH: Final = frozenset(("batch",))
_STREAM: Final = frozenset(("stream",))
_SOURCE: Final[Mapping[str, frozenset[str]]] = {
    "brokers": _BOTH,
    "tlsCa": _BOTH,
    "tlsCert": _BOTH,
    "tlsKey": _BOTH,
    "tokenFile": _BOTH,
    "profile": _BOTH,
    "stream": _BOTH,
    "streams": _BOTH,
    "streamPattern": _BOTH,
    "partitions": _BOTH,
    "startingOffsets": _BOTH,
    "startingTimestamp": _BOTH,
    "startingOffsetsByTimestamp": _BOTH,
    "startingOffsetsByTimestampStrategy": _BOTH,
    "endingOffsets": _BATCH,
    "endingTimestamp": _BATCH,
    "endingOffsetsByTimestamp": _BATCH,
    "maxOffsetsPerTrigger": _STREAM,
    "maxBytesPerTrigger": _STREAM,
    "minOffsetsPerTrigger": _STREAM,
    "maxTriggerDelay": _STREAM,
    "minPartitions": _BOTH,
    "maxPartitions": _BOTH,
    "maxRecordsPerPartition": _BOTH,
    "resolve": _BATCH,
    "mode": _BOTH,
    "asOf": _BATCH,
    "sharedKeys": _BATCH,
    "failOnDataLoss": _BOTH,
    "truncationTimeoutMs": _STREAM,
    "subjects": _BOTH,
    "key": _BOTH,
    "columns": _BOTH,
    "pushFilters": _BATCH,
    "readFrom": _BOTH,
    "consumer": _STREAM,
    "commitOffsets": _STREAM,
    "onNewCheckpoint": _STREAM,
    "batchRows": _BOTH,
    "payload": _BOTH,
    "payloadSchema": _BOTH,
    "payloadMode": _BOTH,
}
SOURCE_OPTIONS: Final = tuple(_SOURCE)
_WHICH: Final = ("stream", "streams", "streamPattern")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The checked options of the source. The table above has their meaning.

    Attributes:
        truncation_timeout_s: If a log ends below a position that was read for longer than this, it is truncated.
        subjects: Patterns; the subject of a row must match one of them. Empty: all rows.
        key: Only rows with this key; None: all rows.
        push_filters: Spark's filters are taken, where Spark hands them over (reading/pushing_reader.py).
        narrowing: What they leave of the read. (What they say of subjects and key is above.)
        from_nearest: Tasks read from a replica in their rack, which the environment of the executor names.
        table: None: the log is read.
        consumer: None: the query makes a name with its first offset.
        accepts_new_checkpoint: A new checkpoint is meant, also if the consumer has progress of another one.
        max_offsets_per_trigger, max_bytes_per_trigger, min_offsets_per_trigger, max_records_per_partition: None: none.
    """

    brokers: Place
    selection: Selection
    starting: Where
    ending: Where
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    min_partitions: int
    max_partitions: int
    max_records_per_partition: int | None
    resolve: str
    fail_on_data_loss: bool
    truncation_timeout_s: float
    subjects: tuple[str, ...]
    key: bytes | None
    push_filters: bool
    from_nearest: bool
    table: TableOptions | None
    consumer: str | None
    commit_offsets: bool
    accepts_new_checkpoint: bool
    batch_rows: int
    payload: Payload | None
    narrowing: Narrowing = NO_NARROWING


def source_options(given: Mapping[str, str], kind: Kind) -> SourceOptions:
    """Check the options of a read.

    Raises:
        UnknownSetting: an option that the source does not have, or not for this kind of read.
        InvalidSetting: a value has a wrong form or is beyond its limit, options contradict each other, or no stream
            is named.
        InvalidName: the name of a stream or consumer is not allowed.
    """
    options = known(given, SOURCE_OPTIONS, what="the liftlog source")
    of_kind(options, _SOURCE, kind, words=("spark.read", "spark.readStream"))
    selection = _selection(options, given)
    minimum = whole(options, "minPartitions", 1, PARTITIONS_MAX)
    maximum = whole(options, "maxPartitions", 1, PARTITIONS_MAX)
    if minimum is not None and maximum is not None and minimum > maximum:
        raise invalid("minPartitions", str(minimum), f"must not exceed maxPartitions={maximum}")
    table = table_options(options, kind)
    consumer = options.get("consumer")
    starting = _where(options, "starting", selection, kind)
    if starting == "committed" and consumer is None:
        raise invalid("startingOffsets", "committed", "the option consumer must name whose progress that is")
    least = whole(options, "minOffsetsPerTrigger", 1, OFFSET_MAX)
    most = whole(options, "maxOffsetsPerTrigger", 1, OFFSET_MAX)
    if least is not None and most is not None and least > most:
        raise invalid("minOffsetsPerTrigger", str(least), f"must not exceed maxOffsetsPerTrigger={most}")
    if "maxTriggerDelay" in options and least is None:
        raise invalid("maxTriggerDelay", options["maxTriggerDelay"], "means something with minOffsetsPerTrigger only")
    timeout_ms = whole(options, "truncationTimeoutMs", 0, TIMEOUT_MS_MAX)
    if consumer is not None:
        with naming("consumer"):
            check_name(consumer, what="consumer")
    return SourceOptions(
        brokers=brokers_in(options),
        selection=selection,
        starting=starting,
        ending=_where(options, "ending", selection, kind) if table is None else _as_of(options, selection),
        max_offsets_per_trigger=most,
        max_bytes_per_trigger=byte_count(options, "maxBytesPerTrigger"),
        min_offsets_per_trigger=least,
        max_trigger_delay_s=duration_s(options, "maxTriggerDelay", TRIGGER_DELAY_S),
        min_partitions=minimum or 1,
        max_partitions=maximum or max(minimum or 1, 2 * cores()),
        max_records_per_partition=whole(options, "maxRecordsPerPartition", 1, OFFSET_MAX),
        resolve=one_of(options, "resolve", ("auto", "plan", "read")),
        fail_on_data_loss=truth(options, "failOnDataLoss", default=True),
        truncation_timeout_s=TRUNCATION_TIMEOUT_S if timeout_ms is None else timeout_ms / 1000,
        subjects=_subjects(options),
        key=_key(options),
        push_filters=truth(options, "pushFilters", default=False),
        from_nearest=_from_nearest(options),
        table=table,
        consumer=consumer,
        commit_offsets=truth(options, "commitOffsets", default=True),
        accepts_new_checkpoint=one_of(options, "onNewCheckpoint", ("refuse", "accept")) == "accept",
        batch_rows=whole(options, "batchRows", 1, BATCH_ROWS_MAX) or 1 << 16,
        payload=payload_in(options),
    )


def streams_in(given: Mapping[str, str]) -> tuple[Place, Selection]:
    """The brokers and the streams of a read, of either kind. Raises as `source_options`."""
    given = _of_read(given)
    options = known(given, SOURCE_OPTIONS, what="the liftlog source")
    return brokers_in(options), _selection(options, given)


def columns_in(given: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the option `columns`, as they are written; empty: all. The names are not checked here."""
    value = next((value for name, value in given.items() if name.lower() == "columns"), None)
    if value is None:
        return ()
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise invalid("columns", value, "must be names, separated by commas")
    return names


def _subjects(options: Mapping[str, str]) -> tuple[str, ...]:
    value = options.get("subjects")
    if value is None:
        return ()
    with naming("subjects"):
        return tuple(check_subject(pattern.strip(), wildcards=True) for pattern in value.split(","))


def _key(options: Mapping[str, str]) -> bytes | None:
    value = options.get("key")
    if value is None:
        return None
    key = value.encode()
    if len(Conditions(key=key).as_query()["key_base64"]) > KEY_LENGTH_MAX:
        raise invalid("key", value, f"must have no more than {KEY_LENGTH_MAX} characters in base64")
    return key


def _from_nearest(options: Mapping[str, str]) -> bool:
    if options.get("readFrom", "").strip().lower() == "local":
        raise NotSupported(
            "option readFrom='local': files of a broker are not read; nearest asks a replica in the rack"
        )
    return one_of(options, "readFrom", ("leader", "nearest")) == "nearest"


def check_names(given: Mapping[str, str]) -> None:
    """Refuse option names that no kind of read has. `load()` asks before it knows which kind it will be.

    CREATE TABLE asks, too. It passes the table's properties (`provider` among them) with the options, and each option
    a second time as `option.<name>`.

    Raises:
        UnknownSetting: the first such option.
    """
    known(_of_read(given), SOURCE_OPTIONS, what="the liftlog source")


def _of_read(given: Mapping[str, str]) -> Mapping[str, str]:
    """The options without what CREATE TABLE adds."""
    if "provider" not in given:
        return given
    return {name: value for name, value in given.items() if f"option.{name}" in given}


def cores() -> int:
    """Cores that this process may use: a driver's guess at what the executors have."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _selection(options: Mapping[str, str], given: Mapping[str, str]) -> Selection:
    """Which streams and partitions; exactly one option says which streams, or `partitions` alone does."""
    stream = stream_in(options, given, internal=True)
    named = [name for name in _WHICH if name in options or (name == "stream" and stream is not None)]
    if len(named) > 1:
        raise invalid(named[1], options[named[1]], f"{named[0]} is given, too: one of {', '.join(_WHICH)} is enough")
    partitions = _partitions(options)
    if not named and partitions is None:
        raise InvalidSetting(
            """no stream is named: .option("stream", "orders"), or of a table in SQL: FROM t WITH (stream='orders')""",
            key="stream",
            value=None,
        )
    pattern = options.get("streamPattern")
    if pattern is not None:
        if not pattern.strip():
            raise invalid("streamPattern", pattern, "must be a regular expression for whole names, such as orders-.*")
        try:
            re.compile(pattern)
        except re.error as error:
            raise invalid("streamPattern", pattern, f"is no regular expression: {error}") from None
        if partitions is not None:
            raise invalid("partitions", options["partitions"], "streamPattern is given, too: name the streams")
        return Selection(pattern=pattern, option=named[0])
    names = [stream] if stream is not None else [n.strip() for n in options.get("streams", "").split(",") if n.strip()]
    if not named:
        names = list(partitions or {})
    if not names:
        raise invalid("streams", options["streams"], "must be names, separated by commas")
    option = named[0] if named else "partitions"
    with naming(option):
        for name in names:
            check_name(name, internal=True)
    if len(names) > STREAMS_MAX:
        rule = f"{len(names)} streams, at most {STREAMS_MAX} may be named: use streamPattern"
        raise invalid(option, options[option], rule, limit=STREAMS_MAX)
    if len(set(names)) < len(names):
        raise invalid("streams", options["streams"], "a name occurs twice")
    if unknown := sorted(set(partitions or {}) - set(names)):
        raise invalid("partitions", options["partitions"], f"stream {unknown[0]!r} is none of those that are read")
    return Selection(names=tuple(sorted(names)), partitions=partitions, option=option)


def _partitions(options: Mapping[str, str]) -> dict[str, frozenset[int]] | None:
    text = options.get("partitions")
    if text is None:
        return None
    found = _json("partitions", text, form := 'must be JSON such as {"orders": [0, 1]}')
    for numbers in found.values():
        is_list = isinstance(numbers, list) and len(numbers) > 0
        if not is_list or not all(type(n) is int and 0 <= n < PARTITIONS_MAX for n in numbers):
            raise invalid("partitions", text, form)
    return {name: frozenset(numbers) for name, numbers in found.items()}


def _where(options: Mapping[str, str], side: str, selection: Selection, kind: Kind) -> Where:
    """Where a read starts or ends: by offsets, or by time; one option says it."""
    names = (f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp")
    given = [name for name in names if name in options]
    if len(given) > 1:
        raise invalid(given[1], options[given[1]], f"{given[0]} is given, too: one of them is enough")
    strategy = one_of(options, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    is_by_time = bool(given) and given[0] != names[0]
    if "startingOffsetsByTimestampStrategy" in options and side == "starting" and not is_by_time:
        raise invalid("startingOffsetsByTimestampStrategy", strategy, "means something with a starting timestamp only")
    if side == "ending":
        strategy = "latest"
    if names[1] in options:
        at_ms = whole(options, names[1], 0, OFFSET_MAX // 1000, unit="milliseconds since 1970 UTC")
        return ByTime(at_ms=at_ms or 0, strategy=strategy)
    if names[2] in options:
        return ByTime(at_ms=_by_partition(options, names[2], selection, frozenset()), strategy=strategy)
    value = options.get(names[0])
    if value is None:
        return "earliest" if side == "starting" and kind == "batch" else "latest"
    words = (
        ("earliest", "latest", "committed")
        if kind == "stream"
        else ("earliest",)
        if side == "starting"
        else ("latest",)
    )
    if value.strip().lower() in words:
        return value.strip().lower()
    if not value.strip().startswith("{"):
        example = selection.names[0] if selection.names else "orders"
        rule = f'must be {" or ".join(words)} or JSON such as {{"{example}": {{"0": 42, "1": 7}}}}'
        raise invalid(names[0], value, rule, limit=list(words))
    symbols = {EARLIEST, LATEST} if kind == "stream" else {EARLIEST} if side == "starting" else {LATEST}
    return _by_partition(options, names[0], selection, frozenset(symbols))


def _as_of(options: Mapping[str, str], selection: Selection) -> Where:
    return as_of(options, lambda name: _by_partition(options, name, selection, frozenset({LATEST})))


def _by_partition(options: Mapping[str, str], name: str, selection: Selection, symbols: frozenset[int]) -> ByPartition:
    value = options[name]
    example = selection.names[0] if selection.names else "orders"
    found = _json(name, value, f'must be JSON such as {{"{example}": {{"0": 42, "1": 7}}}}')
    if selection.pattern is None and set(found) != set(selection.names):
        raise invalid(name, value, f"it names {sorted(found)}, the streams that are read are {list(selection.names)}")
    what = "milliseconds since 1970" if "Timestamp" in name else "a whole number from 0"
    rule = f"a partition is written as a number in quotes, its value is {what}" + "".join(
        f", or {n} ({'earliest' if n == EARLIEST else 'latest'})" for n in sorted(symbols)
    )
    greatest = OFFSET_MAX // 1000 if "Timestamp" in name else OFFSET_MAX
    return {stream: _numbers(name, value, found[stream], symbols, rule, greatest) for stream in sorted(found)}


def _numbers(
    name: str, value: str, partitions: Any, symbols: frozenset[int], rule: str, greatest: int
) -> dict[int, int]:
    if not isinstance(partitions, dict) or not partitions:
        raise invalid(name, value, f"the stream's value must be an object of partitions; {rule}")
    found = {}
    for partition, offset in partitions.items():
        if not (partition.isascii() and partition.isdecimal() and len(partition) <= 6):
            raise invalid(name, value, f"{partition!r} is no partition; {rule}")
        if int(partition) in found:
            raise invalid(name, value, f"partition {int(partition)} is named twice")
        if type(offset) is not int or not (offset in symbols or 0 <= offset <= greatest):
            raise invalid(name, value, f"{offset!r} is no offset of partition {partition}; {rule}")
        found[int(partition)] = offset
    return dict(sorted(found.items()))


def _json(name: str, value: str, form: str) -> dict[str, Any]:
    try:
        found = parse_json(value, object_pairs_hook=_without_repeats)
    except ValueError as error:
        raise invalid(name, value, f"{form}; it is no JSON: {error}") from None
    if not isinstance(found, dict) or not found:
        raise invalid(name, value, form)
    return found


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found
