"""Clients of a real broker that take what they can.

Goal: the limits of the configuration hold, and who behaves is served again once the others' time is up.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

from tests.support.processes import BrokerProcess, eventually


def test_silent_connections_take_all_there_are_and_are_cut(tmp_path: Path) -> None:
    limits = {"LIFTLOG_HTTP_CONNECTIONS_MAX": "8", "LIFTLOG_HTTP_HEADER_TIMEOUT_MS": "2000"}
    broker = BrokerProcess(tmp_path, None, env=limits).start()
    with ExitStack() as stack:
        stack.callback(broker.stop)

        def is_refused() -> bool:
            stack.enter_context(connected(broker))  # and says nothing
            with connected(broker) as client:
                client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                return client.makefile("rb").read().startswith(b"HTTP/1.1 503 ")

        eventually(is_refused, what="all connections are taken")
        eventually(broker.is_ready, what="their time is up")
        eventually(lambda: "http.connections_refused connections_max=8" in broker.output(), what="its line")
        none = b"liftlog_http_connections_refused_total 0.0"
        eventually(lambda: (found := metrics(broker)) and none not in found, what="those refused are counted")


def metrics(broker: BrokerProcess) -> bytes:
    """Nothing while no connection is to be had."""
    try:
        found: bytes = broker.get("/metrics")
    except OSError:  # refused: 503 too, as urllib says it
        return b""
    return found


def connected(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=30)
