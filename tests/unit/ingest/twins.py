"""Both implementations of ingest, and one way to drive either and see everything that comes of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from broker.api.batch import decode_batch
from broker.ingest import IntakeProtocolError, load
from tests.support.effort import first_short


def twins() -> list[ModuleType]:
    """The implementations there are here. That the compiled one must be: test_extension_is_built.py."""
    found = [load("pure")]
    with contextlib.suppress(ImportError):
        found.append(load("compiled"))
    return found


TWINS = twins()
TWIN_IDS = [twin.IMPLEMENTATION for twin in TWINS]
COMPILED_FIRST = pytest.mark.parametrize("twin", first_short(TWINS[::-1]), ids=TWIN_IDS[::-1])
"""Of a test that takes long with the pure one: `make test` plays the compiled one, if there is one."""

SETTINGS: Mapping[str, Any] = {
    "stream": "orders",
    "partition": 0,
    "partition_count": 1,
    "reply_acks": True,
    "default_ack": "all",
    "record_bytes_max": 8 << 20,
    "batch_bytes": 1 << 20,
    "batch_records": 1 << 16,
}


def builder(twin: ModuleType, **settings: Any) -> Any:
    return twin.Builder(**{**SETTINGS, **settings})


@dataclass
class Outcome:
    """Everything that feeding some bytes led to.

    Attributes:
        rows: Decoded records, by (stream, partition).
        messages: Composed batches, the same way; first offset 7, epoch 3.
        acks: Their acks. refusals: the answers to refused messages.
        problem: Text and position of the protocol error, if there was one.
        order: Builders as `dirty` listed them.
    """

    events: list[tuple[Any, ...]] = field(default_factory=list)
    rows: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)
    messages: dict[tuple[str, int], bytes] = field(default_factory=dict)
    acks: dict[tuple[str, int], bytes] = field(default_factory=dict)
    refusals: bytes = b""
    counters: dict[str, int] = field(default_factory=dict)
    problem: tuple[str, int] | None = None
    order: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Route:
    """A subscription: settings of its stream, and how it is partitioned over how many."""

    sid: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    partition_by: str = "subject_suffix"
    partition_count: int = 1
    envelopes: bool = True


def run(twin: ModuleType, chunks: Iterable[bytes], routes: Sequence[Route] = (Route(),), **limits: Any) -> Outcome:
    """Feed chunks at time 1_000_000 us and take everything once at the end."""
    intake = twin.Intake(**limits)
    for route in routes:
        count = route.partition_count
        builders = [
            builder(twin, **{**route.settings, "partition": partition, "partition_count": count})
            for partition in range(count)
        ]
        intake.route(route.sid, builders, partition_by=route.partition_by, envelopes=route.envelopes)
    outcome = Outcome()
    try:
        for chunk in chunks:
            outcome.events += intake.feed(chunk, 1_000_000)
    except IntakeProtocolError as error:
        outcome.events += error.events
        outcome.problem = (error.problem, error.position)
    for dirty in intake.dirty():
        key = (dirty.stream, dirty.partition)
        outcome.order.append(key)
        pending = dirty.take()
        message = bytes(pending.compose(first_offset=7, leader_epoch=3, high_watermark=5))
        outcome.rows[key] = decode_batch(message).to_pylist()
        outcome.messages[key] = message
        outcome.acks[key] = pending.acks(7)
    outcome.refusals = intake.refusals()
    outcome.counters = intake.counters
    return outcome


def whole(wire: bytes) -> list[bytes]:
    return [wire]


def byte_by_byte(wire: bytes) -> list[bytes]:
    return [wire[i : i + 1] for i in range(len(wire))]


def in_threes(wire: bytes) -> list[bytes]:
    return [wire[i : i + 3] for i in range(0, len(wire), 3)]


CUTS = (whole, byte_by_byte, in_threes)
