"""A port that takes gRPC over TLS and in plain text, while brokers go from the one to the other (`cluster.tls`).

    accepted ──first bytes──► TLS ───► the socket of gRPC's port with TLS
                     └──────► else ──► that of the one without

gRPC's server speaks one or the other at a port. Its two listen at sockets in a folder that is this user's alone; what
comes is handed on as it is, both ways.

B1  A thread for each connection, of which there are `CONNECTIONS_MAX`. Another one ends the oldest stranger's: of whom
    `Server` has let nobody in. gRPC tells it the names by which connections come here. If there is none it is closed,
    and said: this is for some restarts, not for good.
B2  Who says nothing for `FIRST_S` is closed, so that silent ones take no place.
B3  Who takes nothing for `STALLED_S` is cut, and when one side ends, the other one does. gRPC by itself has the system
    cut who takes nothing, which it cannot at these sockets: 64 strangers who sent much and read nothing kept all
    followers out for as long as they liked.
B4  What is small is sent at once, as gRPC does.
"""

from __future__ import annotations

import itertools
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.runtime.cluster.link.tls import is_plain, shut

CONNECTIONS_MAX: Final = 64
FIRST_S: Final = 2.0
STALLED_S: Final = 5.0
PIECE_BYTES: Final = 64 << 10
LOOK_MS: Final = 1_000
FOLDER_BYTES: Final = 100
"""A longer name of a folder leaves no room for that of a socket in it: the system takes 107."""
SHORT_FOLDER: Final = "/tmp"  # with a folder in it that is this user's alone
NOTHING: Final = memoryview(b"")


@dataclass(slots=True)
class Open:
    """A connection. `who`: its address. `is_known`: a broker's that is let in."""

    outer: socket.socket
    who: str
    is_known: bool = False


class Both:
    """See the module. Listens once it is made, and accepts from `start` on.

    Args:
        refuse: Counts and logs who is not let in: reason, who, text.

    Attributes:
        plain, secured: Where gRPC is to listen.
        port: The one that others call.

    Raises:
        OSError: somebody else listens there, or there is no folder for the two sockets.
    """

    def __init__(self, host: str, port: int, refuse: Callable[[str, str, str], None]) -> None:
        self._refuse = refuse
        self._listener = listener_at(host, port, CONNECTIONS_MAX)
        self.port = int(self._listener.getsockname()[1])
        try:
            self._folder = _folder()
        except OSError:
            self._listener.close()
            raise
        self.plain, self.secured = self._folder / "plain", self._folder / "tls"
        self._lock = threading.Lock()
        self._open: dict[str, Open] = {}  # by their names, the oldest first
        self._names = itertools.count()
        self._is_stopping = False

    def start(self) -> None:
        """Take connections from now on."""
        threading.Thread(target=self._accept, name="link-both", daemon=True).start()

    def close(self) -> None:
        """Take no other connections: before gRPC ends, so that who calls hears that nobody listens."""
        self._is_stopping = True
        shut(self._listener)
        self._listener.close()

    def stop(self) -> None:
        """End all connections, and take no others."""
        self.close()
        with self._lock:
            found = list(self._open.values())
        for each in found:
            shut(each.outer)
        shutil.rmtree(self._folder, ignore_errors=True)

    def know(self, peer: str, *, is_known: bool) -> None:
        """A broker is let in there, or not any more. `peer`: as gRPC calls a connection."""
        with self._lock:
            found = self._open.get(_name(peer))
            if found is not None:
                found.is_known = is_known

    def who(self, peer: str) -> str:
        """The address of whom gRPC calls so."""
        with self._lock:
            found = self._open.get(_name(peer))
        return peer if found is None else found.who

    def _accept(self) -> None:
        while not self._is_stopping:
            try:
                connection, address = self._listener.accept()
            except OSError:
                if self._is_stopping:
                    return
                time.sleep(0.1)  # as without a free descriptor
                continue
            opened = Open(connection, str(address[0]))
            if (name := self._place(opened)) is None:
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(name, opened), name="link-both", daemon=True).start()
            except RuntimeError as error:  # no more threads are allowed
                self._refuse("no_thread", opened.who, str(error))
                self._over(name, opened)

    def _place(self, opened: Open) -> str | None:
        """B1. The name of a new connection; None: there is no room."""
        turned_away = None
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                oldest = next((name for name, each in self._open.items() if not each.is_known), None)
                turned_away = opened if oldest is None else self._open.pop(oldest)
            name = None
            if turned_away is not opened:
                name = f"{next(self._names)}"
                self._open[name] = opened
        if turned_away is not None:
            text = f"{CONNECTIONS_MAX} connections are open while cluster.tls takes both"
            self._refuse("crowded", turned_away.who, text)
            shut(turned_away.outer)  # its thread closes it
        return name

    def _serve(self, name: str, opened: Open) -> None:
        outer, path = opened.outer, self._folder / name
        try:
            with suppress(OSError), socket.socket(socket.AF_UNIX) as inner:
                outer.settimeout(FIRST_S)  # B2
                to = self.plain if is_plain(outer) else self.secured
                inner.bind(str(path))  # so gRPC says who it is (B1)
                self._reach(inner, to, opened.who)
                outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # B4
                _hand_on(outer, inner)
        finally:
            path.unlink(missing_ok=True)
            self._over(name, opened)

    def _reach(self, inner: socket.socket, to: Path, who: str) -> None:
        inner.settimeout(FIRST_S)
        try:
            inner.connect(str(to))
        except OSError as error:
            if not self._is_stopping:
                self._refuse("no_socket", who, f"{to}: {error}")
            raise

    def _over(self, name: str, opened: Open) -> None:
        with self._lock:
            self._open.pop(name, None)
        opened.outer.close()


def _name(peer: str) -> str:
    """`unix:/folder/name`."""
    return peer.rpartition("/")[2]


def listener_at(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens; at `::` also for IPv4, as gRPC does. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog, dualstack_ipv6=host == "::")


def _folder() -> Path:
    """A new one of this user's alone, whose paths are short enough for sockets."""
    found = tempfile.mkdtemp(prefix="liftlog-")
    if len(found.encode()) > FOLDER_BYTES:
        shutil.rmtree(found, ignore_errors=True)
        found = tempfile.mkdtemp(prefix="liftlog-", dir=SHORT_FOLDER)
    return Path(found)


def _hand_on(*both: socket.socket) -> None:
    """Both ways, until one of the two ends, or takes nothing (B3). Raises OSError: one has ended."""
    poller, others = select.poll(), dict(zip(both, both[::-1], strict=True))
    waiting = dict.fromkeys(both, NOTHING)  # what has come, and this side has not taken
    moved_s = dict.fromkeys(both, 0.0)  # when that was taken from last, or began to wait
    named = {each.fileno(): each for each in both}
    for each in both:
        each.setblocking(False)
        poller.register(each, select.POLLIN)
    while True:
        ready = poller.poll(LOOK_MS if any(waiting.values()) else None)
        now_s = time.monotonic()
        for descriptor, events in ready:
            side = named[descriptor]
            if events & select.POLLOUT:
                waiting[side], moved_s[side] = _sent(side, waiting[side]), now_s
            if events & select.POLLIN:
                try:
                    data = side.recv(PIECE_BYTES)
                except BlockingIOError:  # there was nothing after all
                    continue
                if not data:
                    return
                other = others[side]
                waiting[other], moved_s[other] = _sent(other, memoryview(data)), now_s
            elif events & ~select.POLLOUT:
                return
            for each in both:
                takes = select.POLLOUT if waiting[each] else 0
                poller.modify(each, takes | (0 if waiting[others[each]] else select.POLLIN))
        if any(waiting[each] and now_s - moved_s[each] > STALLED_S for each in both):
            return


def _sent(to: socket.socket, data: memoryview) -> memoryview:
    """What of it this side does not take now. One that has ended takes all: its last words are still to come."""
    try:
        return data[to.send(data) :]
    except BlockingIOError:
        return data
    except ConnectionError:
        return NOTHING
