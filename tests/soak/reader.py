"""Readers: they follow streams, look again at what they have seen, and commit how far they are.

Each record is checked as it comes: its value is that of its id; offsets rise; what stands at an offset is what stood
there whenever anybody looked before.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pyarrow as pa

from broker.api.errors import BadBatch, LiftlogError
from broker.client import RecordReader, connect
from tests.soak.ledger import ID_HEADER, Ledger

COLUMNS = ["offset", "headers", "value"]


def identity_of(headers: list[dict[str, Any]] | None) -> str:
    """The id of a record; empty: it has none."""
    for pair in headers or ():
        if pair["key"] == ID_HEADER:
            return bytes(pair["value"]).decode()
    return ""


class Reader:
    """A thread that follows one stream after the other."""

    def __init__(self, name: str, ledger: Ledger, streams: list[str], address: str, seed: str) -> None:
        self.name = name
        self.ledger = ledger
        self.streams = streams
        self.record_count = 0
        self._address = address
        self._rng = random.Random(f"{seed}/{name}")
        self._stop = threading.Event()
        self._reader: RecordReader | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                stream = self._rng.choice(self.streams)
                try:
                    self._follow(stream, self._rng.choice(["earliest", "earliest", "latest"]), self._rng.uniform(1, 6))
                except BadBatch as error:
                    self.ledger.violate(f"{self.name}: {stream}: damaged bytes were served: {error}")
                except LiftlogError:
                    self._stop.wait(0.05)
        except Exception as error:
            self.ledger.violate(f"the reader {self.name} met {error!r}")

    def _follow(self, stream: str, start: str, for_s: float) -> None:
        until_s = time.monotonic() + for_s
        with connect(self._address, deadline_s=5) as client:
            description = client.describe(stream)
            incarnation, partition = description.incarnation, self._rng.randrange(len(description.partitions))
            timer = threading.Timer(for_s, self._close)
            with client.read(stream, partitions=[partition], start=start, columns=COLUMNS, follow=True) as reader:
                if client.describe(stream).incarnation != incarnation:
                    return
                self._reader = reader
                timer.start()
                begun_s = time.monotonic()
                try:
                    for rows in reader:
                        self._check(stream, incarnation, partition, rows)
                        self.ledger.note_progress(self.name, begun_s)
                        if self._stop.is_set() or time.monotonic() > until_s:
                            break
                    offsets = reader.positions
                finally:
                    timer.cancel()
            client.commit(f"c-{self.name}", {stream: offsets})

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _check(self, stream: str, incarnation: str, partition: int, rows: pa.RecordBatch) -> None:
        place = (stream, incarnation, partition)
        seen = self.ledger.seen.setdefault(place, {})
        before = -1
        offsets, headers = rows.column("offset").to_pylist(), rows.column("headers").to_pylist()
        for offset, pairs, value in zip(offsets, headers, rows.column("value"), strict=True):
            identity = identity_of(pairs)
            if offset <= before:
                self.ledger.violate(f"{self.name}: {place}: offset {offset} after {before}")
            before = offset
            first = seen.setdefault(offset, identity)
            message = self.ledger.messages.get(identity)
            if first != identity and not self._may_change(stream):
                self.ledger.violate(f"{self.name}: {place}: at {offset} stood {first}, now {identity}")
            if message is None or not message.is_as_stored(value.as_py()):
                self.ledger.violate(f"{self.name}: {place}: at {offset} stands no value of {identity!r}")
        self.record_count += rows.num_rows

    def _may_change(self, stream: str) -> bool:
        return self.ledger.histories[stream].is_loose and bool(self.ledger.harmed_s)

    def stop(self) -> None:
        self._stop.set()
        self._close()
        self._thread.join(60)
        if self._thread.is_alive():
            self.ledger.violate(f"the reader {self.name} does not come to an end")
