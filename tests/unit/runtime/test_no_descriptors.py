"""Goal: a process without a free file descriptor says so once, ends nothing, and goes on when there are some again.

Method: the limit of this very process, for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
from collections.abc import Iterator

import pytest
from pysyncobj.poller import createPoller
from pysyncobj.tcp_connection import CONNECTION_STATE, TcpConnection

import broker.raft.wire  # noqa: F401 (it mends pysyncobj)
from broker.runtime.no_descriptors import log_few
from tests.support.waiting import until


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)  # the first number that is free
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            os.dup(0)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_connections_that_cannot_be_accepted_make_one_line(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    log_few(loop)
    served: list[object] = []
    server = await asyncio.start_server(lambda reader, writer: served.append(writer.close()), "127.0.0.1", 0)
    clients = [socket.socket() for _ in range(3)]
    for client in clients:
        client.setblocking(False)
    with no_descriptors():
        for client in clients:
            with contextlib.suppress(BlockingIOError):
                client.connect(server.sockets[0].getsockname())
        await until(lambda: bool(caplog.records), "a line")
        await asyncio.sleep(0)
    await until(lambda: len(served) == len(clients), "all to be accepted later")
    said = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [(record.message.split()[0], record.exc_info) for record in said] == [("http.no_descriptors", None)]
    for client in clients:
        client.close()
    server.close()


async def test_another_error_of_a_loop_is_told_in_full(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    log_few(loop)
    loop.call_exception_handler({"message": "something else", "exception": OSError(errno.EIO, "io")})
    [record] = caplog.records
    assert record.exc_info is not None


def test_a_voter_is_called_later_where_no_socket_can_be_made() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    conn = TcpConnection(createPoller("auto"))
    with no_descriptors():
        assert not conn.connect(*listener.getsockname())
    assert conn.state == CONNECTION_STATE.DISCONNECTED
    assert conn.connect(*listener.getsockname())
    conn.disconnect()
    listener.close()
