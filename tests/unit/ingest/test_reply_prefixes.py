"""Goal: no ack, error or verdict goes to a reply subject that begins with none of the prefixes. The record is stored,
and counted. Method: both twins, prefixes and reply subjects of all lengths around each other.
"""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.unit.ingest.twins import CUTS, run
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


def test_without_a_prefix_nothing_is_answered(twin: ModuleType) -> None:
    outcome = run(twin, [msg("a", b"x", reply="_INBOX.a")], reply_prefixes=())
    assert outcome.acks["orders", 0] == b""
    assert outcome.counters["unanswerable"] == 1


def test_a_prefix_too_long_is_refused(twin: ModuleType) -> None:
    with pytest.raises(ValueError, match="reply_prefixes"):
        twin.Intake(reply_prefixes=[b"x" * 256])
