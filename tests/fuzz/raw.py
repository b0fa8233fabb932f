"""Raw bytes of a connection, head and all: what a broker is sent that may be no HTTP, and what answers a client.

any bytes ──► a real server: answers that are HTTP, never a 500, and then it closes; it serves others as before
a client  ──► any bytes as the whole answer, status line and headers too: rows, or a LiftlogError
"""

from __future__ import annotations

import atexit
import functools
import re
import socket
from typing import Final

import pyarrow as pa

from broker.api.errors import LiftlogError
from broker.api.gathered.reused_memory import ReusedMemory
from broker.api.http import HIGH_WATERMARK, LEADER_EPOCH, LOG_START_OFFSET, NEXT_OFFSET
from broker.client.reading.fetch import PartitionFetch, decoded
from broker.client.reading.gathering import Gathering, PureGathering, Shape
from broker.client.reading.session import FetchSession
from broker.intake.jetstream import names_in
from tests.fuzz.decoder import Decoder
from tests.fuzz.network import JSON_WORDS, serving
from tests.unit.client.rawserver import RawServer, Reply

PATIENCE_S: Final = 60.0
END: Final = 9
"""The client reads offsets up to here."""
COLUMNS: Final = ("offset", "key", "value", "headers")


def check_http(data: bytes) -> None:
    server = serving()
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
        said = b""
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                said += piece
        except ConnectionError:  # it need not hear all of what is no HTTP
            pass
    assert not said or said.startswith(b"HTTP/"), said[:100]  # of the version that was sent
    assert not re.search(rb"^HTTP/[0-9.]+ 500 ", said, re.MULTILINE), said[:2_000]
    assert server.api.get("/livez").status == 200


_said: list[bytes] = [b""]


@functools.cache
def _answering() -> RawServer:
    def answer(reply: Reply) -> None:
        reply.send(_said[0])
        reply.close()

    server = RawServer(lambda _, reply: answer(reply), on_head=answer)
    server.__enter__()
    atexit.register(server.__exit__, None, None, None)
    return server


def check_read(data: bytes) -> None:
    """By both ways to take rows, and both implementations of the second: the same offsets, the same kind of end."""
    _said[0] = data
    seen = []
    for make in (None, Gathering, PureGathering):
        session = FetchSession(_answering().address)
        offsets: list[int] = []
        failed: LiftlogError | None = None
        fetch = PartitionFetch(session, "orders", 0, 0, timeout_s=PATIENCE_S, deadline_s=0)
        try:
            if make is None:
                batches = fetch.until(END, decoded)
            else:
                gathering = make(Shape(COLUMNS), rows_max=1 << 16, bytes_enough=1, memory=ReusedMemory())
                batches = fetch.until(END, gathering.add, gathering.memory)
            for rows in batches:
                offsets += _checked(rows)
        except LiftlogError as error:
            failed = error
        finally:
            session.close()
        assert all(0 <= offset < END for offset in offsets)
        assert 0 <= fetch.position <= END
        seen.append((offsets, type(failed)))
    assert seen[0] == seen[1] == seen[2]
    if failed is not None:
        raise failed


def _checked(rows: pa.RecordBatch) -> list[int]:
    rows.validate(full=True)
    found: list[int] = rows.column("offset").to_pylist()
    return found


def check_jetstream(data: bytes) -> None:
    names = names_in(data)
    assert names == sorted(names)
    assert all(isinstance(name, str) for name in names)


RAW: Final = (
    Decoder(
        name="http-raw",
        modules=("broker/serving/http/connections.py", "broker/serving/http/closing.py"),
        check=check_http,
        errors=(),
        words=(
            b"GET ",
            b"POST /v1/streams HTTP/1.1\r\n",
            b" HTTP/1.0\r\n",
            b"\r\n\r\n",
            b"Content-Length: 9",
            b"Content-Length: -1\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Expect: 100-continue\r\n",
            b"Upgrade: websocket\r\nConnection: upgrade\r\n",
            b"Content-Encoding: gzip\r\n",
            b"0\r\n\r\n",
            b"\xff",
        ),
        weight=20,
    ),
    Decoder(
        name="client-read",
        modules=(
            "broker/client/reading/fetch.py",
            "broker/client/reading/session.py",
            "broker/client/http/pool.py",
            "broker/client/reading/gathering.py",
            "broker/api/gathered/_gathering.pyx",
        ),
        check=check_read,
        errors=(LiftlogError,),
        words=(
            b"HTTP/1.1 200 X\r\n",
            b"HTTP/1.1 503 X\r\n",
            b"Content-Length: ",
            b"Transfer-Encoding: chunked\r\n",
            *(f"{name}: ".encode() for name in (HIGH_WATERMARK, LOG_START_OFFSET, NEXT_OFFSET, LEADER_EPOCH)),
            b"99999999999999999999999",
            b"-1",
            b"\r\n\r\n",
        ),
        weight=30,
    ),
    Decoder(
        name="jetstream",
        modules=("broker/intake/jetstream.py",),
        check=check_jetstream,
        errors=(),
        form="json",
        words=JSON_WORDS,
    ),
)
