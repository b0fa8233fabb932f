"""Goal: subscriptions reach their builders, now and after every change, and no record is forgotten.

Method: an Intake fed between changes of its routes, half messages included.
"""

from __future__ import annotations

import gc
import random
from types import ModuleType

import pytest

from broker.api.batch import decode_batch
from tests.unit.ingest.twins import Route, builder, run
from tests.unit.ingest.wire import hmsg, msg


def values(target: object) -> list[bytes]:
    message = target.take().compose(first_offset=0, leader_epoch=0, high_watermark=0)  # type: ignore[attr-defined]
    return [bytes(value) for value in decode_batch(message).column("value").to_pylist()]


def test_streams_that_overlap_each_get_their_copy(twin: ModuleType) -> None:
    routes = [Route(1, {"stream": "all"}), Route(2, {"stream": "eu"}), Route(7, {"stream": "odd"}, "subject", 2)]
    wire = msg("eu.1", b"x", sid=1) + msg("eu.1", b"x", sid=2) + msg("eu.1", b"x", sid=7) + msg("us.1", b"y", sid=1)
    outcome = run(twin, [wire], routes)
    assert {stream: [row["value"] for row in rows] for (stream, _), rows in outcome.rows.items()} == {
        "all": [b"x", b"y"],
        "eu": [b"x"],
        "odd": [b"x"],
    }


def test_two_subscriptions_may_share_a_builder(twin: ModuleType) -> None:
    target = builder(twin)
    intake = twin.Intake()
    intake.route(1, [target], partition_by="subject_suffix")
    intake.route(2, [target], partition_by="subject_suffix")
    intake.feed(msg("a", b"1", sid=1) + msg("b", b"2", sid=2), 1)
    assert intake.dirty() == [target]
    assert values(target) == [b"1", b"2"]


def test_dirty_lists_in_the_order_of_first_records_since_they_were_taken(twin: ModuleType) -> None:
    a, b, c = (builder(twin, stream=name) for name in "abc")
    intake = twin.Intake()
    for sid, target in enumerate((a, b, c)):
        intake.route(sid, [target], partition_by="subject_suffix")
    assert intake.dirty() == []
    intake.feed(msg("s", sid=2) + msg("s", sid=0) + msg("s", sid=2), 1)
    assert intake.dirty() == [c, a]
    c.take()
    assert intake.dirty() == [a]
    intake.feed(msg("s", sid=1) + msg("s", sid=2) + msg("s", sid=0), 1)
    assert intake.dirty() == [a, b, c]
    a.take()
    intake.feed(msg("s", sid=0), 1)
    assert intake.dirty() == [b, c, a]
    for target in (a, b, c):
        target.take()
    assert intake.dirty() == []


def test_a_subscription_may_be_routed_anew(twin: ModuleType) -> None:
    old, new = builder(twin, stream="old"), builder(twin, stream="new")
    intake = twin.Intake()
    intake.route(1, [old], partition_by="subject_suffix")
    intake.feed(msg("a", b"1"), 1)
    intake.route(1, [new], partition_by="subject_suffix")
    intake.feed(msg("a", b"2"), 1)
    assert intake.dirty() == [old, new]
    assert (values(old), values(new)) == ([b"1"], [b"2"])


def test_records_survive_the_end_of_their_subscription(twin: ModuleType) -> None:
    intake = twin.Intake()
    intake.route(1, [builder(twin)], partition_by="subject_suffix")
    intake.feed(msg("a", b"1"), 1)
    intake.unroute(1)
    gc.collect()
    intake.feed(msg("a", b"2"), 1)
    assert intake.counters["unrouted"] == 1
    [target] = intake.dirty()
    assert values(target) == [b"1"]
    assert intake.dirty() == []
    intake.unroute(1)  # twice is no error
    intake.unroute(99)


HALVES = {
    "in the payload": (msg("a", b"x" * 50), 30),
    "in the header block": (hmsg("a", b"x" * 50, ("Liftlog-Key", "k")), 20),
    "before the end": (msg("a", b"x" * 50), len(msg("a", b"x" * 50)) - 1),
}


@pytest.mark.parametrize("wire, cut", HALVES.values(), ids=HALVES)
def test_half_a_message_of_a_subscription_that_ends_is_stored_and_the_next_is_not(
    twin: ModuleType, wire: bytes, cut: int
) -> None:
    target = builder(twin)
    intake = twin.Intake()
    intake.route(1, [target], partition_by="subject_suffix")
    intake.feed(msg("a", b"0") + wire[:cut], 1)
    intake.unroute(1)
    assert intake.feed(wire[cut:] + b"PING\r\n" + msg("a", b"1"), 1) == [("PING",)]
    assert values(target) == [b"0", b"x" * 50]
    assert intake.counters["unrouted"] == 1


@pytest.mark.parametrize("wire, cut", HALVES.values(), ids=HALVES)
def test_half_a_message_of_a_subscription_that_is_routed_anew_is_stored(
    twin: ModuleType, wire: bytes, cut: int
) -> None:
    """By its old builder, which nobody else holds any more, unless its header block is still to come."""
    intake = twin.Intake()
    intake.route(1, [builder(twin, stream="old")], partition_by="subject_suffix")
    intake.feed(wire[:cut], 1)
    intake.route(1, [builder(twin, stream="new")], partition_by="subject_suffix")
    assert intake.dirty() == []
    gc.collect()
    filler = [builder(twin, stream="filler") for _ in range(50)]  # takes the memory of what was wrongly freed
    intake.feed(wire[cut:], 1)
    [target] = intake.dirty()
    assert target not in filler
    assert target.stream == ("new" if cut == 20 else "old")
    assert values(target) == [b"x" * 50]


@pytest.mark.parametrize("wire, cut", HALVES.values(), ids=HALVES)
def test_half_a_message_is_gone_after_a_reconnect(twin: ModuleType, wire: bytes, cut: int) -> None:
    target = builder(twin)
    intake = twin.Intake()
    intake.route(1, [target], partition_by="subject_suffix")
    intake.feed(msg("a", b"0") + wire[:cut], 1)
    intake.reset()
    intake.feed(msg("a", b"1"), 1)
    assert values(target) == [b"0", b"1"]
    assert intake.counters["messages"] == 2


@pytest.mark.parametrize("wire, cut", HALVES.values(), ids=HALVES)
def test_a_batch_may_be_taken_amid_a_message(twin: ModuleType, wire: bytes, cut: int) -> None:
    target = builder(twin)
    intake = twin.Intake()
    intake.route(1, [target], partition_by="subject_suffix")
    intake.feed(msg("a", b"0") + wire[:cut], 1)
    assert values(target) == [b"0"]
    assert target.take().record_count == 0
    intake.feed(wire[cut : cut + 1], 1)
    assert target.record_count == (cut + 1 == len(wire))
    intake.feed(wire[cut + 1 :] + msg("a", b"2"), 1)
    assert values(target) == [b"x" * 50, b"2"]


def test_builders_move_to_the_intake_of_a_new_connection_with_their_records(twin: ModuleType) -> None:
    target = builder(twin)
    first = twin.Intake()
    first.route(1, [target], partition_by="subject_suffix")
    first.feed(msg("a", b"1") + b"MSG a 1 5\r\nhal", 1)
    second = twin.Intake()
    second.route(4, [target], partition_by="subject_suffix")
    assert first.dirty() == []
    assert not first.full()
    del first
    gc.collect()
    assert second.dirty() == [target]
    second.feed(msg("a", b"2", sid=4), 1)
    assert values(target) == [b"1", b"2"]
    second.feed(msg("a", b"3", sid=4), 1)
    assert second.dirty() == [target]


@pytest.mark.parametrize("wire, cut", HALVES.values(), ids=HALVES)
def test_an_old_connection_leaves_alone_what_a_new_one_has_taken_over(twin: ModuleType, wire: bytes, cut: int) -> None:
    """Both go on: the old one amid a message, and then with whole ones."""
    target = builder(twin)
    first, second = twin.Intake(), twin.Intake()
    first.route(1, [target], partition_by="subject_suffix")
    first.feed(msg("a", b"0") + wire[:cut], 1)
    second.route(1, [target], partition_by="subject_suffix")
    second.feed(wire[:cut], 1)
    assert values(target) == [b"0"]
    first.feed(wire[cut:] + msg("a", b"1"), 1)
    assert target.record_count == 0
    assert first.counters["unrouted"] == 2
    first.reset()
    second.feed(wire[cut:], 1)
    assert values(target) == [b"x" * 50]


def test_a_builder_that_moves_there_and_back_is_listed_once(twin: ModuleType) -> None:
    target, other = builder(twin), builder(twin, stream="other")
    first, second = twin.Intake(), twin.Intake()
    for intake in (first, second, first):
        intake.route(1, [target], partition_by="subject_suffix")
        intake.feed(msg("a"), 1)
        if intake is second:
            first.route(2, [other], partition_by="subject_suffix")
            first.feed(msg("a", sid=2), 1)
    assert first.dirty() == [other, target]
    assert second.dirty() == []
    assert target.record_count == 3


def test_thousands_of_subscriptions_come_and_go(twin: ModuleType) -> None:
    rng = random.Random(3)
    intake = twin.Intake()
    routed: dict[int, object] = {}
    for _ in range(3000):
        sid = rng.choice((rng.randrange(500), rng.randrange(10**17)))
        if rng.random() < 0.35:
            intake.unroute(sid)
            routed.pop(sid, None)
        else:
            routed[sid] = builder(twin)
            intake.route(sid, [routed[sid]], partition_by="subject_suffix")
    for sid in [*routed, *range(500)]:
        intake.feed(msg("a", sid=sid), 1)
    expected = sum(2 if sid < 500 else 1 for sid in routed)
    assert intake.counters["stored"] == expected
    assert intake.counters["unrouted"] == 500 - sum(sid < 500 for sid in routed)
    assert len(intake.dirty()) == len(routed)


def test_a_route_that_cannot_be_is_refused(twin: ModuleType) -> None:
    intake = twin.Intake()
    one, two = (builder(twin, partition=i, partition_count=2) for i in range(2))
    other = builder(twin, stream="other", partition=1, partition_count=2)
    with pytest.raises(ValueError, match="needs a builder"):
        intake.route(1, [], partition_by="key")
    with pytest.raises(ValueError, match="one builder, not 2"):
        intake.route(1, [one, two], partition_by="subject_suffix")
    with pytest.raises(ValueError, match="one stream"):
        intake.route(1, [one, other], partition_by="key")
    with pytest.raises(ValueError, match="two builders of one partition"):
        intake.route(1, [one, one], partition_by="key")


@pytest.mark.parametrize(
    "wrong", [{"partition": 1}, {"partition": -1}, {"default_ack": "some"}, {"batch_bytes_hard": 1 << 31}]
)
def test_a_builder_that_cannot_be_is_refused(twin: ModuleType, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        builder(twin, **wrong)
