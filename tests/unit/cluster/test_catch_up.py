"""A broker of several finds out whether it knows all, once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.api.errors import LiftlogError, NotReady, Unavailable
from broker.runtime import clustered as broker
from broker.runtime.clustered import ClusterBroker


class Part:
    """As much of a broker as this needs."""

    is_alone = False

    def __init__(self) -> None:
        self.looks = 0
        self.fails: LiftlogError | None = None
        self._next_look: asyncio.Future[None] | None = None
        self._one_look, self._looked_s = asyncio.Lock(), float("-inf")
        self._streams = SimpleNamespace(check_session=lambda: None)
        self._plane = SimpleNamespace(service=self)

    def read(self, *, timeout_s: float) -> None:
        self.looks += 1
        if self.fails is not None:
            raise self.fails

    async def _look_next(self) -> None:
        await ClusterBroker._look_next(cast("Any", self))

    async def catch_up(self) -> None:
        await ClusterBroker.catch_up(cast("Any", self))


async def test_all_who_ask_meanwhile_share_one_look_that_began_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "CAUGHT_UP_S", 0.0)
    part = Part()
    await asyncio.gather(*(part.catch_up() for _ in range(1000)))
    assert part.looks == 1
    await part.catch_up()
    assert part.looks == 2, "what it found before says nothing of now"


async def test_who_gives_up_takes_the_look_from_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part()
    first, second = (asyncio.ensure_future(part.catch_up()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert part.looks == 1


async def test_one_that_cannot_find_out_says_that_and_tries_again_for_the_next() -> None:
    part = Part()
    part.fails = Unavailable("no controller")
    with pytest.raises(NotReady, match="cannot find out"):
        await part.catch_up()
    part.fails = None
    await part.catch_up()


async def test_one_without_a_session_asks_nobody() -> None:
    part = Part()

    def no_session() -> None:
        raise NotReady("this broker has no session")

    part._streams = SimpleNamespace(check_session=no_session)
    with pytest.raises(NotReady, match="no session"):
        await part.catch_up()
    assert part.looks == 0
