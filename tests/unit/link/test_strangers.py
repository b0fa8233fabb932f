"""Goal: nobody gets in who does not belong here, whatever he sends, and he keeps nobody out.

Method: a real server on loopback; strangers are bare sockets.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from broker.link import door as door_module
from broker.link import server as server_module
from broker.link.codec import (
    HEARTBEAT,
    PREAMBLE,
    Asked,
    Ended,
    Hello,
    LinkFrame,
    Proof,
    Welcome,
    decode,
    encode,
)
from broker.link.door import STRANGERS_MAX
from broker.link.framed import Framed
from broker.link.handshake import NONCE_BYTES, Caller, Peer, key_of
from broker.link.server import PURPOSE, QUESTION_BYTES_MAX, STREAMS_EACH_MAX, FollowerStream
from broker.replication.messages import AskEnd, AskState, Fetch
from tests.support.doors import RawCall
from tests.support.linked import SECRET, Linked, linked
from tests.support.processes import eventually
from tests.support.replica_messages import made

pytestmark = pytest.mark.slow


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Linked]:
    """Broker `a` runs; `b` is registered, and does not."""
    with linked(tmp_path, ("a", "b")) as cluster:
        cluster.start()
        cluster.stop("b")
        yield cluster


class Call(RawCall):
    """A call whose messages a test makes up."""

    def __init__(self, cluster: Linked, *said: LinkFrame, first: bytes = PURPOSE) -> None:
        super().__init__(socket.create_connection(("127.0.0.1", cluster.relays["a"].target), 60), first)
        known = cluster.service.catalog.brokers.get("b")
        self.registration = known.registration if known else 0
        self.say(*said)


def caller(cluster: Linked, secret: bytes = SECRET, name: str = "b", *, newer: int = 0) -> Caller:
    known = cluster.service.catalog.brokers.get(name)
    peer = Peer(name, (known.registration if known else 0) + newer)
    return Caller(peer, "c", "a", key_of(secret), random.Random(5).randbytes(NONCE_BYTES))


def let_in(cluster: Linked) -> Call:
    friend = caller(cluster)
    call = Call(cluster, friend.hello())
    call.say(friend.challenge(call.next()))
    friend.welcome(call.next())
    return call


def fetch_of(name: str) -> LinkFrame:
    question = made(Fetch, random.Random(3), follower=name)
    return encode(Asked(("i-nothing", 0), question))


@pytest.mark.parametrize(
    "said,status,reason",
    [
        ([LinkFrame(b"\xff\xff", 7)], "INVALID_ARGUMENT", "bad_greeting"),
        ([HEARTBEAT], "INVALID_ARGUMENT", "bad_greeting"),
        ([encode(Welcome(bytes(32)))], "INVALID_ARGUMENT", "bad_greeting"),
        ([encode(Hello(3, "c", "b", 2, "a", bytes(5_000)))], "INVALID_ARGUMENT", "bad_greeting"),
        ([encode(Hello(9, "c", "b", 2, "a", bytes(32)))], "FAILED_PRECONDITION", "version"),
        (
            [
                encode(Hello(3, "c", "b", 2, "a", bytes(32))),
                encode(Proof(bytes(32))),
            ],
            "UNAUTHENTICATED",
            "secret",
        ),
        (
            [encode(Hello(3, "c", "b", 2, "a", bytes(32))), fetch_of("b")],
            "INVALID_ARGUMENT",
            "bad_greeting",
        ),
    ],
)
def test_who_does_not_belong_here_hears_why(one: Linked, said: list[LinkFrame], status: str, reason: str) -> None:
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
    call.say(stranger.challenge(call.next()))
    code, text = call.end()
    assert (code, text.split(":")[0]) == ("PERMISSION_DENIED", reason)


def test_who_greets_only_by_halves_is_sent_away(one: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "GREETING_S", 0.2)
    refused = one.nodes["a"].link.server.refused
    silent = [Call(one, first=b""), Call(one, first=b"ll"), Call(one), Call(one, caller(one).hello())]
    for call in silent:
        call.end()
    eventually(lambda: refused == {"greeting_timeout": 4}, what="all to be sent away")


def test_a_stranger_makes_up_no_reason(one: Linked) -> None:
    """Seen before: his word was a counter, a limit of the log, and a label in /metrics, for ever."""
    for number in range(3):
        assert Call(one, encode(Ended(f"MADE_UP_{number}", "x"))).end()[0] == "INVALID_ARGUMENT"
    assert one.nodes["a"].link.server.refused == {"bad_greeting": 3}


def test_a_broker_has_a_few_connections_while_a_disk_hangs(one: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """E1. Each new one would leave two threads."""
    goes_on, server = threading.Event(), one.nodes["a"].link.server
    monkeypatch.setattr(server, "take", lambda stream, frame: goes_on.wait(60))
    calls = []
    for _ in range(STREAMS_EACH_MAX):
        calls.append(let_in(one))
        calls[-1].say(fetch_of("b"))
    friend = caller(one)
    another = Call(one, friend.hello())
    another.say(friend.challenge(another.next()))
    status, text = another.end()
    assert (status, text.split(":")[0]) == ("RESOURCE_EXHAUSTED", "busy")
    goes_on.set()
    for call in calls:
        call.close()
    eventually(lambda: not server._under_way["b"], what="all to have ended")
    let_in(one).close()


def test_who_greets_byte_by_byte_has_no_longer(one: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "GREETING_S", 0.5)
    with socket.create_connection(("127.0.0.1", one.relays["a"].target), 60) as slow:
        with contextlib.suppress(OSError):
            for byte in PURPOSE + LinkFrame(bytes(4_000), 0).to_bytes():
                slow.sendall(bytes([byte]))
                threading.Event().wait(0.01)
        assert one.nodes["a"].link.server.refused["greeting_timeout"] == 1


def test_strangers_keep_nobody_out(one: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as may be greeted at a time say nothing, for ever: a broker takes the place of the oldest."""
    monkeypatch.setattr(door_module, "GREETING_S", 3_600.0)
    link = one.nodes["a"].link
    silent = []
    for number in range(STRANGERS_MAX):
        silent.append(Call(one, first=PURPOSE if number % 2 else b""))
        eventually(lambda: len(link._door._strangers) == len(silent), what="it is being greeted")
    let_in(one).close()
    assert silent[0].end() == ("", "")
    assert link.server.refused == {"crowded": 1}
    one.start("b")
    [at] = one.create(min_insync=1)
    one.stored(at, b"x")
    one.in_sync(at)
    one.same(at)
    for call in silent[1:]:
        call.close()


def test_who_sends_much_and_reads_nothing_keeps_nobody_out(one: Linked) -> None:
    strangers = [socket.create_connection(("127.0.0.1", one.relays["a"].target), 60) for _ in range(STRANGERS_MAX)]
    for each in strangers:
        each.setblocking(False)
        with contextlib.suppress(OSError):
            each.send(PURPOSE + bytes(1 << 20))
    let_in(one).close()
    for each in strangers:
        each.close()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "it does not greet as a broker does"),
        (random.Random(4).randbytes(5_000), "it does not greet as a broker does"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "it speaks gRPC, as brokers of an earlier release do"),
        (b"\x16\x03\x01\x00\x05hello", "it speaks TLS, and this broker does not"),
    ],
)
def test_who_speaks_something_else_is_counted_and_hears_why(one: Linked, said: bytes, why: str) -> None:
    status, text = Call(one, first=said).end()
    assert (status, text[: len("bad_greeting: " + why)]) == ("INVALID_ARGUMENT", "bad_greeting: " + why)
    assert one.nodes["a"].link.server.refused == {"bad_greeting": 1}
    let_in(one).close()


def test_a_new_stream_of_a_broker_ends_its_old_one(one: Linked) -> None:
    old, new = let_in(one), None
    try:
        new = let_in(one)
        assert old.end() == ("ABORTED", "another stream of this broker has begun")
        assert [session.peer.broker_id for session in one.nodes["a"].link.server.streams()] == ["b"]
    finally:
        if new is not None:
            new.close()


def test_a_stream_has_begun_before_its_broker_hears_so(one: Linked) -> None:
    """Else a later one may begin before it, and is ended by it."""
    server, order = one.nodes["a"].link.server, list[str]()
    let_in_there, write = server.let_in, Framed.write

    def noted(framed: Framed, frame: LinkFrame) -> None:
        if frame.head and isinstance(decode(frame), Welcome):
            order.append("welcome")
        write(framed, frame)

    def begun(stream: FollowerStream) -> None:
        order.append("begun")
        let_in_there(stream)

    with patch.object(Framed, "write", noted), patch.object(server, "let_in", begun):
        let_in(one).close()
    assert order == ["begun", "welcome"]


def test_a_broker_asks_for_itself_alone(one: Linked) -> None:
    call = let_in(one)
    call.say(fetch_of("c"))
    assert call.end()[0] == "PERMISSION_DENIED"
    assert one.nodes["a"].link.server.refused["other_name"] == 1


@pytest.mark.parametrize("data", [LinkFrame(b"\xff", 7), encode(Welcome(bytes(32))), HEARTBEAT])
def test_what_is_no_question_ends_the_stream(one: Linked, data: LinkFrame) -> None:
    call = let_in(one)
    call.say(data)
    assert call.end()[0] == "INVALID_ARGUMENT"
    assert one.nodes["a"].link.server.refused["bad_frame"] == 1


def test_a_question_is_not_larger_than_it_may_be(one: Linked) -> None:
    call = let_in(one)
    call.say(LinkFrame(bytes(QUESTION_BYTES_MAX + 1), 0))
    assert call.end()[0] == "RESOURCE_EXHAUSTED"


def test_a_question_that_is_not_whole_in_time_ends_the_stream(one: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """A length that was changed on its way takes the next questions for the rest of this one: nobody answers them."""
    monkeypatch.setattr(server_module, "QUESTION_S", 0.05)
    call = let_in(one)
    question = fetch_of("b")
    call.framed.send(PREAMBLE.pack(len(question.head), question.head_crc, 8_192) + question.head)
    call.say(question, question)
    assert call.end() == ("", "")


def test_a_stream_ends_when_its_broker_has_registered_anew(one: Linked) -> None:
    call = let_in(one)
    one.start("b")
    call.say(fetch_of("b"))
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
    answers: list[LinkFrame] = []
    reader = threading.Thread(target=lambda: answers.extend(call.frames()))
    reader.start()
    for _ in range(400):
        kind = rng.choice((Fetch, AskEnd, AskState))
        epoch = rng.choice((one.service.state(at).leader_epoch, 0, 1 << 62))
        registration = rng.choice((call.registration, call.registration, 1 << 62))
        question = made(kind, rng, follower="b", epoch=epoch, incarnation=(registration, 0))
        call.say(encode(Asked(rng.choice((at, ("i-other", 0))), question)))
    eventually(lambda: answers, what="an answer")
    call.close()
    reader.join()
    assert one.nodes["a"].link.server.refused["registration"]
    one.start("b")
    one.in_sync(at)
    one.stored(at, b"y")
    one.same(at)


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
    call.say(encode(Asked(at, fetch)))
    call.say(encode(Asked(at, replace(fetch, incarnation=(call.registration, 0)))))
    call.next()  # what is asked in its own name is answered
    call.close()
    one.start("b")
    one.stored(at, b"y")
    one.in_sync(at)
    one.same(at)


def test_without_a_thread_for_a_connection_the_next_one_is_answered(
    one: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system allows few threads, strangers may take all that are left."""
    missed, start = list[str](), threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name.startswith("link-in"):
            missed.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", started)
        strangers = [Call(one) for _ in range(3)]
        eventually(lambda: missed, what="a connection for which there is no thread")
    let_in(one).close()
    for stranger in strangers:
        stranger.close()


def test_a_stream_without_a_thread_for_its_answers_ends(one: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name == "link-answers-b":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", started)
        assert let_in(one).end() == ("RESOURCE_EXHAUSTED", "can't start new thread")
    assert not one.nodes["a"].link.server.streams()
    let_in(one).close()
