"""The peers of liftlog on every machine: JetStream's file store, and a subscriber that only reads.

A place that messages go to has `port` (its nats-server), `stored()` (how many are there now) and is a context
manager. `ours.Liftlog` is the third of them.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol, Self

from benchmarks.proc import fresh
from benchmarks.wire import Wire
from tests.support.processes import NatsServer, eventually

STREAM = "bench"
SUBJECT = "bench"
"""Publisher n publishes to `bench.n`."""


class Place(Protocol):
    """Where a publisher's messages end up."""

    port: int

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def stored(self) -> int: ...


class JetStream:
    """A nats-server with JetStream and one stream on file storage, every other setting its default.

    Args:
        sync_always: `sync_interval: always`: fsync before every ack. Default: every two minutes.
    """

    def __init__(self, folder: Path, *, sync_always: bool = False) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self._sync_always = sync_always

    def __enter__(self) -> Self:
        with self._stack:
            folder = self._stack.enter_context(fresh(self._folder))
            if self._sync_always:
                store = folder / "jetstream"
                nats = NatsServer(folder, config=f'jetstream {{ store_dir: "{store}", sync_interval: always }}')
            else:
                nats = NatsServer(folder, jetstream=True)
            self._stack.callback(nats.stop)
            nats.start()
            self.port = nats.port
            self.url = nats.url
            assert nats.process is not None
            self.pid = nats.process.popen.pid
            self._api = self._stack.enter_context(Wire(nats.port))
            eventually(self._jetstream_answers, what="JetStream answers")
            self.ask(f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": [f"{SUBJECT}.>"], "storage": "file"})
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stored(self) -> int:
        return int(self.ask(f"STREAM.INFO.{STREAM}")["state"]["messages"])

    def _jetstream_answers(self) -> bool:
        try:
            return "error" not in self._api.request("$JS.API.INFO", timeout_s=1.0)
        except TimeoutError:
            return False

    def ask(self, what: str, body: Any = None) -> Any:
        """Ask JetStream's API. Raises RuntimeError with its answer."""
        answer = self._api.request(f"$JS.API.{what}", body, timeout_s=60.0)
        if "error" in answer:
            raise RuntimeError(f"JetStream: {what}: {answer['error']}")
        return answer


def write_to_disk(folder: Path, *, size: int, count: int) -> dict[str, float]:
    """Append as many bytes as `count` values of `size` bytes have to a new file, 1 MiB and an fdatasync at a time."""
    block = os.urandom(1 << 20)
    blocks = -(-size * count // len(block))
    with fresh(folder) as place, open(place / "bytes", "wb", buffering=0) as file:
        started_s = time.monotonic()
        for _ in range(blocks):
            file.write(block)
            os.fdatasync(file.fileno())
        seconds = time.monotonic() - started_s
    return {"rate": blocks * len(block) / size / seconds, "published": count, "lost": 0, "seconds": seconds}


class Drain:
    """A plain nats-server and one subscriber that does nothing but recv(): what the wire gives at most.

    Counted from the bytes: the lines of a run are all of one length.

    Args:
        size: Bytes of a value.
    """

    def __init__(self, folder: Path, *, size: int) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self._line_bytes = len(f"MSG {SUBJECT}.0 1 {size}\r\n") + size + 2
        self._bytes = 0

    def __enter__(self) -> Self:
        with self._stack:
            nats = NatsServer(self._stack.enter_context(fresh(self._folder)))
            self._stack.callback(nats.stop)
            nats.start()
            self.port = nats.port
            self._wire = self._stack.enter_context(Wire(nats.port))
            self._wire.subscribe(f"{SUBJECT}.>")
            self._thread = threading.Thread(target=self._read, name="drain", daemon=True)
            self._thread.start()
            self._stack.callback(self._stop)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stored(self) -> int:
        return self._bytes // self._line_bytes

    def _read(self) -> None:
        reader, buffer = self._wire.socket, bytearray(4 << 20)
        reader.settimeout(None)
        try:
            while count := reader.recv_into(buffer):
                self._bytes += count
        except OSError:
            return  # the run is over, or the server cut us off: the count tells

    def _stop(self) -> None:
        # Wakes the thread out of recv(); a socket that the server already closed says so.
        with suppress(OSError):
            self._wire.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
