"""The catalog hears of a producer that is used, now and then, and of nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from broker.api.errors import NotReady
from broker.config.settings import ProducersConfig
from broker.control import used_producers
from broker.control.used_producers import NOTED_IN, UsedProducers, registration, registration_times
from broker.metadata.catalog import Catalog
from broker.metadata.producers import tag_of

EXPIRY_MS = 800_000


async def test_use_is_told_now_and_then_and_again_if_it_could_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10_000_000
    monkeypatch.setattr(used_producers, "now_ms", lambda: now)
    config, catalog = ProducersConfig(name_expiry_ms=EXPIRY_MS), Catalog()
    told: list[tuple[list[str], int]] = []
    is_away = False

    async def note(names: Sequence[str], at_ms: int) -> None:
        await asyncio.sleep(0)
        if is_away:
            raise NotReady("no majority")
        told.append((list(names), at_ms))
        catalog.apply({"v": 1, "kind": "note_producers", "names": list(names), "at_ms": at_ms})

    async def use(producer_id: int) -> None:
        for _ in range(3):
            used.used(catalog, producer_id)
        while used._noting:
            await asyncio.sleep(0)

    used = UsedProducers(config, note)
    for name in (None, "a"):
        catalog.apply({"v": 1, "kind": "register_producer", "name": name, **registration_times(config)})
    for producer_id in (1, 2, 3):
        await use(producer_id)
    assert told == []
    now += EXPIRY_MS // NOTED_IN + 1
    is_away = True
    await use(2)
    is_away = False
    for producer_id in (1, 2, 3, 2):
        await use(producer_id)
    assert told == [(["a"], now)]


def test_an_id_says_whose_it_is_where_callers_are_judged_and_all_brokers_know_it() -> None:
    """`producers.D5`."""
    config = ProducersConfig()
    assert registration(config, None, "user:ana", can_tag=True)["tag"] == tag_of("user:ana") != tag_of("user:bob")
    for name, owner, can_tag in ((None, None, True), (None, "user:ana", False), ("mine", "user:ana", True)):
        assert "tag" not in registration(config, name, owner, can_tag=can_tag)
