"""Clients of a real broker that take what they can.

Goal: the limits of the configuration hold, and who behaves is served.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

from tests.support.processes import BrokerProcess


def test_silent_connections_keep_nobody_out(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, None, env={"LIFTLOG_HTTP_CONNECTIONS_MAX": "8"}).start()
    with ExitStack() as stack:
        stack.callback(broker.stop)
        for _ in range(40):
            stack.enter_context(connected(broker))  # and says nothing
            assert broker.is_ready()
        assert b"liftlog_http_connections_refused_total 0.0" in broker.get("/metrics")
        none = b"liftlog_http_connections_idle_cut_total 0.0"
        assert none not in broker.get("/metrics")


def connected(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=30)
