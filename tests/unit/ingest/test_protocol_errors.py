"""Goal: what is no NATS protocol stops the connection with a clear error, and costs nothing parsed before.

Method: each malformed tail after good messages, in every cut: same problem, same position, same rows.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import ModuleType

import pytest

from broker.ingest import IntakeProtocolError
from tests.unit.ingest.twins import CUTS, builder, run
from tests.unit.ingest.wire import hmsg, msg

GOOD = msg("a", b"one") + b"PING\r\n" + hmsg("b", b"two", ("X", "y"))
UNKNOWN = "an unknown operation"
FIELDS = "wrong number of fields in a control line"
END = "a message that does not end in CR LF where it should"
CRLF = "a control line that does not end in CR LF"
BAD = [
    (b"X", UNKNOWN, 0),
    (b"\r\n", UNKNOWN, 0),
    (b"MSX a 1 1\r\n", UNKNOWN, 0),
    (b"PUB a 1\r\n", UNKNOWN, 0),
    (b"PINGS\r\n", UNKNOWN, 0),
    (b"MSGa 1 1\r\n", UNKNOWN, 0),
    (b"PING 1\r\n", "an operation that takes no argument has one", 0),
    (b"PING\n", CRLF, 0),
    (b"MSG a 1 1\nx\r\n", CRLF, 0),
    (b"MSG\r\n", FIELDS, 0),
    (b"MSG a 1\r\n", FIELDS, 0),
    (b"MSG a 1 b 1 1\r\n", FIELDS, 0),
    (b"HMSG a 1 12\r\n", FIELDS, 0),
    (b"HMSG a 1 r 12 12 1\r\n", FIELDS, 0),
    (b"MSG a 1 b 1 1 1 1\r\n", "too many fields in a control line", 0),
    (b"MSG a b 1\r\n", "a subscription id that is no number", 0),
    (b"MSG a -1 1\r\n", "a subscription id that is no number", 0),
    (b"MSG a 1234567890123456789 1\r\n", "a subscription id that is no number", 0),
    (b"MSG a 1 x\r\n", "a size that is no number", 0),
    (b"MSG a 1 -1\r\n", "a size that is no number", 0),
    (b"MSG a 1 1.0\r\n", "a size that is no number", 0),
    (b"MSG a 1 67108865\r\n", "a message over payload_max", 0),
    (b"MSG a 1 999999999999999999\r\n", "a message over payload_max", 0),
    (b"HMSG a 1 x 12\r\n", "a header size that is no number", 0),
    (b"HMSG a 1 13 12\r\n", "a header size over the message size", 0),
    (b"MSG a 1 1\r\nxPING\r\n", END, 12),
    (b"MSG a 1 1\r\nx\rPING\r\n", END, 13),
    (b"MSG a 1 1\r\nx\n", END, 12),
    (b"MSG " + b"a" * 4200 + b" 1 1\r\n", "a control line too long", 0),
    (b"-ERR '" + b"a" * 4200, "a control line too long", 0),
    (b"INFO " + b"a" * (1 << 20) + b"\r\n", "a control line too long", 0),
]


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
@pytest.mark.parametrize("bad, problem, at", BAD, ids=[repr(bad[:30]) for bad, _, _ in BAD])
def test_a_protocol_error_says_what_and_where_and_loses_nothing(
    twin: ModuleType, bad: bytes, problem: str, at: int, cut: Callable[[bytes], list[bytes]]
) -> None:
    if len(bad) > 10_000 and cut is CUTS[1]:
        cut = CUTS[2]  # a million feeds would only be slow
    outcome = run(twin, cut(GOOD + bad))
    assert outcome.problem == (problem, len(GOOD) + at)
    assert [row["value"] for row in outcome.rows["orders", 0]] == [b"one", b"two"]
    assert outcome.events == [("PING",)]
    assert outcome.counters["messages"] == 2


def test_a_message_without_its_end_is_not_stored(twin: ModuleType) -> None:
    for wire in (b"MSG a 1 3\r\nabcMSG b 1 1\r\n", b"MSG a 1 3\r\nabc\r", b"MSG a 1 3\r\nab"):
        for cut in CUTS:
            outcome = run(twin, cut(wire))
            assert outcome.rows == {}
            assert outcome.counters["messages"] == 0


def test_after_an_error_nothing_is_parsed_until_reset(twin: ModuleType) -> None:
    target = builder(twin)
    intake = twin.Intake()
    intake.route(1, [target], partition_by="subject_suffix")
    with pytest.raises(IntakeProtocolError) as first:
        intake.feed(msg("a", b"1") + b"PONG\r\njunk", 1)
    assert first.value.events == [("PONG",)]
    with pytest.raises(IntakeProtocolError) as second:
        intake.feed(msg("a", b"2"), 1)
    assert second.value.events == []
    assert second.value.position == first.value.position
    intake.reset()
    assert intake.feed(b"PING\r\n" + msg("a", b"3"), 1) == [("PING",)]
    assert target.record_count == 2


def test_positions_count_from_the_reset(twin: ModuleType) -> None:
    intake = twin.Intake()
    intake.feed(b"PING\r\n", 1)
    intake.reset()
    with pytest.raises(IntakeProtocolError) as raised:
        intake.feed(b"PONG\r\nZ", 1)
    assert raised.value.position == 6


def test_the_error_shows_what_came_and_survives_pickling(twin: ModuleType) -> None:
    intake = twin.Intake()
    with pytest.raises(IntakeProtocolError) as raised:
        intake.feed(b"PING\r\nHTTP/1.1 400 Bad Request\r\n" + b"x" * 100, 1)
    error = raised.value
    assert isinstance(error, ValueError)
    text = str(error)
    assert "at byte 6" in text
    assert "HTTP/1.1 400 Bad Request" in text
    assert len(error.excerpt) <= 64
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == text
    assert again.events == [("PING",)]
    assert str(copy.copy(error)) == text


def test_control_lines_obey_the_limit_of_the_server(twin: ModuleType) -> None:
    wire = msg("a" * 180, b"x")
    assert run(twin, [wire], control_line_max=128).problem is None  # the server adds its own fields
    assert run(twin, [msg("a" * 190, b"x")], control_line_max=128).problem == ("a control line too long", 0)
    assert run(twin, [msg("a", b"x" * 11)], payload_max=10).problem == ("a message over payload_max", 0)


@pytest.mark.parametrize("wrong", [{"control_line_max": 10}, {"payload_max": 0}, {"payload_max": 1 << 31}])
def test_limits_that_cannot_be_are_refused(twin: ModuleType, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        twin.Intake(**wrong)
