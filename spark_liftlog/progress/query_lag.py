"""How far behind a streaming query is, from the progress that Spark keeps of it.

A Python source cannot fill `sources[].metrics`; what it reports as its latest offset lands verbatim
in the progress. So that report carries the lag:

    {"v": 1, "streams": {"orders": {"0": {"high_watermark": 250, "lag": 150}}}}

The lag is counted from the end of the batch that the progress is about: what comes after it.
The broker's own view of the same, by what was published: `liftlog consumer describe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.api.plain import parse_json
from spark_liftlog.reading.offsets import VERSION, Key

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class Lag:
    """Records that were committed and not yet part of a batch.

    Attributes:
        partitions: By (stream, partition); records, >= 0.
    """

    partitions: Mapping[Key, int]

    @property
    def total(self) -> int:
        """The lag of all partitions together, in records."""
        return sum(self.partitions.values())

    @property
    def greatest(self) -> int:
        """The lag of the partition that is furthest behind, in records; 0 when there is none."""
        return max(self.partitions.values(), default=0)


def report(ends: Mapping[Key, int], high_watermarks: Mapping[Key, int]) -> dict[str, Any]:
    """The JSON for `reportLatestOffset`: per partition the high watermark and what lies before it."""
    streams: dict[str, dict[str, Any]] = {}
    for (stream, partition), high_watermark in sorted(high_watermarks.items()):
        lag_records = max(0, high_watermark - ends.get((stream, partition), high_watermark))
        entry = {"high_watermark": high_watermark, "lag": lag_records}
        streams.setdefault(stream, {})[str(partition)] = entry
    return {"v": VERSION, "streams": streams}


def lag(of: StreamingQuery | Mapping[str, Any]) -> Lag | None:
    """The lag of a running query, or of one progress of it (as a StreamingQueryListener gets them).

    Returns:
        The lag over all liftlog sources of the query; None before the first progress, or without such a source.
    """
    progress = of if isinstance(of, Mapping) else of.lastProgress
    if progress is None:
        return None
    found: dict[Key, int] = {}
    is_ours = False
    for source in progress["sources"]:
        value = _parsed(source["latestOffset"])
        if value is not None:
            is_ours = True
            for stream, partitions in value["streams"].items():
                for partition, entry in partitions.items():
                    key = (stream, int(partition))
                    found[key] = found.get(key, 0) + int(entry["lag"])
    return Lag(found) if is_ours else None


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
