"""Goal: the port that takes gRPC in both ways hands on what comes as it is, and nobody keeps a place there for nothing.

Method: bare sockets on both sides of it; whoever listens in gRPC's place is the test.
"""

from __future__ import annotations

import contextlib
import random
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.runtime.cluster.link import both as both_module
from broker.runtime.cluster.link.both import CONNECTIONS_MAX, Both, Open
from tests.support.processes import eventually

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Port:
    """The port, and gRPC's two in its place. `refused`: what it said of whom it did not let in."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.refused: list[tuple[str, str, str]] = []
        self.both = Both(host, 0, lambda *said: self.refused.append(said))
        self.behind = {}
        for path in (self.both.plain, self.both.secured):
            self.behind[path.name] = listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(path))
            listener.listen()
            listener.settimeout(30)
        self.both.start()

    def connect(self, said: bytes = b"", host: str = "127.0.0.1") -> socket.socket:
        made = socket.create_connection((host, self.both.port), 30)
        made.sendall(said)
        return made

    def accepted(self, which: str = "plain") -> socket.socket:
        found, _ = self.behind[which].accept()
        found.settimeout(30)
        return found

    @property
    def open(self) -> list[Open]:
        return list(self.both._open.values())

    @property
    def count(self) -> int:
        return len(self.open)

    def close(self) -> None:
        self.both.stop()
        for each in self.behind.values():
            each.close()


@pytest.fixture
def port() -> Iterator[Port]:
    with contextlib.closing(Port()) as made:
        yield made


def heard(by: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (data := by.recv(1 << 16)):
        found += data
    return found


@pytest.mark.parametrize(("said", "which"), [(PREFACE, "plain"), (HELLO, "tls"), (b"\x16", "plain"), (b"G", "plain")])
def test_the_first_bytes_say_where_it_goes_and_arrive_with_the_others(port: Port, said: bytes, which: str) -> None:
    with port.connect(said) as client, port.accepted(which) as inner:
        assert heard(inner, len(said)) == said
        inner.sendall(b"answer")
        assert heard(client, 6) == b"answer"
        assert [each.outer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in port.open] == [1], "B4"
    eventually(lambda: not port.count, what="its place is free")


def test_much_goes_both_ways_at_once(port: Port) -> None:
    """More each way than all buffers take: neither side waits for the other to be heard."""
    there, back = (random.Random(seed).randbytes(8 << 20) for seed in (1, 2))
    with port.connect(PREFACE) as client, port.accepted() as inner:
        assert heard(inner, len(PREFACE)) == PREFACE
        threads = [
            threading.Thread(target=side.sendall, args=(data,)) for side, data in ((client, there), (inner, back))
        ]
        for thread in threads:
            thread.start()
        found: list[bytes] = []
        reads = threading.Thread(target=lambda: found.append(heard(inner, len(there))))
        reads.start()
        assert heard(client, len(back)) == back
        for thread in (*threads, reads):
            thread.join(30)
        assert found == [there]


def test_last_words_arrive_before_the_end(port: Port) -> None:
    """As the alert of a handshake that fails, though the other side goes on to speak."""
    with port.connect(HELLO) as client, port.accepted("tls") as inner:
        assert heard(inner, len(HELLO)) == HELLO
        inner.sendall(b"alert")
        client.sendall(b"x" * 1000)
        inner.close()
        assert heard(client, 5) == b"alert"


def test_who_has_ended_is_heard_to_the_end() -> None:
    """Though nothing can be sent to him any more."""
    (client, outer), (inner, grpc) = socket.socketpair(), socket.socketpair()
    with client, outer, inner, grpc:
        grpc.sendall(b"alert")
        grpc.close()
        client.sendall(b"x" * 1000)
        with contextlib.suppress(OSError):
            both_module._hand_on(outer, inner)
        outer.close()
        assert heard(client, 100) == b"alert"


def test_whoever_takes_nothing_loses_his_place_when_grpc_ends_it(port: Port) -> None:
    """B3. gRPC ends what does not answer; a stranger may send, and never read, for ever."""
    with port.connect(PREFACE), port.accepted() as inner:
        inner.settimeout(0.1)
        with contextlib.suppress(TimeoutError):
            while True:
                inner.sendall(bytes(1 << 20))
        assert port.count == 1
        inner.close()
        eventually(lambda: not port.count, timeout_s=10, what="its place is free")


def test_whoever_takes_nothing_is_cut_though_he_goes_on_to_send(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """B3. gRPC has the system do that, and cannot at these sockets."""
    monkeypatch.setattr(both_module, "STALLED_S", 0.2)
    monkeypatch.setattr(both_module, "LOOK_MS", 20)
    with port.connect(PREFACE) as client, port.accepted() as inner:
        inner.settimeout(0.1)
        with contextlib.suppress(TimeoutError):
            while True:
                inner.sendall(bytes(1 << 20))

        def goes_on() -> bool:
            with contextlib.suppress(OSError):
                client.sendall(b"x")
            return not port.count

        eventually(goes_on, timeout_s=10, what="its place is free")


def test_the_oldest_stranger_makes_room_and_brokers_stay(port: Port) -> None:
    """B1."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(port.connect(PREFACE)) for _ in range(CONNECTIONS_MAX)]
        eventually(lambda: port.count == CONNECTIONS_MAX, what="all are in")
        inner = [stack.enter_context(port.accepted()) for _ in sockets]
        names = {each.getpeername(): each for each in inner}
        assert port.both.who(f"unix:{min(names)}") == "127.0.0.1"
        assert port.both.who("unix:") == "unix:", "whoever that is"
        oldest, *others = list(port.both._open)
        for name in (oldest, *others[1:]):
            port.both.know(f"unix:{port.both.plain.parent / name}", is_known=True)
        stack.enter_context(port.connect(PREFACE))
        assert heard(sockets[1], 1) == b""
        port.both.know(f"unix:/{next(reversed(port.both._open))}", is_known=True)
        assert [each.is_known for each in port.open] == CONNECTIONS_MAX * [True]
        with port.connect() as client:
            assert heard(client, 1) == b"", "there is no stranger any more"
        port.both.know(f"unix:/{oldest}", is_known=False)
        stack.enter_context(port.connect(PREFACE))
        assert heard(sockets[0], 1) == b""
        assert [each[:2] for each in port.refused] == 3 * [("crowded", "127.0.0.1")]
    eventually(lambda: not port.count, what="all are gone")
    eventually(lambda: len(list(port.both.plain.parent.iterdir())) == 2, what="no name of theirs is left")


def test_where_grpc_cannot_be_reached_it_is_said(port: Port) -> None:
    """As when somebody has cleaned the folder of temporary files."""
    port.both.plain.unlink()
    with port.connect(PREFACE) as client, contextlib.suppress(ConnectionResetError):
        assert heard(client, 1) == b""
    [(reason, who, text)] = port.refused
    assert (reason, who) == ("no_socket", "127.0.0.1")
    assert str(port.both.plain) in text


def test_a_folder_with_a_long_name_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    short = tempfile.mkdtemp()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setattr(both_module, "SHORT_FOLDER", short)
    with contextlib.closing(Port()) as port:
        assert list(long.iterdir()) == []
        assert port.both.plain.parent.parent == Path(short)
        with port.connect(PREFACE), port.accepted():
            pass
    Path(short).rmdir()


def test_at_all_addresses_it_takes_ipv4_too() -> None:
    """gRPC does at `::`."""
    try:
        made = Port("::")
    except OSError:
        pytest.skip("there is no IPv6 here")
    with contextlib.closing(made) as port, port.connect(PREFACE), port.accepted() as inner:
        assert heard(inner, len(PREFACE)) == PREFACE


def test_what_is_open_ends_with_it(port: Port) -> None:
    with port.connect(PREFACE) as client, port.accepted():
        port.both.stop()
        with contextlib.suppress(ConnectionResetError):
            assert heard(client, 1) == b""
        eventually(lambda: not port.count, what="it is over")
    assert not port.both.plain.parent.exists()
