"""NATS over a blocking socket: prepared bytes out, raw bytes in.

Only what a load generator needs. The server's PING is answered where lines are read; a run that
only sends or only counts lasts less than the four minutes after which the server would mind.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any

CONNECT = {"verbose": False, "pedantic": False, "headers": True, "lang": "bench", "version": "1", "protocol": 1}


class Wire:
    """One connection to a nats-server, greeted and ready.

    Raises:
        OSError: nobody listens, or the server went away.
        ValueError: the server answered `-ERR`.
    """

    def __init__(self, port: int, *, timeout_s: float = 60.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self._inbox_count = 0
        self.info = json.loads(self._line().removeprefix(b"INFO "))
        self.socket.sendall(b"CONNECT " + json.dumps(CONNECT).encode() + b"\r\n")
        self.flush()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def subscribe(self, subject: str, sid: int = 1) -> None:
        """Subscribe; returns when the server has done so."""
        self.socket.sendall(f"SUB {subject} {sid}\r\n".encode())
        self.flush()

    def flush(self) -> None:
        """Return when the server has taken in everything that was sent. Messages that arrive meanwhile are dropped."""
        self.socket.sendall(b"PING\r\n")
        while True:
            line = self._line()
            if line == b"PONG":
                return
            if line.startswith(b"MSG "):
                self._read(int(line.rsplit(b" ", 1)[1]) + 2)

    def request(self, subject: str, body: Any = None, *, timeout_s: float = 10.0) -> Any:
        """Ask and return the answer's JSON."""
        self._inbox_count += 1
        inbox = f"_INBOX.{id(self):x}.{self._inbox_count}"
        sid = 1000 + self._inbox_count
        payload = b"" if body is None else json.dumps(body).encode()
        self.socket.sendall(
            f"SUB {inbox} {sid}\r\nUNSUB {sid} 1\r\nPUB {subject} {inbox} {len(payload)}\r\n".encode()
            + payload
            + b"\r\n"
        )
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            line = self._line()
            if line.startswith(b"MSG "):
                parts = line.split(b" ")
                answer = self._read(int(parts[-1]) + 2)[:-2]
                if parts[1].decode() == inbox:
                    return json.loads(answer)
        raise TimeoutError(f"no answer on {subject} within {timeout_s} s")

    def _line(self) -> bytes:
        while (end := self._unread.find(b"\r\n")) < 0:
            self._more()
        line, self._unread = self._unread[:end], self._unread[end + 2 :]
        if line == b"PING":
            self.socket.sendall(b"PONG\r\n")
        if line.startswith(b"-ERR"):
            raise ValueError(f"nats-server: {line.decode(errors='replace')}")
        return line

    def _read(self, size: int) -> bytes:
        while len(self._unread) < size:
            self._more()
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("nats-server closed the connection")
        self._unread += data
