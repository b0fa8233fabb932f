"""The leader's side of bulk: bytes that a follower far behind lacks go over a connection of their own, by sendfile.

    answer on the stream ─ names a ticket ─► follower ─ connects, says it ─► a thread sends the range of the file
                                             follower has all of it ─ asks ─► does it hold still? ─► yes

B1  A ticket is random, was told on a stream whose two sides have proven who they are, and is good once, for
    `CLAIMED_WITHIN_S`. A stranger has none: he is counted, and gets nothing. So does who shows the certificate of
    another broker than the one that was told it.
B2  The files stay open until it is over: what is deleted or rewritten meanwhile is sent as it was.
B3  The bytes count once their follower has all of them and has heard after that that the leadership which named them
    is there still: nobody else has written to those files before (`answering.Q2`). The follower drops what is cut
    half-way.
B4  A connection is a stranger's until it has shown its ticket (`door.D1`).
B5  There are `TRANSFERS_MAX` for each follower's broker, each with the thread of its connection; a
    reader that takes nothing for `STALLED_S` is cut. On a slow line it takes as long until it has read what the system
    holds for it, and asks; and poll says late that a socket takes something (`framed.M3`).
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

from broker.link.codec import TICKET_BYTES, Bulk
from broker.link.door import Door, Visitor
from broker.link.framed import STALLED_S, Framed
from broker.link.tls import PIECE_BYTES, LinkTls, shut
from broker.storage.read import ReadPlan

log = logging.getLogger(__name__)

PURPOSE: Final = b"llb3"
"""What a caller says first who comes to fetch."""
CLAIMED_WITHIN_S: Final = 15.0
TRANSFERS_MAX: Final = 2
"""So one may be asked for while the one before it is written."""
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
        tls: None: bytes go in plain text.

    Attributes:
        told_port: At which followers fetch; 0: where they have their stream.
    """

    def __init__(self, tls: LinkTls | None = None) -> None:
        self._tls = tls
        self._lock = threading.Lock()
        self._transfers: dict[bytes, Transfer] = {}
        self._is_stopping = False
        self.told_port = 0

    def stop(self) -> None:
        """End all transfers, and take no others. Does not wait: their threads are the door's."""
        self._is_stopping = True
        with self._lock:
            transfers = list(self._transfers.values())
        for transfer in transfers:
            transfer.end()

    def check(self, now_s: float) -> None:
        """Time passes (B1)."""
        with self._lock:
            for ticket, transfer in list(self._transfers.items()):
                if not transfer.is_claimed and now_s - transfer.begun_s > CLAIMED_WITHIN_S:
                    transfer.end()
                if transfer.is_over:
                    del self._transfers[ticket]

    def has_room(self, to: str) -> bool:
        """Whether this follower's broker may have another one (B5)."""
        with self._lock:
            under_way = sum(each.to == to and not each.is_over for each in self._transfers.values())
        return not self._is_stopping and under_way < TRANSFERS_MAX

    def offer(self, transfer: Transfer) -> Bulk:
        """Where its follower finds it."""
        with self._lock:
            self._transfers[transfer.ticket] = transfer
        return Bulk(transfer.ticket, transfer.byte_count, self.told_port)

    def serve(self, door: Door, visitor: Visitor, framed: Framed) -> None:
        """As `door.Serve`."""
        transfer = None
        try:
            transfer = self._claimed(visitor, framed)
            if transfer is None:
                door.complain("ticket", visitor, "this ticket was not given out, or is not good any more")
                return
            door.let_in(visitor)
            transfer.send()
        except OSError as error:
            if transfer is not None:
                log.info("replica.bulk_cut to=%s error=%s", transfer.to, error)
            else:
                door.complain("ticket", visitor, f"no ticket: {error}")
        except Exception:
            log.exception("replica.link_bug at=bulk")
        finally:
            if transfer is not None:
                transfer.end()

    def _claimed(self, visitor: Visitor, framed: Framed) -> Transfer | None:
        """B1. OSError: nothing came in time, or from another broker."""
        ticket = framed.take(TICKET_BYTES, visitor.until_s)
        with self._lock:
            found = self._transfers.get(ticket)
        if found is not None and isinstance(visitor.socket, ssl.SSLSocket):
            assert self._tls is not None, "it speaks TLS"
            if why := self._tls.unfit(visitor.socket, found.to, visitor.who):
                raise ConnectionError(f"{why}, whose ticket this is")
        return found if found is not None and found.claim(visitor.socket) else None


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
