"""Where a record is, by the ack that its publisher got through NATS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def offset_of(ack: Mapping[str, Any]) -> int:
    return int(ack["seq"]) - 1


def partition_of(ack: Mapping[str, Any]) -> int:
    return int(ack.get("partition", 0))


def place_of(ack: Mapping[str, Any]) -> tuple[int, int]:
    """Partition and offset."""
    return partition_of(ack), offset_of(ack)
