"""Frames of HTTP/2 on their way to h2: what is joined means the same.

Method: h2 as the client's side makes streams of frames, by seed; a server's side is given them as they are, another one
what `Frames` makes of them, in pieces.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, StreamEnded, StreamReset

from broker.serving.liftbridge.frames import FRAME_BYTES_MAX, Frames

RESET = b"\x00\x00\x04\x03\x00\x00\x00\x00\x01"
HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", "/a/b"), (":authority", "b")]


class Side:
    """The server's, and what it has understood: of each stream its bytes and how it ended, and all of the windows."""

    def __init__(self) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=False))
        self.h2.initiate_connection()
        self.data: dict[int, bytes] = defaultdict(bytes)
        self.ends: list[tuple[int, type]] = []
        self.flowed = self.frames = 0

    def take(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, DataReceived):
                self.data[event.stream_id] += bytes(event.data)
                self.flowed += event.flow_controlled_length
                self.frames += 1
            elif isinstance(event, StreamEnded | StreamReset):
                self.ends.append((event.stream_id, type(event)))


def spoken(chance: random.Random) -> bytes:
    """What a client says: calls side by side, small messages and large, padding, ends and resets."""
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    live: list[int] = []
    for _ in range(chance.randrange(5, 60)):
        match chance.randrange(12):
            case 0 | 1:
                live.append(client.get_next_available_stream_id())
                client.send_headers(live[-1], HEADERS)
            case 2 if live:
                client.end_stream(live.pop(chance.randrange(len(live))))
            case 3 if live:
                client.reset_stream(live.pop(chance.randrange(len(live))), ErrorCodes.CANCEL)
            case 4:
                client.ping(b"12345678")
            case 5 if live and client.local_flow_control_window(live[-1]) > 30:
                client.send_data(live[-1], b"padded", pad_length=chance.randrange(20))
            case _ if live:
                for _ in range(chance.randrange(8)):
                    size = chance.choice((0, 1, 20, 300, 5_000))
                    if client.local_flow_control_window(live[-1]) > size:
                        client.send_data(live[-1], chance.randbytes(size))
    return client.data_to_send()


@pytest.mark.parametrize("seed", range(40))
def test_joined_frames_mean_what_they_meant(seed: int) -> None:
    chance = random.Random(seed)
    said = spoken(chance)
    plain, joined, frames = Side(), Side(), Frames()
    plain.take(said)
    at = 0
    while at < len(said):
        step = chance.choice((1, 9, 100, 3_000, 32_768))
        joined.take(frames.feed(said[at : at + step]))
        at += step
    assert (joined.data, joined.ends, joined.flowed) == (plain.data, plain.ends, plain.flowed)
    assert joined.h2.inbound_flow_control_window == plain.h2.inbound_flow_control_window


def test_a_hundred_messages_are_one_frame_to_h2() -> None:
    client, server = H2Connection(H2Configuration(client_side=True)), Side()
    client.initiate_connection()
    client.send_headers(1, HEADERS)
    for _ in range(100):
        client.send_data(1, bytes(100))
    client.send_data(1, b"", end_stream=True)
    server.take(Frames().feed(client.data_to_send()))
    assert (server.frames, server.data[1], server.ends) == (1, bytes(10_000), [(1, StreamEnded)])


def test_what_is_joined_is_no_longer_than_a_frame_may_be() -> None:
    head, piece = b"\x00\x03\xe8\x00\x00\x00\x00\x00\x01", bytes(1_000)
    frames = Frames()
    frames.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    found = frames.feed((head + piece) * 40)
    lengths = []
    while found:
        lengths.append(int.from_bytes(found[:3]))
        found = found[9 + lengths[-1] :]
    assert lengths == [16_000, 16_000, 8_000]
    assert max(lengths) <= FRAME_BYTES_MAX


def test_data_behind_the_end_of_its_stream_resets_it_as_before() -> None:
    client, plain, joined = H2Connection(H2Configuration(client_side=True)), Side(), Side()
    client.initiate_connection()
    client.send_headers(1, HEADERS)
    client.send_data(1, b"last", end_stream=True)
    said = client.data_to_send() + 2 * b"\x00\x00\x01\x00\x00\x00\x00\x00\x01x"
    plain.take(said)
    joined.take(Frames().feed(said))
    assert joined.data == plain.data == {1: b"last"}
    assert plain.h2.data_to_send().count(RESET) >= joined.h2.data_to_send().count(RESET) == 1


@pytest.mark.parametrize("size", [FRAME_BYTES_MAX + 1, (1 << 24) - 1])
def test_a_frame_that_is_too_long_is_refused_by_its_head(size: int) -> None:
    frames = Frames()
    frames.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert not frames.feed(size.to_bytes(3) + bytes(5))
    with pytest.raises(ValueError, match=f"a frame of {size} bytes"):
        frames.feed(b"\x01")


def test_a_preface_is_passed_on_byte_by_byte() -> None:
    frames = Frames()
    assert [frames.feed(bytes([each])) for each in b"GET /"] == [bytes([each]) for each in b"GET /"]
