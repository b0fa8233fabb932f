"""A raw-socket HTTP server that answers exactly what a test tells it to, byte for byte.

The handler gets each request and a `Reply`; what it does not send is not sent, and the connection
stays open until the handler (or the client) closes it. No part of liftlog is in here, so that wrong
answers can be given that a broker never would.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    number: int  # of the server, from 0
    connection: int  # of the server, from 0


@dataclass
class Reply:
    sock: socket.socket
    closed: bool = field(default=False)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, status: int = 200, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """A whole, right answer."""
        self.head(status, len(body), headers)
        self.send(body)

    def head(self, status: int, length: int | None, headers: dict[str, str] | None = None) -> None:
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in (headers or {}).items())]
        if length is not None:
            lines.append(f"Content-Length: {length}")
        self.send("\r\n".join([*lines, "", ""]).encode())

    def close(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


Handler = Callable[[Request, Reply], None]


class RawServer:
    """Runs `handler` for every request, each connection in a thread. Use as a context manager."""

    def __init__(
        self,
        handler: Handler,
        *,
        host: str = "127.0.0.1",
        on_head: Callable[[Reply], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.port = int(self._listener.getsockname()[1])
        self._host = host
        self._keeper = socket.socket(family)  # keeps the port from others afterwards: it is bound, and nobody listens
        self._keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._handler = handler
        self._on_head = on_head  # called instead, before the body is read; the connection ends then
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._goes_on = threading.Event()
        self._goes_on.set()
        self.requests: list[Request] = []
        self.connection_count = 0
        self.failures: list[BaseException] = []

    @property
    def address(self) -> str:
        scheme = "" if self._tls is None else "https://"
        return scheme + (f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}")

    def __enter__(self) -> RawServer:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop_listening()
        self._keeper.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a handler does not end"
        if error is None and self.failures:
            raise self.failures[0]

    def stop_listening(self) -> None:
        """New connections are refused from now on; open ones live. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with contextlib.suppress(OSError):
            self._keeper.bind((self._host, self.port))

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """As a process that was stopped: the kernel takes connections and bytes, nobody reads them."""
        self._goes_on.clear()
        try:
            yield
        finally:
            self._goes_on.set()

    def drop_connections(self) -> None:
        """Close every open connection from the server's side."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _start(self, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopping:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets.append(sock)
                number = self.connection_count
                self.connection_count += 1
            self._start(self._serve, sock, number)

    def _serve(self, sock: socket.socket, connection: int) -> None:
        try:
            if self._tls is not None:
                self._goes_on.wait()
                sock = self._tls.wrap_socket(sock, server_side=True)
        except OSError:  # it asked whether somebody is there, and goes no further
            with self._lock:
                self.connection_count -= 1
            sock.close()
            return
        reply = Reply(sock)
        try:
            with sock, sock.makefile("rb") as lines:
                while not reply.closed and (line := lines.readline()):
                    self._goes_on.wait()
                    method, target, _ = line.decode().split()
                    headers = {}
                    while (header := lines.readline().strip()) != b"":
                        name, _, value = header.decode().partition(":")
                        headers[name.lower()] = value.strip()
                    if target == "/livez":
                        with self._lock:
                            self.connection_count -= 1
                        reply.answer()
                        return
                    if self._on_head is not None:
                        self._on_head(reply)
                        return
                    length = int(headers.get("content-length", 0))
                    if len(body := lines.read(length)) < length:
                        return  # the client went away amid it
                    parts = urlsplit(target)
                    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                    with self._lock:
                        request = Request(
                            method, unquote(parts.path), query, headers, body, len(self.requests), connection
                        )
                        self.requests.append(request)
                    self._handler(request, reply)
        except OSError:
            pass  # the client went away: what many tests are about
        except BaseException as error:
            self.failures.append(error)
            reply.close()
