"""Publishers over NATS and readers over HTTP that record what they do. No code of liftlog is in them.

Each partition has a subject of its own, so that a publisher knows where a message goes before it is acknowledged. It is
published once, without an id: what becomes of it is told by its ack, or by whoever reads it.

Answers that say for sure that nothing was stored are those of `REFUSED`. Any other error, and silence, leaves it open.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Sequence

import nats
import nats.errors
import pyarrow as pa

from tests.history.record import Process, Recorder

REFUSED = frozenset({"overloaded", "stream_paused", "read_only", "not_enough_replicas"})
NAMED = re.compile(r'"http": "([^"]+)"')
"""The leader's address in a 421."""
ANSWER_BYTES = 1 << 16
SEND_TIMEOUT_S = 1.0
HTTP_TIMEOUT_S = 10.0
PAUSE_S = 0.02
PATIENCE_S = 30.0


class Senders:
    """Publishers, in a thread with a loop of its own. `subject_of`: the subject of a partition."""

    def __init__(
        self, recorder: Recorder, url: str, *, subject_of: Callable[[int], str], partitions: int, senders: int = 3
    ) -> None:
        self.acked = 0
        self._recorder = recorder
        self._url = url
        self._subject_of = subject_of
        self._partitions = partitions
        self._count = senders
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "publishers go on"

    async def _run(self) -> None:
        await asyncio.gather(*(self._send_all(self._recorder.process()) for _ in range(self._count)))

    async def _send_all(self, process: Process) -> None:
        client = await nats.connect(self._url, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
        number = 0
        while not self._stop.is_set():
            key, value = number % self._partitions, f"{process.number}-{number}"
            number += 1
            process.begin("send", [["send", key, value]])
            try:
                answer = await client.request(self._subject_of(key), value.encode(), timeout=SEND_TIMEOUT_S)
                body = json.loads(answer.data)
            except (nats.errors.Error, OSError, ValueError) as error:
                process.info(f"{type(error).__name__} {error}")
                await asyncio.sleep(PAUSE_S)
                continue
            if "error" not in body:
                process.ok([["send", key, [body["offset"], value]]])
                self.acked += 1
            else:
                why = str(body["error"]["description"])
                (process.fail if reason_of(why) in REFUSED else process.info)(why)
                await asyncio.sleep(PAUSE_S)
        await client.close()


def reason_of(description: str) -> str:
    """The reason code that ends the description of an error."""
    found = re.search(r"\[(\w+)\]$", description)
    return found[1] if found else ""


class Poller:
    """Reads the partitions in turns, each from where it stopped. `addresses`: host:port of brokers, asked in turn."""

    def __init__(self, recorder: Recorder, addresses: Sequence[str], stream: str, partitions: int) -> None:
        self.process = recorder.process()
        self._addresses = list(addresses)
        self._stream = stream
        self._leaders: dict[int, str] = {}
        self.positions = dict.fromkeys(range(partitions), 0)
        self.process.assign(list(self.positions))

    def poll(self) -> int:
        """One poll. Returns how many records came; -1: nobody answered for some partition, and none count."""
        self.process.begin("poll", [["poll"]])
        found: dict[str, list[list[object]]] = {}
        positions = dict(self.positions)
        for partition, offset in self.positions.items():
            rows = self._fetch(partition, offset)
            if isinstance(rows, str):
                self.process.fail(rows)
                self._addresses.append(self._addresses.pop(0))
                return -1
            if rows:
                found[str(partition)] = [[at, value] for at, value in rows]
                positions[partition] = rows[-1][0] + 1
        self.positions = positions
        self.process.ok([["poll", found]])
        return sum(map(len, found.values()))

    def _fetch(self, partition: int, offset: int) -> list[tuple[int, str]] | str:
        """Records from `offset` on, or why there are none. Whom a broker names as the leader is asked next."""
        found = self._ask(self._leaders.get(partition, self._addresses[0]), partition, offset)
        named = NAMED.search(found) if isinstance(found, str) and found.startswith("421 ") else None
        if named is not None:
            self._leaders[partition] = named[1]
            found = self._ask(named[1], partition, offset)
        if isinstance(found, str):
            self._leaders.pop(partition, None)
        return found

    def _ask(self, address: str, partition: int, offset: int) -> list[tuple[int, str]] | str:
        host, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=HTTP_TIMEOUT_S)
        try:
            connection.request(
                "GET",
                f"/v1/streams/{self._stream}/partitions/{partition}/records?offset={offset}&max_bytes={ANSWER_BYTES}",
            )
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                return f"{answer.status} {body[:400].decode(errors='replace')}"
            with pa.ipc.open_stream(body) as stream:
                table = stream.read_all()
        except (OSError, http.client.HTTPException, pa.ArrowInvalid) as error:
            return f"{type(error).__name__} {error}"
        finally:
            connection.close()
        rows = zip(table.column("offset").to_pylist(), table.column("value").to_pylist(), strict=True)
        return [(at, value.decode()) for at, value in rows if at >= offset]


class Pollers:
    """Readers that poll for as long as publishers go on, each in a thread of its own."""

    def __init__(self, recorder: Recorder, addresses: Sequence[str], stream: str, partitions: int, count: int) -> None:
        self._stop = threading.Event()
        self._pollers = [Poller(recorder, addresses, stream, partitions) for _ in range(count)]
        self._threads = [threading.Thread(target=self._run, args=(each,), daemon=True) for each in self._pollers]
        for thread in self._threads:
            thread.start()

    def _run(self, poller: Poller) -> None:
        while not self._stop.is_set():
            if poller.poll() <= 0:
                self._stop.wait(PAUSE_S)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads), "readers go on"


def read_to_the_end(recorder: Recorder, addresses: Sequence[str], stream: str, partitions: int) -> int:
    """Once everything else has ended: all from the start, then one empty poll. Returns the number of records.

    A leadership may still move: who gets no answer asks again, for `PATIENCE_S`.
    """
    poller, total, answered_s = Poller(recorder, addresses, stream, partitions), 0, time.monotonic()
    while (count := poller.poll()) != 0:
        if count < 0:
            assert time.monotonic() < answered_s + PATIENCE_S, "the last reader gets no answer"
            time.sleep(PAUSE_S)
            continue
        answered_s = time.monotonic()
        total += count
    return total
