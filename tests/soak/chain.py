"""Publishers that expect what was stored last, by `Nats-Expected-Last-Subject-Sequence`, and the check of it.

Three lanes publish to one subject, each with what it believes to be the last sequence. So the stored records are a
chain: each of them names the one before.
"""

from __future__ import annotations

import asyncio
import re

import nats
import nats.errors
import nats.js.errors

from broker.client import Client
from tests.soak.ledger import Message, Violation
from tests.soak.publisher import ANSWER_S, ERROR_S, Writer, ignore
from tests.soak.reader import identity_of

STREAM = "chain"
EXPECTED_HEADER = "Nats-Expected-Last-Subject-Sequence"
LANES = 3
WRONG_SEQUENCE = 10071
PATIENCE_S = 16.0
"""A lane waits no longer than that for an answer."""
LONG_S = 5.0
"""The story tells of a message that waits longer for its ack."""


class ChainPublisher(Writer):
    """See the module."""

    sizes = (0, 1, 40, 900, 5_000)

    async def run(self, url: str) -> None:
        client = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=ignore)
        stream = client.jetstream()

        async def lane() -> None:
            last, patience_s = 0, ANSWER_S  # of all its messages: an id may be forgotten while an answer is on its way
            while not self.stop.is_set():
                message = self.next_message()
                headers = self.headers(message) | {EXPECTED_HEADER: str(last)}
                while message.offset < 0:
                    self.tried(message)
                    try:
                        answer = await stream.publish(STREAM, message.value, timeout=patience_s, headers=headers)
                        self.ledger.acked(message, 0, answer.seq - 1)
                        last, patience_s = answer.seq, max(ANSWER_S, patience_s / 2)
                    except nats.js.errors.APIError as error:
                        if error.err_code == WRONG_SEQUENCE:
                            last = int(re.findall(r"sequence: (\d+)", str(error.description))[0])
                            message.is_refused = message.first_s == message.last_s
                            break  # it is not stored, and will not be
                        if await self._gives_up(message, error):
                            return
                    except (nats.errors.Error, OSError) as error:
                        if isinstance(error, nats.errors.TimeoutError):  # late answers are not seen: wait longer
                            patience_s = min(2 * patience_s, PATIENCE_S)
                        if await self._gives_up(message, error):
                            return
                if message.offset >= 0:  # else at once: it knows the last one now
                    await asyncio.sleep(self.pause_s * 2 * self.rng.random())

        await asyncio.gather(*(lane() for _ in range(LANES)))
        await client.close()

    async def _gives_up(self, message: Message, error: Exception) -> bool:
        """Wait a little; whether to end."""
        if message.last_s - message.first_s > LONG_S:
            self.ledger.story.tell(f"{message.identity} has no ack yet: {error!r}")
        await asyncio.sleep(ERROR_S)
        return self.gives_up(message)


def check_chain(client: Client) -> int:
    """K8; return how many links were looked at. Raises Violation."""
    count, before = 0, -1
    for batch in client.read(STREAM, columns=["offset", "headers"]):
        columns = (batch.column(name).to_pylist() for name in ("offset", "headers"))
        for offset, headers in zip(*columns, strict=True):
            expected = next(int(pair["value"]) for pair in headers if pair["key"] == EXPECTED_HEADER)
            if count and expected != before + 1:
                name = identity_of(headers)
                raise Violation(f"K8: {name} at {STREAM}/0/{offset} expected {expected}, before it is {before + 1}")
            count, before = count + 1, offset
    return count
