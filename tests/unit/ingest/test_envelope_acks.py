"""Goal: who names an ack inbox in an envelope reads there what Liftbridge's clients understand, and nothing elsewhere.

Method: both twins; acks are read by protobuf's own library, behind the header that Liftbridge's clients expect.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("google.protobuf")

from broker.api.errors import KeyMissing, LiftlogError, NotLeader, RecordTooLarge, WrongKeys
from broker.api.proto import liftbridge_pb2 as pb
from broker.ingest.answers import ack_error, error_answer
from broker.ingest.rules import ACK_TEXTS_BYTES_MAX
from broker.storage.memory.ids import IdTable
from tests.unit.ingest.envelopes import ALL, LEADER, NONE, envelope, message
from tests.unit.ingest.twins import builder
from tests.unit.ingest.wire import answers_in, hmsg, msg

HEADER = bytes.fromhex("b90e43b4 00 08 00 01")


def acks_in(blob: bytes) -> list[tuple[str, Any]]:
    """Where acks go, and what they say; of the answers on a reply subject: their JSON."""
    found = []
    for inbox, body in answers_in(blob):
        assert body.startswith(HEADER)
        found.append((inbox.decode(), pb.Ack.FromString(body.removeprefix(HEADER))))
    return found


class Stream:
    def __init__(self, twin: ModuleType, **settings: Any) -> None:
        self.target = builder(twin, **{"subject": "orders.*", **settings})
        self.intake = twin.Intake()
        self.intake.route(1, [self.target], partition_by="subject_suffix")

    def taken(self, *wires: bytes, now_us: int = 5) -> Any:
        self.intake.feed(b"".join(wires), now_us)
        return self.target.take()


def sent(inbox: str = "r", *, subject: str = "orders.a", reply: str | None = None, **fields: Any) -> bytes:
    return msg(subject, envelope(message(b"v", inbox=inbox.encode(), **fields)), reply=reply)


def test_an_ack_says_what_liftbridge_says(twin: ModuleType) -> None:
    batch = Stream(twin).taken(
        msg("x"), sent("in.box", correlation=b"c-1", policy=ALL, reply="elsewhere"), now_us=1_700
    )
    assert (batch.awaited_count, batch.leader_count) == (1, 0)
    [(inbox, ack)] = acks_in(batch.acks(41, now_us=1_900))
    assert inbox == "in.box"
    assert ack == pb.Ack(
        stream="orders", partition_subject="orders.*", subject="orders.a", offset=42, ack_inbox="in.box",
        correlation_id="c-1", ack_policy=pb.ALL, received=1_700_000, committed=1_900_000,
    )  # fmt: skip


def test_each_policy_has_its_ack_in_its_time(twin: ModuleType) -> None:
    policies = [LEADER, ALL, NONE, LEADER, 9]
    batch = Stream(twin, default_ack="none").taken(
        *(sent(f"r{at}", policy=policy) for at, policy in enumerate(policies)), msg("x", reply="plain"),
    )  # fmt: skip
    assert (batch.awaited_count, batch.leader_count) == (3, 2)
    answers = {leader: [inbox for inbox, _ in acks_in(batch.acks(0, leader))] for leader in (None, True, False)}
    assert answers == {None: ["r1", "r0", "r3"], True: ["r0", "r3"], False: ["r1"]}
    assert [ack.offset for _, ack in acks_in(batch.acks(7))] == [8, 7, 10]


def test_a_header_goes_before_the_policy(twin: ModuleType) -> None:
    batch = Stream(twin).taken(
        hmsg("a", envelope(message(inbox=b"r0", policy=NONE)), ("Liftlog-Ack", "all")),
        hmsg("a", envelope(message(inbox=b"r1", policy=ALL)), ("Liftlog-Ack", "none")),
    )
    assert [inbox for inbox, _ in acks_in(batch.acks(0))] == ["r0"]


def test_without_an_inbox_the_reply_subject_has_a_puback(twin: ModuleType) -> None:
    stream = Stream(twin)
    batch = stream.taken(sent("", reply="r0"), sent("", policy=NONE, reply="r1"), sent("r2", reply="r3", policy=NONE))
    assert answers_in(batch.acks(0)) == [(b"r0", b'{"stream":"orders","seq":1}')]
    quiet = Stream(twin, reply_acks=False).taken(sent("", reply="r0"), sent("r1", reply="r2"))
    assert [inbox for inbox, _ in acks_in(quiet.acks(0))] == ["r1"], (
        "a reply subject is not meant, so this is no answer"
    )


@pytest.mark.parametrize("name", ["Nats-Expected-Stream", "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Msg-Id"])
def test_a_silent_copy_acks_nothing_that_expects_something(twin: ModuleType, name: str) -> None:
    """It does not look at the expectation, so its ack would say that what another stream refuses is stored as asked."""
    stream = Stream(twin, reply_acks=False)
    headers = [(name.encode(), b"7")]
    batch = stream.taken(
        sent("r0", headers=headers, policy=ALL),
        hmsg("a", envelope(message(inbox=b"r1")), (name, "7")),
        sent("r2", headers=[*headers, (b"Nats-Msg-Id", b"1")]),
        sent("r3", headers=[(b"Nats-Msg-Id", b"2")]),
    )
    assert (batch.record_count, batch.awaited_count) == (4, 1)
    assert [inbox for inbox, _ in acks_in(batch.acks(0))] == ["r3"]
    assert stream.intake.counters["unanswerable"] == 0


def test_a_batch_that_failed_is_told_as_an_error_that_liftbridge_has(twin: ModuleType) -> None:
    """Nothing else: go-liftbridge drops the error of an ack, and would take it for one of a record."""
    batch = Stream(twin).taken(sent("r0"), sent("r1", policy=NONE), sent("r2", policy=ALL))
    for error, code in (
        (RecordTooLarge("no"), pb.Ack.TOO_LARGE),
        (KeyMissing("no key"), pb.Ack.ENCRYPTION),
        (WrongKeys("other keys"), pb.Ack.ENCRYPTION),
    ):  # fmt: skip
        told: LiftlogError = error
        acks = acks_in(batch.errors(*error_answer(told), ack_error=ack_error(told)))
        assert [(inbox, ack.error, ack.offset, ack.committed) for inbox, ack in acks] == [
            ("r2", code, 0, 0),
            ("r0", code, 0, 0),
        ]
    assert batch.errors(*error_answer(NotLeader("elsewhere")), ack_error=ack_error(NotLeader("elsewhere"))) == b""


def test_a_refused_message_is_told_as_an_error_that_liftbridge_has(twin: ModuleType) -> None:
    stream = Stream(twin, record_bytes_max=60, reply_acks=True)
    stream.taken(
        sent("r0", headers=[(b"Liftlog-Ack", b"?")]),
        sent("r1", headers=[(b"x", b"x" * 60)], policy=NONE, reply="elsewhere", correlation=b"c"),
        msg(b"orders.\xff", envelope(message(inbox=b"r2"))),
    )
    acks = acks_in(stream.intake.refusals())
    assert [(inbox, ack.error) for inbox, ack in acks] == [("r1", pb.Ack.TOO_LARGE)]
    [(_, ack)] = acks
    assert (ack.correlation_id, ack.received, ack.committed, ack.subject) == ("c", 5_000, 0, "orders.a")
    assert stream.intake.counters["unanswerable"] == 0


def test_what_the_log_drops_is_told_at_the_inbox(twin: ModuleType) -> None:
    stream, ids = Stream(twin), IdTable(bytes(16))
    headers = [[(b"Nats-Msg-Id", b"1")], [(b"Nats-Msg-Id", b"1")], [(b"Nats-Expected-Last-Sequence", b"9")], []]
    wires = [sent(f"r{at}", policy=ALL, headers=each, correlation=b"c%d" % at) for at, each in enumerate(headers)]
    silent = sent("r4", policy=NONE, headers=headers[0])
    batch = stream.taken(*wires, silent)
    batch.make_room(ids, now_us=6, wall_us=5, window_us=99, ids_max=9)
    batch.settle(
        ids, None, next_offset=70, now_us=6, wall_us=5, window_us=99, ids_max=9, subjects_max=9,
    )  # fmt: skip
    assert (batch.record_count, batch.settled, batch.awaited_count) == (2, (2, 1, 0, 0), 4)
    acks = acks_in(batch.acks(70, now_us=8))
    assert [(inbox, ack.offset, ack.error) for inbox, ack in acks] == [
        ("r0", 70, pb.Ack.OK), ("r3", 71, pb.Ack.OK), ("r1", 70, pb.Ack.OK), ("r2", 0, pb.Ack.INCORRECT_OFFSET),
    ]  # fmt: skip
    assert [ack.correlation_id for _, ack in acks] == ["c0", "c3", "c1", "c2"]
    assert {(ack.stream, ack.subject, ack.partition_subject) for _, ack in acks} == {("orders", "orders.a", "orders.*")}
    assert [ack.committed > 0 for _, ack in acks] == [True, True, True, False]
    failed = acks_in(batch.errors(400, 10054, "no", ack_error=pb.Ack.TOO_LARGE))
    assert {(inbox, ack.error) for inbox, ack in failed} == {(f"r{at}", pb.Ack.TOO_LARGE) for at in range(4)}
    assert batch.errors(503, 10008, "no") == b""


def test_what_liftbridge_has_no_error_for_is_told_to_nobody(twin: ModuleType) -> None:
    stream, ids = Stream(twin), IdTable(bytes(16))
    batch = stream.taken(*(sent(f"r{at}", policy=ALL, headers=[(b"Nats-Msg-Id", b"%d" % at)]) for at in range(3)))
    batch.make_room(ids, now_us=6, wall_us=5, window_us=99, ids_max=2)
    batch.settle(ids, None, next_offset=0, now_us=6, wall_us=5, window_us=99, ids_max=2, subjects_max=9)
    assert (batch.settled, batch.awaited_count) == ((0, 0, 1, 0), 2)
    assert [inbox for inbox, _ in acks_in(batch.acks(0))] == ["r0", "r1"]


def test_an_ack_that_would_be_too_long_is_not_sent(twin: ModuleType) -> None:
    """The server would cut the broker off for a message that is larger than its limit."""
    stream = Stream(twin)
    short = ACK_TEXTS_BYTES_MAX - len("orders" + "orders.*" + "orders.a" + "r0")
    batch = stream.taken(sent("r0", correlation=b"c" * short), sent("r1", correlation=b"c" * (short + 1)))
    assert [inbox for inbox, _ in acks_in(batch.acks(0))] == ["r0"]
    assert stream.intake.counters["unanswerable"] == 1


def test_many_acks_are_written_at_once(twin: ModuleType) -> None:
    batch = Stream(twin).taken(*(sent(f"r{at}", correlation=b"%d" % at) for at in range(300)))
    acks = acks_in(batch.acks((1 << 40) - 100))
    assert [(inbox, ack.offset) for inbox, ack in acks] == [(f"r{at}", (1 << 40) - 100 + at) for at in range(300)]


def test_what_an_ack_needs_counts_as_bytes_of_the_batch(twin: ModuleType) -> None:
    """Until it is sent it is in memory, and in no log."""
    stream = Stream(twin, batch_bytes=1_000)
    wire = sent("in.box", correlation=b"c" * 500, headers=[(b"Nats-Msg-Id", b"1")])
    stream.intake.feed(wire, 5)
    assert not stream.intake.full()
    stream.intake.feed(wire + sent("$x", correlation=b"c" * 500), 5)
    assert stream.intake.full()
    batch = stream.target.take()
    assert batch.ack_bytes == 2 * (6 + 500)
    record = len("orders.a" + "v") + len("Nats-Msg-Id" + "1")
    assert batch.byte_count == batch.ack_bytes + 2 * record + len("orders.a" + "v")
    ids = IdTable(bytes(16))
    batch.make_room(ids, now_us=6, wall_us=5, window_us=99, ids_max=9)
    batch.settle(ids, None, next_offset=0, now_us=6, wall_us=5, window_us=99, ids_max=9, subjects_max=9)
    assert (batch.record_count, batch.ack_bytes) == (2, 506)
    assert batch.byte_count == 506 + record + len("orders.a" + "v")
