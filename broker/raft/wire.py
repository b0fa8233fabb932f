"""Raft's connections: pysyncobj's TCP, bound where it is told to, and without pickle.

A node's id is `<random>@<host>:<port>`. The random part is made with the journal and lost with it, so a voter that
has lost its journal cannot act under the id of the one that had it.

W1  Without a secret all addresses are loopback. Whoever reaches the port could take part in the cluster.
W2  Bytes are JSON, not pickle: they cannot make this process run anything.
W3  pysyncobj's own commands over the wire (add, remove, transfer, ...) are not answered: changes go through the
    catalog.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from typing import Any, Final

import pysyncobj.tcp_connection as tcp_connection
from pysyncobj.dns_resolver import globalDnsResolver
from pysyncobj.node import Node, TCPNode
from pysyncobj.transport import TCPTransport

from broker.api.errors import InvalidRequest
from broker.api.plain import parse_json

SECRET_BYTES_LEAST: Final = 16


class Voter(TCPNode):  # type: ignore[misc]
    """A node under an id that its journal gave it."""

    @property
    def ip(self) -> str | None:
        """Its address, resolved."""
        found: str | None = globalDnsResolver().resolve(str(self.host).rpartition("@")[2])
        return found


def check_secret(addresses: list[str], secret: str | None) -> None:
    """W1. `addresses`: host:port, those that are bound and those that are connected to.

    Raises:
        InvalidRequest: says which address is not loopback, or that the secret is too short.
    """
    if secret is not None:
        if len(secret.encode()) < SECRET_BYTES_LEAST:
            raise InvalidRequest(f"raft.secret has less than {SECRET_BYTES_LEAST} bytes", key="raft.secret")
        return
    for address in addresses:
        host = address.rpartition("@")[2].rpartition(":")[0].strip("[]")
        if not _is_loopback(host):
            raise InvalidRequest(
                f"{address} is not loopback, and there is no raft.secret: whoever reaches the Raft port could take part"
                " in the cluster and change its catalog. Set the same raft.secret on every broker",
                key="raft.secret",
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def guarded(base: type) -> type:
    """A class of transports whose messages pass through the core (`Core.outgoing`)."""

    class Guarded(base):  # type: ignore[misc]
        def __init__(self, syncObj: Any, selfNode: Node | None, otherNodes: Any) -> None:
            self._core = syncObj
            super().__init__(syncObj, selfNode, otherNodes)

        def send(self, node: Node, message: dict[str, Any]) -> bool:
            message_out = self._core.outgoing(message)
            return message_out is not None and bool(super().send(node, message_out))

        def setOnUtilityMessageCallback(self, message: str, callback: Any) -> None:
            """W3."""

    return Guarded


class GuardedTcp(guarded(TCPTransport)):  # type: ignore[misc]
    """TCP between brokers."""

    def _onIncomingMessageReceived(self, conn: Any, message: Any) -> None:
        """The first messages of a connection say who is there. Anything else ends it, and not this process."""
        is_key = isinstance(message, bytes) and self._syncObj.encryptor is not None and not conn.sendRandKey
        if is_key or isinstance(message, str):
            super()._onIncomingMessageReceived(conn, message)
        else:
            self._unknownConnections.discard(conn)
            conn.disconnect()


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
    return base64.b64decode(value["\x00"]) if len(value) == 1 and "\x00" in value else value


tcp_connection.pickle = Codec
