"""The leader's side of bulk: bytes that a follower far behind lacks go over a socket of their own, by sendfile.

    answer on the gRPC stream ─ names a ticket ─► follower ─ connects, says it ─► a thread sends the range of the file
                                                  follower has all of it ─ asks ─► does it hold still? ─► yes

B1  A ticket is random, was told on a stream whose two sides have proven who they are, and is good once, for
    `CLAIMED_WITHIN_S`. A stranger has none: he is counted, and gets nothing. So does who shows the certificate of
    another broker than the one that was told it.
B2  The files stay open until it is over: what is deleted or rewritten meanwhile is sent as it was.
B3  The bytes count once their follower has all of them and has heard after that that the leadership which named them
    is there still: nobody else has written to those files before (`answering.Q2`). The follower drops what is cut
    half-way.
B4  A thread for each connection, which counts as a stranger's until it has shown its ticket, over TLS during the
    handshake, too: both take no longer than `GREETING_S`. There are `CONNECTIONS_MAX`, and another one ends the oldest
    stranger's.
B5  A thread for each transfer. There are `TRANSFERS_MAX` for each follower's broker and `CONNECTIONS_MAX` in all; a
    reader that takes nothing for `STALLED_S` is cut.
"""

from __future__ import annotations

import io
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from broker.api.errors import PortInUse
from broker.api.tls_files import why_kept_out
from broker.runtime.cluster.codec import TICKET_BYTES, Bulk
from broker.runtime.cluster.link.both import listener_at
from broker.runtime.cluster.link.tls import PIECE_BYTES, LinkTls, is_in_pieces, is_plain, shut
from broker.storage.read import ReadPlan

log = logging.getLogger(__name__)

GREETING_S: Final = 2.0
CLAIMED_WITHIN_S: Final = 15.0
STALLED_S: Final = 5.0
TRANSFERS_MAX: Final = 2
"""So one may be asked for while the one before it is written."""
CONNECTIONS_MAX: Final = 64
ASKS, HOLDS = b"?", b"!"


class Transfer:
    """Bytes that one follower may fetch once. Thread-safe.

    Args:
        to: Its broker.
        plan: Closed when this is over.
        holds: Whether the leadership that named them is there still.
    """

    def __init__(self, to: str, plan: ReadPlan, holds: Callable[[], bool]) -> None:
        self.to = to
        self.ticket = os.urandom(TICKET_BYTES)
        self.byte_count = plan.bytes
        self.begun_s = time.monotonic()
        self._plan = plan
        self._holds = holds
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.is_over = False

    @property
    def is_claimed(self) -> bool:
        return self._socket is not None

    def claim(self, connection: socket.socket) -> bool:
        """Whether this is the one who may have the bytes."""
        with self._lock:
            if self.is_over or self._socket is not None:
                return False
            self._socket = connection
            return True

    def end(self) -> None:
        """From any thread; does not wait."""
        with self._lock:
            is_over, self.is_over = self.is_over, True
            if self._socket is not None:
                shut(self._socket)  # its thread closes the files
            elif not is_over:
                self._plan.close()

    def send(self) -> None:
        """Send the bytes, once it is claimed, and say that they hold if they do. OSError: the other side is gone, or
        stands still."""
        to = self._socket
        assert to is not None
        with self._plan:
            to.settimeout(STALLED_S)
            for part in self._plan.ranges:
                if _send_range(to, part.fd, part.position, part.length) != part.length:
                    raise OSError(f"{part.path} ends before {part.position + part.length}")
            if to.recv(1) == ASKS and self._holds():  # B3
                with self._lock:
                    is_over, self.is_over = self.is_over, True  # first: its follower asks for what comes after
                if not is_over:
                    to.sendall(HOLDS)


class BulkServer:
    """See the module. Thread-safe.

    Args:
        refuse: Counts and logs who is not let in: reason, who, text.
        tls: None: bytes go in plain text.

    Attributes:
        told_port: The port that followers are told.
    """

    def __init__(self, refuse: Callable[[str, str, str], None], tls: LinkTls | None = None) -> None:
        self._refuse = refuse
        self._tls = tls
        self._lock = threading.Lock()
        self._transfers: dict[bytes, Transfer] = {}
        self._connections: set[socket.socket] = set()
        self._strangers: dict[socket.socket, None] = {}  # those of them without a ticket: the oldest first
        self._listener: socket.socket | None = None
        self._is_stopping = False
        self.told_port = 0

    def start(self, host: str, port: int) -> int:
        """Listen. Returns the port.

        Raises:
            PortInUse: somebody else does.
        """
        try:
            self._listener = listener_at(host, port, CONNECTIONS_MAX)
        except OSError as error:
            raise PortInUse(f"grpc.bulk_port: cannot listen on {host}, port {port}: {error}", port=port) from error
        self.told_port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, args=(self._listener,), name="bulk-server", daemon=True).start()
        return self.told_port

    def stop(self) -> None:
        """End all transfers, and take no others."""
        self._is_stopping = True
        with self._lock:
            transfers, connections = list(self._transfers.values()), list(self._connections)
        for transfer in transfers:
            transfer.end()
        for each in (*connections, *([self._listener] if self._listener is not None else [])):
            shut(each)
        if self._listener is not None:
            self._listener.close()

    def check(self, now_s: float) -> None:
        """Time passes (B1)."""
        with self._lock:
            for ticket, transfer in list(self._transfers.items()):
                if not transfer.is_claimed and now_s - transfer.begun_s > CLAIMED_WITHIN_S:
                    transfer.end()
                if transfer.is_over:
                    del self._transfers[ticket]

    def has_room(self, to: str) -> bool:
        """Whether this follower's broker may have another one (B4)."""
        with self._lock:
            under_way = sum(each.to == to and not each.is_over for each in self._transfers.values())
        return bool(self.told_port) and not self._is_stopping and under_way < TRANSFERS_MAX

    def offer(self, transfer: Transfer) -> Bulk:
        """Where its follower finds it."""
        with self._lock:
            self._transfers[transfer.ticket] = transfer
        return Bulk(transfer.ticket, transfer.byte_count, self.told_port)

    # -- connections (a thread each) ---------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while not self._is_stopping:
            try:
                connection, address = listener.accept()
            except OSError:
                if self._is_stopping:
                    return
                time.sleep(0.1)  # as without a free descriptor
                continue
            if (secured := self._secured(connection, str(address[0]))) is None:
                continue
            connection = secured
            with self._lock:
                is_crowded = len(self._connections) >= CONNECTIONS_MAX and not self._drop_oldest()
                if not is_crowded:
                    self._connections.add(connection)
                    self._strangers[connection] = None
            if is_crowded:
                self._refuse("crowded", str(address[0]), f"{CONNECTIONS_MAX} bulk connections are open")
                connection.close()
                continue
            thread = threading.Thread(target=self._serve, args=(connection, str(address[0])), name="bulk", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads are allowed
                self._refuse("no_thread", str(address[0]), str(error))
                self._over(connection)

    def _secured(self, connection: socket.socket, who: str) -> socket.socket | None:
        """The connection, over TLS if there is TLS; nothing is said yet. None: it is closed."""
        if self._tls is None:
            return connection
        try:
            return self._tls.server().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except OSError as error:  # it is gone
            self._refuse("tls", who, why_kept_out(error))
            connection.close()
            return None

    def _drop_oldest(self) -> bool:
        """Under the lock: make room for another one. False: all have their tickets."""
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        del self._strangers[oldest]
        self._connections.discard(oldest)
        shut(oldest)  # its thread closes it
        return True

    def _serve(self, connection: socket.socket, who: str) -> None:
        transfer, until_s = None, time.monotonic() + GREETING_S
        try:
            connection = self._unwrapped(connection)
            if isinstance(connection, ssl.SSLSocket) and not self._shook_hands(connection, who):
                return
            transfer = self._claimed(connection, until_s)
            with self._lock:
                self._strangers.pop(connection, None)
            if transfer is None:
                self._refuse("ticket", who, "this ticket was not given out, or is not good any more")
            else:
                transfer.send()
        except OSError as error:
            if transfer is None:
                self._refuse("ticket", who, f"no ticket: {error}")
            else:
                log.info("replica.bulk_cut to=%s error=%s", transfer.to, error)
        except Exception:
            log.exception("replica.link_bug at=bulk")
        finally:
            if transfer is not None:
                transfer.end()
            self._over(connection)

    def _over(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)
            self._strangers.pop(connection, None)
        connection.close()

    def _unwrapped(self, connection: socket.socket) -> socket.socket:
        """The connection without TLS, where none is spoken and that is taken (`tls.C8`)."""
        if self._tls is None or not self._tls.takes_plain:
            return connection
        connection.settimeout(GREETING_S)
        if not is_plain(connection):
            return connection
        with self._lock:
            is_kept = connection in self._strangers
            plain = socket.socket(fileno=connection.detach())
            self._connections.discard(connection)
            self._strangers.pop(connection, None)
            if is_kept:
                self._connections.add(plain)
                self._strangers[plain] = None
        if not is_kept:
            plain.close()
            raise ConnectionAbortedError("its place was needed")
        return plain

    def _shook_hands(self, connection: ssl.SSLSocket, who: str) -> bool:
        """Whether it belongs to a broker, as far as its certificate says."""
        connection.settimeout(GREETING_S)
        try:
            if is_in_pieces(connection, time.monotonic() + GREETING_S):
                self._refuse("tls", who, "its first message of TLS comes in pieces, as no broker's does")
                return False
            connection.do_handshake()
        except OSError as error:
            self._refuse("tls", who, why_kept_out(error))
            return False
        return True

    def _claimed(self, connection: socket.socket, until_s: float) -> Transfer | None:
        """B1. OSError: nothing came in time, or from another broker."""
        ticket = b""
        while len(ticket) < TICKET_BYTES:
            connection.settimeout(max(0.001, until_s - time.monotonic()))
            data = connection.recv(TICKET_BYTES - len(ticket))
            if not data:
                return None
            ticket += data
        with self._lock:
            found = self._transfers.get(ticket)
        if found is not None and isinstance(connection, ssl.SSLSocket):
            assert self._tls is not None, "it speaks TLS"
            if why := self._tls.unfit(connection, found.to):
                raise ConnectionError(f"{why}, whose ticket this is")
        return found if found is not None and found.claim(connection) else None


def _send_range(to: socket.socket, fd: int, position: int, length: int) -> int:
    """Send a range of a file. Returns how many of its bytes there were. OSError: the other side is gone."""
    if not isinstance(to, ssl.SSLSocket):
        with io.FileIO(fd, closefd=False) as file:
            return to.sendfile(file, position, length)
    sent = 0
    while sent < length and (piece := os.pread(fd, min(PIECE_BYTES, length - sent), position + sent)):
        to.sendall(piece)
        sent += len(piece)
    return sent
