"""Raft's connections: pysyncobj's TCP, bound where it is told to, and without pickle.

A node's id is `<random>@<host>:<port>`. The random part is made with the journal and lost with it, so a voter that
has lost its journal cannot act under the id of the one that had it.

W1  There is a secret (`control/identity.py`), on loopback too: anybody who reaches the port could take part in the
    cluster, and any process of any user of the machine reaches loopback. pysyncobj checks by `assert` that a message is
    of this connection and not one that was heard before: under `python -O` no broker starts (`runtime/broker.py`).
W2  Bytes are JSON, not pickle: they cannot make this process run anything.
W3  pysyncobj's own commands over the wire (add, remove, transfer, ...) are not answered: changes go through the
    catalog.
W4  No more bytes are buffered than a message may have: a few, before it is known who is there, secret or none. Bytes
    that do not fit, or were made with another secret, end the connection, and that is told (`Core.refused`). So is one
    that ends, or is cut, without a word of who is there: nothing was wrong with what it said.
W5  Only so many connections are kept on which nobody has said who is there, and only for a while: pysyncobj keeps
    them for ever, stops to listen for good once there is no descriptor left, and the process has none for its logs.
W6  A node that never stops sending has a turn as others have. pysyncobj reads on as long as there is something.
W7  A node that has not taken a call within `CALL_S` is called anew. The kernel would ask again after 1, 2, 4 and up to
    64 s: a broker that stood still, or was cut off, would be without the group for as long again.
W8  A voter has one connection here: only the last one that it has made is kept.
W9  Bytes are added to buffers and taken from them in place. pysyncobj copies all of a buffer for each piece that comes
    or goes: 60 MiB in pieces of 64 KiB were 29 GB of copying, on the one thread of the group.
W10  Where no socket can be made nobody is called for now. pysyncobj lets the error end the thread of the group.
W11  Of a connection without a vote nothing is kept once it is over; pysyncobj keeps its node for ever. It is forgotten
    at the next tick: pysyncobj looks it up again behind a `send` that finds it dead.
W12  A node may be silent for as long as the settings say by now (`node.N9`). pysyncobj keeps what they said when the
    connection was made, and cuts one on which somebody speaks after that.
W13  With TLS nothing goes out or comes in before its handshake (`secured.py`), which belongs to the time of W5 and W7.
    Why it failed is told on both sides, as far as they know.
W14  A voter, and who asks before it takes part, is the broker that its certificate names, if that names any. One
    without a vote says no name: its certificate must be some broker's.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import sys
import zlib
from typing import Any, Final

import pysyncobj.tcp_connection as tcp_connection
from pysyncobj.monotonic import monotonic as monotonicTime
from pysyncobj.node import Node, TCPNode
from pysyncobj.tcp_connection import CONNECTION_STATE
from pysyncobj.tcp_server import SERVER_STATE
from pysyncobj.transport import TCPTransport

from broker.api.plain import parse_json
from broker.metadata.voting import owner
from broker.raft.messages import is_hello
from broker.raft.names import names
from broker.raft.secured import (
    RaftTls,
    expect,
    fault_of,
    go_on,
    heed_last_word,
    is_open,
    is_sudden,
    misnamed_at,
    secure,
)

GREETING_BYTES_MAX: Final = 4_096
STRANGERS_MAX: Final = 64
"""So many connections may be open of which nobody has said yet who is there; of more the oldest is closed."""
STRANGER_S: Final = 10.0
UNCLEAR: Final = "what it says is not understood: another secret, or no broker"
SILENT: Final = "it has not said who it is: it fell silent, went away, or is no broker"
VOTER_PATTERN: Final = "[A-Za-z0-9_.-]{1,256}@[^\\x00-\\x20\\x7f-\\xa0,/@\"'<>]{1,300}:[0-9]{1,5}"
CALL_S: Final = 2.0
CUTS_TOLD: Final = 5
"""A voter that is called and ends the connection at once so often in a row is told of."""
READS_AT_ONCE: Final = 32
"""So often one connection is read, 64 KiB each at most; then the others have their turn."""
LENGTH_BYTES: Final = 4
SENT_AT_ONCE_BYTES: Final = 1 << 20
MESSAGE_BYTES_MAX: Final = 64 << 20
"""More than a batch of entries (`core.BATCH_BYTES`, and one command over it) as base64, encrypted."""


class Voter(TCPNode):  # type: ignore[misc]
    """A node under an id that its journal gave it. Raises ValueError: it is no id."""

    def __init__(self, node_id: str) -> None:
        if not re.fullmatch(VOTER_PATTERN, node_id) or not 0 < int(node_id.rpartition(":")[2]) < 1 << 16:
            raise ValueError(f"{node_id[:100]!r} is no id of a voter")
        super().__init__(node_id)

    @property
    def ip(self) -> str | None:
        """Its address; None: it is being looked up. The thread of the node waits for no name server."""
        return names.address(host_of(self))


def guarded(base: type) -> type:
    """A class of transports whose messages pass through the core (`Core.outgoing`)."""

    class Guarded(base):  # type: ignore[misc]
        def __init__(self, syncObj: Any, selfNode: Node | None, otherNodes: Any) -> None:
            self._core = syncObj
            super().__init__(syncObj, selfNode, otherNodes)

        def send(self, node: Node, message: dict[str, Any]) -> bool:
            message_out = self._core.outgoing(message)
            return message_out is not None and bool(super().send(node, message_out))

        def cut(self, node: Node) -> None:
            """End the connection with a node that says what nobody understands."""

        def setOnUtilityMessageCallback(self, message: str, callback: Any) -> None:
            """W3."""

    return Guarded


class GuardedTcp(guarded(TCPTransport)):  # type: ignore[misc]
    """TCP between brokers."""

    _ready: bool  # pysyncobj's: it listens
    tls: RaftTls | None = None
    """Of the class (`over_tls`)."""

    def __init__(self, syncObj: Any, selfNode: Node | None, otherNodes: Any) -> None:
        self._over: set[Node] = set()  # W11
        super().__init__(syncObj, selfNode, otherNodes)

    def _onNewIncomingConnection(self, conn: Any) -> None:
        """W5."""
        with contextlib.suppress(OSError):
            conn.peer = conn._TcpConnection__socket.getpeername()[0]
        conn.since_s, conn.is_stranger = monotonicTime(), True
        super()._onNewIncomingConnection(conn)
        if len(self._unknownConnections) > STRANGERS_MAX:
            min(self._unknownConnections, key=lambda each: each.since_s).disconnect()
        if self.tls is not None and conn.state == CONNECTION_STATE.CONNECTED:
            conn.tls = self.tls
            secure(conn, self.tls, None)

    def _onOutgoingConnected(self, conn: Any) -> None:
        """W13."""
        greet = super()._onOutgoingConnected
        if self.tls is None or not self.tls.dials:
            greet(conn)
        else:
            node = self._connToNode(conn)

            def begin() -> None:
                expect(conn, owner(str(node.id)))
                greet(conn)

            secure(conn, self.tls, host_of(node), begin)

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        """As pysyncobj's; W13."""
        conn = self._connections.get(node)
        if self.tls is not None and conn is not None and not is_open(conn, self.tls.takes_plain):
            return False
        return bool(super().send(node, message))

    def _onTick(self) -> None:
        """W5, W7, W11, W12."""
        while self._over:
            self._connections.pop(self._over.pop(), None)
        late_s = monotonicTime() - STRANGER_S
        for conn in [each for each in self._unknownConnections if each.since_s < late_s]:
            conn.disconnect()
        if self._ready and self._server is not None and self._server._TcpServer__state is SERVER_STATE.UNBINDED:
            self._ready = False
        called_s = monotonicTime() - CALL_S
        for node, conn in list(self._connections.items()):
            conn._TcpConnection__timeout = self._syncObj.conf.connectionTimeout
            if self._core.isNodeConnected(node) or not self._shouldConnect(node):
                continue
            if conn.state != CONNECTION_STATE.DISCONNECTED and self._lastConnectAttempt.get(node, 0.0) < called_s:
                conn.disconnect()  # which calls again
        super()._onTick()

    def _onIncomingMessageReceived(self, conn: Any, message: Any) -> None:
        """The first messages of a connection say who is there. Anything else ends it, and not this process."""
        is_key = isinstance(message, bytes) and self._syncObj.encryptor is not None and not conn.sendRandKey
        if is_key:
            super()._onIncomingMessageReceived(conn, message)
        elif isinstance(message, str):
            if message != "readonly" and message not in self._nodeAddrToNode:
                self._core.refused(getattr(conn, "peer", ""), f"{message} is no voter")
                conn.is_told = True
            elif why := misnamed_at(conn, None if message == "readonly" else owner(message)):  # W14
                self._core.refused(getattr(conn, "peer", ""), f"{message}: {why}")
                conn.is_told = True
                conn.disconnect()
                return
            former = self._connections.get(self._nodeAddrToNode.get(message))
            super()._onIncomingMessageReceived(conn, message)
            conn.is_stranger = conn not in self._connections.values()
            if former is not None and former not in self._connections.values():  # W8
                former.disconnect()
        elif (hello := hello_in(message)) is not None:
            conn.is_told = True
            if refusal := refusal_of(conn, hello):
                self._core.refused(getattr(conn, "peer", ""), refusal["refusal"])
            conn.send(refusal or self._core.greeted(hello))
        else:
            self._unknownConnections.discard(conn)
            conn.disconnect()

    def cut(self, node: Node) -> None:
        """As `Guarded.cut`. A caller calls again (W7)."""
        if (conn := self._connections.get(node)) is not None:
            conn.disconnect()

    def _onDisconnected(self, conn: Any) -> None:
        node, fault = self._connToNode(conn), fault_of(conn)
        if conn in self._unknownConnections and not getattr(conn, "is_told", False):
            why = UNCLEAR if getattr(conn, "is_unclear", False) else SILENT
            self._core.refused(getattr(conn, "peer", ""), fault or why)
        elif node is not None:
            conn.cuts = getattr(conn, "cuts", 0) + 1 if is_sudden(fault) else 0
            if fault and conn.cuts in (0, CUTS_TOLD):
                self._core.refused(str(node.id), fault)
                conn.cuts = 0
        super()._onDisconnected(conn)
        if node is not None and node not in self._nodes:
            self._over.add(node)


def over_tls(tls: RaftTls | None) -> type[GuardedTcp]:
    """The transport of a broker; None: it speaks no TLS."""
    return type("SecuredTcp", (GuardedTcp,), {"tls": tls})


def host_of(node: Node) -> str:
    """The host of a voter, as its certificate names it."""
    return str(node.host).rpartition("@")[2].strip("[]")


def hello_in(message: Any) -> dict[str, Any] | None:
    """A question of somebody who takes no part in the group yet (`greeting.py`)."""
    return message if is_hello(message) else None


def refusal_of(conn: Any, hello: dict[str, Any]) -> dict[str, Any] | None:
    """The answer to a question of somebody who is not the broker that it says; None: it may be (W14)."""
    why = misnamed_at(conn, str(hello["broker"]))
    return {"type": "hello", "refusal": f"broker {hello['broker']}: {why}"} if why else None


class Codec:
    """Messages as JSON (W2), in the place of the module `pickle` in pysyncobj's connections."""

    @staticmethod
    def dumps(value: Any) -> bytes:
        """Bytes are base64 under a key of their own; tuples are lists."""
        return json.dumps(value, default=_plain, separators=(",", ":")).encode()

    @staticmethod
    def loads(data: bytes) -> Any:
        """Raises ValueError."""
        return parse_json(data, object_hook=_unplain)


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return {"\x00": base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} is not sent")


def _unplain(value: dict[str, Any]) -> Any:
    if len(value) != 1 or "\x00" not in value:
        return value
    if not isinstance(value["\x00"], str):
        raise ValueError("bytes are base64")
    return base64.b64decode(value["\x00"])


def _parse(conn: Any) -> Any:
    """The next whole message; None: there is none yet, or what is there ends the connection (W4, W9)."""
    buffer: bytearray = _growing(conn, "readBuffer")
    if len(buffer) < LENGTH_BYTES:
        return None
    end = LENGTH_BYTES + int.from_bytes(buffer[:LENGTH_BYTES], sys.byteorder, signed=True)
    if not LENGTH_BYTES <= end <= LENGTH_BYTES + _message_bytes_max(conn):
        conn.is_unclear = True
        conn.disconnect()
        return None
    if len(buffer) < end:
        return None
    data = bytes(buffer[LENGTH_BYTES:end])
    del buffer[:end]
    try:
        if conn.encryptor:
            sent_at = conn.encryptor.extract_timestamp(data)
            data = conn.encryptor.decrypt(data)
            if sent_at < conn.recvLastTimestamp:
                raise ValueError("a message of before")
            conn.recvLastTimestamp = sent_at
        message = Codec.loads(BoundedZlib.decompress(data))
        if conn.recvRandKey:
            nonce, message = message
            if nonce != conn.recvRandKey:
                raise ValueError("a message of another connection")
    except Exception:  # of a stranger: whatever it is made of, it ends the connection and nothing else
        conn.is_unclear = True
        conn.disconnect()
        return None
    return message


def _message_bytes_max(conn: Any) -> int:
    """W4."""
    is_unknown = getattr(conn, "is_stranger", False) or (conn.encryptor is not None and not conn.sendRandKey)
    return GREETING_BYTES_MAX if is_unknown else MESSAGE_BYTES_MAX


def _growing(conn: Any, name: str) -> bytearray:
    """One of pysyncobj's two buffers, as one to which bytes are added, and from which they are taken, in place (W9)."""
    buffer = getattr(conn, f"_TcpConnection__{name}")
    if not isinstance(buffer, bytearray):
        buffer = bytearray(buffer)
        setattr(conn, f"_TcpConnection__{name}", buffer)
    return buffer


def _send_some(conn: Any) -> bool:
    """Send what the kernel takes. Returns whether it took something."""
    buffer = _growing(conn, "writeBuffer")
    if not buffer:
        return False
    try:
        with memoryview(buffer) as view, view[:SENT_AT_ONCE_BYTES] as piece:
            sent: int = conn._TcpConnection__socket.send(piece)
    except BlockingIOError:
        return False
    except OSError:
        conn.disconnect()
        return False
    del buffer[:sent]
    return sent > 0


class BoundedZlib:
    """zlib, in the place of the module: what takes little as it is sent may be a thousand times as long (W4)."""

    compress = staticmethod(zlib.compress)

    @staticmethod
    def decompress(data: bytes) -> bytes:
        """Raises ValueError, zlib.error."""
        inflate = zlib.decompressobj()
        found = inflate.decompress(data, MESSAGE_BYTES_MAX)
        if not inflate.eof or inflate.unused_data:
            raise ValueError(f"a message of more than {MESSAGE_BYTES_MAX} bytes, or of less than one")
        return found


def _read_some(conn: Any) -> None:
    """W6, W9, W13. A stranger's turn is shorter: no more of it is kept than is read at once."""
    if not go_on(conn):
        return
    _growing(conn, "readBuffer")
    for _ in range(1 if getattr(conn, "is_stranger", False) else READS_AT_ONCE):
        if not conn._TcpConnection__processRead():
            break
    conn._TcpConnection__lastReadTime = monotonicTime()


_connect_now = tcp_connection.TcpConnection.connect


def _connect(conn: Any, host: str | None, port: int) -> bool:
    """W10. Returns whether it is called."""
    conn.secured = None
    try:
        return bool(_connect_now(conn, host, port))
    except OSError:
        return False


_disconnect_now = tcp_connection.TcpConnection.disconnect


def _disconnect(conn: Any) -> None:
    """W13."""
    heed_last_word(conn)
    _disconnect_now(conn)


tcp_connection.TcpConnection.connect = _connect
tcp_connection.TcpConnection.disconnect = _disconnect
tcp_connection.pickle = Codec
tcp_connection.zlib = BoundedZlib
tcp_connection.TcpConnection._TcpConnection__tryReadBuffer = _read_some
tcp_connection.TcpConnection._TcpConnection__processParseMessage = _parse
tcp_connection.TcpConnection._TcpConnection__processSend = _send_some
