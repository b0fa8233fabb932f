"""A NATS server of a few lines for one broker: it says what was published, and writes down what it is answered."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.unit.ingest.wire import answers_in

INFO = b'INFO {"server_id":"s","version":"2.11.0","headers":true,"max_payload":1048576}\r\n'


class FakeNats:
    """On the loop of the test. A subscription that ends in `>` takes all, any other its own subject."""

    def __init__(self) -> None:
        self._writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None
        self._subjects: dict[bytes, bytes] = {}  # sid -> subject
        self._heard = b""
        self._reading: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        if self._writer is not None:
            self._writer.close()
        await asyncio.gather(*self._reading, return_exceptions=True)

    def publish(self, subject: str, *messages: tuple[bytes, str]) -> int:
        """Messages, each with its reply subject or "", in one piece. Returns how many subscriptions there were."""
        assert self._writer is not None, "the broker has not connected"
        name = subject.encode()
        sids = [sid for sid, wanted in self._subjects.items() if wanted == name or name.startswith(wanted.strip(b">"))]
        blob = b""
        for sid in sids:
            for value, reply in messages:
                to = b" %b" % reply.encode() if reply else b""
                blob += b"MSG %b %b%b %d\r\n%b\r\n" % (name, sid, to, len(value), value)
        self._writer.write(blob)
        return len(sids)

    def answers(self) -> dict[str, dict[str, Any]]:
        """By reply subject; none comes twice."""
        found = [(reply.decode(), json.loads(body)) for reply, body in answers_in(self._heard)]
        assert len(dict(found)) == len(found), f"an answer came twice: {found}"
        return dict(found)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._reading.add(task)
        self._writer = writer
        self._subjects.clear()
        writer.write(INFO)
        while line := await reader.readline():
            words = line.split()
            if words[0] == b"PING":
                writer.write(b"PONG\r\n")
            elif words[0] == b"SUB":
                self._subjects[words[-1]] = words[1]
            elif words[0] == b"UNSUB":
                self._subjects.pop(words[1], None)
            elif words[0] in (b"PUB", b"HPUB"):
                body = await reader.readexactly(int(words[-1]) + 2)
                self._heard += line + body
        self._reading.discard(task)
        writer.close()
