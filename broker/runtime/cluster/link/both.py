"""A port that takes gRPC over TLS and in plain text, while brokers go from the one to the other (`cluster.tls`).

    accepted ──first bytes──► TLS ───► the socket of gRPC's port with TLS
                     └──────► else ──► that of the one without

gRPC's server speaks one or the other at a port. Its two listen at sockets in a folder that is this user's alone; what
comes is handed on as it is, both ways.

B1  Two threads for each connection, of which there are `CONNECTIONS_MAX`. A further one is closed: this is for some
    restarts, not for good.
B2  Who says nothing for `FIRST_S` is closed, so that silent ones take no place.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker.runtime.cluster.link.tls import is_plain, shut

CONNECTIONS_MAX: Final = 64
FIRST_S: Final = 2.0
PIECE_BYTES: Final = 256 << 10


class Both:
    """See the module. Listens once it is made, and accepts from `start` on.

    Attributes:
        plain, secured: Where gRPC is to listen.
        port: The one that others call.

    Raises:
        OSError: somebody else listens there.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=CONNECTIONS_MAX)
        self.port = int(self._listener.getsockname()[1])
        self._folder = Path(tempfile.mkdtemp(prefix="liftlog-"))  # 0700, and short enough for a socket
        self.plain, self.secured = self._folder / "plain", self._folder / "tls"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_stopping = False

    def start(self) -> None:
        """Take connections from now on."""
        threading.Thread(target=self._accept, name="link-both", daemon=True).start()

    def stop(self) -> None:
        """End all connections, and take no others."""
        self._is_stopping = True
        with self._lock:
            found = list(self._open)
        for each in (self._listener, *found):
            shut(each)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        while not self._is_stopping:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._is_stopping:
                    return
                time.sleep(0.1)  # as without a free descriptor
                continue
            with self._lock:
                is_crowded = len(self._open) >= CONNECTIONS_MAX  # B1
                if not is_crowded:
                    self._open.add(connection)
            if is_crowded:
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), name="link-both", daemon=True).start()
            except RuntimeError:  # no more threads are allowed
                self._over(connection)

    def _serve(self, outer: socket.socket) -> None:
        with suppress(OSError, RuntimeError), socket.socket(socket.AF_UNIX) as inner:
            outer.settimeout(FIRST_S)  # B2
            inner.connect(str(self.plain if is_plain(outer) else self.secured))
            outer.settimeout(None)
            back = threading.Thread(target=_hand_on, args=(inner, outer), name="link-both", daemon=True)
            back.start()
            _hand_on(outer, inner)
            back.join()
        self._over(outer)

    def _over(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()


def _hand_on(source: socket.socket, to: socket.socket) -> None:
    """Until one of the two ends: then both do."""
    piece = memoryview(bytearray(PIECE_BYTES))
    with suppress(OSError):
        while count := source.recv_into(piece):
            to.sendall(piece[:count])
    for each in (source, to):
        shut(each)
