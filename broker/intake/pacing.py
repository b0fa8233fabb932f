"""Over loopback nothing is paced.

Where BBR is the system's congestion control it sends at a measured rate by timers, also to the same machine. Tried
(sendfile of 2.2 GB, both ends): BBR 0.39 s of CPU a GB, Reno 0.17. Bytes to other machines go as the system says.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import Any


def unpace_loopback(sock: socket.socket | Any, address: tuple[Any, ...]) -> None:
    """Send unpaced if `address`, of one end, is a loopback address. Connections inherit it from a listening socket.

    Args:
        address: As `getsockname` or `getpeername` give it.
    """
    option = getattr(socket, "TCP_CONGESTION", None)  # Linux
    if option is None or not ipaddress.ip_address(address[0]).is_loopback:
        return
    with contextlib.suppress(OSError):  # forbidden here: slower, that is all
        sock.setsockopt(socket.IPPROTO_TCP, option, b"reno")
