"""Publishers over NATS and readers over HTTP that record what they do. No code of liftlog is in them.

Each partition has a subject of its own, so that a publisher knows where a message goes before it is acknowledged. It is
published once, without an id: what becomes of it is told by its ack, or by whoever reads it.

Answers that say for sure that nothing was stored are those of `REFUSED`. Any other error, and silence, leaves it open.

A reader with luck asks any broker, with `replica=any` and the newest leader epoch that it has seen, and the leader if
that one cannot answer. So what followers hand out is held against the same log.

Some answers are never right, whatever has happened: that there is no such stream, and, to a reader who has sent the
newest epoch, that the log ends before what he has read. The history has no word for them: `Poller.wrong` has them.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import nats
import nats.errors
import pyarrow as pa

from tests.history.record import Process, Recorder
from tests.support.acks import offset_of

REFUSED = frozenset({"overloaded", "stream_paused", "read_only", "not_enough_replicas"})
NAMED = re.compile(r'"http": "([^"]+)"')
"""The leader's address in a 421."""
REASON = re.compile(r'"reason": "(\w+)"')
GONE = frozenset({"unknown_stream", "unknown_partition", "stale_incarnation"})
ANSWER_BYTES = 1 << 16
SEND_TIMEOUT_S = 1.0
HTTP_TIMEOUT_S = 10.0
PAUSE_S = 0.02
PATIENCE_S = 30.0


class Senders:
    """Publishers, in a thread with a loop of its own. `subject_of`: the subject of a partition.

    Attributes:
        acks: By partition.
    """

    def __init__(
        self, recorder: Recorder, url: str, *, subject_of: Callable[[int], str], partitions: int, senders: int = 3
    ) -> None:
        self.acks: Counter[int] = Counter()
        self._recorder = recorder
        self._url = url
        self._subject_of = subject_of
        self._partitions = partitions
        self._count = senders
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    @property
    def acked(self) -> int:
        return self.acks.total()

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
            except nats.errors.NoRespondersError as error:
                process.fail(f"nobody listens: {error}")
                await asyncio.sleep(PAUSE_S)
                continue
            except (nats.errors.Error, OSError, ValueError) as error:
                process.info(f"{type(error).__name__} {error}")
                await asyncio.sleep(PAUSE_S)
                continue
            if "error" not in body:
                process.ok([["send", key, [offset_of(body), value]]])
                self.acks[key] += 1
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
    """Reads the partitions in turns, each from where it stopped.

    Attributes:
        answered: Polls that were.
        elsewhere: Answers with records of brokers that do not tell where the log ends, as a follower does not.
        wrong: Answers that are never right.

    Args:
        addresses: host:port of brokers, asked in turn.
        luck: Chooses whom to ask with `replica=any`; None: leaders are asked, and no epoch is sent.
    """

    def __init__(
        self,
        recorder: Recorder,
        addresses: Sequence[str],
        stream: str,
        partitions: int,
        *,
        luck: random.Random | None = None,
    ) -> None:
        self.process = recorder.process()
        self.answered = self.elsewhere = 0
        self.wrong: list[str] = []
        self._luck = luck
        self._epochs = dict.fromkeys(range(partitions), 0)
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
        self.answered += 1
        return sum(map(len, found.values()))

    def _fetch(self, partition: int, offset: int) -> list[tuple[int, str]] | str:
        """Records from `offset` on, or why there are none. The broker that is named as the leader is asked next."""
        if self._luck is not None:
            found = self._ask(self._luck.choice(self._addresses), partition, offset, "&replica=any")
            if not isinstance(found, str):
                return found
        found = self._ask(self._leaders.get(partition, self._addresses[0]), partition, offset)
        named = NAMED.search(found) if isinstance(found, str) and found.startswith("421 ") else None
        if named is not None:
            self._leaders[partition] = named[1]
            found = self._ask(named[1], partition, offset)
        if isinstance(found, str):
            self._leaders.pop(partition, None)
        return found

    def _ask(self, address: str, partition: int, offset: int, more: str = "") -> list[tuple[int, str]] | str:
        host, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=HTTP_TIMEOUT_S)
        path = f"/v1/streams/{self._stream}/partitions/{partition}/records?offset={offset}&max_bytes={ANSWER_BYTES}"
        if self._luck is not None:
            more += f"&epoch={self._epochs[partition]}"
        try:
            connection.request("GET", path + more)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                return self._refused(f"{answer.status} {body[:400].decode(errors='replace')}", address)
            with pa.ipc.open_stream(body) as stream:
                table = stream.read_all()
        except (OSError, http.client.HTTPException, pa.ArrowInvalid) as error:
            return f"{type(error).__name__} {error}"
        finally:
            connection.close()
        self._epochs[partition] = max(self._epochs[partition], int(answer.headers["Liftlog-Leader-Epoch"]))
        rows = zip(table.column("offset").to_pylist(), table.column("value").to_pylist(), strict=True)
        found = [(at, value.decode()) for at, value in rows if at >= offset]
        self.elsewhere += bool(found) and "Liftlog-High-Watermark" not in answer.headers
        return found

    def _refused(self, why: str, address: str) -> str:
        reason = REASON.search(why)
        never = GONE if self._luck is None else GONE | {"offset_out_of_range"}
        if reason is not None and reason[1] in never:
            self.wrong.append(f"{address}: {why}")
        return why


class Pollers:
    """Readers that poll for as long as publishers go on, each in a thread of its own: `count` that ask leaders, and one
    that asks by `luck` if that is given."""

    def __init__(
        self,
        recorder: Recorder,
        addresses: Sequence[str],
        stream: str,
        partitions: int,
        count: int,
        *,
        luck: random.Random | None = None,
    ) -> None:
        self._stop = threading.Event()
        self._pollers = [Poller(recorder, addresses, stream, partitions) for _ in range(count)]
        if luck is not None:
            self._pollers.append(Poller(recorder, addresses, stream, partitions, luck=luck))
        self._threads = [threading.Thread(target=self._run, args=(each,), daemon=True) for each in self._pollers]
        for thread in self._threads:
            thread.start()

    def _run(self, poller: Poller) -> None:
        while not self._stop.is_set():
            if poller.poll() <= 0:
                self._stop.wait(PAUSE_S)

    @property
    def answered(self) -> list[int]:
        """By reader."""
        return [poller.answered for poller in self._pollers]

    @property
    def elsewhere(self) -> int:
        return sum(poller.elsewhere for poller in self._pollers)

    def look(self) -> None:
        """AssertionError: one of them has ended, or was told what is never right."""
        for poller, thread in zip(self._pollers, self._threads, strict=True):
            assert thread.is_alive() or self._stop.is_set(), f"reader {poller.process.number} has ended"
            assert not poller.wrong, f"reader {poller.process.number} was told: {poller.wrong[:3]}"

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads), "readers go on"
        self.look()


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
    assert not poller.wrong, poller.wrong[:3]
    return total
