"""Publishing through NATS, with a real nats-server and a real broker that acknowledges.

Answers that the broker never gives (late ones, nonsense) come from a subscriber of the test's own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

from broker.api.errors import InvalidRequest, InvalidSubject, NatsRefused, Unavailable
from broker.client import nats_publish
from broker.client.client import Client, connect
from broker.client.nats_connection import flush
from broker.client.nats_publish import PublishInterrupted, PublishReport, publish
from tests.support.processes import BrokerProcess, NatsServer, eventually, free_port, running

pytestmark = pytest.mark.process

Cluster = tuple[NatsServer, BrokerProcess]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with connect(cluster[1].address) as client:
        yield client


@contextmanager
def responder(url: str, subject: str, answer: Callable[[Msg], Awaitable[None]]) -> Iterator[None]:
    """A subscriber in a thread of its own."""
    ready, end = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        connection = await nats.connect(url)
        await connection.subscribe(subject, cb=answer)
        await flush(connection, 60)
        ready.set()
        await end.wait()
        await connection.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(60)
        loop.close()


def test_every_message_is_acknowledged_and_stored_in_order(cluster: Cluster, client: Client) -> None:
    client.create_stream("counted", subject="counted.>")
    told: list[tuple[int, int]] = []
    report = publish(
        cluster[0].url, "counted.a", (b"%d" % i for i in range(3000)), on_progress=lambda *counts: told.append(counts)
    )
    assert (report.sent, report.acked, report.failed, report.duplicates) == (3000, 3000, 0, 0)
    assert report.offsets == {("counted", 0): (0, 2999)}
    assert report.bytes == sum(len(str(i)) for i in range(3000))
    assert told[-1] == (3000, 3000)
    assert [published for published, _ in told] == [1000, 2000, 3000, 3000]
    table = client.read("counted", columns=["value", "subject"]).to_table()
    assert table.column("value").to_pylist() == [b"%d" % i for i in range(3000)]
    assert set(table.column("subject").to_pylist()) == {"counted.a"}


def test_headers_go_with_every_message(cluster: Cluster, client: Client) -> None:
    client.create_stream("keyed", subject="keyed")
    report = publish(cluster[0].url, "keyed", [b"a", b"b"], headers={"Liftlog-Key": "k", "Other": "x"})
    assert report.acked == 2
    rows = client.read("keyed").to_table().to_pylist()
    assert [row["key"] for row in rows] == [b"k", b"k"]
    assert ("Other", b"x") in [(h["key"], h["value"]) for h in rows[0]["headers"]]


def test_without_acks_messages_are_only_handed_to_nats(cluster: Cluster, client: Client) -> None:
    client.create_stream("forgotten", subject="forgotten")
    report = publish(cluster[0].url, "forgotten", [b"x"] * 500, acks=False)
    assert (report.sent, report.acked, report.failed, report.offsets) == (500, 0, 0, {})
    eventually(lambda: client.describe("forgotten").record_count == 500)


def test_what_no_stream_stores_is_counted_by_its_reason(cluster: Cluster, client: Client) -> None:
    waits: list[float] = []
    report = publish(
        cluster[0].url, "nobody.listens", [b"a"] * 700, window=7, ack_timeout_s=0.5, on_nobody=waits.append
    )
    assert waits == [0.5], "the time is over once, not for each window"
    assert (report.errors, report.sent) == ({"no_responders": 700}, 700)
    report = publish(cluster[0].url, "nobody.listens", [b"a", b"b"], ack_timeout_s=0.1)
    assert report.errors == {"no_responders": 2}
    assert report.examples == {"no_responders": "no stream captures nobody.listens"}
    assert (report.acked, report.failed) == (0, 2)
    client.create_stream("small", subject="small", record_bytes_max=100)
    report = publish(cluster[0].url, "small", [b"x", b"y" * 200, b"z", b"y" * 300])
    assert (report.sent, report.acked, report.failed) == (4, 2, 2)
    assert report.errors == {"record_too_large": 2}, "whatever number stands in the text"
    assert "size exceeds maximum allowed: 2" in report.examples["record_too_large"]


def test_what_nobody_takes_is_sent_again_until_somebody_does(cluster: Cluster, client: Client) -> None:
    client.create_stream("moved", subject="moved")
    client.pause("moved")
    payloads = [b"%d" % number for number in range(500)]
    report = publish(
        cluster[0].url, "moved", payloads, window=50, ack_timeout_s=60, on_nobody=lambda _: client.resume("moved")
    )
    assert (report.sent, report.acked, report.errors, report.examples) == (500, 500, {}, {})
    assert report.bytes == sum(map(len, payloads))
    stored = client.read("moved", columns=["value"]).to_table().column("value").to_pylist()
    assert sorted(stored) == sorted(payloads), "each once"


def test_ctrl_c_that_comes_when_nobody_takes_a_message_counts_it() -> None:
    """The first one cancels, in general; one that is raised where it comes stops the count half-way."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    work = nats_publish._Publish("nobody.listens", None, 5, 60.0, interrupt, sent=1)
    with pytest.raises(KeyboardInterrupt):
        work._nobody_took(0, b"x")
    assert (work.report().sent, work.report().failed) == (1, 1)


def test_a_publish_that_waits_for_somebody_and_is_interrupted_counts_all(cluster: Cluster) -> None:
    def interrupt(_: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(PublishInterrupted) as caught:
        publish(cluster[0].url, "nobody.listens", [b"x"] * 20, window=5, ack_timeout_s=60, on_nobody=interrupt)
    report = caught.value.report
    assert report.sent == report.failed + report.unanswered <= 5
    assert report.acked == 0


def test_expectations_that_fail_are_one_reason_whatever_sequence_they_missed(cluster: Cluster, client: Client) -> None:
    client.create_stream("expected", subject="expected")
    client.create_stream("other", subject="other")
    publish(cluster[0].url, "expected", [b"x"])
    report = publish(cluster[0].url, "expected", [b"x"] * 3, headers={"Nats-Expected-Last-Sequence": "7"}, window=1)
    publish(cluster[0].url, "expected", [b"x"])
    again = publish(cluster[0].url, "expected", [b"x"] * 3, headers={"Nats-Expected-Last-Sequence": "7"}, window=1)
    assert report.errors == again.errors == {"expectation_failed": 3}
    assert again.examples == {"expectation_failed": "wrong last sequence: 2"}


def test_a_message_over_the_servers_limit_is_counted_and_the_rest_goes_on(cluster: Cluster, client: Client) -> None:
    client.create_stream("large", subject="large")
    report = publish(cluster[0].url, "large", [b"a", bytes(9 << 20), b"b"])
    assert (report.sent, report.acked) == (2, 2)
    assert report.errors == {"max_payload": 1}
    assert report.examples["max_payload"] == f"over the server's max_payload of {8 << 20} bytes"


def test_at_most_window_messages_await_their_ack(cluster: Cluster) -> None:
    waiting: list[Msg] = []
    most = 0

    async def hold(message: Msg) -> None:
        nonlocal most
        waiting.append(message)
        most = max(most, len(waiting))
        if len(waiting) == 7:
            all_seven = waiting.copy()
            waiting.clear()  # before the first answer, which may already let the next message come
            for held in all_seven:
                await held.respond(b'{"stream": "s", "seq": 1}')

    with responder(cluster[0].url, "window.test", hold):
        report = publish(cluster[0].url, "window.test", [b"x"] * 70, window=7)
    assert (report.acked, most) == (70, 7)
    assert report.offsets == {("s", 0): (0, 0)}  # acks count from 1


def test_a_missing_ack_is_an_error_after_its_time_and_a_late_one_changes_nothing(cluster: Cluster) -> None:
    async def every_second(message: Msg) -> None:
        if message.data == b"late":
            await asyncio.sleep(0.5)
        if message.data != b"never":
            await message.respond(json.dumps({"stream": "s", "seq": 5, "partition": 2}).encode())

    def report() -> PublishReport:
        return publish(cluster[0].url, "acks.test", [b"now", b"never", b"now", b"late"], window=1, ack_timeout_s=0.2)

    with responder(cluster[0].url, "acks.test", every_second):
        # A machine that stands still for as long as the patience makes an ack late that was not meant to be.
        found = eventually(lambda: (r := report()).acked == 2 and r, what="two acks in time")
    assert found.errors == {"no_ack": 2}
    assert (found.sent, found.offsets) == (4, {("s", 2): (4, 4)})


def test_an_answer_that_is_no_ack_is_counted_as_such(cluster: Cluster) -> None:
    errors = [{"description": "a"}, {"description": "b", "err_code": 10071}, {"description": "c", "err_code": "1"}]
    answers = iter([b"hello", b"{}", b"[1]", b'{"stream": 1}', *(json.dumps({"error": e}).encode() for e in errors)])

    async def nonsense(message: Msg) -> None:
        await message.respond(next(answers))

    with responder(cluster[0].url, "nonsense.test", nonsense):
        report = publish(cluster[0].url, "nonsense.test", [b"x"] * 7, window=1)
    assert report.errors == {"bad_ack": 4, "refused": 2, "jetstream_10071": 1}
    assert "hello" in report.examples["bad_ack"]
    assert report.examples["refused"] == "a"


@pytest.mark.parametrize("inside_a_loop", [False, True], ids=["plain", "notebook"])
def test_ctrl_c_brings_the_report_so_far(cluster: Cluster, inside_a_loop: bool) -> None:
    """The first two messages are answered, the others never; then the interrupt comes.

    The window has the fourth message wait for both answers: who has seen all five knows that they have come.
    """
    seen = 0

    async def first_two(message: Msg) -> None:
        nonlocal seen
        seen += 1
        if seen <= 2:
            await message.respond(b'{"stream": "s", "seq": %d}' % seen)

    def interrupt() -> None:
        eventually(lambda: seen == 5)
        os.kill(os.getpid(), signal.SIGINT)

    def plain() -> PublishReport:
        return publish(cluster[0].url, "interrupted.test", [b"x"] * 5, window=3)

    def notebook() -> PublishReport:
        async def cell() -> PublishReport:
            return plain()

        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(cell())
        finally:
            loop.close()

    call, interrupter = notebook if inside_a_loop else plain, threading.Thread(target=interrupt)
    with responder(cluster[0].url, "interrupted.test", first_two):
        interrupter.start()
        with pytest.raises(PublishInterrupted) as caught:
            call()
        interrupter.join()
    report = caught.value.report
    assert (report.sent, report.acked, report.failed, report.unanswered) == (5, 2, 0, 3)
    assert report.offsets == {("s", 0): (0, 1)}
    assert report.seconds > 0


def test_payloads_from_a_pipe_are_sent_as_they_come(cluster: Cluster, client: Client) -> None:
    client.create_stream("piped", subject="piped")
    receive, send = os.pipe()

    def lines() -> Iterator[bytes]:
        with os.fdopen(receive, "rb") as pipe:
            yield from (line.rstrip() for line in pipe)

    with os.fdopen(send, "wb", buffering=0) as pipe:
        reports = []
        thread = threading.Thread(
            target=lambda: reports.append(publish(cluster[0].url, "piped", lines(), payloads_may_block=True))
        )
        thread.start()
        pipe.write(b"one\ntwo\n")
        eventually(lambda: client.describe("piped").record_count == 2)
        pipe.write(b"three\n")
        eventually(lambda: client.describe("piped").record_count == 3)
    thread.join(60)
    assert reports[0].acked == 3


@pytest.mark.parametrize("may_block", [True, False])
def test_an_error_of_the_payloads_comes_out(cluster: Cluster, may_block: bool) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError):
        publish(cluster[0].url, "anything", broken(), payloads_may_block=may_block)


def test_it_works_inside_a_running_loop(cluster: Cluster, client: Client) -> None:
    client.create_stream("inside", subject="inside")

    async def notebook() -> int:
        return publish(cluster[0].url, "inside", [b"x"]).acked

    assert asyncio.run(notebook()) == 1


def test_what_cannot_be_sent_is_refused(cluster: Cluster) -> None:
    url = cluster[0].url
    with pytest.raises(InvalidSubject):
        publish(url, "a.*", [])
    with pytest.raises(InvalidRequest, match="window"):
        publish(url, "a", [], window=0)
    with pytest.raises(InvalidRequest, match="header"):
        publish(url, "a", [b"x"], headers={"a b": "c"})


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    url = f"nats://me:secret@127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable) as caught:
        publish(url, "a", [b"x"])
    assert url.rpartition("@")[2] in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_port_that_is_no_nats_server_is_told_in_words() -> None:
    """It takes the connection and says nothing."""
    told = "no NATS server answered in time|no connection within"
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Unavailable, match=told):
        publish(f"nats://127.0.0.1:{silent.getsockname()[1]}", "a", [b"x"])


def test_a_server_that_refuses_the_password_says_so(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, config='authorization { user: "a", password: "right" }').start()
    try:
        with pytest.raises(NatsRefused) as caught:
            publish(f"nats://a:wrong@127.0.0.1:{server.port}", "a", [b"x"])
        assert "wrong" not in str(caught.value)
        report = publish(f"nats://127.0.0.1:{server.port}", "a", [b"x"], acks=False, user="a", password="right")
        assert report.sent == 1
    finally:
        server.stop()


def test_a_server_that_goes_away_in_the_middle_ends_in_an_error_with_the_counts(tmp_path: Path) -> None:
    server = NatsServer(tmp_path).start()

    def payloads() -> Iterator[bytes]:
        for i in range(2_000_000):
            if i == 1_000:
                server.kill9()
            yield b"x" * 1000

    with pytest.raises(Unavailable) as caught:
        publish(server.url, "a", payloads(), acks=False, ack_timeout_s=1)
    assert caught.value.messages_sent >= 1_000
    assert str(server.port) in str(caught.value)
