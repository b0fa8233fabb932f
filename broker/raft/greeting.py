"""A question to a broker's Raft port and its answer, before or without taking part in the group.

    asks     ── hello {...} ──►  a broker that waits for the group (Lobby), or one that is in it (wire.GuardedTcp)
             ◄─ answer {...} ──

Both go over the connections that voters have: the same secret, the same JSON. A `Lobby` answers and asks with one
poller, on the thread that calls it; it knows no clock but the one that it is given.

G1  One message each way, then the connection ends. Nothing is carried out.
G2  An asker with another secret gets no answer: the connection is cut, and the asker is told so.
G3  There are `wire.STRANGERS_MAX` guests; another one takes the place of the oldest.
G4  pysyncobj listens no more once nothing can be accepted, as without a descriptor. A lobby listens again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pysyncobj.dns_resolver import globalDnsResolver
from pysyncobj.encryptor import getEncryptor
from pysyncobj.poller import createPoller
from pysyncobj.tcp_connection import TcpConnection
from pysyncobj.tcp_server import SERVER_STATE, TcpServer

from broker.api.errors import InvalidSetting, PortInUse
from broker.raft import wire
from broker.raft.messages import HELLO_ANSWER, is_hello
from broker.raft.secured import CUT, RaftTls, expect, fault_of, secure

BUFFER_BYTES: Final = 1 << 16
NOBODY, SILENT = "nobody listens there", "no answer"
Hello = Mapping[str, Any]


class Lobby:
    """Answers hellos at an address, and asks others. `close` frees the address.

    Args:
        bind: host:port to listen at; None: it only asks.
        clock: Monotonic, in seconds.
        tls: As the transport of the group has it; None: none.
    Raises:
        PortInUse: somebody listens there already. InvalidSetting: that is no address.
    """

    def __init__(
        self,
        *,
        bind: str | None,
        secret: str | None,
        answer: Callable[[Hello], Hello],
        clock: Callable[[], float],
        tls: RaftTls | None = None,
    ) -> None:
        self._tls = tls
        self._clock = clock
        self._answer = answer
        self._poller = createPoller("auto")
        self._encryptor = None if secret is None else getEncryptor(secret)
        self._guests: dict[TcpConnection, None] = {}  # the oldest first
        self._server: TcpServer | None = None
        if bind is not None:
            self._server = TcpServer(
                self._poller,
                listening_ip(bind),
                int(bind.rpartition(":")[2]),
                self._arrived,
                sendBufferSize=BUFFER_BYTES,
                recvBufferSize=BUFFER_BYTES,
                connectionTimeout=5.0,
            )
            try:
                self._server.bind()
            except OSError as error:
                raise PortInUse(f"raft.port: cannot listen at {bind}: {error.strerror}", key="raft.port") from error

    def __enter__(self) -> Lobby:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Answer nobody any more."""
        if self._server is not None:
            self._server.unbind()
        for guest in list(self._guests):
            guest.disconnect()

    def wait(self, seconds: float) -> None:
        """Answer whoever asks, for so long."""
        end = self._clock() + seconds
        while (left := end - self._clock()) > 0:
            self._listen_again()
            self._poller.poll(min(left, 0.05))

    def ask(self, addresses: Iterable[str], hello: Hello, *, timeout_s: float) -> dict[str, dict[str, Any] | str]:
        """Ask all at once, and answer others meanwhile. By address: an answer, or why there is none."""
        calls = [_Call(self._poller, address, hello, self._encryptor, self._tls) for address in addresses]
        end = self._clock() + timeout_s
        while any(call.outcome is None for call in calls) and (left := end - self._clock()) > 0:
            self._listen_again()
            self._poller.poll(min(left, 0.05))
        for call in calls:
            call.end(SILENT)
        return {call.address: call.outcome or SILENT for call in calls}

    def _listen_again(self) -> None:
        """G4."""
        if self._server is not None and self._server._TcpServer__state is SERVER_STATE.UNBINDED:
            with contextlib.suppress(OSError):
                self._server.bind()

    def _arrived(self, conn: TcpConnection) -> None:
        """G3."""
        if len(self._guests) >= wire.STRANGERS_MAX:
            next(iter(self._guests)).disconnect()
        self._guests[conn] = None
        conn.is_stranger = True
        conn.encryptor = self._encryptor
        conn.setOnMessageReceivedCallback(lambda message: self._heard(conn, message))
        conn.setOnDisconnectedCallback(lambda: self._guests.pop(conn, None))
        if self._tls is not None:
            conn.tls = self._tls
            secure(conn, self._tls, None)

    def _heard(self, conn: TcpConnection, message: Any) -> None:
        if self._encryptor is not None and conn.sendRandKey is None:
            if isinstance(message, bytes):
                conn.sendRandKey, conn.recvRandKey = message, os.urandom(32)
                conn.send(conn.recvRandKey)
            else:
                conn.disconnect()
        elif (hello := wire.hello_in(message)) is not None:
            conn.send(wire.refusal_of(conn, hello) or dict(self._answer(hello)))
        else:
            conn.disconnect()  # a voter of the group, which will try again


class _Call:
    """One question that is under way. `outcome`: an answer, or why there is none; None: not yet."""

    def __init__(self, poller: Any, address: str, hello: Hello, encryptor: Any, tls: RaftTls | None) -> None:
        self.address = address
        self._tls = tls
        self.outcome: dict[str, Any] | str | None = None
        self._hello = {"type": "hello", **hello}
        self._is_connected = False
        self._conn = conn = TcpConnection(
            poller, timeout=60.0, sendBufferSize=BUFFER_BYTES, recvBufferSize=BUFFER_BYTES
        )
        conn.encryptor = encryptor
        conn.setOnConnectedCallback(self._connected)
        conn.setOnMessageReceivedCallback(self._heard)
        conn.setOnDisconnectedCallback(lambda: self.end((fault_of(conn) or CUT) if self._is_connected else NOBODY))
        host, _, port = address.rpartition(":")
        ip = _ip(host)
        if ip is None:
            self.end(f"{host} has no address")
            return
        with contextlib.suppress(OSError):
            if conn.connect(ip, int(port)):
                return
        self.end(NOBODY)

    def end(self, outcome: dict[str, Any] | str) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self._conn.setOnDisconnectedCallback(None)
            self._conn.disconnect()

    def _connected(self) -> None:
        self._is_connected = True
        if self._tls is None or not self._tls.dials:
            self._greet()
        else:
            secure(self._conn, self._tls, self.address.rpartition(":")[0].strip("[]"), self._greet)

    def _greet(self) -> None:
        expect(self._conn, None)
        if self._conn.encryptor is not None:
            self._conn.recvRandKey = os.urandom(32)
            self._conn.send(self._conn.recvRandKey)
        else:
            self._conn.send(self._hello)

    def _heard(self, message: Any) -> None:
        if self._conn.encryptor is not None and self._conn.sendRandKey is None:
            if isinstance(message, bytes):
                self._conn.sendRandKey = message
                self._conn.send(self._hello)
            else:
                self.end(CUT)
        else:
            self.end(message if is_hello(message, HELLO_ANSWER) else CUT)


def listening_ip(bind: str) -> str:
    """The address to listen at, of host:port. Raises InvalidSetting."""
    host = bind.rpartition(":")[0].strip("[]")
    ip = host if host in ("0.0.0.0", "::") else _ip(host)
    if ip is None:
        raise InvalidSetting(f"raft.host: {host} has no address", key="raft.host", value=host)
    return ip


def _ip(host: str) -> str | None:
    with contextlib.suppress(UnicodeError):  # it can be no name
        return globalDnsResolver().resolve(host.strip("[]"))  # type: ignore[no-any-return]
    return None
