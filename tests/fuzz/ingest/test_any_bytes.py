"""Goal: any bytes on the connection give records, operations or an IntakeProtocolError; never a crash or a loss.

Method: Hypothesis makes bytes that are noise, or protocol with noise in it; they follow good messages, cut
anywhere. The messages before are still there, whole and unchanged, and the twins agree on the rest.
"""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker.ingest.control import ControlLine, parse_headers, read_control_line, read_operation
from tests.unit.ingest.twins import TWINS, Route, run
from tests.unit.ingest.vectors import VECTORS
from tests.unit.ingest.wire import answers_in, hmsg, msg

FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])

GOOD = [msg("a", b"one"), hmsg("b", b"two", ("Liftlog-Key", "k"), reply="r"), msg("c", b"three")]
FRAGMENTS = [
    *(b"MSG ", b"HMSG ", b"a.b ", b"1 ", b"7 ", b"12 ", b"0", b"3", b"\r\n", b"\r", b"\n", b" ", b"\t", b"NATS/1.0"),
    *(b"\xb9\x0e\x43\xb4\x00\x08\x00\x00", b"\xb9\x0e\x43\xb4"),
    *(b"PING\r\n", b"+OK", b"-ERR '", b"INFO {", b"\xff", b":", b"Liftlog-Key: ", b"99999999999999999999", b"-1"),
]
piece = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(FRAGMENTS),
    st.sampled_from([vector.wire for vector in VECTORS if len(vector.wire) < 400]),
)
noise = st.lists(piece, max_size=12).map(b"".join)
cuts = st.lists(st.integers(0, 1 << 16), max_size=8)
LIMITS = {"control_line_max": 256, "payload_max": 4096}
ROUTES = (Route(1), Route(7, {"stream": "keyed", "record_bytes_max": 60}, "key", 2))


def pieces_of(wire: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(wire) + 1) for place in places})
    return [wire[a:b] for a, b in zip([0, *at], [*at, len(wire)], strict=True)]


@FUZZ
@given(noise, cuts)
@example(b"MSG a 1 0", [3])
@example(b"HMSG a 1 0 0\r\n\r\n", [])
@example(b"HMSG a 1 0 0\r\n\r\n", list(range(60)))
@example(b"MSG a 1 18446744073709551616\r\n", [])
def test_noise_after_good_messages_costs_none_of_them(tail: bytes, places: list[int]) -> None:
    wire = b"".join(GOOD)
    outcomes = [
        run(twin, chunks, ROUTES, **LIMITS)
        for twin in TWINS
        for chunks in ([wire + tail], pieces_of(wire + tail, places))
    ]
    for outcome in outcomes:
        assert outcome == outcomes[0]
        assert [row["value"] for row in outcome.rows["orders", 0][:3]] == [b"one", b"two", b"three"]
        assert outcome.problem is None or outcome.problem[1] >= len(wire)
        answers_in(outcome.refusals)


@FUZZ
@given(st.sampled_from([vector for vector in VECTORS if 0 < len(vector.wire) < 400]), st.data())
def test_a_flipped_byte_in_a_message_is_taken_alike(vector: object, data: st.DataObject) -> None:
    wire = bytearray(vector.wire)  # type: ignore[attr-defined]
    for _ in range(data.draw(st.integers(1, 3))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    places = data.draw(cuts)
    outcomes = [
        run(twin, chunks, ROUTES) for twin in TWINS for chunks in ([bytes(wire)], pieces_of(bytes(wire), places))
    ]
    assert all(outcome == outcomes[0] for outcome in outcomes)


@FUZZ
@given(st.binary(max_size=80) | noise)
def test_the_decoders_take_any_bytes(data: bytes) -> None:
    headers = parse_headers(data)
    assert headers is None or all(name for name, _ in headers)
    line = read_control_line(data, 4096)
    assert line is None or isinstance(line, str | ControlLine)
    assert isinstance(read_operation(data), str | tuple)
