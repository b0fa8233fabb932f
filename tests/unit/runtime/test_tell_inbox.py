"""I6 of broker/intake/driver.py: acks for records that came otherwise, while NATS is away or slow.

Seen before: such an ack went to a server before CONNECT, which ends the connection where it asks for a login; with
publishers over gRPC that was each try. A server that took nothing let the acks pile up in memory without a bound. And
while a broker stopped, a record that was stored was answered with INTERNAL.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

from broker.config.configuration import load
from broker.intake.driver import WRITE_PENDING_BYTES_MAX, IntakeDriver
from tests.support.processes import eventually
from tests.unit.runtime.test_partition import HeldPool, pool
from tests.unit.runtime.test_take_in import INFO, connected, until

__all__ = ["pool"]  # a fixture
WAIT_S = 60
ACK = b"PUB _INBOX.x 3\r\nack\r\n"


def greeted(server: socket.socket) -> tuple[socket.socket, bytes]:
    """A connection, and what a client says after INFO."""
    connection = accepted(server)
    connection.sendall(INFO)
    said = b""
    while b"PING\r\n" not in said:
        said += connection.recv(1 << 16)
    connection.sendall(b"PONG\r\n")
    return connection, said


def accepted(server: socket.socket) -> socket.socket:
    connection, _ = server.accept()
    connection.settimeout(WAIT_S)
    return connection


def test_nothing_is_sent_before_a_new_connection_has_had_its_handshake(pool: HeldPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as one:
        server.settimeout(WAIT_S)
        url = f"nats://127.0.0.1:{server.getsockname()[1]}"
        driver = IntakeDriver(load(None, {}, {"nats.urls": [url]}), pool)
        first = one.submit(greeted, server)
        driver.start()
        try:
            first.result(WAIT_S)[0].close()
            with accepted(server) as second:  # it has not said INFO
                driver.tell_inbox("_INBOX.x", b"ack")
                driver._loop.call_soon_threadsafe(driver._send, ACK)  # as of a record that waited for the disk
                eventually(lambda: driver.counts["inboxes_not_told"] == 1)
                second.sendall(INFO)
                assert second.recv(8) == b"CONNECT "
        finally:
            driver.stop(WAIT_S)


async def test_a_server_that_takes_nothing_is_told_no_more_acks(pool: HeldPool) -> None:
    driver = IntakeDriver(load(None, {}), pool)
    async with connected() as rig:
        driver._client = rig.client
        driver._tell_inbox(ACK)
        assert driver.counts["inboxes_not_told"] == 0
        transport = rig.client._transport
        rig.connections[0].transport.pause_reading()  # type: ignore[attr-defined]
        line = bytes(1023) + b"\n"
        transport.write(line * (8 * WRITE_PENDING_BYTES_MAX // len(line)))
        waiting = transport.write_buffer_bytes()
        driver._tell_inbox(ACK)
        assert driver.counts["inboxes_not_told"] == 1
        assert transport.write_buffer_bytes() <= waiting
        rig.connections[0].transport.resume_reading()  # type: ignore[attr-defined]
        await until(lambda: transport.write_buffer_bytes() == 0, "all is sent")
    driver._loop.close()


async def test_a_record_is_stored_though_the_intake_has_ended(pool: HeldPool) -> None:
    driver = IntakeDriver(load(None, {}), pool)
    await asyncio.to_thread(driver._loop.close)
    driver.tell_inbox("_INBOX.x", b"ack")
