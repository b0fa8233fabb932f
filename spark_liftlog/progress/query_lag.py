"""How far behind a streaming query is: what its brokers have now, less what it has completed.

A Python source cannot fill `sources[].metrics`; what it reports as its latest offset lands verbatim in the progress.
So that report carries what somebody needs who looks at the query from outside:

    {"v": 1, "brokers": "localhost:9293", "streams": {"orders": {"0": {"high_watermark": 250, "lag": 150}}}}

and, where options name files of TLS or a profile, their paths and its name: `"tls": {"ca": "/etc/ssl/ca.pem"}`.

L1  A progress tells of its own moment: `lag` counts from the end of its batch. There is none while a batch runs, or
    while a query waits for records, however many come meanwhile. So the lag of a query is asked of the brokers
    (`lag_now`): from the end of its last batch that is complete.

The brokers' own view, by what was published: `liftlog consumer describe`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from broker.api.errors import LiftlogError
from broker.api.plain import parse_json
from broker.client.http.tls import TlsFiles
from broker.client.positions import Position
from spark_liftlog.place import Place, client_at, files_of
from spark_liftlog.reading.offsets import VERSION, Key, decode

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


def report(ends: Mapping[Key, int], high_watermarks: Mapping[Key, int], *, brokers: str) -> dict[str, Any]:
    """The JSON for `reportLatestOffset`: per partition the high watermark and what lies before it."""
    streams: dict[str, dict[str, Any]] = {}
    for (stream, partition), high_watermark in sorted(high_watermarks.items()):
        lag_records = max(0, high_watermark - ends.get((stream, partition), high_watermark))
        entry = {"high_watermark": high_watermark, "lag": lag_records}
        streams.setdefault(stream, {})[str(partition)] = entry
    files = {name: path for name, path in asdict(files_of(brokers)).items() if name in _FILES and path is not None}
    return {"v": VERSION, "brokers": brokers, "streams": streams, **({"tls": files} if files else {})}


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
        now = {} if asked is None else _asked(source.get("endOffset"), asked)
        for key, records in (_entries(value) | {key: records for key, (records, _) in now.items()}).items():
            found[key] = found.get(key, 0) + records  # who cannot be asked has what was reported, at least
        for key, (_, age_s) in now.items():
            if age_s is not None:
                ages[key] = max(ages.get(key, 0.0), age_s)
    return Lag(found, ages) if is_ours else None


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


def _asked(end_value: Any, brokers: str) -> dict[Key, tuple[int, float | None]]:
    """The records behind the end of a batch, and the age of the first, by partition; of those that brokers tell of."""
    try:
        end = decode(parse_json(end_value) if isinstance(end_value, str) else end_value)
    except (ValueError, LiftlogError):
        return {}
    if end is None:
        return {}
    places = sorted(end.positions.items())
    with client_at(brokers, timeout_s=ASK_S, deadline_s=0) as client:
        answers = client.resolve([Position(*key, {"offset": at.offset}) for key, at in places])
    found: dict[Key, tuple[int, float | None]] = {}
    for (key, at), answer in zip(places, answers, strict=True):
        if answer.high_watermark is None or answer.log_start_offset is None:
            continue
        is_same = answer.incarnation == end.incarnations[key[0]]
        records = max(0, answer.high_watermark - (at.offset if is_same else answer.log_start_offset))
        age_s = None if answer.timestamp_us is None else max(0.0, time.time() - answer.timestamp_us / 1e6)
        found[key] = (records, age_s if records else 0.0)
    return found


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
