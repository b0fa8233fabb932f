"""A publisher that expects what was stored last gets on, however late acks are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest

from tests.soak import chain
from tests.soak.chain import EXPECTED_HEADER, STREAM, WRONG_SEQUENCE, ChainPublisher
from tests.soak.ledger import Ledger, Story

ANSWER_S = 0.02


class LateStream:
    """Stores at once and answers late. It has forgotten each id by the time that its message is repeated."""

    def __init__(self) -> None:
        self.stored = 0

    async def publish(self, subject: str, value: bytes, timeout: float, headers: dict[str, str]) -> Any:
        expected, last = int(headers[EXPECTED_HEADER]), self.stored
        self.stored += expected == last
        await asyncio.sleep(min(timeout, 3 * ANSWER_S))
        if timeout < 3 * ANSWER_S:
            raise nats.errors.TimeoutError
        if expected != last:
            raise nats.js.errors.BadRequestError(
                code=400, err_code=WRONG_SEQUENCE, description=f"wrong last sequence: {last}"
            )
        return SimpleNamespace(seq=last + 1)


def test_each_lane_waits_longer_once_an_answer_was_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, stream = Ledger(Story(tmp_path / "story.txt")), LateStream()
    publisher = ChainPublisher("c", ledger, [STREAM], "1", 0.0)

    async def connected(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(jetstream=lambda: stream, close=lambda: asyncio.sleep(0))

    async def until_acked() -> None:
        running = asyncio.create_task(publisher.run("nats://nobody"))
        while ledger.ack_count < 3 and stream.stored < 100:
            await asyncio.sleep(ANSWER_S)
        publisher.stop.set()
        ledger.give_up()
        await running

    monkeypatch.setattr(chain, "ANSWER_S", ANSWER_S)
    monkeypatch.setattr(nats, "connect", connected)
    asyncio.run(until_acked())
    assert ledger.ack_count >= 3, f"{stream.stored} were stored, and none was acked"
