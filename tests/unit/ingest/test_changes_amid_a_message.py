"""Goal: a message that is half read at a change of its stream is stored or answered, under one setting.

Method: each message is cut at each of its bytes and the change made there; the outcome is that of the change made
before the whole message, or behind it. A message before it and one behind it show that nothing else has changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.support.effort import first_short
from tests.unit.ingest.envelopes import envelope, message
from tests.unit.ingest.twins import SETTINGS, builder
from tests.unit.ingest.wire import answers_in, hmsg, msg

pytestmark = pytest.mark.slow

MESSAGES = {
    "plain": msg("a", b"x" * 40, reply="r"),
    "empty": msg("a", b"", reply="r"),
    "nobody waits": msg("a", b"x" * 40),
    "headers": hmsg("a", b"x" * 40, ("Liftlog-Key", "k"), ("Nats-Msg-Id", "id"), reply="r"),
    "expectations": hmsg("a", b"x", ("Nats-Expected-Last-Sequence", "1"), ("Nats-Msg-Id", "id"), reply="r"),
    "tombstone": hmsg("a", b"x", ("Liftlog-Key", "k"), ("Liftlog-Tombstone", "1"), reply="r"),
    "asks for no ack": hmsg("a", b"x", ("Liftlog-Ack", "none"), reply="r"),
    "asks for the leader": hmsg("a", b"x", ("Liftlog-Ack", "leader"), reply="r"),
    "asks for all": hmsg("a", b"x", ("Liftlog-Ack", "all"), reply="r"),
    "refused": hmsg("a", b"x" * 40, ("Liftlog-Ack", "some"), reply="r"),
    "too large": msg("a", b"x" * 300, reply="r"),
    "envelope": msg("a", envelope(message(b"x" * 20, key=b"k", headers=[(b"Nats-Msg-Id", b"id")])), reply="r"),
    "malformed envelope": hmsg("a", envelope(b"\x1e" * 20), ("Liftlog-Key", "k"), reply="r"),
    "envelope too large": msg("a", envelope(message(b"x" * 300)), reply="r"),
    "for the inbox": msg("_INBOX.x", b"x" * 20, reply="r"),
}
ALTERABLE = ("partition_count", "reply_acks", "default_ack", "record_bytes_max", "batch_bytes", "batch_records")
BASE: dict[str, Any] = {**{key: SETTINGS[key] for key in ALTERABLE}, "record_bytes_max": 200}
ALTERED: dict[str, dict[str, Any]] = {
    "no acks": {"reply_acks": False},
    "acks": {"default_ack": "none"},
    "acks of the leader": {"default_ack": "leader"},
    "smaller records": {"record_bytes_max": 30},
    "larger records": {"record_bytes_max": 1000},
    "smaller batches": {"batch_bytes": 1, "batch_records": 1},
}


class Stream:
    """An Intake and what it is routed to: a stream on sid 1."""

    def __init__(self, twin: ModuleType) -> None:
        self.twin = twin
        self.intake = twin.Intake()
        self.builders = [self.builder(0, BASE)]
        self.route()

    def builder(self, partition: int, settings: dict[str, Any]) -> Any:
        return builder(self.twin, **{**settings, "partition": partition})

    def route(self) -> None:
        self.intake.route(1, self.builders, partition_by="key")

    def alter(self, **settings: Any) -> None:
        for each in self.builders:
            each.alter(**{**BASE, **settings})
        self.route()

    def add_partitions(self) -> None:
        self.builders += [self.builder(i, {**BASE, "partition_count": 3}) for i in (1, 2)]
        self.alter(partition_count=3)

    def end(self) -> None:
        self.intake.unroute(1)
        self.builders.clear()
        self.filler = [self.builder(0, BASE) for _ in range(20)]  # takes the memory of what was wrongly freed

    def begin_again(self) -> None:
        self.end()
        self.builders.append(self.builder(0, {**BASE, "record_bytes_max": 30}))
        self.route()

    def outcome(self) -> tuple[list[Any], ...]:
        """Batches, whether their places in the log are told, the answers to others, and the counters."""
        records, told, expected = [], [], []
        for dirty in sorted(self.intake.dirty(), key=lambda each: each.partition):
            pending = dirty.take()
            expected.append((pending.condition_count, pending.id_count, pending.awaited_count))
            told += [(leader, answers_in(pending.acks(10, leader))) for leader in (None, False, True)]
            records.append((dirty.partition, pending.compose(first_offset=10, leader_epoch=0, high_watermark=0)))
        refusals = [(reply, json.loads(body)) for reply, body in answers_in(self.intake.refusals())]
        return records, told, expected, refusals, sorted(self.intake.counters.items())


CHANGES: dict[str, Callable[[Stream], None]] = {
    **{name: lambda stream, new=new: stream.alter(**new) for name, new in ALTERED.items()},  # type: ignore[misc]
    "more partitions": Stream.add_partitions,
    "end": Stream.end,
    "begin again": Stream.begin_again,
}


def outcome(twin: ModuleType, change: Callable[[Stream], None], wire: bytes, cut: int) -> tuple[list[Any], ...]:
    stream = Stream(twin)
    stream.intake.feed(msg("a", b"before", reply="r0") + wire[:cut], 1)
    change(stream)
    stream.intake.feed(wire[cut : cut + 1], 1)
    stream.intake.feed(wire[cut + 1 :], 1)
    stream.intake.feed(msg("a", b"behind", reply="r2"), 1)
    return stream.outcome()


@pytest.mark.parametrize("first", first_short(range(1, 4)))
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("wire", MESSAGES.values(), ids=MESSAGES)
def test_its_fate_is_that_of_a_message_before_the_change_or_behind_it(
    twin: ModuleType, wire: bytes, change: Callable[[Stream], None], first: int
) -> None:
    as_behind, as_before = outcome(twin, change, wire, 0), outcome(twin, change, wire, len(wire))
    for cut in range(first, len(wire), 3):
        assert outcome(twin, change, wire, cut) in (as_behind, as_before), f"cut at {cut}"


@pytest.mark.parametrize("wire", MESSAGES.values(), ids=MESSAGES)
def test_what_is_half_read_when_its_subscription_ends_is_stored_or_answered_all_the_same(
    twin: ModuleType, wire: bytes
) -> None:
    whole = outcome(twin, Stream.end, wire, len(wire))
    for cut in range(1, len(wire)):
        assert outcome(twin, Stream.end, wire, cut) == whole, f"cut at {cut}"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_batch_may_be_taken_between_the_change_and_the_rest(
    twin: ModuleType, change: Callable[[Stream], None]
) -> None:
    wire = MESSAGES["plain"]
    for cut in range(1, len(wire)):
        stream = Stream(twin)
        stream.intake.feed(msg("a", b"before") + wire[:cut], 1)
        change(stream)
        [(first, taken)] = [(dirty, dirty.take()) for dirty in stream.intake.dirty()]
        assert taken.record_count == 1
        del first
        stream.intake.feed(wire[cut:], 1)
        counters = stream.intake.counters
        assert counters["messages"] == 2
        assert counters["unrouted"] == 0
        assert len(stream.intake.dirty()) == counters["stored"] - 1


def test_a_subscription_that_ends_amid_a_control_line_has_ended_behind_its_message(twin: ModuleType) -> None:
    """Others that end at the same time have as well, and one that is there again has not."""
    wire = msg("a", b"x" * 40, reply="r")
    for cut in range(1, len(wire)):
        stream = Stream(twin)
        others = [stream.builder(0, {**BASE, "partition_count": 1}) for _ in range(40)]
        for sid, other in enumerate(others, 2):
            stream.intake.route(sid, [other], partition_by="subject_suffix")
        stream.intake.feed(wire[:cut], 1)
        for sid in range(1, 42):
            stream.intake.unroute(sid)
        stream.intake.route(41, [others[-1]], partition_by="subject_suffix")
        stream.intake.unroute(7)  # twice
        del others[:-1], other
        stream.intake.feed(wire[cut:], 1)
        stream.intake.feed(b"".join(msg("a", b"y", sid=sid) for sid in range(1, 42)), 1)
        assert stream.intake.counters["stored"] == 2, cut
        assert stream.intake.counters["unrouted"] == 40
        assert [target.record_count for target in stream.intake.dirty()] == [1, 1]


def test_a_new_connection_ends_what_was_to_end_behind_a_message(twin: ModuleType) -> None:
    stream = Stream(twin)
    stream.intake.feed(msg("a", b"x" * 40)[:30], 1)
    stream.end()
    stream.intake.reset()
    stream.intake.feed(msg("a", b"y"), 1)
    assert stream.intake.counters["unrouted"] == 1
    assert stream.intake.dirty() == []
