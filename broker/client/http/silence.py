"""Whether a broker that is silent stands still: it is asked on a second connection.

    request ──► 0.5 s of silence ──► GET /livez on a new connection (over TLS: the first words of a handshake)
                                       answered, refused or ended   somebody is there: wait on, for twice as long
                                       1 s of silence               it stands still: frozen, dead or cut off

A frozen process takes connections, as its kernel does that, and answers none. Without the second question nobody could
tell it from a broker that works on something long, or holds a long poll.

Z1  Only silence counts. A connection that is refused, or ends, has been answered; the first one will tell the rest.
Z2  Bytes on the first connection are an answer, also while the second one is asked.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
import time
from typing import Final

from broker.client.http.address import Address
from broker.client.http.tls import first_words

SILENCE_S: Final = 0.5
LIVES_S: Final = 1.0
CONNECT_S: Final = 1.5
"""Time to connect, where others could be asked: one that lost its first packet sends it again after a second."""
_LIVEZ: Final = "GET /livez HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n"
GONE: Final = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


def await_bytes(sock: socket.socket, address: Address, *, patience_s: float) -> None:
    """Return when bytes, the end or an error have come.

    Raises:
        TimeoutError: it stands still; or it lives, and says nothing here for `patience_s`.
    """
    until_s = time.monotonic() + patience_s
    pause_s = SILENCE_S
    while not _arrived(min(pause_s, until_s - time.monotonic()), sock):
        if time.monotonic() >= until_s:
            raise TimeoutError("timed out")
        if not lives(address, sock):
            raise TimeoutError("it stands still: no answer, and none to a second connection")
        pause_s *= 2


def lives(address: Address, *beside: socket.socket) -> bool:
    """Whether somebody is there (Z1), or something has come on a connection `beside` (Z2)."""
    until_s = time.monotonic() + LIVES_S
    try:
        with socket.create_connection((address.host, address.port), timeout=LIVES_S) as asked:
            asked.sendall(first_words() if address.is_tls else _LIVEZ.format(address.host_port).encode())
            return _arrived(until_s - time.monotonic(), asked, *beside)
    except OSError as error:
        is_silent = isinstance(error, TimeoutError) or error.errno in GONE
        return not is_silent or _arrived(0, *beside)


def _arrived(timeout_s: float, *socks: socket.socket) -> bool:
    if any(sock.fileno() < 0 for sock in socks):
        return True  # closed by another thread: whoever reads it sees that
    if any(isinstance(sock, ssl.SSLSocket) and sock.pending() for sock in socks):  # pool.C7
        return True
    poller = select.poll()
    for sock in socks:
        poller.register(sock, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout_s) * 1000))
