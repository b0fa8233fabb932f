"""Publishing progress: how often, and what of it. Method: a cluster that notes what is published, in a real thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import cast

from broker.api.errors import UnknownStream
from spark_liftlog.progress.publishing import Progress
from spark_liftlog.reading.cluster import Cluster
from spark_liftlog.reading.offsets import Key, Offset, ReadPosition

FOR_EVER_S = 3600.0


class Noting:
    """Stands for the brokers."""

    def __init__(self) -> None:
        self.published: list[int] = []
        self.asked = threading.Semaphore(0)

    def commit(self, consumer: str, positions: Mapping[Key, ReadPosition], incarnations: Mapping[str, str]) -> None:
        self.published.append(positions["orders", 0].offset)
        self.asked.release()


def offset(number: int) -> Offset:
    return Offset(consumer="c", incarnations={"orders": "a1"}, positions={("orders", 0): ReadPosition(number)})


def test_between_two_publications_only_the_newest_position_is_kept() -> None:
    """G5: the first at once; then none before its time, unless the last trigger of a query waits for it."""
    brokers = Noting()
    progress = Progress(cast("Cluster", brokers), pace_s=FOR_EVER_S)
    progress.learned(offset(1))
    assert brokers.asked.acquire(timeout=60)
    progress.learned(offset(2))
    assert not brokers.asked.acquire(timeout=0.3), "too early"
    progress.learned(offset(3))
    progress.flush(60)
    assert brokers.published == [1, 3]
    progress.close(60)


def test_closing_publishes_what_waits() -> None:
    """G1, G5: whoever closes does not wait for its time."""
    brokers = Noting()
    progress = Progress(cast("Cluster", brokers), pace_s=FOR_EVER_S)
    progress.learned(offset(1))
    assert brokers.asked.acquire(timeout=60)
    progress.learned(offset(2))
    progress.close(60)
    assert brokers.published == [1, 2]


class Refusing:
    """Brokers that have no stream `gone`; a commit is taken as a whole or not at all."""

    def __init__(self) -> None:
        self.published: dict[Key, int] = {}

    def commit(self, consumer: str, positions: Mapping[Key, ReadPosition], incarnations: Mapping[str, str]) -> None:
        if any(stream == "gone" for stream, _ in positions):
            raise UnknownStream("no stream 'gone'")
        self.published |= {key: at.offset for key, at in positions.items()}


def test_a_position_that_is_refused_refuses_no_other() -> None:
    """G4: the stream was deleted, and the query goes on with its other one."""
    brokers = Refusing()
    progress = Progress(cast("Cluster", brokers))
    positions = {("gone", 0): ReadPosition(7), ("orders", 0): ReadPosition(1), ("orders", 1): ReadPosition(2)}
    progress.learned(Offset(consumer="c", incarnations={"gone": "a1", "orders": "a2"}, positions=positions))
    progress.flush(60)
    progress.close(60)
    assert brokers.published == {("orders", 0): 1, ("orders", 1): 2}
