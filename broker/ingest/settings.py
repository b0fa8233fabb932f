"""Checks of both twins before they accept builders and routes: they find programming errors, not bad input.

Streams' own settings are checked where they are made (broker.api.stream); these checks keep a caller's
mistake from becoming a wrong partition or, in the compiled twin, a wild pointer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.api.partitioning import FIXED, parse_partition_by
from broker.api.stream import CHOICES
from broker.ingest.rules import (
    BATCH_BYTES_HARD,
    CONTROL_LINE_BYTES_MIN,
    INFO_LINE_BYTES_MAX,
    REPLY_PREFIX_BYTES_MAX,
)


def check_builder(partition: int, partition_count: int, default_ack: str, batch_bytes_hard: int) -> None:
    """Raise ValueError if no partition of a stream can be like this."""
    if not 0 < batch_bytes_hard <= BATCH_BYTES_HARD:
        raise ValueError(f"batch_bytes_hard={batch_bytes_hard}: must be from 1 to {BATCH_BYTES_HARD}")
    if not 0 <= partition < partition_count:
        raise ValueError(f"partition {partition} of {partition_count}")
    if default_ack not in CHOICES["acks"]:
        raise ValueError(f"default_ack={default_ack!r}: must be one of {', '.join(CHOICES['acks'])}")


def check_intake(control_line_max: int, payload_max: int, reply_prefixes: Sequence[bytes]) -> None:
    """Raise ValueError for limits that no server can have, or that a batch could not hold."""
    if not CONTROL_LINE_BYTES_MIN <= control_line_max <= INFO_LINE_BYTES_MAX:
        raise ValueError(
            f"control_line_max={control_line_max}: must be from {CONTROL_LINE_BYTES_MIN} to {INFO_LINE_BYTES_MAX}"
        )
    if not 0 < payload_max <= BATCH_BYTES_HARD:
        raise ValueError(f"payload_max={payload_max}: must be from 1 to {BATCH_BYTES_HARD}")
    if any(len(prefix) > REPLY_PREFIX_BYTES_MAX for prefix in reply_prefixes):
        raise ValueError(f"reply_prefixes={reply_prefixes!r}: {REPLY_PREFIX_BYTES_MAX} bytes at most")


def check_place(
    first_offset: int, leader_epoch: int, high_watermark: int, group_index: int, group_count: int, decision: int
) -> None:
    """Raise ValueError for a place in the log that the batch header has no room for."""
    for name, value, bits in (
        ("first_offset", first_offset, 62),
        ("leader_epoch", leader_epoch, 32),
        ("high_watermark", high_watermark, 63),
        ("group_index", group_index, 32),
        ("group_count", group_count, 32),
        ("decision", decision, 128),
    ):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{name}={value}: must be from 0 to 2**{bits} - 1")


def check_route(builders: Sequence[Any], partition_by: str) -> tuple[int, int]:
    """Check the arguments of `Intake.route`; return how to partition, and the token's number.

    Raises:
        ValueError: no builders, of several streams, one partition twice, or several where one gets everything.
    """
    by, token = parse_partition_by(partition_by)
    if not builders:
        raise ValueError("a route needs a builder")
    if by == FIXED and len(builders) != 1:
        raise ValueError(f"partition_by={partition_by} routes to one builder, not {len(builders)}")
    if len({(builder.stream, builder.partition_count) for builder in builders}) != 1:
        raise ValueError("a route's builders are of one stream")
    if len({builder.partition for builder in builders}) != len(builders):
        raise ValueError("a route has two builders of one partition")
    return by, token
