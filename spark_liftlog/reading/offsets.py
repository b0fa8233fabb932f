"""The offset JSON: what Spark keeps in the checkpoint and hands back, for years.

Two forms, told apart by their keys. The first is what a new query starts from, a constant:

    {"v": 1, "start": "latest"}                          or "earliest", "committed", {"orders": {"0": 5, "1": -2}}
    {"v": 1, "start_time": {"at_ms": 1700000000000, "strategy": "error"}}           or at_ms: {"orders": {"0": …}}

The second is a position: per stream its incarnation, per partition [next offset, leader epoch of
the record before it]:

    {"v": 1, "consumer": "spark-7f3a…",
     "streams": {"orders": {"incarnation": "b1946ac9", "partitions": {"0": [105, 3], "1": [7, 3]}}},
     "base": {"orders": {"0": 100, "1": 7}}}

`base` is there only where a batch does not begin at its start offset: in the first position of a
query (the batch begins where "latest" was when the query was first planned) and after a data loss
that the user chose to survive (it begins where records are valid again). Spark writes the end of a
batch to its log before it plans the batch, so a base makes every replay begin at the same record.

O1  Equal positions are equal text: keys in the order above, streams by name, partitions by number.
    (Spark compares text; another order would be "new data" for ever.)
O2  Nothing volatile is in it: no time, no high watermark, no leader epoch of *now*. The epoch is
    that of the record before the offset, so a failover alone changes nothing.
O3  A position is decoded completely or refused: another version, another shape, never a guess.

Golden file: tests/golden/offsets-v1.json. A change of shape is a new version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from broker.api.errors import UnknownFormatVersion
from spark_liftlog.errors import BadOffset
from spark_liftlog.reading.where import EARLIEST, ByPartition, ByTime, Where

VERSION: Final = 1
STRATEGIES: Final = ("error", "latest")

Key: TypeAlias = tuple[str, int]
"""(stream, partition)."""


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Where to read on in one partition.

    Attributes:
        offset: The next offset to read.
        leader_epoch: Epoch of the record before it, -1 when there is none or it is not known.
    """

    offset: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A position in every partition of the query.

    Attributes:
        consumer: The name under which the query's progress is published.
        incarnations: Per stream, which incarnation the offsets count in.
        positions: Per (stream, partition).
        base: Where the batch that ends here begins, for partitions where it is not the start offset.
    """

    consumer: str
    incarnations: Mapping[str, str]
    positions: Mapping[Key, ReadPosition]
    base: Mapping[Key, int] = field(default_factory=dict)


def symbolic(where: Where) -> dict[str, Any]:
    """The constant that a new query starts from."""
    if isinstance(where, str):
        return {"v": VERSION, "start": where}
    if isinstance(where, ByTime):
        at = where.at_ms if isinstance(where.at_ms, int) else _as_json(where.at_ms)
        return {"v": VERSION, "start_time": {"at_ms": at, "strategy": where.strategy}}
    return {"v": VERSION, "start": _as_json(where)}


def _as_json(places: ByPartition) -> dict[str, dict[str, int]]:
    return {
        stream: {str(partition): at for partition, at in sorted(partitions.items())}
        for stream, partitions in sorted(places.items())
    }


def encode(offset: Offset) -> dict[str, Any]:
    """The JSON value of a position (O1)."""
    streams: dict[str, dict[str, Any]] = {
        stream: {"incarnation": incarnation, "partitions": {}}
        for stream, incarnation in sorted(offset.incarnations.items())
    }
    for (stream, partition), at in sorted(offset.positions.items()):
        streams[stream]["partitions"][str(partition)] = [at.offset, at.leader_epoch]
    value: dict[str, Any] = {"v": VERSION, "consumer": offset.consumer, "streams": streams}
    if offset.base:
        base: dict[str, dict[str, int]] = {}
        for (stream, partition), start in sorted(offset.base.items()):
            base.setdefault(stream, {})[str(partition)] = start
        value["base"] = base
    return value


class Decoder:
    """Decodes the offsets of one query. Keeps the last two: Spark hands each of them over at every trigger."""

    def __init__(self) -> None:
        self._known: tuple[tuple[Any, Offset | None], ...] = ()

    def __call__(self, value: Any) -> Offset | None:
        """As `decode`."""
        for known, offset in self._known:
            if known == value:
                return offset
        found = decode(value)
        self._known = ((value, found), *self._known[:1])
        return found


def decode(value: Any) -> Offset | None:
    """Decode an offset that Spark handed back; None for the symbolic start.

    Raises:
        UnknownFormatVersion: another release wrote the checkpoint.
        BadOffset: not an offset of this source.
    """
    if not isinstance(value, dict) or type(value.get("v")) is not int:
        raise _bad(value, "it has no version")
    if value["v"] != VERSION:
        raise UnknownFormatVersion(
            f"the checkpoint holds an offset of format version {value['v']!r}, this release reads {VERSION}",
            version=value["v"],
        )
    if set(value) in ({"v", "start"}, {"v", "start_time"}):
        return None
    if not {"v", "consumer", "streams"} <= set(value) <= {"v", "consumer", "streams", "base"}:
        raise _bad(value, f"its keys are {sorted(value)}")
    if not isinstance(value["consumer"], str):
        raise _bad(value, "the consumer is no text")
    incarnations: dict[str, str] = {}
    positions: dict[Key, ReadPosition] = {}
    for stream, entry in _items(value, value["streams"]):
        if not isinstance(entry, dict) or set(entry) != {"incarnation", "partitions"}:
            raise _bad(value, f"stream {stream!r} is not {{incarnation, partitions}}")
        if not isinstance(entry["incarnation"], str):
            raise _bad(value, f"the incarnation of {stream!r} is no text")
        incarnations[stream] = entry["incarnation"]
        for partition, pair in _items(value, entry["partitions"]):
            if not (isinstance(pair, list) and len(pair) == 2):
                raise _bad(value, f"partition {partition} is not [offset, epoch]")
            offset, epoch = _number(value, pair[0], 0), _number(value, pair[1], -1)
            positions[stream, _partition(value, partition)] = ReadPosition(offset, epoch)
    base = {
        (stream, _partition(value, partition)): _number(value, start, 0)
        for stream, partitions in _items(value, value.get("base", {}))
        for partition, start in _items(value, partitions)
    }
    if not base.keys() <= positions.keys():
        raise _bad(value, "base names a partition that has no position")
    return Offset(consumer=value["consumer"], incarnations=incarnations, positions=positions, base=base)


def starting_point(value: Mapping[str, Any]) -> Where:
    """Read a symbolic offset: the query began with it, not with today's option.

    Raises:
        BadOffset: not a symbolic offset.
    """
    if "start_time" in value:
        time = value["start_time"]
        if not isinstance(time, dict) or set(time) != {"at_ms", "strategy"} or time["strategy"] not in STRATEGIES:
            raise _bad(value, "its start_time is not {at_ms, strategy}")
        at = time["at_ms"]
        return ByTime(
            at_ms=_places(value, at, 0) if isinstance(at, dict) else _number(value, at, 0), strategy=time["strategy"]
        )
    start = value.get("start")
    if start in ("earliest", "latest", "committed"):
        return str(start)
    if not isinstance(start, dict):
        raise _bad(value, "it says nothing of any stream")
    return _places(value, start, EARLIEST)


def _places(value: Any, found: Any, least: int) -> ByPartition:
    return {
        stream: {_partition(value, partition): _number(value, at, least) for partition, at in _items(value, partitions)}
        for stream, partitions in _items(value, found)
    }


def _items(value: Any, found: Any) -> list[tuple[str, Any]]:
    if not isinstance(found, dict):
        raise _bad(value, "an object is missing")
    return list(found.items())


def _partition(value: Any, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and text == str(int(text))):  # one spelling for each
        raise _bad(value, f"{text!r} is no partition")
    return int(text)


def _number(value: Any, found: Any, least: int) -> int:
    if isinstance(found, bool) or not isinstance(found, int) or not least <= found < 1 << 63:
        raise _bad(value, f"{found!r} is no number from {least}")
    return found


def _bad(value: Any, why: str) -> BadOffset:
    text = str(value)
    return BadOffset(
        f"the checkpoint holds an offset that the liftlog source did not write ({why}): {text[:200]}", offset=text[:200]
    )
