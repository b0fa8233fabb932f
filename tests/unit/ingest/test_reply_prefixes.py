"""Goal: no ack, error or verdict goes to a reply subject that begins with none of the prefixes. The record is stored,
and counted. Method: both twins, prefixes and reply subjects of all lengths around each other.
"""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.unit.ingest.envelopes import ALL, LEADER, NONE, envelope, message
from tests.unit.ingest.twins import CUTS, Route, run
from tests.unit.ingest.wire import answers_in, hmsg, msg

PREFIXES = (b"_INBOX.", b"_R.", b"longer.prefix.", b"\xc3\xa9.")
TAKEN = ("_INBOX.a", "_INBOX.", "_R.x.y", "longer.prefix.z", "\u00e9.a")
OTHERS = ("_INBOX", "_inbox.a", "orders.new", "x._INBOX.a", "longer.prefi", "_", "$JS.API.STREAM.DELETE.x", "\u00e8.a")


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
def test_acks_go_to_the_prefixes_only(twin: ModuleType, cut: object) -> None:
    wire = b"".join(msg("a", b"x", reply=reply) for reply in TAKEN + OTHERS)
    outcome = run(twin, cut(wire), reply_prefixes=PREFIXES)  # type: ignore[operator]
    assert [reply.decode() for reply, _ in answers_in(outcome.acks["orders", 0])] == list(TAKEN)
    assert [row["reply"] for row in outcome.rows["orders", 0]] == [*TAKEN, *OTHERS], "all are stored, with their reply"
    assert (outcome.counters["stored"], outcome.counters["unanswerable"]) == (len(TAKEN + OTHERS), len(OTHERS))


def test_refusals_go_to_the_prefixes_only(twin: ModuleType) -> None:
    wire = b"".join(hmsg("a", b"x", ("Liftlog-Ack", "?"), reply=reply) for reply in TAKEN + OTHERS)
    outcome = run(twin, [wire], reply_prefixes=PREFIXES)
    assert [reply.decode() for reply, _ in answers_in(outcome.refusals)] == list(TAKEN)
    assert outcome.counters["unanswerable"] == len(OTHERS)


NO_SUBJECTS = (
    *("_INBOX.a b", "_INBOX.a\tb", "_INBOX.a\n", "_INBOX.a\r\nPUB orders.x 1\r\nx", "_INBOX.\x7f", "_INBOX.a\x00"),
    *("_INBOX.*", "_INBOX.>", "_INBOX..a", "_INBOX."),
)


@pytest.mark.parametrize("policy", [LEADER, ALL, NONE])
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
def test_acks_of_envelopes_go_to_the_prefixes_only(twin: ModuleType, cut: object, policy: int) -> None:
    """Nor to what is no subject: it would end its line, and begin another. The reply subject is told nothing."""
    inboxes = [each for each in TAKEN if each != "_INBOX."]
    others = OTHERS + NO_SUBJECTS + ("_INBOX." + "a" * 4096,)
    wire = b"".join(
        msg("a", envelope(message(b"v", inbox=inbox.encode(), policy=policy)), reply="_INBOX.r")
        for inbox in (*inboxes, *others)
    )
    outcome = run(twin, cut(wire), [Route(settings={"default_ack": "none"})], reply_prefixes=PREFIXES)  # type: ignore[operator]
    acked = [] if policy == NONE else inboxes
    assert [reply.decode() for reply, _ in answers_in(outcome.acks["orders", 0])] == acked
    assert outcome.counters["stored"] == len(inboxes) + len(others)
    assert outcome.counters["unanswerable"] == (0 if policy == NONE else len(others))


def test_refusals_of_envelopes_go_to_the_prefixes_only(twin: ModuleType) -> None:
    inboxes = [each for each in TAKEN if each != "_INBOX."]
    wire = b"".join(
        msg("a", envelope(message(b"v" * 300, inbox=inbox.encode())), reply="_INBOX.r")
        for inbox in (*inboxes, *OTHERS, *NO_SUBJECTS)
    )
    outcome = run(twin, [wire], [Route(settings={"record_bytes_max": 200})], reply_prefixes=PREFIXES)
    assert [reply.decode() for reply, _ in answers_in(outcome.refusals)] == inboxes
    assert outcome.counters["unanswerable"] == len(OTHERS) + len(NO_SUBJECTS)


def test_without_a_prefix_nothing_is_answered(twin: ModuleType) -> None:
    outcome = run(twin, [msg("a", b"x", reply="_INBOX.a")], reply_prefixes=())
    assert outcome.acks["orders", 0] == b""
    assert outcome.counters["unanswerable"] == 1


def test_a_prefix_too_long_is_refused(twin: ModuleType) -> None:
    with pytest.raises(ValueError, match="reply_prefixes"):
        twin.Intake(reply_prefixes=[b"x" * 256])
