"""Writers over HTTP: an idempotent producer, and plain appends that are never repeated."""

from __future__ import annotations

import random
import threading
import time

import pyarrow as pa

from broker.api.errors import LiftlogError
from broker.client import Client, connect
from tests.soak.ledger import ID_HEADER, Ledger, Message

SIZES = (0, 10, 200, 2_000, 20_000, 200_000)
TOGETHER = 8
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def as_rows(messages: list[Message]) -> pa.RecordBatch:
    """The rows of a request."""
    return pa.record_batch(
        {
            "key": pa.array([message.key.encode() for message in messages], pa.binary()),
            "value": pa.array([message.value for message in messages], pa.binary()),
            "headers": pa.array([[(ID_HEADER, message.identity.encode())] for message in messages], _HEADERS),
        }
    )


class HttpWriter:
    """A thread that writes to one stream until it is stopped.

    Attributes:
        name: The writer's name; begins the ids of its messages.
    """

    def __init__(self, name: str, ledger: Ledger, stream: str, address: str, seed: str, pause_s: float) -> None:
        self.name = name
        self.ledger = ledger
        self.stream = stream
        self.address = address
        self.rng = random.Random(f"{seed}/{name}")
        self.pause_s = pause_s
        self._count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with connect(self.address, deadline_s=self.deadline_s) as client:
                    try:
                        self.write(client)
                    except LiftlogError:
                        self._stop.wait(0.05)
        except Exception as error:
            self.ledger.violate(f"the writer {self.name} met {error!r}")

    deadline_s = 0.0

    def write(self, client: Client) -> None:
        """Write something. LiftlogError: begin anew, with another client."""
        raise NotImplementedError

    def batch(self) -> list[Message]:
        count, now_s = self.rng.randint(1, TOGETHER), time.monotonic()
        found = []
        for _ in range(count):
            self._count += 1
            message = Message(f"{self.name}-{self._count}", self.stream, self.rng.choice(SIZES), key=f"k{self._count}")
            message.first_s = message.last_s = now_s
            found.append(self.ledger.new(message))
        return found

    def note_failure(self, messages: list[Message], error: LiftlogError) -> None:
        """An error that does not say `sent` says that nothing is stored."""
        for message in messages:
            message.is_refused = not error.fields.get("sent", False)
            message.acked_s = time.monotonic()

    def wait(self) -> None:
        self._stop.wait(self.pause_s * 2 * self.rng.random())

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)
        if self._thread.is_alive():
            self.ledger.violate(f"the writer {self.name} does not come to an end")


class PlainWriter(HttpWriter):
    """Appends that are tried once."""

    def write(self, client: Client) -> None:
        while not self.is_stopped:
            messages = self.batch()
            partition = self.rng.randrange(2)
            try:
                answer = client.append(self.stream, partition, as_rows(messages))
            except LiftlogError as error:
                self.note_failure(messages, error)
                raise
            for number, message in enumerate(messages):
                self.ledger.acked(message, partition, answer.first_offset + number)
            self.wait()


class IdempotentWriter(HttpWriter):
    """A producer that repeats its requests for some seconds."""

    deadline_s = 5.0

    def write(self, client: Client) -> None:
        with client.producer(self.stream, linger_ms=2, batch_records=TOGETHER) as producer:
            while not self.is_stopped:
                messages = self.batch()
                futures = [
                    producer.send(m.value, key=m.key, headers={ID_HEADER: m.identity.encode()}) for m in messages
                ]
                failed: LiftlogError | None = None
                for message, future in zip(messages, futures, strict=True):
                    try:
                        partition, offset = future.result(120)
                        self.ledger.acked(message, partition, offset)
                    except LiftlogError as error:
                        self.note_failure([message], error)
                        failed = error
                if failed is not None:
                    raise failed
                self.wait()
