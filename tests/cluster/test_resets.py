"""Clients of a real broker that reset their connections at any moment.

Goal: no traceback in the broker's log, nothing left open, and who behaves is served all the time.

Method: requests of every kind, whole, half and malformed, cut by a reset (SO_LINGER 0), a close or a half-close after
any of their bytes, also while the answer is on its way and while the broker closes the connection itself. Seeded.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from broker.client import connect
from broker.client.writing.append import encode
from tests.support.effort import examples, seeded
from tests.support.processes import BrokerProcess, eventually

RESET = struct.pack("ii", 1, 0)


def request(method: str, target: str, body: bytes = b"", kind: str = "application/json", *, length: int = -1) -> bytes:
    size = len(body) if length < 0 else length
    return (
        f"{method} {target} HTTP/1.1\r\nHost: [::1]\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n".encode()
        + body
    )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    limits = {
        "LIFTLOG_HTTP_CONNECTIONS_MAX": "64",
        "LIFTLOG_HTTP_HEADER_TIMEOUT_MS": "300",
        "LIFTLOG_HTTP_BODY_TIMEOUT_MS": "300",
    }
    broker = BrokerProcess(tmp_path, None, env=limits).start()
    yield broker
    broker.stop()


def requests() -> list[bytes]:
    records = bytes(encode(pa.table({"value": [bytes(100)] * 200})))
    target = "/v1/streams/s/partitions/0/records"
    arrow = "application/vnd.apache.arrow.stream"
    return [
        b"",
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: [::1]\r\nX: " + b"y" * 9000 + b"\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: [::1]\r\n\r\n" + b"z" * 100_000,
        request("GET", "/livez") * 5,
        request("GET", "/metrics"),
        request("GET", "/openapi.json"),
        request("GET", "/v1/watch?since=0"),
        request("GET", "/v1/watch?since=99999999&max_wait_ms=500"),
        request("GET", f"{target}?offset=earliest"),
        request("GET", f"{target}?offset=earliest&format=json"),
        request("GET", f"{target}?offset=latest&max_wait_ms=500"),
        request("POST", target, records, arrow),
        request("POST", target, records, arrow, length=len(records) + 1000),
        request("POST", target, b"x" * 200_000, arrow),
        request("POST", target, b"", arrow, length=1 << 40) + b"x" * 100_000,
        request("POST", "/v1/producers", b"{}"),
        request("POST", "/v1/streams", b'{"name": "s"}'),
        request("DELETE", "/v1/streams/none"),
        b"POST /v1/producers HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"POST /v1/producers HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"POST /v1/producers HTTP/1.1\r\nHost: [::1]\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    ]


def abuse(port: int, rng: random.Random, until_s: float, counts: list[int]) -> None:
    kinds = requests()
    while time.monotonic() < until_s:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.3) as client:
            if rng.random() < 0.3:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            data = rng.choice(kinds)
            cut = rng.choice([len(data), len(data), rng.randint(0, len(data))])
            while cut:
                step = rng.choice([cut, rng.randint(1, cut)])
                client.sendall(data[:step])
                data, cut = data[step:], cut - step
            if rng.random() < 0.5:
                client.recv(rng.choice([1, 100, 1 << 16]))
            if rng.random() < 0.2:
                client.shutdown(rng.choice([socket.SHUT_WR, socket.SHUT_RDWR]))
            if rng.random() < 0.2:
                time.sleep(rng.choice([0.001, 0.01, 0.35]))
            if rng.random() < 0.8:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            counts[0] += 1


def descriptors(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


@pytest.mark.parametrize("seed", range(examples(1)))
def test_connections_that_are_reset_at_any_moment_leave_no_traceback(broker: BrokerProcess, seed: int) -> None:
    with connect(broker.address, deadline_s=60) as client:
        client.create_stream("s")
        client.append("s", 0, [{"value": bytes(1000)}] * 2000)
        open_before = descriptors(broker)
        until_s = time.monotonic() + 12
        counts = [[0] for _ in range(4)]
        lucks = [random.Random(f"{seeded(seed)} {i}") for i in range(len(counts))]
        abusers = [
            threading.Thread(target=abuse, args=(broker.port, luck, until_s, count), daemon=True)
            for luck, count in zip(lucks, counts, strict=True)
        ]
        for abuser in abusers:
            abuser.start()
        served = 0
        while any(abuser.is_alive() for abuser in abusers):
            assert client.append("s", 0, [{"value": b"x"}]).record_count == 1
            served += 1
        for abuser in abusers:
            abuser.join(60)
        assert sum(count[0] for count in counts) > 200
        assert served > 10
        eventually(lambda: descriptors(broker) <= open_before + 2, what="every connection is closed")
        stored = client.describe("s").record_count
        assert client.read("s").to_table().num_rows == stored
    output = broker.output()
    assert "Traceback" not in output, output[output.index("Traceback") - 500 :][:4000]
    assert not [line for line in output.splitlines() if "ERROR" in line or "http.bug" in line or "Exception" in line]
