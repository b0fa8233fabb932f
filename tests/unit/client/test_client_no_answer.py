"""Goal: a message that is stored is not counted as refused because a broker that leads no more has answered first.

Method: the part of a publish that takes answers, with those that brokers give, in each order.
"""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.aio.msg import Msg

from broker.api.errors import DiskFull, LiftlogError, NotLeader, NotReady
from broker.client.nats_publish import _Publish
from broker.ingest.answers import error_answer

ACK = json.dumps({"stream": "s", "seq": 8}).encode()


def refusal(error: LiftlogError) -> bytes:
    code, err_code, text = error_answer(error)
    answer = {"error": {"code": code, "err_code": err_code, "description": text}, "stream": "s", "seq": 0}
    return json.dumps(answer, separators=(",", ":")).encode()


def awaiting(patience_s: float = 60) -> _Publish:
    """One message awaits its ack."""
    work = _Publish("s", None, 10, patience_s, None)
    work.client = cast(Any, SimpleNamespace(is_closed=False))
    work.awaited[0] = (time.monotonic() + patience_s, b"x")
    work.sent = 1
    return work


async def answer(work: _Publish, data: bytes) -> None:
    await work._on_answer(cast(Msg, SimpleNamespace(subject="inbox.0", data=data, headers=None)))


@pytest.mark.parametrize("error", [NotLeader("another broker leads"), NotReady("not yet")])
async def test_who_does_not_lead_gives_no_answer(error: LiftlogError) -> None:
    work = awaiting()
    await answer(work, refusal(error))
    assert (work.report().failed, work.report().unanswered) == (0, 1)
    await answer(work, ACK)
    await answer(work, refusal(error))
    report = work.report()
    assert (report.acked, report.failed, report.unanswered, report.offsets) == (1, 0, 0, {("s", 0): (7, 7)})


async def test_without_any_other_answer_it_is_not_known_whether_it_is_stored() -> None:
    work = awaiting(0.05)
    await answer(work, refusal(NotLeader("another broker leads")))
    await work._until(0)
    assert work.report().errors == {"no_ack": 1}
    assert "another broker leads [not_leader]" in work.report().examples["no_ack"]


async def test_another_refusal_is_an_answer() -> None:
    work = awaiting()
    await answer(work, refusal(DiskFull("full")))
    assert work.report().errors == {"disk_full": 1}
