"""Goal: limits hold: batches fill, records over the limit pass by without being kept, a stuck driver costs no memory.

Method: real payloads around each limit; for what is kept, the process's own account of its allocations.
"""

from __future__ import annotations

import gc
import json
import tracemalloc
from types import ModuleType
from typing import Any

import pytest

from broker.api.batch import decode_batch
from tests.unit.ingest.twins import COMPILED_FIRST, builder
from tests.unit.ingest.wire import answers_in, hmsg, msg

pytestmark = pytest.mark.slow

MIB = 1 << 20


def routed(twin: ModuleType, **settings: Any) -> tuple[Any, Any]:
    target = builder(twin, **settings)
    intake = twin.Intake()
    intake.route(1, [target], partition_by="subject_suffix")
    return intake, target


def feed_in_pieces(intake: Any, wire: bytes, size: int = 65_536) -> None:
    for at in range(0, len(wire), size):
        intake.feed(wire[at : at + size], 1)


def test_a_batch_is_full_at_its_records(twin: ModuleType) -> None:
    intake, target = routed(twin, batch_records=3)
    intake.feed(msg("a") * 2, 1)
    assert not intake.full()
    intake.feed(msg("a"), 1)
    assert intake.full()
    intake.feed(msg("a"), 1)
    assert target.take().record_count == 4
    assert not intake.full()


def test_a_batch_is_full_at_its_bytes(twin: ModuleType) -> None:
    intake, target = routed(twin, batch_bytes=20)
    intake.feed(msg("a", b"x" * 18), 1)
    assert not intake.full()
    intake.feed(msg("a", b""), 1)
    assert target.byte_count == 20
    assert intake.full()


def test_settings_change_for_what_comes_next(twin: ModuleType) -> None:
    intake, target = routed(twin)
    new = {
        "partition_count": 1,
        "record_bytes_max": 5,
        "batch_bytes": 1 << 20,
        "batch_records": 2,
        "reply_acks": False,
        "default_ack": "all",
    }
    intake.feed(msg("a", b"123456", reply="r"), 1)
    target.alter(**new)
    intake.feed(msg("a", b"123456", reply="r") + msg("a", b"1", reply="r"), 1)
    assert (target.record_count, target.awaited_count) == (2, 1)
    assert intake.full()
    assert intake.refusals() == b""
    with pytest.raises(ValueError, match="default_ack"):
        target.alter(**{**new, "default_ack": "most"})


def test_a_batch_that_nobody_takes_stops_growing_and_says_so(twin: ModuleType) -> None:
    intake, target = routed(twin, batch_bytes_hard=1000)
    intake.feed(msg("a", b"x" * 500) + msg("a", b"x" * 450, reply="r"), 1)
    feed_in_pieces(intake, msg("a", b"x" * 500, reply="r"), 7)
    assert target.record_count == 1
    assert intake.counters["refused_batch_full"] == 2
    errors = [json.loads(body)["error"] for _, body in answers_in(intake.refusals())]
    assert {(error["code"], error["err_code"]) for error in errors} == {(429, 10167)}
    target.take()
    intake.feed(msg("a", b"x" * 5000), 1)  # alone it may be of any size
    assert target.record_count == 1


def test_a_record_of_a_mebibyte_may_come_in_any_pieces(twin: ModuleType) -> None:
    value = bytes(range(256)) * 4096
    wire = msg("a", b"before") + hmsg("a", value, ("Liftlog-Key", "k"), reply="r") + msg("a", b"after")
    for size in (1000, 65_536, MIB, len(wire)):
        intake, target = routed(twin)
        feed_in_pieces(intake, wire, size)
        message = target.take().compose(first_offset=0, leader_epoch=0, high_watermark=0)
        assert decode_batch(message).column("value").to_pylist() == [b"before", value, b"after"]


def traced_peak(action: Any) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_record_over_the_limit_is_not_kept_while_it_passes(twin: ModuleType) -> None:
    intake, target = routed(twin, record_bytes_max=10_000)
    pieces = [b"HMSG a 1 r 5000000 50000000\r\n", *[b"x" * 50_000] * 1000, b"\r\n", msg("a", b"next")]

    def feed() -> None:
        for piece in pieces:
            intake.feed(piece, 1)

    assert traced_peak(feed) < MIB
    assert intake.counters["refused_too_large"] == 1
    assert target.record_count == 1


@pytest.mark.parametrize("end", ["reset", "take over"])
def test_the_room_for_half_a_value_is_given_back(twin: ModuleType, end: str) -> None:
    tracemalloc.start()
    try:
        intake, target = routed(twin, record_bytes_max=64 * MIB, batch_bytes=64 * MIB)
        feed_in_pieces(intake, msg("a", b"x" * (40 * MIB))[: 35 * MIB])
        assert tracemalloc.get_traced_memory()[0] > 30 * MIB
        match end:
            case "reset":
                intake.reset()
            case "take over":
                successor = twin.Intake()
                successor.route(1, [target], partition_by="subject_suffix")
                intake.reset()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()


UNUSUAL = {
    "INFO": b"INFO {" + b" " * 1_000_000 + b"}\r\n",
    "header block": hmsg("a", block=b"NATS/1.0\r\nA: " + b"x" * (5 * MIB) + b"\r\nmalformed\r\n\r\n"),
    "headers": hmsg("a", block=b"NATS/1.0\r\n" + b"A:\r\n" * 100_000 + b"malformed\r\n\r\n"),
    "operations": b"PING\r\n" * 20_000,
    "refusals": hmsg("a", b"", ("Liftlog-Ack", "?"), reply="r") * 3_000,
}


@pytest.mark.parametrize("wire", UNUSUAL.values(), ids=UNUSUAL)
@pytest.mark.parametrize("size", [65_537, 64 * MIB])
@COMPILED_FIRST
def test_one_unusual_message_leaves_no_large_buffer_behind(twin: ModuleType, wire: bytes, size: int) -> None:
    tracemalloc.start()
    try:
        intake, _ = routed(twin)
        feed_in_pieces(intake, wire, size)
        intake.refusals()
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


def test_a_value_in_part_is_kept_once(twin: ModuleType) -> None:
    intake, target = routed(twin)
    value = b"x" * (8 * MIB - 100)
    wire = msg("a", value)
    assert traced_peak(lambda: feed_in_pieces(intake, wire)) < 2.5 * len(value)  # the pure twin copies at the end
    assert target.record_count == 1


@COMPILED_FIRST
def test_an_idle_builder_keeps_less_than_a_kibibyte(twin: ModuleType) -> None:
    """Its route, and what it keeps after a batch (one of them a huge one), included: there may be 10,000."""
    count = 4000
    wire = b"".join(hmsg("a", b"x" * 100, ("Liftlog-Key", "k"), reply="r", sid=sid) for sid in range(count))
    huge = msg("a", b"x" * MIB, sid=0) * 64
    tracemalloc.start()
    try:
        intake = twin.Intake()
        for sid in range(count):
            intake.route(sid, [builder(twin, stream=f"stream-{sid}")], partition_by="subject_suffix")
        intake.feed(wire, 1)
        feed_in_pieces(intake, huge)
        assert tracemalloc.get_traced_memory()[0] > 64 * MIB
        for target in intake.dirty():
            target.take()
        assert intake.dirty() == []
        assert tracemalloc.get_traced_memory()[0] < 1024 * count
    finally:
        tracemalloc.stop()


@COMPILED_FIRST
def test_what_recycling_keeps_is_bounded(twin: ModuleType) -> None:
    """Many large batches alive at once, then given back: at most 32 MiB stay for the next."""
    intake, target = routed(twin)
    wire = msg("a", b"x" * 65_000) * 60
    tracemalloc.start()
    try:
        alive = []
        for _ in range(40):
            intake.feed(wire, 1)
            alive.append(target.take())
        assert tracemalloc.get_traced_memory()[0] > 100 * MIB
        alive.clear()
        assert tracemalloc.get_traced_memory()[0] <= 33 * MIB
    finally:
        tracemalloc.stop()
