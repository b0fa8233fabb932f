"""Publishers over NATS: each message is repeated under its id until it is acked.

`JetStreamPublisher` is a stock client with a window of publishes in flight; `RawPublisher` speaks the protocol itself,
so that its messages come in pieces of any size and many at once, and half of one is there when something changes.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import nats
import nats.errors
import nats.js.errors

from tests.soak.ledger import ID_HEADER, SIZES, Ledger, Message
from tests.support.acks import place_of

ANSWER_S = 1.0
"""A message without an answer is published again after so long,"""
ERROR_S = 0.05
"""and one that was refused after so long."""
BURSTS = ("short",)
_MSG = re.compile(rb"(H?)MSG (\S+) \S+ (?:(\d+) )?(\d+)\r\n")


class Writer:
    """Makes messages for some streams."""

    sizes: Sequence[int] = SIZES

    def __init__(self, name: str, ledger: Ledger, streams: Sequence[str], seed: str, pause_s: float) -> None:
        self.name = name
        self.ledger = ledger
        self.streams = streams
        self.rng = random.Random(f"{seed}/{name}")
        self.pause_s = pause_s
        self.stop = threading.Event()
        self._count = 0

    def next_message(self) -> Message:
        self._count += 1
        stream, key = self.rng.choice(self.streams), f"k{self.rng.randrange(8)}"
        return self.ledger.new(
            Message(f"{self.name}-{self._count}", stream, self.rng.choice(self.sizes), key, repeats=True)
        )

    def headers(self, message: Message) -> dict[str, str]:
        return {ID_HEADER: message.identity, "Nats-Msg-Id": message.identity, "Liftlog-Key": message.key}

    def tried(self, message: Message) -> None:
        message.last_s = time.monotonic()
        message.first_s = message.first_s or message.last_s

    def gives_up(self, message: Message) -> bool:
        """Whether a message that is not acked is left alone: the soak ends."""
        return self.stop.is_set() and (self.ledger.is_over or time.monotonic() - message.last_s > 60)


class JetStreamPublisher(Writer):
    """`window` publishes in flight by nats-py."""

    async def run(self, url: str, window: int) -> None:
        client = await nats.connect(
            url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=ignore, pending_size=64 << 20
        )
        stream = client.jetstream()

        async def lane() -> None:
            while not self.stop.is_set():
                message = self.next_message()
                while message.offset < 0:
                    self.tried(message)
                    try:
                        answer = await stream.publish(
                            message.stream, message.value, timeout=ANSWER_S, headers=self.headers(message)
                        )
                        self.ledger.acked(message, -2, answer.seq - 1)
                    except (nats.errors.Error, OSError):
                        if self.gives_up(message):
                            return
                        await asyncio.sleep(ERROR_S)
                await asyncio.sleep(self.pause_s * 2 * self.rng.random())

        await asyncio.gather(*(lane() for _ in range(window)))
        await client.close()


async def ignore(error: Exception) -> None:
    """Pass over all else that nats-py tells."""


class RawPublisher(Writer):
    """Its own protocol on a socket: up to `window` messages unanswered.

    Attributes:
        cut_share: So many messages are sent in two pieces.
    """

    cut_share = 0.3

    async def run(self, port: int, window: int) -> None:
        self._due_s: dict[int, float] = {}
        waiting: dict[int, Message] = {}
        while not self.stop.is_set() or waiting:
            try:
                await self._connected(port, window, waiting)
            except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
                await asyncio.sleep(0.05)
            if self.stop.is_set() and all(map(self.gives_up, waiting.values())):
                return

    def next_count(self, waiting_count: int, window: int) -> int:
        """How many to publish now."""
        return int(waiting_count < window)

    async def _connected(self, port: int, window: int, waiting: dict[int, Message]) -> None:
        reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port, limit=1 << 20), 10)
        inbox = f"_INBOX.soak{self.name}{self.rng.randrange(1 << 30)}"
        writer.write(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        writer.write(f"SUB {inbox}.* 1\r\n".encode())
        answers = asyncio.create_task(self._answers(reader, writer, waiting))
        try:
            for number in list(waiting):
                await self._send(writer, inbox, number, waiting[number])
            while not answers.done() and (waiting or not self.stop.is_set()) and not self.ledger.is_over:
                for _ in range(0 if self.stop.is_set() else self.next_count(len(waiting), window)):
                    number, message = self._count, self.next_message()
                    waiting[number] = message
                    await self._send(writer, inbox, number, message)
                now_s = time.monotonic()
                for number, message in list(waiting.items()):
                    if number in waiting and self._due_s[number] < now_s:
                        await self._send(writer, inbox, number, message)
                await asyncio.sleep(self.pause_s * 2 * self.rng.random())
            if answers.done():
                answers.result()
        finally:
            answers.cancel()
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, inbox: str, number: int, message: Message) -> None:
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers(message).items())
        head = f"NATS/1.0\r\n{head}\r\n"
        data = (
            f"HPUB {message.stream} {inbox}.{number} {len(head)} {len(head) + message.size}\r\n{head}".encode()
            + message.value
            + b"\r\n"
        )
        self.tried(message)
        self._due_s[number] = message.last_s + ANSWER_S
        cut = self.rng.randrange(len(data)) if self.rng.random() < self.cut_share else len(data)
        writer.write(data[:cut])
        await asyncio.wait_for(writer.drain(), 60)
        if cut < len(data):
            await asyncio.sleep(0.002)
            writer.write(data[cut:])

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waiting: dict[int, Message]
    ) -> None:
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            found = _MSG.fullmatch(line)
            if found is None:
                continue
            body = await reader.readexactly(int(found[4]) + 2)
            body = body[int(found[3] or 0) : -2]
            number = int(found[2].rpartition(b".")[2])
            answer: dict[str, Any] = json.loads(body) if body else {"error": "nobody is there"}
            if "error" not in answer and number in waiting:
                message = waiting.pop(number)
                del self._due_s[number]
                self.ledger.acked(message, *place_of(answer))
            elif number in waiting:
                self._due_s[number] = min(self._due_s[number], time.monotonic() + ERROR_S)
        raise EOFError


class BurstPublisher(RawPublisher):
    """Many small ones at once, and the next when all of them are acked: tables of ids shrink and grow."""

    sizes = (0, 1, 40)
    cut_share = 0.0

    def next_count(self, waiting_count: int, window: int) -> int:
        return 0 if waiting_count or self.rng.random() < 0.8 else self.rng.randint(1, window)
