"""I7 of broker/intake/driver.py: what the NATS server refuses is read, told of, and floods no log.

Seen before: a broker that may not subscribe said so in one line, the subject in lower case, and `/readyz` said that all
is well; one that may not publish acks logged a line for each record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from broker.common.elapsed import MACHINE
from broker.config.configuration import load
from broker.intake.driver import REFUSED_INTERVAL_S, REFUSED_TOLD_S, IntakeDriver
from broker.intake.nats_seam import make_client
from broker.intake.rights import MissingRight, TooManySubscriptions, refusal_in
from broker.node.partitions.sync import SyncPool


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('Permissions Violation for Subscription to "Orders.>"', MissingRight("subscribe", "Orders.>")),
        ('permissions violation for subscription to "a" using queue "G h"', MissingRight("subscribe", "a", "G h")),
        ('Permissions Violation for Subscription to "a" (sid "7")', MissingRight("subscribe", "a")),
        (r'Permissions Violation for Publish to "a\"\\"', MissingRight("publish", 'a"\\')),
        ('Permissions Violation for Publish to "a', None),
        ('Permissions Violation for Publish with Reply of "a"', None),
        ("maximum subscriptions exceeded", TooManySubscriptions()),
        ("maximum connections exceeded", None),
        ("Authorization Violation", None),
        ("", None),
    ],
)
def test_an_error_says_what_is_refused(text: str, found: MissingRight | TooManySubscriptions | None) -> None:
    assert refusal_in(text) == found


class Time:
    now_s = 100.0


@pytest.fixture
def driver() -> Iterator[IntakeDriver]:
    pool = SyncPool(1)
    yield IntakeDriver(load(None, {}), pool, clocks=MACHINE._replace(now_s=lambda: Time.now_s))
    pool.close()


def test_refused_acks_are_counted_told_for_a_while_and_logged_now_and_then(
    driver: IntakeDriver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(count: int) -> None:
        async def met(error: Exception) -> None:
            await driver._on_error(client, error)

        client: Any = make_client(driver._intake, lambda _: None, lambda: False, _at_once, wide=False)
        client._error_cb = met
        lines = [f"-ERR 'Permissions Violation for Publish to \"_INBOX.{number}\"'\r\n" for number in range(count)]
        await client._ps.parse("".join(lines).encode())

    asyncio.run(refuse(1_000))
    monkeypatch.setattr(Time, "now_s", Time.now_s + REFUSED_INTERVAL_S)
    asyncio.run(refuse(1))
    assert driver.counts["acks_refused"] == 1_001
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "intake.acks_refused count=1 subject=_INBOX.0",
        "intake.acks_refused count=1000 subject=_INBOX.0",
    ]
    says = (
        "the NATS server does not let this broker publish to '_INBOX.0': records are stored, and publishers get no ack"
    )
    assert driver.warnings() == {"nats": says}
    monkeypatch.setattr(Time, "now_s", Time.now_s + REFUSED_TOLD_S)
    assert driver.warnings() == {}


async def _at_once() -> None:
    return
