"""Publishing progress: how often, and what of it. Method: a cluster that notes what is published, in a real thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import pytest

from broker.api.errors import LiftlogError, NotReady, OffsetOutOfRange, StaleIncarnation, UnknownStream
from broker.client.http.brokers import Brokers
from spark_liftlog.progress.publishing import Progress
from spark_liftlog.reading.asking_again import AskingAgain
from spark_liftlog.reading.cluster import Cluster
from spark_liftlog.reading.offsets import Key, Offset, ReadPosition
from tests.support.processes import eventually

FOR_EVER_S = 3600.0


class Noting:
    """Stands for the brokers."""

    def __init__(self) -> None:
        self.published: list[int] = []
        self.asked = threading.Semaphore(0)

    def commit(
        self,
        consumer: str,
        positions: Mapping[Key, ReadPosition],
        incarnations: Mapping[str, str],
        metadata: str = "",
    ) -> None:
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
    """Brokers that refuse what `why` says; a commit is taken as a whole or not at all."""

    def __init__(self, addresses: str = "a:1") -> None:
        self.published: dict[Key, int] = {}
        self.calls = 0
        self.why: dict[Key | str, list[LiftlogError]] = {}
        self._brokers = Brokers(addresses)

    def commit(
        self,
        consumer: str,
        positions: Mapping[Key, ReadPosition],
        incarnations: Mapping[str, str],
        metadata: str = "",
    ) -> None:
        self.calls += 1
        for key in positions:
            for what in (key, key[0], f"{key[0]} {incarnations[key[0]]}"):
                if errors := self.why.get(what):
                    raise errors.pop(0) if len(errors) > 1 else errors[0]
        self.published |= {key: at.offset for key, at in positions.items()}

    def asking_again(self) -> AskingAgain:
        return AskingAgain(self._brokers)


GONE = UnknownStream("no stream 'gone'")
OTHER = StaleIncarnation("stream 'gone' is another one")
BEYOND = OffsetOutOfRange("offset 7 is above the high watermark")


def of(gone: str = "a1", at: int = 7, **orders: int) -> Offset:
    """A query of three partitions of `gone`, which it cannot read on, and two of `orders`."""
    positions = {("gone", number): ReadPosition(at) for number in range(3)}
    positions |= {("orders", number): ReadPosition(offset) for number, offset in enumerate(orders.values())}
    return Offset(consumer="c", incarnations={"gone": gone, "orders": "a2"}, positions=positions)


@contextmanager
def publishing(brokers: Refusing) -> Iterator[Callable[[Offset], int]]:
    """Has a position published; tells how many calls that took."""
    progress = Progress(cast("Cluster", brokers), pace_s=0.0)

    def publish(offset: Offset) -> int:
        before = brokers.calls
        progress.learned(offset)
        eventually(lambda: progress._published is offset, what="published")
        return brokers.calls - before

    yield publish
    progress.close(60)


@pytest.mark.parametrize("error", [GONE, OTHER])
def test_a_stream_that_is_refused_costs_nothing_from_then_on(
    caplog: pytest.LogCaptureFixture, error: LiftlogError
) -> None:
    """G4: it was deleted, and the query goes on with its other one. Seen before: each publication was one refused call
    and one for each partition, for ever."""
    brokers = Refusing()
    brokers.why["gone a1"] = [error]
    with publishing(brokers) as publish:
        assert publish(of(a=1, b=2)) == 3, "all, then stream by stream"
        assert brokers.published == {("orders", 0): 1, ("orders", 1): 2}
        for offset in range(3, 20):
            assert publish(of(a=offset, b=2)) == 1
        assert brokers.published == {("orders", 0): 19, ("orders", 1): 2}
        assert [r.getMessage() for r in caplog.records] == [
            f"progress.failed consumer=c stream=gone partitions=3 error={error}"
        ]
        assert publish(of("a9", 1, a=19, b=3)) == 1, "it is back, as another one"
        assert brokers.published["gone", 0] == 1


def test_a_position_that_is_refused_refuses_no_other_of_its_stream(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Refusing()
    brokers.why["gone", 1] = [BEYOND]
    with publishing(brokers) as publish:
        assert publish(of(a=1)) == 1 + 2 + 3
        assert brokers.published == {("gone", 0): 7, ("gone", 2): 7, ("orders", 0): 1}
        assert publish(of(a=2)) == 1
        brokers.why.clear()
        assert publish(of(at=8, a=2)) == 1, "another position, which may be taken"
        assert brokers.published["gone", 1] == 8
    assert len(caplog.records) == 1


def test_a_query_that_has_nothing_else_publishes_nothing() -> None:
    brokers = Refusing()
    brokers.why["gone"] = [GONE]
    with publishing(brokers) as publish:
        assert publish(of()) == 2
        assert publish(replace(of(), incarnations={"gone": "a1", "orders": "a2", "more": "a3"})) == 0


def test_a_refusal_that_passes_is_not_remembered() -> None:
    """The rule: progress that is refused while its partition has no leader is published when it has one."""
    brokers = Refusing()
    brokers.why["gone"] = [GONE, NotReady("no leader"), NotReady("no leader")]
    with publishing(brokers) as publish:
        published: list[int] = []
        waiter = threading.Thread(target=lambda: published.append(publish(of(a=1))))
        waiter.start()
        eventually(lambda: brokers.calls >= 5, what="it is tried again")
        assert ("gone", 0) not in brokers.published
        brokers.why.clear()
        waiter.join(60)
        assert brokers.published == {("gone", 0): 7, ("gone", 1): 7, ("gone", 2): 7, ("orders", 0): 1}


def test_a_broker_that_is_behind_is_asked_again_before_a_refusal_counts() -> None:
    """D1 of asking_again.py: a stream that was just made is published by a query that then idles."""
    brokers = Refusing("a:1,b:2")
    brokers.why["gone"] = [GONE, GONE, GONE]
    with publishing(brokers) as publish:
        waiter = threading.Thread(target=lambda: publish(of(a=1)))
        waiter.start()
        eventually(lambda: brokers.calls >= 4, what="it is asked again")
        brokers.why.clear()
        waiter.join(60)
    assert brokers.published == {("gone", 0): 7, ("gone", 1): 7, ("gone", 2): 7, ("orders", 0): 1}
