"""Goal: the publisher sends every message once and in order, and does not claim more than was acked.

Method: a real nats-server; its JetStream gives the same acks as a liftlog stream, and it can be cut off.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nats
import pandas as pd
import pytest

from broker.client.nats_connection import flush
from examples import flights
from examples.publish_flights import NotAcked, Publisher, replay
from tests.support.processes import NatsServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"), jetstream=True).start()
    yield server
    server.stop()


async def capture(server: NatsServer, name: str, subject: str) -> None:
    connection = await nats.connect(server.url)
    await connection.jetstream(timeout=60).add_stream(name=name, subjects=[subject])
    await connection.close()


async def stored(server: NatsServer, name: str) -> int:
    connection = await nats.connect(server.url)
    count = (await connection.jetstream(timeout=60).stream_info(name)).state.messages
    await connection.close()
    return count


async def received_by_subscriber(server: NatsServer, frame: pd.DataFrame, **options: float) -> list[tuple[str, bytes]]:
    """The messages that a plain subscriber gets from a replay without acks."""
    received: list[tuple[str, bytes]] = []
    done = asyncio.Event()

    async def on_message(message: nats.aio.msg.Msg) -> None:
        received.append((message.subject, message.data))
        if len(received) == len(frame):
            done.set()

    connection = await nats.connect(server.url)
    await connection.subscribe(flights.SUBJECTS, cb=on_message)
    await flush(connection, 60)
    assert await replay(server.url, frame, acks=False, **options) == len(frame)
    await asyncio.wait_for(done.wait(), 60)
    await connection.close()
    return received


def test_a_subscriber_gets_every_flight_in_order(server: NatsServer, a_week: pd.DataFrame) -> None:
    received = asyncio.run(received_by_subscriber(server, a_week))
    assert received == list(flights.messages(a_week))


def test_speed_up_sets_the_pace(server: NatsServer, a_week: pd.DataFrame) -> None:
    """Six hours at 21,600 times the pace are a second; never less, and the order is the same."""
    first = a_week["event_time"].iloc[0]
    frame = a_week[a_week["event_time"] <= first + pd.Timedelta(hours=6)]
    span_s = (frame["event_time"].iloc[-1] - first).total_seconds() / 21_600
    began_s = time.monotonic()
    received = asyncio.run(received_by_subscriber(server, frame, speed_up=21_600))
    assert time.monotonic() - began_s >= span_s > 0.5
    assert received == list(flights.messages(frame))


def test_every_message_is_acked_before_it_returns(server: NatsServer, a_week: pd.DataFrame) -> None:
    progress: list[int] = []

    async def publish() -> int:
        await capture(server, "acked", "flights.>")
        await replay(server.url, a_week, on_progress=progress.append)
        return await stored(server, "acked")

    assert asyncio.run(publish()) == len(a_week) == progress[-1]
    assert progress == sorted(progress)
    assert len(progress) > 5


def test_a_subject_that_nobody_captures_is_an_error(server: NatsServer) -> None:
    async def publish() -> None:
        async with Publisher(server.url) as publisher:
            await publisher.send("nobody.listens", b"{}")

    with pytest.raises(NotAcked, match="is there a stream that captures it"):
        asyncio.run(publish())


def test_a_refusal_is_an_error_with_its_reason(server: NatsServer) -> None:
    async def publish() -> None:
        await capture(server, "small", "small.>")
        async with Publisher(server.url) as publisher:
            await publisher._connection.publish(
                "small.1", b"", reply=f"{publisher._inbox}.0", headers={"Nats-Expected-Stream": "another"}
            )
            publisher.sent += 1

    with pytest.raises(NotAcked, match="expected stream does not match"):
        asyncio.run(publish())


def test_a_server_that_goes_away_is_an_error(tmp_path: Path, a_week: pd.DataFrame) -> None:
    server = NatsServer(tmp_path, jetstream=True).start()

    async def publish() -> None:
        await capture(server, "cut", "flights.>")
        async with Publisher(server.url) as publisher:
            for number, (subject, payload) in enumerate(flights.messages(a_week)):
                if number == 3_000:
                    server.kill9()
                await publisher.send(subject, payload)

    with pytest.raises((NotAcked, nats.errors.Error)):
        asyncio.run(publish())


def test_the_command_publishes_a_slice(server: NatsServer, tmp_path: Path) -> None:
    """From a folder of its own, with the server in the environment."""
    before = asyncio.run(stored(server, "acked"))
    command = [sys.executable, "-m", "examples.publish_flights", "--start", "2013-02-01", "--end", "2013-02-02"]
    done = subprocess.run(
        command, env={**os.environ, "LIFTLOG_NATS_URL": server.url}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "every one acked" in done.stderr
    assert asyncio.run(stored(server, "acked")) - before == len(flights.load("2013-02-01", "2013-02-02")) > 800


def test_the_command_says_when_there_is_no_server() -> None:
    command = [sys.executable, "-m", "examples.publish_flights", "--nats", "nats://127.0.0.1:1", "--end", "2013-01-02"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "not published" in done.stderr
    assert "Traceback" not in done.stderr
