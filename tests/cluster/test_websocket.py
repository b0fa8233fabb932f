"""A broker that reaches NATS over WebSocket: publishers get their acks, also after the server has been killed.

Method: a real nats-server with a port for WebSocket, with TLS or without, a real broker; publishers come over TCP.
"""

from __future__ import annotations

from pathlib import Path

import nats
import pytest

from tests.support.certificates import Authority
from tests.support.processes import BrokerProcess, NatsServer, eventually, free_port

ACK_S = 30


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_publishers_are_acked_before_and_after_the_server_was_killed(tmp_path: Path, scheme: str) -> None:
    port, authority = free_port(), Authority(tmp_path / "ca")
    issued, is_tls = authority.issue(), scheme == "wss"
    tls = f'tls {{ cert_file: "{issued.cert}", key_file: "{issued.key}" }}' if is_tls else "no_tls: true"
    server = NatsServer(tmp_path / "nats", config=f'websocket {{ listen: "127.0.0.1:{port}", {tls} }}').start()
    env = {"LIFTLOG_NATS_TLS_CA": authority.ca} if is_tls else {}
    broker = BrokerProcess(tmp_path / "broker", f"{scheme}://127.0.0.1:{port}", env=env).start()
    try:
        broker.request("POST", "/v1/streams", {"name": "s", "subject": "s"})
        for expected in range(2):
            publisher = await nats.connect(server.url)
            for sequence in range(10):
                acked = await publisher.request("s", b"x", timeout=ACK_S)
                assert f'"seq":{1 + sequence + 10 * expected}'.encode() in acked.data
            await publisher.close()
            if not expected:
                server.kill9()
                server.start()
                eventually(lambda: broker.metric("liftlog_intake_disconnects_total") == 1, what="the loss of NATS")
                eventually(lambda: broker.metric("liftlog_intake_connected") == 1, what="the broker is back")
    finally:
        broker.stop()
        server.stop()
