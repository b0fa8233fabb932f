"""One thread ends the wait of another: a blocked read, or a pause between retries.

An `Interrupt` is handed to a call that may wait. `set()` shuts down the socket that the call waits
on and wakes its pauses; the call then sees `is_set` and returns. It cannot be unset.
"""

from __future__ import annotations

import contextlib
import socket
import threading


class Interrupt:
    """A one-way switch with the socket to shut down when it is thrown. Thread-safe."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Throw the switch; whoever waits with it is woken."""
        with self._lock:
            self._event.set()
            _shut_down(self._socket)

    def pause(self, seconds: float) -> None:
        """Wait for the time, or until the switch is thrown."""
        self._event.wait(seconds)

    def guard(self, sock: socket.socket | None) -> None:
        """Name the socket in use from now on (None: none is). Shuts it down at once if already set."""
        with self._lock:
            self._socket = sock
            if self._event.is_set():
                _shut_down(sock)


def _shut_down(sock: socket.socket | None) -> None:
    if sock is not None:
        with contextlib.suppress(OSError):  # closed, or never connected: nobody waits on it
            # Not SSLSocket.shutdown: it ends TLS first, and the thread that waits would take what still comes,
            # encrypted, for the answer.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
