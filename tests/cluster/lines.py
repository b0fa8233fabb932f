"""Lines between brokers that are slow, held up, cut, change bits, or carry a few bytes at a time: a relay before each
replica port.

    follower ─ up ─► relay ─► replica port of the leader
             ◄─ down ───────

What a relay holds up neither end hears of: the connection is there, and nobody says anything.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tests.support.clusters import RealCluster

PIECE_BYTES: Final = 1 << 16
LOOK_S: Final = 0.02


class Way:
    """One direction of all connections of a relay.

    Attributes:
        bytes_per_s: None: as fast as it goes; 0: nothing passes.
        piece_bytes: So many at a time.
        flips: The share of pieces in which a bit is another one.
    """

    def __init__(self) -> None:
        self.bytes_per_s: int | None = None
        self.piece_bytes = PIECE_BYTES
        self.flips = 0.0

    def changed(self, data: bytes) -> bytes:
        if random.random() >= self.flips:
            return data
        changed = bytearray(data)
        changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
        return bytes(changed)


class Line:
    """The relay before one broker. A context manager.

    Attributes:
        is_refusing: New connections are closed at once.
        accepted: How many there were.
    """

    def __init__(self, port: int) -> None:
        self.up, self.down = Way(), Way()
        self.is_refusing = False
        self.accepted = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self.is_refusing:
                _reset(near)
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                _reset(near)
                continue
            far.settimeout(None)
            ends = {near, far}
            self._open |= ends
            for one in ends:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, target, way in ((near, far, self.up), (far, near, self.down)):
                threading.Thread(target=self._pump, args=(source, target, way, ends), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, way: Way, ends: set[socket.socket]) -> None:
        with suppress(OSError):
            while data := source.recv(way.piece_bytes):
                while way.bytes_per_s == 0 and not self._is_closed:
                    time.sleep(LOOK_S)
                if way.bytes_per_s:
                    time.sleep(len(data) / way.bytes_per_s)
                target.sendall(way.changed(data))
            target.shutdown(socket.SHUT_WR)
            return
        for each in ends:
            self._open.discard(each)
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def cut(self) -> None:
        """All connections that there are."""
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        """As it was."""
        self.is_refusing = False
        for way in (self.up, self.down):
            way.bytes_per_s, way.piece_bytes, way.flips = None, PIECE_BYTES, 0.0

    def close(self) -> None:
        self._is_closed = True
        self._listener.close()
        self.cut()


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@contextmanager
def lines_of(cluster: RealCluster) -> Iterator[dict[str, Line]]:
    """A relay before each broker, which says so to the others; before they start."""
    lines = {broker: Line(int(process.env["LIFTLOG_GRPC_PORT"])) for broker, process in cluster.brokers.items()}
    for broker, line in lines.items():
        cluster.brokers[broker].env["LIFTLOG_GRPC_ADVERTISED"] = f"127.0.0.1:{line.port}"
    try:
        yield lines
    finally:
        for line in lines.values():
            line.close()
