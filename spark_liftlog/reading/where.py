"""Where a read starts or ends, as options say it, before brokers are asked. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

EARLIEST: Final = -2
LATEST: Final = -1

ByPartition: TypeAlias = Mapping[str, Mapping[int, int]]
"""Per stream and partition: an offset, EARLIEST or LATEST; or milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTime:
    """The first records that are not older than a time.

    Attributes:
        at_ms: Milliseconds since 1970 UTC, for all partitions or for each.
        strategy: Where no record is that late: `error`, or `latest`, the high watermark.
    """

    at_ms: int | ByPartition
    strategy: str


Where: TypeAlias = str | ByPartition | ByTime
"""`earliest`, `latest`, `committed`, offsets, or a time."""


def option_of(side: str, where: Where) -> str:
    """The option that said it, for errors: of the side `starting` or `ending`; or `asOf`."""
    if side == "asOf":
        return side
    if not isinstance(where, ByTime):
        return f"{side}Offsets"
    return f"{side}Timestamp" if isinstance(where.at_ms, int) else f"{side}OffsetsByTimestamp"
