"""The connections of Liftbridge's API: HTTP/2 with clients that do not do what gRPC's do.

Goal: no bytes of a client end anything but its own connection or call, and what it can have this broker hold is
bounded. Method: raw sockets, and h2 as the client's side, which lets each frame be sent.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

import grpc
import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded
from h2.settings import SettingCodes

from broker.api.proto import liftbridge_pb2 as pb
from broker.serving.http.app import CONNECTIONS
from broker.serving.http.connections import ConnectionLimits
from broker.serving.liftbridge import multiplexed
from broker.serving.liftbridge import server as port_module
from broker.serving.liftbridge.frames import GOODBYE, READ_BYTES, SENT_TABLE_BYTES, Frames
from broker.serving.liftbridge.messages import MESSAGE_BYTES_MAX, PREFIX, Messages, framed
from broker.serving.liftbridge.statuses import StatusError
from tests.support.liftbridge import Opened, client_of, opened
from tests.support.processes import eventually
from tests.unit.serving.server import Server

METADATA = "/proto.API/FetchMetadata"


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_module, "STOP_S", 0.2)


@pytest.fixture
def port(server: Server) -> Iterator[Opened]:
    with opened(server) as port:
        yield port


class Raw:
    """A client's side, frame by frame."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.events: list[Event] = []
        self.past_goodbye: Frames | None = None
        self.flush()

    def read_on(self) -> None:
        """Also behind a GOAWAY, behind which h2 takes nothing."""
        self.past_goodbye = Frames()
        self.past_goodbye._preface_left = 0

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def begin(self, path: str = METADATA, *, ends: bool = False, **more: str) -> int:
        number = self.h2.get_next_available_stream_id()
        headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "b"}
        headers |= {"content-type": "application/grpc", "te": "trailers"}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        self.h2.send_headers(number, list(headers.items()), end_stream=ends)
        self.flush()
        return number

    def say(self, number: int, data: bytes, *, ends: bool = True) -> None:
        self.h2.send_data(number, data, end_stream=ends)
        self.flush()

    def until(self, happened: Callable[[Event], bool]) -> Event:
        while True:
            for event in self.events:
                if happened(event):
                    return event
            data = self.socket.recv(1 << 16)
            assert data, "the connection is closed"
            self.events += self.h2.receive_data(data if self.past_goodbye is None else self.past_goodbye.feed(data))
            self.flush()

    def status(self, number: int) -> str:
        """gRPC's, of a call that has ended."""
        self.until(lambda event: isinstance(event, StreamEnded) and event.stream_id == number)
        for event in self.events:
            if getattr(event, "stream_id", None) == number:
                found = dict(getattr(event, "headers", None) or ()).get("grpc-status")
                if found is not None:
                    return str(found)
        raise AssertionError([type(event) for event in self.events])

    def is_closed(self) -> bool:
        """Read to the end."""
        return read_to_the_end(self.socket)


def read_to_the_end(client: socket.socket) -> bool:
    """Of a connection that was cut what was not read may be lost, and its end comes as a reset."""
    with contextlib.suppress(ConnectionError):
        while client.recv(1 << 16):
            pass
    return True


def works(port: Opened) -> bool:
    with client_of(port.port) as client:
        client.call("FetchMetadata")
    return True


NO_HTTP_2 = (
    b"GET / HTTP/1.1\r\nHost: b\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
)


def test_what_is_no_http_2_ends_the_connection_alone(port: Opened) -> None:
    for said in NO_HTTP_2:
        with socket.create_connection(("127.0.0.1", port.port), timeout=10) as client:
            client.sendall(said)
            assert read_to_the_end(client)
    assert works(port)


def test_a_client_is_told_the_limits_that_hold(port: Opened) -> None:
    client = Raw(port.port)
    assert client.status(client.begin(ends=True)) == "12"
    told = client.h2.remote_settings
    assert (told.initial_window_size, told.max_concurrent_streams) == (
        multiplexed.STREAM_WINDOW_BYTES,
        multiplexed.STREAMS_MAX,
    )
    number = client.begin()
    whole = framed([bytes(3 * multiplexed.STREAM_WINDOW_BYTES)])
    for at in range(0, len(whole), 1 << 14):
        while client.h2.local_flow_control_window(number) < 1 << 14:
            client.events = client.h2.receive_data(client.socket.recv(1 << 16))
        client.say(number, whole[at : at + (1 << 14)], ends=at + (1 << 14) >= len(whole))
    assert client.status(number) == "3", "it is none of this call, and came whole"


def test_messages_in_pieces_and_calls_side_by_side_are_answered(port: Opened) -> None:
    client = Raw(port.port)
    message = framed([pb.FetchMetadata(streams=["a", "b"]).SerializeToString()])
    calls = [client.begin() for _ in range(8)]
    for at in range(len(message)):
        for number in calls:
            client.say(number, message[at : at + 1], ends=at == len(message) - 1)
    assert [client.status(number) for number in calls] == ["0"] * 8


NO_MESSAGES = (
    (b"", "12"),  # no message
    (framed([b""]) * 2, "12"),
    (framed([b"\xff\xff"]), "3"),
    (b"\x01" + framed([b""])[1:], "12"),  # compressed
    (PREFIX.pack(0, MESSAGE_BYTES_MAX + 1), "3"),
    (framed([b"abc"])[:-1], "13"),
)


def test_messages_that_are_none_are_refused(port: Opened) -> None:
    client = Raw(port.port)
    for data, status in NO_MESSAGES:
        number = client.begin()
        client.say(number, data)
        assert client.status(number) == status, data
    assert works(port)


def test_only_grpc_is_spoken_and_its_time_is_read(port: Opened) -> None:
    client = Raw(port.port)
    for more in ({"content_type": "text/plain"}, {"content_type": "application/json"}):
        assert client.status(client.begin(ends=True, **more)) == "13"
    assert client.status(client.begin(ends=True, grpc_timeout="soon")) == "3"
    assert client.status(client.begin(grpc_timeout="20m")) == "4", "a call of which no message comes"


def test_who_opens_calls_and_resets_them_is_cut(port: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiplexed, "TASKS_MAX", 10)
    client = Raw(port.port)
    message = framed([b""])
    for _ in range(50):
        try:
            number = client.h2.get_next_available_stream_id()
            client.h2.send_headers(
                number,
                [
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":path", METADATA),
                    (":authority", "b"),
                    ("content-type", "application/grpc"),
                ],
            )
            client.h2.send_data(number, message, end_stream=True)
            client.h2.reset_stream(number)
        except Exception:
            break
    with contextlib.suppress(ConnectionError):
        client.flush()
    assert client.is_closed()
    assert works(port)


def test_a_connection_counts_among_those_of_http_and_says_its_settings_in_time(server: Server, port: Opened) -> None:
    owner = server.app[CONNECTIONS]
    before = owner._open_count

    async def allow(seconds: float) -> None:
        owner.limits = ConnectionLimits(header_timeout_s=seconds)

    server.call(allow(0.1))
    silent = socket.create_connection(("127.0.0.1", port.port), timeout=30)
    assert read_to_the_end(silent)
    eventually(lambda: owner._open_count == before)
    server.call(allow(60))
    with socket.create_connection(("127.0.0.1", port.port), timeout=30):
        eventually(lambda: owner._open_count == before + 1)
    eventually(lambda: owner._open_count == before)


def test_a_connection_without_a_call_makes_room_for_a_new_one(server: Server, port: Opened) -> None:
    owner = server.app[CONNECTIONS]
    idle = Raw(port.port)
    assert idle.status(idle.begin(ends=True)) == "12"

    async def full() -> None:
        owner.limits = ConnectionLimits(connections_max=owner._open_count)

    server.call(full())
    assert works(port)
    assert isinstance(idle.until(lambda event: isinstance(event, ConnectionTerminated)), ConnectionTerminated)


def test_calls_that_wait_for_their_client_keep_nobody_out(server: Server, port: Opened) -> None:
    owner = server.app[CONNECTIONS]
    says_nothing, takes_nothing = Raw(port.port), Raw(port.port)
    says_nothing.begin("/proto.API/PublishAsync", grpc_timeout="24H")
    takes_nothing.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    takes_nothing.flush()
    number = takes_nothing.begin("/grpc.health.v1.Health/Check")
    takes_nothing.say(number, framed([b""]))
    both = set(port.served._open)
    eventually(lambda: all(each._waiting_count == 1 for each in port.served._open) and len(port.served._open) == 2)

    async def full() -> None:
        owner.limits = ConnectionLimits(connections_max=owner._open_count)

    server.call(full())
    with client_of(port.port) as one, client_of(port.port) as two:
        one.call("FetchMetadata")
        two.call("FetchMetadata")
    assert says_nothing.is_closed()
    eventually(lambda: not both & port.served._open)


def test_what_nobody_takes_is_bounded(port: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a call that reads nothing while others send."""
    monkeypatch.setattr(multiplexed, "HELD_BYTES_MAX", 1_000)
    client = Raw(port.port)
    number = client.begin()
    client.say(number, framed([bytes(400)]), ends=False)
    more = client.begin()
    client.say(more, framed([bytes(2_000)]), ends=False)
    assert client.status(more) == "14"
    eventually(lambda: port.served.held <= 1_000)


def test_a_call_that_is_reset_while_its_client_takes_nothing_leaves_nothing(port: Opened) -> None:
    """H9. A client that takes nothing gives no room to anything, for as long as it likes."""
    client = Raw(port.port)
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    for _ in range(3):
        number = client.begin()
        client.say(number, framed([b""]))
        eventually(lambda: any(each._waiting_count for each in port.served._open), what="a call that waits")
        client.h2.reset_stream(number)
        client.flush()
        eventually(lambda: not any(each._tasks for each in port.served._open), what="the end of the call")
    [connection] = port.served._open
    assert connection._waiting == []


def test_messages_that_never_end_are_held_within_the_bound_and_keep_nobody_out(
    port: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiplexed, "HELD_BYTES_MAX", 200_000)
    client = Raw(port.port)
    assert client.status(client.begin(ends=True)) == "12"  # and the window of the connection is known
    calls = [client.begin("/proto.API/Publish") for _ in range(8)]
    for number in calls:
        client.say(number, (PREFIX.pack(0, 1 << 20) + bytes(40_000))[:16_000], ends=False)
        client.say(number, bytes(16_000), ends=False)
    whole = [client.begin("/proto.API/Publish") for _ in range(8)]
    for number in whole:
        client.say(number, framed([bytes(16_000)]), ends=False)
        client.say(number, b"", ends=False)
    assert client.status(calls[0]) == "14"
    assert 0 < port.served.held <= 200_000
    assert works(port)
    client.socket.close()
    eventually(lambda: port.served.held == 0)


def test_what_is_no_record_is_short_and_each_name_is_answered_once(port: Opened) -> None:
    client = Raw(port.port)
    assert client.status(client.begin(ends=True)) == "12"
    number = client.begin()
    whole = framed([pb.FetchMetadata(streams=[""] * (1 << 17)).SerializeToString()])
    for at in range(0, len(whole), 1 << 14):
        client.say(number, whole[at : at + (1 << 14)], ends=at + (1 << 14) >= len(whole))
    assert client.status(number) == "3"
    with client_of(port.port) as other:
        answer = other.call("FetchMetadata", streams=["a"] * 9_000, groups=["g"] * 9_000)
    assert (len(answer.streams), len(answer.groups)) == (1, 1)


def test_a_connection_whose_client_takes_nothing_is_gone_when_it_is_closed(
    port: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiplexed, "LINGER_S", 0.05)
    client = Raw(port.port)
    assert client.status(client.begin(ends=True)) == "12"
    [connection] = port.served._open

    async def idle() -> None:
        assert connection.transport is not None
        connection.transport.write(bytes(32 << 20))  # more than the system takes
        connection.cut_idle(None)

    port._server.call(idle())
    eventually(lambda: not port.served._open)


def test_others_have_the_loop_after_some_bytes(port: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    came = list[int]()
    monkeypatch.setattr(multiplexed.Http2Connection, "data_received", lambda _, data: came.append(len(data)))
    client = Raw(port.port)
    client.socket.sendall(bytes(1 << 20))
    eventually(lambda: sum(came) > 1 << 20)
    assert max(came) <= READ_BYTES


def test_what_a_client_sets_costs_little(port: Opened) -> None:
    client = Raw(port.port)
    client.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 1 << 20})
    client.flush()
    for _ in range(3):
        assert client.status(client.begin(ends=True)) == "12"
    [connection] = port.served._open
    assert connection._h2.encoder.header_table_size == SENT_TABLE_BYTES
    client.socket.sendall(b"\x00\x02\x58\x04\x00" + bytes(4) + b"".join(bytes([16, i, 0, 0, 0, 1]) for i in range(100)))
    assert client.is_closed()
    assert works(port)


def test_a_stop_says_goodbye_and_cuts_what_does_not_end(server: Server) -> None:
    with opened(server) as port:
        client = Raw(port.port)
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        client.flush()
        client.say(client.begin("/grpc.health.v1.Health/Check"), framed([b""]))  # it takes no answer
        client.until(lambda event: isinstance(event, ResponseReceived))
    client.until(lambda event: isinstance(event, ConnectionTerminated))
    assert client.is_closed()


def test_a_stop_ends_what_waits_for_its_client(server: Server) -> None:
    """go-liftbridge keeps one PublishAsync open for as long as it lives: each stop waited for it, and cut it."""
    with opened(server) as port:
        with client_of(port.port) as one:
            one.call("CreateStream", name="s", subject="s")
        client = Raw(port.port)
        asks, publishes = client.begin(), client.begin("/proto.API/PublishAsync")
        client.say(publishes, framed([pb.Publish(stream="s", value=b"v").SerializeToString()]), ends=False)
        client.until(lambda event: isinstance(event, DataReceived) and event.stream_id == publishes)
        client.read_on()
    assert client.status(asks) == client.status(publishes) == "14"
    assert client.is_closed()


def test_who_says_goodbye_gets_the_answers_to_what_is_under_way(port: Opened) -> None:
    with client_of(port.port) as one:
        one.call("CreateStream", name="s", subject="s")
    client = Raw(port.port)
    number = client.begin("/proto.API/PublishAsync")
    eventually(lambda: any(connection._tasks for connection in port.served._open))
    client.socket.sendall(GOODBYE + bytes(8))
    client.say(number, framed([pb.Publish(stream="s", value=b"v").SerializeToString()]))
    assert client.status(number) == "0"
    assert any(isinstance(event, DataReceived) for event in client.events)
    assert client.is_closed()
    assert works(port)


def test_messages_are_whole_however_they_come() -> None:
    said = [b"", b"a", bytes(300), b"last"]
    data = framed(said)
    for step in (1, 2, 7, len(data)):
        messages, found = Messages(), list[bytes]()
        for at in range(0, len(data), step):
            found += messages.feed(data[at : at + step])
        assert found == said
        assert not messages.is_amid
    with pytest.raises(StatusError):
        Messages(10).feed(PREFIX.pack(0, 11))


def test_a_client_goes_away_amid_a_call(port: Opened) -> None:
    with client_of(port.port) as client, pytest.raises(grpc.RpcError):
        client.call("FetchMetadata", timeout_s=0.0)
    assert works(port)
