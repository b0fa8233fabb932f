"""When a damaged replica may begin anew: who could help was asked often enough (`node.mending.H5`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.node import mending
from broker.node.mending import VAIN_ROUNDS, Mending

LOST = (3, 5)
LONG_MS = 60_000
"""Longer than any pause between rounds."""


class Replica:
    """A damaged one at `b1`, that leads. `live`: the others; none of them takes a question."""

    def __init__(self) -> None:
        self.live: list[str] = []
        self.now_ms = 0
        log = SimpleNamespace(
            lost_ranges=(LOST,),
            high_watermark=9,
            compacted_to=0,
            disk=None,
            folder="p0",
            identity=None,
            is_encrypted=False,
            settings=SimpleNamespace(keyring=None),
        )
        partition: Any = SimpleNamespace(log=SimpleNamespace(state=log), damage=SimpleNamespace())
        wiring = SimpleNamespace(ask_range=lambda *_: False, forget_range=lambda *_: None)
        catalog = SimpleNamespace(brokers={})
        self._catalog = catalog
        host: Any = SimpleNamespace(me="b1", wiring=wiring, service=SimpleNamespace(catalog=catalog))
        mender: Any = SimpleNamespace(
            take_slot=lambda: True, give_slot=lambda: None, submit=lambda act: (act(), True)[1]
        )
        self.mending = Mending(host, mender, ("p0", 0), "p0/0", partition, lambda: 0, lambda: None)

    def round(self) -> None:
        """Ask whoever lives, once, and see that the round is over."""
        self._catalog.brokers = {broker: SimpleNamespace(is_live=True) for broker in self.live}
        state: Any = SimpleNamespace(replicas=("b1", "b2", "b3"), leader="b1", leader_epoch=1)
        self.now_ms += LONG_MS
        for _ in range(len(self.live) + 1):
            self.mending.tick(self.now_ms, state, (1, 0))


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> Replica:
    monkeypatch.setattr(mending, "was_compacted", lambda log: False)
    monkeypatch.setattr(mending, "read_aside", lambda *_, **__: b"")
    return Replica()


def test_who_comes_back_is_asked_as_often_as_any(replica: Replica) -> None:
    """Scenario `a_stream_is_damaged_where_somebody_lags_beyond`: it began anew after one question to who had come back,
    and copied all of its log, as rounds in which nobody lived counted as well."""
    for _ in range(5):
        replica.round()
    replica.live = ["b2"]
    replica.round()
    assert not replica.mending.is_in_vain()
    for _ in range(VAIN_ROUNDS - 1):
        replica.round()
    assert replica.mending.is_in_vain()


def test_so_is_who_comes_back_while_another_one_does_not_answer_either(replica: Replica) -> None:
    replica.live = ["b2"]
    replica.round()
    replica.live = ["b3"]
    replica.round()
    assert not replica.mending.is_in_vain()
    replica.round()
    assert replica.mending.is_in_vain()
