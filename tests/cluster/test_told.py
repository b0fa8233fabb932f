"""Goal: the log holds what producers were told, though the broker is killed at random points.

Goal, in both directions: a record that was told stored is there, at its offset; one whose error has no `sent` is not
there; and an idempotent producer's record is never there twice, a plain one's only if somebody sent it again.

Method: several producers and appenders with a short patience, so that many of their calls end in an error; a relay in
between cuts answers at random bytes, resets connections and holds answers back; the broker is killed and started again.
Seeded, but for the timing of the kills.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.api.errors import LiftlogError
from broker.client import connect
from broker.client.client import Client
from broker.client.writing.append import Stamp
from tests.support.effort import examples, seeded
from tests.support.processes import BrokerProcess, eventually, frozen

RESET = struct.pack("ii", 1, 0)
PATIENCE_S = 0.3
STORED, DOUBT, NOT_STORED = "stored", "doubt", "not stored"


class Relay:
    """A TCP relay to the broker: of each connection it may cut or hold back what comes from either side."""

    def __init__(self, port: int, seed: str) -> None:
        self._port = port
        self._rng = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.fates: Counter[str] = Counter()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                rng = random.Random(self._rng.random())
                threading.Thread(target=self._serve, args=(client, rng), daemon=True).start()

    def _serve(self, client: socket.socket, rng: random.Random) -> None:
        fate = rng.choice(["clean", "clean", "answer cut", "answer cut", "answer reset", "answer late", "request cut"])
        self.fates[fate] += 1
        try:
            broker = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        except OSError:
            client.close()
            return
        count = rng.choice([rng.randrange(400), rng.randrange(4000)])
        there = count if fate == "request cut" else None
        back = count if fate.startswith("answer") else None
        threading.Thread(target=self._copy, args=(client, broker, there, "cut"), daemon=True).start()
        self._copy(broker, client, back, fate.partition(" ")[2])

    def _copy(self, source: socket.socket, target: socket.socket, count: int | None, end: str) -> None:
        """Pass on `count` bytes (None: all), then do what `end` says, and close both."""
        with contextlib.suppress(OSError):
            while (count is None or count > 0) and (data := source.recv(1 << 16 if count is None else count)):
                target.sendall(data)
                count = None if count is None else count - len(data)
            if end == "late":
                time.sleep(2 * PATIENCE_S)
                target.sendall(source.recv(1 << 16))
            if end == "reset":
                target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                target.close()
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            if end != "reset":
                continue
            sock.close()


class Told:
    """The answers to each record, as its callers got them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.outcomes: dict[bytes, tuple[str, tuple[int, int] | None, str]] = {}

    def note(self, value: bytes, place: tuple[int, int] | None, error: BaseException | None) -> None:
        if error is None:
            outcome = STORED
        else:
            assert isinstance(error, LiftlogError), error
            outcome = DOUBT if error.fields.get("sent") else NOT_STORED
        with self.lock:
            self.outcomes[value] = (outcome, place, str(error))


Work = Callable[[Client, str, Told, threading.Event], None]


def producing(**options: object) -> Work:
    def run(client: Client, name: str, told: Told, stop: threading.Event) -> None:
        number = 0
        given: dict[str, object] = {"batch_records": 7, "linger_ms": 1, **options}
        given |= {"deadline_s": PATIENCE_S, "timeout_s": PATIENCE_S}
        if "name" in options:
            given["name"] = name
        with contextlib.suppress(LiftlogError), client.producer("s", **given) as producer:
            while not stop.is_set():
                values = [b"%s-%d" % (name.encode(), number + i) for i in range(10)]
                number += len(values)
                futures = [producer.send(value, key=value) for value in values]
                for value, future in zip(values, futures, strict=True):
                    error = future.exception(60)
                    told.note(value, None if error else future.result(0), error)

    return run


def appending(*, stamped: bool) -> Work:
    def run(client: Client, name: str, told: Told, stop: threading.Event) -> None:
        number, stamp = 0, None
        while not stop.is_set():
            value = b"%s-%d" % (name.encode(), number)
            number += 1
            if stamped and stamp is None:
                with contextlib.suppress(LiftlogError):
                    stamp = Stamp(*client.register_producer(), 0)
                continue
            try:
                appended = client.append("s", number % 2 if stamp is None else 0, [{"value": value}], stamp=stamp)
            except LiftlogError as error:
                told.note(value, None, error)
                stamp = None
            else:
                told.note(value, (appended.partition, appended.first_offset), None)
                if stamp is not None:
                    stamp = Stamp(stamp.producer_id, stamp.producer_epoch, stamp.sequence + 1)

    return run


WORK: dict[str, Work] = {
    "idempotent": producing(partitioner="key"),
    "named": producing(partitioner="key", name=True),
    "plain": producing(partitioner="key", idempotent=False),
    "append": appending(stamped=False),
    "stamped": appending(stamped=True),
}


@pytest.mark.parametrize("seed", range(examples(1)))
def test_what_producers_are_told_is_what_the_log_holds(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seeded(seed))
    broker = BrokerProcess(tmp_path / "broker", None).start()
    relay = Relay(broker.port, f"{seeded(seed)}")
    told, stop = Told(), threading.Event()
    clients: list[Client] = []
    failures: list[BaseException] = []
    try:
        with connect(broker.address, deadline_s=60) as client:
            client.create_stream("s", partitions=2, segment_bytes=1 << 16)

        def work(name: str, run: Work, client: Client) -> None:
            while not stop.is_set():
                try:
                    run(client, f"{name}-{time.monotonic_ns()}", told, stop)
                except LiftlogError:
                    continue  # could not even ask about the stream
                except BaseException as error:
                    failures.append(error)
                    return

        threads = []
        for name, run in WORK.items():
            for way, port in (("direct", broker.port), ("relay", relay.port)):
                one = connect(f"127.0.0.1:{port}", timeout_s=PATIENCE_S, deadline_s=PATIENCE_S)
                one.brokers.note_leader = lambda *_: None  # type: ignore[method-assign]  # or it would pass by the relay
                one._appender._calls.timeout_s = PATIENCE_S
                clients.append(one)
                threads.append(threading.Thread(target=work, args=(f"{name}-{way}", run, one), daemon=True))
        for thread in threads:
            thread.start()
        for _ in range(6):
            before = len(told.outcomes)
            eventually(lambda before=before: len(told.outcomes) > before + 100, timeout_s=120, what="they go on")
            if rng.random() < 0.3:
                with frozen(broker.pid):
                    time.sleep(2 * PATIENCE_S)
            else:
                broker.kill9()
                broker.start()
        stop.set()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        assert not failures
        relay.close()
        broker.stop()  # what is still on its way comes to its end
        broker.start()
        with connect(broker.address, deadline_s=60) as client:
            table = client.read("s", columns=["partition", "offset", "value"]).to_table()
    finally:
        stop.set()
        relay.close()
        for one in clients:
            one.close()
        broker.stop()
    rows = list(zip(*(table.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True))
    there = {(partition, offset): value for partition, offset, value in rows}
    times = Counter(value for _, _, value in rows)
    counts = Counter(outcome for outcome, _, _ in told.outcomes.values())
    lost, hidden = [], []
    for value, (outcome, place, why) in told.outcomes.items():
        if outcome == STORED and (place is None or there.get(place) != value):
            lost.append(value)
        if outcome == NOT_STORED and times[value]:
            hidden.append((value, why))
    assert not lost, f"told stored, and not there: {lost[:5]} of {len(lost)}"
    assert not hidden, f"told not stored, and there: {hidden[:5]} of {len(hidden)}"
    assert not {value: count for value, count in times.items() if count > 1}, "there twice"
    assert counts[STORED] > 100, counts
    assert counts[DOUBT] > 0, counts
    assert counts[NOT_STORED] > 0, counts
