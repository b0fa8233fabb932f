"""The sockets of the HTTP server. Over real connections: a handler asks what the kernel says of the accepting side."""

from __future__ import annotations

import http.client
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web

from broker.api.errors import InvalidSetting, PortInUse
from broker.runtime.dataplane import DataPlane
from broker.serving.http.app import CONNECTIONS
from broker.serving.http.callers import DEFAULT_CALLER_LIMITS, Callers
from broker.serving.http.connections import DEFAULT_LIMITS, Connections
from broker.serving.http.meters import Meters

linux = pytest.mark.skipif(sys.platform != "linux", reason="congestion control is chosen per socket on Linux only")


@linux
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_who_reads_over_loopback_is_not_paced(host: str) -> None:
    with _served(host) as port:
        assert _congestion_control_of(host, port) == "reno"


@linux
def test_what_may_go_out_to_others_is_sent_as_the_system_says() -> None:
    default = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    with _served("0.0.0.0") as port:
        assert _congestion_control_of("127.0.0.1", port) == default


def test_a_port_is_free_again_once_the_server_has_stopped() -> None:
    with _served("127.0.0.1") as port:
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    with _served("127.0.0.1", port) as again:
        assert again == port


def test_a_port_in_use_and_a_host_of_another_machine_are_named() -> None:
    with _served("127.0.0.1") as port, pytest.raises(PortInUse, match=f"127.0.0.1:{port}"), _served("127.0.0.1", port):
        pass
    with pytest.raises(InvalidSetting, match=r"192\.0\.2\.1"), _served("192.0.2.1"):
        pass


@contextmanager
def _served(host: str, port: int = 0) -> Iterator[int]:
    async def congestion_control(request: web.Request) -> web.Response:
        assert request.transport is not None
        sock = request.transport.get_extra_info("socket")
        return web.Response(body=sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0"))

    app = web.Application()
    meters = Meters()
    app[CONNECTIONS] = Connections(DEFAULT_LIMITS, meters, Callers(DEFAULT_CALLER_LIMITS, meters))
    app.router.add_get("/", congestion_control)
    dataplane = DataPlane()
    try:
        bound = dataplane.bind(app, host, port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host.replace("0.0.0.0", "127.0.0.1"), bound), timeout=5)
        dataplane.serve()
        yield bound
    finally:
        dataplane.stop()


def _congestion_control_of(host: str, port: int) -> str:
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    finally:
        connection.close()
