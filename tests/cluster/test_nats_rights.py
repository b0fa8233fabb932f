"""The broker's user on the NATS server has the rights that docs/guides/operations.md lists, and then one less in turn.

Method: a real nats-server whose configuration is the page's example; stock clients publish as another user.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest

from broker.client import connect
from tests.support.processes import BrokerProcess, NatsServer, eventually

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "operations.md"
EXAMPLE = re.findall(r"^    authorization \{\n(?:    .*\n)+?    \}$", GUIDE.read_text(), re.MULTILINE)
STREAMS: dict[str, dict[str, Any]] = {
    "orders": {"subject": "orders.>"},
    "Jobs": {"subject": "Jobs.*", "group": "workers"},
    "parts": {"subject": "parts", "partition_by": "subject_suffix", "partitions": 2},
    "events": {"subject": "events"},
}
SUBJECTS = {"orders": ["orders.a", "orders.b.c"], "Jobs": ["Jobs.a"], "parts": ["parts", "parts.1"]}
OVERLAP = "JetStream captures 'events' too (TAKEN)"


def configured(*, without: str = "") -> str:
    """The page's example, with this right taken out."""
    assert len(EXAMPLE) == 1
    text = EXAMPLE[0] + "\n"
    if without:
        assert text.count(f'"{without}"') == 1, without
        text = re.sub(rf'"{re.escape(without)}"(, )?', "", text)
    return text


class Place:
    """A nats-server with these rights, JetStream with a stream that takes `events`, and a broker."""

    def __init__(self, folder: Path, *, without: str = "") -> None:
        self.server = NatsServer(folder / "nats", jetstream=True, config=configured(without=without)).start()
        login = {"LIFTLOG_NATS_USER": "liftlog", "LIFTLOG_NATS_PASSWORD": "change me"}
        self.broker = BrokerProcess(folder / "broker", self.server, env=login)
        self.warned: dict[str, list[str]] = {}

    async def begin(self) -> None:
        client = await self.publisher()
        await client.jetstream(timeout=60).add_stream(name="TAKEN", subjects=["events"])
        await client.close()
        await asyncio.to_thread(self.broker.start)
        for name, settings in STREAMS.items():
            made = await asyncio.to_thread(self.broker.request, "POST", "/v1/streams", {"name": name, **settings})
            self.warned[name] = made["warnings"]

    async def publisher(self) -> Any:
        return await nats.connect(self.server.url, user="app", password="change me too")

    async def publish(self, *streams: str) -> dict[str, list[bytes]]:
        """To each subject of these ten messages, each of which has to be acked. Returns them by stream."""
        client = await self.publisher()
        acked: dict[str, list[bytes]] = {name: [] for name in streams}
        for name in streams:
            for subject in SUBJECTS[name]:
                for number in range(10):
                    value = f"{subject} {number}".encode()
                    answer = json.loads((await client.request(subject, value, timeout=60)).data)
                    assert answer["stream"] == name
                    acked[name].append(value)
        await client.close()
        return acked

    async def is_unanswered(self, subject: str, value: bytes) -> type[Exception]:
        """What tells a publisher that it gets no ack."""
        client = await self.publisher()
        try:
            with pytest.raises((nats.errors.NoRespondersError, nats.errors.TimeoutError)) as found:
                await client.request(subject, value, timeout=1)
            return found.type
        finally:
            await client.close()

    def stored(self, name: str) -> list[bytes]:
        with connect(self.broker.address) as client:
            return sorted(client.read(name).to_table()["value"].to_pylist())

    def holds(self, acked: dict[str, list[bytes]]) -> bool:
        return all(self.stored(name) == sorted(values) for name, values in acked.items())

    @property
    def violations(self) -> list[str]:
        assert self.server.process is not None
        return [line for line in self.server.process.output().splitlines() if "Violation" in line]

    @property
    def told(self) -> str:
        """What `/readyz` warns of."""
        text: str = self.broker.get("/readyz")["warnings"].get("nats", "")
        return text

    def doctor(self) -> list[dict[str, Any]]:
        """What it says of the broker: the checks named nats, but that of the server."""
        command = [
            sys.executable,
            "-m",
            "broker.cli.main",
            "doctor",
            "--json",
            "--data",
            str(self.broker.folder / "data"),
        ]
        done = subprocess.run(command, env=self.broker.env, capture_output=True, text=True, check=False)
        checks = json.loads(done.stdout)["checks"]
        return [each for each in checks if each["name"] == "nats" and self.broker.address in each["found"]]

    def change(self, config: str) -> None:
        """Other rights, as the operator of a server that runs gives them."""
        assert self.server.process is not None
        path = self.server.folder / "nats.conf"
        path.write_text(re.sub(r"    authorization \{\n(?:    .*\n)+?    \}\n", config, path.read_text()))
        said = "Reloaded server configuration"
        before = self.server.process.output().count(said)
        self.server.process.popen.send_signal(signal.SIGHUP)
        eventually(lambda: self.server.process is not None and self.server.process.output().count(said) > before)

    def end(self) -> None:
        self.broker.stop()
        self.server.stop()


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Any]:
    made: list[Place] = []

    def make(**options: str) -> Place:
        made.append(Place(tmp_path, **options))
        return made[0]

    yield make
    for place in made:
        place.end()


async def test_these_rights_are_enough(places: Any) -> None:
    place = places()
    await place.begin()
    acked = await place.publish(*SUBJECTS)
    assert place.holds(acked)
    assert OVERLAP in "".join(place.warned["events"])
    assert place.broker.stop() == 0
    assert place.violations == []
    assert "refused" not in place.broker.output()


@pytest.mark.parametrize(
    ("right", "stream", "subject", "queue"),
    [
        ("orders.>", "orders", "orders.a", ""),
        ("Jobs.* workers", "Jobs", "Jobs.a", "workers"),
        ("parts.1", "parts", "parts.1", ""),
    ],
)
async def test_a_subject_that_it_may_not_subscribe_to_is_named(
    places: Any, right: str, stream: str, subject: str, queue: str
) -> None:
    place = places(without=right)
    await place.begin()
    asked = right.removesuffix(" workers")
    of = f"{asked!r}" + (f" with the queue group {queue!r}" if queue else "")
    says = f"the NATS server does not let this broker subscribe to {of}: stream {stream!r} captures nothing there"
    assert any(says in each for each in place.warned[stream])
    assert says in place.told
    assert f"intake.not_captured stream={stream} subject={asked} group={queue}" in place.broker.output()
    (check,) = place.doctor()
    assert says in check["found"]
    assert "operations.md" in check["advice"]
    assert await place.is_unanswered(subject, b"nobody hears it") is nats.errors.NoRespondersError
    acked = await place.publish(*(name for name in SUBJECTS if name != stream))
    assert place.holds({**acked, stream: []})


async def test_acks_that_it_may_not_publish_are_named(places: Any) -> None:
    place = places(without="_INBOX.>")
    await place.begin()
    assert place.told == ""
    assert await place.is_unanswered("orders.a", b"stored") is nats.errors.TimeoutError
    eventually(lambda: place.stored("orders") == [b"stored"])
    says = "the NATS server does not let this broker publish to '_INBOX."
    assert says in eventually(lambda: place.told)
    assert "intake.acks_refused count=1 subject=_INBOX." in place.broker.output()
    (check,) = place.doctor()
    assert says in check["found"]
    assert place.broker.metric("liftlog_intake_acks_refused_total") == 1


@pytest.mark.parametrize("right", ["$JS.API.STREAM.NAMES", "_INBOX.liftlog.>"])
async def test_without_the_look_for_jetstream_all_else_works(places: Any, right: str) -> None:
    place = places(without=right)
    await place.begin()
    assert place.warned["events"] == []
    assert "stream.jetstream_not_asked subject=events" in place.broker.output()
    assert right.removesuffix("liftlog.>").lower() in place.broker.output().lower()
    assert place.told == ""
    assert place.holds(await place.publish(*SUBJECTS))


async def test_a_right_that_is_taken_back_and_given_again(places: Any) -> None:
    place = places()
    await place.begin()
    acked = await place.publish(*SUBJECTS)
    place.change(configured(without="orders.>"))
    assert "'orders.>'" in eventually(lambda: place.told)
    assert await place.is_unanswered("orders.a", b"nobody hears it") is nats.errors.NoRespondersError
    place.change(configured())
    for change in ("pause", "resume"):
        place.broker.request("POST", f"/v1/streams/orders/{change}")
    assert place.told == ""
    again = await place.publish(*SUBJECTS)
    assert place.holds({name: acked[name] + again[name] for name in SUBJECTS})
