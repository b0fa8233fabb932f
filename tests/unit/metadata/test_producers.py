"""Names of producers: kept while they are used, forgotten after, and never two under one id.

Goal: what stays within the limits for ever, who is refused, and that every broker decides alike. Method: commands to a
catalog, with times of brokers whose clocks disagree; a twin that is restored after each command.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from broker.api.errors import ProducerFenced, UnknownProducer
from broker.metadata.catalog import Catalog
from broker.metadata.producers import FORGOTTEN_MAX, PRODUCER_NAMES_MAX, Producers
from tests.support.effort import seeds

DAY = 86_400_000


def apply(catalog: Catalog, kind: str, **values: Any) -> dict[str, Any]:
    return catalog.apply({"v": 1, "kind": kind, **values})


def register(catalog: Catalog, name: str, day: float, expiry: float = 7) -> tuple[int, int]:
    at_ms = round(day * DAY)
    said = apply(
        catalog, "register_producer", name=name, at_ms=at_ms, forget_before_ms=max(0, at_ms - round(expiry * DAY))
    )
    return said["ok"]["producer_id"], said["ok"]["epoch"]


def check(catalog: Catalog, producer_id: int, epoch: int) -> None:
    catalog.producer_names.check(producer_id, epoch)


def test_a_name_that_is_not_used_is_forgotten_and_its_producer_comes_back_as_another() -> None:
    catalog = Catalog()
    assert register(catalog, "a", 100) == (1, 0)
    assert register(catalog, "a", 101) == (1, 1)
    assert register(catalog, "b", 108.1) == (2, 0)
    assert "a" not in catalog.producers
    for epoch in (0, 1, 2):
        with pytest.raises(UnknownProducer, match="register anew"):
            check(catalog, 1, epoch)
    assert register(catalog, "a", 109) == (3, 0), "another id: what it sent before is no repeat"
    check(catalog, 3, 0)


def test_a_name_that_is_used_is_kept_however_long_ago_it_registered() -> None:
    catalog = Catalog()
    register(catalog, "a", 100)
    for day in range(101, 140):
        if day % 5 == 0:
            apply(catalog, "note_producers", names=["a", "unknown"], at_ms=day * DAY)
        register(catalog, f"other-{day}", day)
    check(catalog, 1, 0)
    assert register(catalog, "a", 140) == (1, 1)
    with pytest.raises(ProducerFenced):
        check(catalog, 1, 0)
    assert "unknown" not in catalog.producers
    assert len(catalog.producers) <= 9


def test_who_registers_late_itself_is_the_same_producer() -> None:
    catalog = Catalog()
    register(catalog, "a", 100)
    assert register(catalog, "a", 200) == (1, 1)


def test_a_clock_that_is_behind_forgets_nothing_and_ages_nothing() -> None:
    """D3. Also: no name is older than another one that was used before it."""
    catalog = Catalog()
    register(catalog, "a", 100)
    register(catalog, "b", 50)
    assert catalog.producers["b"].used_ms == 100 * DAY
    register(catalog, "c", 106)
    assert set(catalog.producers) == {"a", "b", "c"}


def test_a_deleted_name_refuses_what_its_producer_still_sends() -> None:
    catalog = Catalog()
    register(catalog, "a", 100)
    assert apply(catalog, "forget_producer", name="a") == {"ok": {}}
    with pytest.raises(UnknownProducer):
        check(catalog, 1, 0)
    assert apply(catalog, "forget_producer", name="a")["error"]["reason"] == "unknown_producer"
    assert register(catalog, "a", 100) == (2, 0)


def test_names_of_before_times_were_kept_count_as_used_now() -> None:
    before = {"producer_id_last": 7, "producers": [["a", 3, 1], ["b", 7, 0]]}
    catalog = Catalog()
    catalog = Catalog.restore({**catalog.snapshot(), **before})
    register(catalog, "c", 100)
    assert set(catalog.producers) == {"a", "b", "c"}
    check(catalog, 3, 1)
    with pytest.raises(ProducerFenced):
        check(catalog, 3, 0)
    register(catalog, "d", 101)
    assert set(catalog.producers) == {"c", "d"}, "used a week before day 100, as far as is known"


def test_ten_thousand_names_that_nobody_uses_make_room() -> None:
    catalog = Catalog()
    for number in range(PRODUCER_NAMES_MAX):
        register(catalog, f"p{number}", 100)
    full = apply(catalog, "register_producer", name="more", at_ms=101 * DAY, forget_before_ms=94 * DAY)
    assert full["error"]["limit"] == PRODUCER_NAMES_MAX
    apply(catalog, "note_producers", names=["p1"], at_ms=105 * DAY)
    assert register(catalog, "more", 107.5) == (PRODUCER_NAMES_MAX + 1, 0)
    assert set(catalog.producers) == {"p1", "more"}


def test_what_is_forgotten_is_remembered_within_a_limit() -> None:
    producers = Producers()
    for number in range(FORGOTTEN_MAX + 5):
        producers.register(f"p{number}", at_ms=1, forget_before_ms=0)
        producers.forget(f"p{number}")
    assert len(producers.forgotten) == FORGOTTEN_MAX
    assert (1 in producers.forgotten, FORGOTTEN_MAX + 5 in producers.forgotten) == (False, True)


@pytest.mark.parametrize("seed", seeds(30))
def test_every_broker_decides_alike_whenever_it_was_restored(seed: int) -> None:
    rng, catalog, twin = random.Random(seed), Catalog(), Catalog()
    day = 100.0
    for step in range(200):
        day += rng.random()
        now = round((day + rng.choice((0, 0, -3, 2))) * DAY)
        name = f"n{rng.randrange(12)}"
        command: dict[str, Any] = rng.choice(
            (
                {"kind": "register_producer", "name": name, "at_ms": now, "forget_before_ms": now - 7 * DAY},
                {"kind": "register_producer", "name": None},
                {"kind": "note_producers", "names": [name, f"n{rng.randrange(12)}"], "at_ms": now},
                {"kind": "forget_producer", "name": name},
            )
        )
        command = {"v": 1, **command}
        before = catalog.snapshot()
        try:
            judged: Any = {"ok": catalog.judge(command)}
        except Exception as error:
            judged = {"error": error.to_problem()}  # type: ignore[attr-defined]
        assert catalog.snapshot() == before, "judging changes nothing"
        assert catalog.apply(command) == twin.apply(command) == judged
        assert catalog.snapshot() == twin.snapshot()
        if step % 7 == 0:
            twin = Catalog.restore(json.loads(json.dumps(twin.snapshot())))
    ids = [each.producer_id for each in catalog.producers.values()]
    assert len(set(ids)) == len(ids)
    assert not catalog.producer_names.forgotten.keys() & set(ids)
