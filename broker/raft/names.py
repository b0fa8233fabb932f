"""Addresses of hosts, without waiting for a name server.

D1  `address` answers at once. A thread of its own looks up what is not known yet, or was looked up long ago.
    Where there is no thread for it, it is asked for later: the thread of the Raft group asks, and must not end by that.
D2  The last address is kept while nobody answers. After REFRESH_S it is looked up again: a host may come back at
    another one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Final

from pysyncobj.monotonic import monotonic

REFRESH_S: Final = 10.0
AGAIN_S: Final = 1.0


class Names:
    """See the module.

    Args:
        look_up: Waits for the name server. None, or an OSError: there is no address.
    """

    def __init__(self, look_up: Callable[[str], str | None], clock: Callable[[], float] = monotonic) -> None:
        self._look_up = look_up
        self._clock = clock
        self._found: dict[str, tuple[str | None, float]] = {}
        self._asked: set[str] = set()
        self._lock = threading.Lock()

    def address(self, host: str) -> str | None:
        """The address that is known now; None: none yet."""
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(host))
        with self._lock:
            found, at_s = self._found.get(host, (None, float("-inf")))
            if host not in self._asked and self._clock() - at_s > (REFRESH_S if found else AGAIN_S):
                with contextlib.suppress(RuntimeError):  # no more threads are allowed
                    threading.Thread(target=self._ask, args=(host,), name="names", daemon=True).start()
                    self._asked.add(host)
        return found

    def _ask(self, host: str) -> None:
        try:
            found = self._look_up(host)
        except (OSError, UnicodeError):  # the latter: it can be no name
            found = None
        with self._lock:
            self._asked.discard(host)
            self._found[host] = found or self._found.get(host, (None, 0.0))[0], self._clock()


def look_up(host: str) -> str | None:
    """One address of a host, IPv4 if it has one."""
    found = sorted(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM), key=lambda each: each[0] != socket.AF_INET)
    return str(found[0][4][0]) if found else None


names: Final = Names(look_up)
"""The names of this process."""
