"""Goal: nobody gets in who does not belong here, whatever he sends, and he keeps nobody out.

Method: a real server on loopback; strangers are bare gRPC calls and bare sockets.
"""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.replication.messages import AskEnd, AskState, Fetch
from broker.runtime.cluster.codec import Asked, Hello, Proof, Welcome, encode
from broker.runtime.cluster.link import server as server_module
from broker.runtime.cluster.link.handshake import NONCE_BYTES, Caller, Peer, key_of
from broker.runtime.cluster.link.server import CONNECTIONS_MAX, METHOD, QUESTION_BYTES_MAX, SERVICE, STRANGERS_MAX
from tests.support.linked import SECRET, Linked, linked
from tests.support.processes import eventually
from tests.support.replica_messages import made

pytestmark = pytest.mark.slow
ENDS_LONE = ("grpc.max_connection_idle_ms", "grpc.server_handshake_timeout_ms")


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Linked]:
    """Broker `a` runs; `b` is registered, and does not."""
    with linked(tmp_path, ("a", "b")) as cluster:
        cluster.start()
        cluster.stop("b")
        yield cluster


class Call:
    """A call whose messages a test makes up."""

    def __init__(self, cluster: Linked, *said: bytes) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{cluster.relays['a'].target}")
        self.sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        for data in said:
            self.sent.put(data)
        known = cluster.service.catalog.brokers.get("b")
        self.registration = known.registration if known else 0
        self.call: Any = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(self.sent.get, None))

    def next(self) -> bytes:
        return bytes(next(self.call))

    def end(self) -> tuple[str, str]:
        """Wait until it ends. Its status and text."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass
        self.close()
        return self.call.code().name, self.call.details()

    def close(self) -> None:
        self.sent.put(None)
        self.call.cancel()
        self._channel.close()


def caller(cluster: Linked, secret: bytes = SECRET, name: str = "b", *, newer: int = 0) -> Caller:
    known = cluster.service.catalog.brokers.get(name)
    peer = Peer(name, (known.registration if known else 0) + newer)
    return Caller(peer, "c", "a", key_of(secret), random.Random(5).randbytes(NONCE_BYTES))


def let_in(cluster: Linked) -> Call:
    friend = caller(cluster)
    call = Call(cluster, friend.hello())
    call.sent.put(friend.challenge(call.next()))
    friend.welcome(call.next())
    return call


def fetch_of(name: str) -> bytes:
    question = made(Fetch, random.Random(3), follower=name)
    return bytes(encode(Asked(("i-nothing", 0), question)).SerializeToString())


@pytest.mark.parametrize(
    "said,status,reason",
    [
        ([b"\xff\xff"], "INVALID_ARGUMENT", "bad_greeting"),
        ([b""], "INVALID_ARGUMENT", "bad_greeting"),
        ([encode(Welcome(bytes(32))).SerializeToString()], "INVALID_ARGUMENT", "bad_greeting"),
        ([encode(Hello(2, "c", "b", 2, "a", bytes(5_000))).SerializeToString()], "INVALID_ARGUMENT", "bad_greeting"),
        ([encode(Hello(9, "c", "b", 2, "a", bytes(32))).SerializeToString()], "FAILED_PRECONDITION", "version"),
        (
            [
                encode(Hello(2, "c", "b", 2, "a", bytes(32))).SerializeToString(),
                encode(Proof(bytes(32))).SerializeToString(),
            ],
            "UNAUTHENTICATED",
            "secret",
        ),
        (
            [encode(Hello(2, "c", "b", 2, "a", bytes(32))).SerializeToString(), fetch_of("b")],
            "INVALID_ARGUMENT",
            "bad_greeting",
        ),
    ],
)
def test_who_does_not_belong_here_hears_why(one: Linked, said: list[bytes], status: str, reason: str) -> None:
    code, text = Call(one, *said).end()
    assert (code, text.split(":")[0]) == (status, reason)
    assert one.nodes["a"].link.server.refused[reason] == 1
    let_in(one).close()


@pytest.mark.parametrize(
    "name,newer,reason", [("nobody", 0, "unknown_broker"), ("b", -1, "registration"), ("b", 1, "registration")]
)
def test_whom_the_catalog_does_not_have_is_not_let_in(one: Linked, name: str, newer: int, reason: str) -> None:
    stranger = caller(one, name=name, newer=newer)
    call = Call(one, stranger.hello())
    call.sent.put(stranger.challenge(call.next()))
    code, text = call.end()
    assert (code, text.split(":")[0]) == ("PERMISSION_DENIED", reason)


def test_who_greets_only_by_halves_is_sent_away(one: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "GREETING_S", 0.2)
    refused = one.nodes["a"].link.server.refused
    silent = [Call(one), Call(one, caller(one).hello())]
    for call in silent:
        call.end()
    eventually(lambda: refused["greeting_timeout"] == 2, what="both to be sent away")


def test_strangers_keep_nobody_out(one: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as may be greeted at a time say nothing, for ever: a broker takes the place of the oldest."""
    monkeypatch.setattr(server_module, "GREETING_S", 3_600.0)
    server = one.nodes["a"].link.server
    silent = []
    for _ in range(STRANGERS_MAX):
        silent.append(Call(one))
        eventually(lambda: len(server._greetings) == len(silent), what="it is being greeted")
    let_in(one).close()
    assert silent[0].end()[0] == "CANCELLED"
    assert server.refused == {"crowded": 1}
    one.start("b")
    [at] = one.create(min_insync=1)
    one.stored(at, b"x")
    one.in_sync(at)
    one.same(at)
    for call in silent[1:]:
        call.close()


def test_bytes_that_are_no_http2_are_nobodys_matter(one: Linked) -> None:
    rng = random.Random(4)
    port = one.relays["a"].target
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        rng.randbytes(5_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(500),
    ):
        with socket.create_connection(("127.0.0.1", port), 5) as raw:
            raw.sendall(data)
            raw.settimeout(5)
            while raw.recv(4_096):
                pass
    let_in(one).close()


class Lone:
    """A connection without a call: silent, or one that speaks HTTP/2 and answers each ping."""

    SETTINGS = bytes(3) + b"\x04" + bytes(5)
    SETTINGS_ACK = bytes(3) + b"\x04\x01" + bytes(4)
    PING, PING_BYTES, ACK = 6, 8, 1

    def __init__(self, port: int, *, is_silent: bool) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 5)
        self._heard = bytearray()
        if not is_silent:
            with contextlib.suppress(OSError):  # it is closed by now
                self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.SETTINGS + self.SETTINGS_ACK)
        self._socket.setblocking(False)

    def is_closed(self) -> bool:
        try:
            while data := self._socket.recv(4_096):
                self._heard += data
                self._answer()
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _answer(self) -> None:
        while len(self._heard) >= (end := 9 + int.from_bytes(self._heard[:3])):
            frame = bytes(self._heard[:end])
            del self._heard[:end]
            if frame[3] == self.PING and not frame[4] & self.ACK:
                self._socket.send(bytes([0, 0, self.PING_BYTES, self.PING, self.ACK]) + frame[5:])

    def close(self) -> None:
        self._socket.close()


@pytest.mark.long
def test_connections_on_which_nobody_calls_are_closed(one: Linked) -> None:
    """A broker's stream goes on."""
    friend = let_in(one)
    lone = [Lone(one.relays["a"].target, is_silent=is_silent) for is_silent in (True, False) for _ in range(20)]
    eventually(lambda: sum(each.is_closed() for each in lone) == len(lone), what="all to be closed")
    assert friend.call.is_active()
    friend.close()
    for each in lone:
        each.close()


def test_only_so_many_connections_take_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long they may be kept."""
    kept_long = [(key, 3_600_000 if key in ENDS_LONE else value) for key, value in server_module.OPTIONS]
    monkeypatch.setattr(server_module, "OPTIONS", kept_long)
    with linked(tmp_path, ("a", "b")) as cluster:
        cluster.start()
        cluster.stop("b")
        friend = let_in(cluster)
        lone = [Lone(cluster.relays["a"].target, is_silent=False) for _ in range(CONNECTIONS_MAX + 100)]
        eventually(lambda: sum(each.is_closed() for each in lone) >= 100, what="those beyond the limit to be closed")
        assert friend.call.is_active()
        friend.close()
        for each in lone:
            each.close()


def test_a_new_stream_of_a_broker_ends_its_old_one(one: Linked) -> None:
    old, new = let_in(one), None
    try:
        new = let_in(one)
        assert old.end() == ("ABORTED", "another stream of this broker has begun")
        assert [session.peer.broker_id for session in one.nodes["a"].link.server.streams()] == ["b"]
    finally:
        if new is not None:
            new.close()


def test_a_broker_asks_for_itself_alone(one: Linked) -> None:
    call = let_in(one)
    call.sent.put(fetch_of("c"))
    assert call.end()[0] == "PERMISSION_DENIED"
    assert one.nodes["a"].link.server.refused["other_name"] == 1


@pytest.mark.parametrize("data", [b"\xff", encode(Welcome(bytes(32))).SerializeToString(), b""])
def test_what_is_no_question_ends_the_stream(one: Linked, data: bytes) -> None:
    call = let_in(one)
    call.sent.put(data)
    assert call.end()[0] == "INVALID_ARGUMENT"
    assert one.nodes["a"].link.server.refused["bad_frame"] == 1


def test_a_question_is_not_larger_than_it_may_be(one: Linked) -> None:
    call = let_in(one)
    call.sent.put(bytes(QUESTION_BYTES_MAX + 1))
    assert call.end()[0] == "RESOURCE_EXHAUSTED"


def test_a_stream_ends_when_its_broker_has_registered_anew(one: Linked) -> None:
    call = let_in(one)
    one.start("b")
    call.sent.put(fetch_of("b"))
    assert call.end()[0] == "ABORTED"


def test_a_follower_stays_away_from_a_leader_with_another_secret(tmp_path: Path) -> None:
    with linked(tmp_path, ("a", "b")) as cluster:
        cluster.secrets["a"] = b"another secret altogether"
        cluster.start()
        cluster.create(min_insync=1)
        node = cluster.nodes["b"]
        other = cluster.nodes["a"]
        refused = lambda: node.link.counts["refused"] + other.link.counts["refused"]  # noqa: E731
        eventually(refused, what="a handshake that fails")
        assert not node.link.server.streams()
        assert not other.link.server.streams()


def test_questions_at_random_do_no_harm(one: Linked) -> None:
    """Numbers at their edges, of partitions that are here and of others: an answer, or none."""
    one.start("b")
    [at] = one.create(min_insync=1)
    one.stored(at, b"x")
    one.in_sync(at)
    one.stop("b")
    call, rng = let_in(one), random.Random(6)
    answers: list[bytes] = []
    reader = threading.Thread(target=lambda: answers.extend(_all(call)))
    reader.start()
    for _ in range(400):
        kind = rng.choice((Fetch, AskEnd, AskState))
        epoch = rng.choice((one.service.state(at).leader_epoch, 0, 1 << 62))
        registration = rng.choice((call.registration, call.registration, 1 << 62))
        question = made(kind, rng, follower="b", epoch=epoch, incarnation=(registration, 0))
        call.sent.put(encode(Asked(rng.choice((at, ("i-other", 0))), question)).SerializeToString())
    eventually(lambda: call.sent.empty(), what="all to be asked")
    eventually(lambda: answers, what="an answer")
    call.close()
    reader.join()
    assert one.nodes["a"].link.server.refused["registration"]
    one.start("b")
    one.in_sync(at)
    one.stored(at, b"y")
    one.same(at)


def _all(call: Call) -> Iterator[bytes]:
    with contextlib.suppress(grpc.RpcError):
        yield from call.call


def test_nobody_asks_as_a_later_life_of_a_broker(one: Linked) -> None:
    """Its leader would fence the present one off for as long as it leads."""
    one.start("b")
    [at] = one.create(min_insync=1)
    one.in_sync(at)
    one.stop("b")
    one.fail("b")
    one.start("b")
    one.stored(at, b"x")
    one.in_sync(at)
    one.stop("b")
    call = let_in(one)
    fetch = Fetch(
        follower="b",
        incarnation=(1 << 40, 0),
        epoch=one.service.state(at).leader_epoch,
        offset=0,
        last_epoch=-1,
        durable_end=0,
        log_start=0,
    )
    call.sent.put(encode(Asked(at, fetch)).SerializeToString())
    call.sent.put(encode(Asked(at, replace(fetch, incarnation=(call.registration, 0)))).SerializeToString())
    call.next()  # what is asked in its own name is answered
    call.close()
    one.start("b")
    one.stored(at, b"y")
    one.in_sync(at)
    one.same(at)


def test_without_a_thread_for_a_call_the_next_one_is_answered(one: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system allows few threads, strangers may take all that are left. gRPC listened no more then, for good,
    and no follower came back."""
    missed, start = list[str](), threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name.startswith("replica-link"):
            missed.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", started)
        strangers = [Call(one) for _ in range(3)]
        eventually(lambda: missed, what="a call for which there is no thread")
    let_in(one).close()
    for stranger in strangers:
        stranger.close()


def test_a_stream_without_a_thread_for_its_questions_ends(one: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name == "link-from-b":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", started)
        assert let_in(one).end() == ("RESOURCE_EXHAUSTED", "can't start new thread")
    assert not one.nodes["a"].link.server.streams()
    let_in(one).close()
