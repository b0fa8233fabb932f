"""How far behind a streaming query is: what its brokers have now, less what it has completed.

A Python source cannot fill `sources[].metrics`; what it reports as its latest offset lands verbatim in the progress.
So that report carries what somebody needs who looks at the query from outside:

    {"v": 1, "brokers": "localhost:9293", "reads": {"streams": ["orders"]},
     "streams": {"orders": {"0": {"high_watermark": 250, "lag": 150}}}}

and, where options name files of TLS or a profile, their paths and its name: `"tls": {"ca": "/etc/ssl/ca.pem"}`. `reads`
is what the options choose: `{"pattern": "orders-.*"}`, or names of streams, and `"partitions": {"orders": [0, 1]}`.

L1  A progress tells of its own moment: `lag` counts from the end of its batch. There is none while a batch runs, or
    while a query waits for records, however many come meanwhile. So the lag of a query is asked of the brokers
    (`lag_now`): from the end of its last batch that is complete.
L2  It counts what the query reads. Partitions and streams that were added since that batch count from their first
    record, as they will be read. (Those that options name later begin where options say, and do not count before.)
    Positions that the options leave out are kept, and do not count.

The brokers' own view, by what was published: `liftlog consumer describe`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from broker.api.answers import Resolved
from broker.api.errors import LiftlogError
from broker.api.plain import parse_json
from broker.client.client import Client
from broker.client.http.tls import TlsFiles
from broker.client.positions import Position
from spark_liftlog.place import Place, client_at, files_of
from spark_liftlog.reading.offsets import VERSION, Key, Offset, decode
from spark_liftlog.reading.selection import Selection

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

ASK_S: Final = 3.0
"""A broker that is asked for a lag may be silent for so long."""
_FILES: Final = ("ca", "cert", "key", "token", "profile")


@dataclass(frozen=True, slots=True)
class Lag:
    """Records that were committed and are not processed yet.

    Attributes:
        partitions: By (stream, partition); records, >= 0.
        ages: By (stream, partition): the age of the oldest of them, to within a stored batch, in seconds; 0 where there
            are none. Only of a query that is asked for now, and where a broker tells.
    """

    partitions: Mapping[Key, int]
    ages: Mapping[Key, float] = field(default_factory=dict, compare=False)

    @property
    def total(self) -> int:
        """The lag of all partitions together, in records."""
        return sum(self.partitions.values())

    @property
    def greatest(self) -> int:
        """The lag of the partition that is furthest behind, in records; 0 when there is none."""
        return max(self.partitions.values(), default=0)

    @property
    def behind_s(self) -> float | None:
        """The greatest of the ages, in seconds; None: none is known."""
        return max(self.ages.values(), default=None)


def report(
    ends: Mapping[Key, int], high_watermarks: Mapping[Key, int], *, brokers: str, selection: Selection | None = None
) -> dict[str, Any]:
    """The JSON for `reportLatestOffset`: per partition the high watermark and what lies before it."""
    streams: dict[str, dict[str, Any]] = {}
    for (stream, partition), high_watermark in sorted(high_watermarks.items()):
        lag_records = max(0, high_watermark - ends.get((stream, partition), high_watermark))
        entry = {"high_watermark": high_watermark, "lag": lag_records}
        streams.setdefault(stream, {})[str(partition)] = entry
    files = {name: path for name, path in asdict(files_of(brokers)).items() if name in _FILES and path is not None}
    reads = {} if selection is None else {"reads": _reads(selection)}
    return {"v": VERSION, "brokers": brokers, **reads, "streams": streams, **({"tls": files} if files else {})}


def _reads(selection: Selection) -> dict[str, Any]:
    if selection.pattern is not None:
        return {"pattern": selection.pattern}
    only = {stream: sorted(numbers) for stream, numbers in (selection.partitions or {}).items()}
    return {"streams": list(selection.names), **({"partitions": only} if only else {})}


def _selection(reads: Any) -> Selection | None:
    """What a report says that is read; None: it does not say that."""
    if not isinstance(reads, dict):
        return None
    pattern, streams, only = reads.get("pattern"), reads.get("streams"), reads.get("partitions", {})
    if isinstance(pattern, str):
        return Selection(pattern=pattern)
    if not isinstance(streams, list) or not isinstance(only, dict):
        return None
    return Selection(names=tuple(streams), partitions={stream: frozenset(numbers) for stream, numbers in only.items()})


def lag(of: StreamingQuery | Mapping[str, Any], *, brokers: str | None = None) -> Lag | None:
    """The lag of a query now, or of one progress of it (as a StreamingQueryListener gets them) at its moment.

    Args:
        brokers: Whom to ask for a query; those of its source, with its files of TLS, if not given.
    Returns:
        The lag over all liftlog sources of the query; None before the first progress, or without such a source.
    Raises:
        Retryable: no broker answers, and a query is asked for.
    """
    if isinstance(of, Mapping):
        return _reported(of)
    return None if of.lastProgress is None else lag_now(of.lastProgress, brokers=brokers)


def lag_now(progress: Mapping[str, Any], *, brokers: str | None = None) -> Lag | None:
    """The lag now of the query whose last progress this is (L1). As `lag`."""
    found: dict[Key, int] = {}
    ages: dict[Key, float] = {}
    is_ours = False
    for source in progress["sources"]:
        value = _parsed(source["latestOffset"])
        if value is None:
            continue
        is_ours = True
        asked = brokers or _place(value)
        now = {} if asked is None else _asked(source.get("endOffset"), asked, value)
        for key, records in (_entries(value) | {key: records for key, (records, _) in now.items()}).items():
            found[key] = found.get(key, 0) + records  # who cannot be asked has what was reported, at least
        for key, (_, age_s) in now.items():
            if age_s is not None:
                ages[key] = max(ages.get(key, 0.0), age_s)
    return Lag(found, ages) if is_ours else None


def brokers_of(progress: Mapping[str, Any]) -> frozenset[str]:
    """Whom `lag_now` asks."""
    reports = (_parsed(source["latestOffset"]) for source in progress["sources"])
    return frozenset(place for value in reports if value is not None and (place := _place(value)) is not None)


def _reported(progress: Mapping[str, Any]) -> Lag | None:
    found: dict[Key, int] = {}
    is_ours = False
    for source in progress["sources"]:
        value = _parsed(source["latestOffset"])
        if value is not None:
            is_ours = True
            for key, records in _entries(value).items():
                found[key] = found.get(key, 0) + records
    return Lag(found) if is_ours else None


def _asked(end_value: Any, brokers: str, value: Mapping[str, Any]) -> dict[Key, tuple[int, float | None]]:
    """The records behind the end of a batch, and the age of the first, by partition; of those that brokers tell of.

    Args:
        value: The report of the source.
    """
    try:
        end = decode(parse_json(end_value) if isinstance(end_value, str) else end_value)
    except (ValueError, LiftlogError):
        return {}
    if end is None:
        return {}
    selection = _selection(value.get("reads"))
    places = {key: at.offset for key, at in end.positions.items() if selection is None or _is_read(selection, key)}
    with client_at(brokers, timeout_s=ASK_S, deadline_s=0) as client:
        if selection is not None:
            places |= _added(client, end, selection)
        answers = client.resolve([Position(*key, {"offset": offset}) for key, offset in sorted(places.items())])
    found: dict[Key, tuple[int, float | None]] = {}
    for (key, offset), answer in zip(sorted(places.items()), answers, strict=True):
        if answer.high_watermark is None or answer.log_start_offset is None:
            continue
        is_same = answer.incarnation == end.incarnations.get(key[0], answer.incarnation)
        records = max(0, answer.high_watermark - (offset if is_same else answer.log_start_offset))
        found[key] = (records, _age_s(answer) if records else 0.0)
    return found


def _age_s(answer: Resolved) -> float | None:
    """By the clock that gave the record its time, as far as brokers say it: those of an earlier release do not."""
    if answer.age_ms is not None:
        return answer.age_ms / 1000
    return None if answer.timestamp_us is None else max(0.0, time.time() - answer.timestamp_us / 1e6)


def _is_read(selection: Selection, key: Key) -> bool:
    return selection.has(key[0]) and selection.takes(key)


def _added(client: Client, end: Offset, selection: Selection) -> dict[Key, int]:
    """Where partitions begin that the query reads and has no position in (L2)."""
    return {
        (stream, number): head.log_start_offset
        for stream, found in client.watch(streams=selection.watched, max_wait_s=0).streams.items()
        if (stream in end.incarnations and selection.is_whole(stream)) or selection.pattern is not None
        if selection.has(stream)
        for number, head in found.partitions.items()
        if (stream, number) not in end.positions
    }


def _entries(value: Mapping[str, Any]) -> dict[Key, int]:
    return {
        (stream, int(partition)): entry["lag"]
        for stream, partitions in value["streams"].items()
        for partition, entry in partitions.items()
    }


def _place(report: Mapping[str, Any]) -> str | None:
    """The brokers that a source's report names, with their files; None: it names none."""
    brokers, files = report.get("brokers"), report.get("tls")
    if not isinstance(brokers, str) or not isinstance(files, dict):
        return brokers if isinstance(brokers, str) else None
    given: dict[str, Any] = {name: path for name, path in files.items() if name in _FILES and isinstance(path, str)}
    return Place(brokers, TlsFiles(**given))


def _parsed(latest: Any) -> dict[str, Any] | None:
    """A source's report, if it is one of ours."""
    if isinstance(latest, str):
        try:
            latest = parse_json(latest)
        except ValueError:
            return None
    if not isinstance(latest, dict) or latest.get("v") != VERSION or not isinstance(latest.get("streams"), dict):
        return None
    try:
        entries = [(int(number), entry) for found in latest["streams"].values() for number, entry in found.items()]
        return latest if all(isinstance(entry["lag"], int) for _, entry in entries) else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
