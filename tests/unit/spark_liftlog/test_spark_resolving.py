"""Y2 of resolving.py: what a replay finds of a log whose tail was lost, and perhaps written anew.

Method: a cluster that tells where the epochs end, as a script.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.errors import LiftlogError, NotReady
from spark_liftlog.errors import LogTruncated
from spark_liftlog.reading import resolving
from spark_liftlog.reading.advance import Head, Heads
from spark_liftlog.reading.cluster import Resolved
from spark_liftlog.reading.offsets import ReadPosition
from spark_liftlog.reading.plan import Range

STATE = Heads(incarnations={"s": "i"}, partitions={("s", 0): Head(0, 100, 3), ("s", 1): Head(0, 7, 3)})
RANGES = [
    Range(stream="s", partition=0, incarnation="i", start=0, end=60),
    Range(stream="s", partition=0, incarnation="i", start=60, end=100),
    Range(stream="s", partition=1, incarnation="i", start=0, end=7),
    Range(stream="s", partition=2, incarnation="i", start=0, end=5),
]


def told(end: int, high_watermark: int, error: LiftlogError | None = None) -> Resolved:
    return Resolved(
        position=ReadPosition(end, 3), incarnation="i", head=Head(0, high_watermark, -1), bytes_ahead=0, error=error
    )


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(resolving, "TRUNCATION_TIMEOUT_S", 0.3)

    def run(*answers: Resolved) -> tuple[list[tuple[int, int, int]], list[LiftlogError]]:
        """What is read, and lost, if partition 0 is told of so, one answer after the other."""
        script, lost = list(answers), list[LiftlogError]()

        def resolve(asked: list[Any], **_: Any) -> list[Resolved]:
            assert asked == [(("s", 0), {"epoch": 3}), (("s", 1), {"epoch": 3})]
            return [script.pop(0) if len(script) > 1 else script[0], told(7, 7)]

        cluster: Any = SimpleNamespace(resolve=resolve)
        found = resolving._unchanged(RANGES, STATE, cluster, lost.append)
        return [(r.partition, r.start, r.end) for r in found], lost

    return run


WHOLE = [(0, 0, 60), (0, 60, 100), (1, 0, 7), (2, 0, 5)]


def test_a_log_that_has_grown_is_the_same(read: Callable[..., Any]) -> None:
    assert read(told(100, 100)) == (WHOLE, [])
    assert read(told(130, 400)) == (WHOLE, [])


def test_a_leader_that_has_just_begun_is_asked_again(read: Callable[..., Any]) -> None:
    assert read(told(80, 80), told(80, 80), told(120, 130)) == (WHOLE, [])


@pytest.mark.parametrize("high_watermark", [80, 300])
def test_a_tail_that_was_lost_is_lost_also_if_others_stand_there(read: Callable[..., Any], high_watermark: int) -> None:
    found, (error,) = read(told(80, high_watermark))
    assert found == [(0, 0, 60), (0, 60, 80), (1, 0, 7), (2, 0, 5)]
    assert isinstance(error, LogTruncated)
    found, _ = read(told(20, high_watermark))
    assert found == [(0, 0, 20), (1, 0, 7), (2, 0, 5)]


def test_a_stream_that_was_made_anew_is_not_compared_with_the_former_one() -> None:
    """Its epochs count other records. That it is another one was told before (refresh.replayed)."""
    anew = [replace(wanted, incarnation="j", end=5) for wanted in RANGES if wanted.start < 5]

    def resolve(asked: list[Any], **_: Any) -> list[Resolved]:
        return [replace(told(0, 5), incarnation="j") for _ in asked]

    cluster: Any = SimpleNamespace(resolve=resolve)
    lost: list[LiftlogError] = []
    assert resolving._unchanged(anew, STATE, cluster, lost.append) == anew
    assert not lost


def test_what_cannot_be_told_is_left_to_the_read(read: Callable[..., Any]) -> None:
    assert read(told(0, 0, NotReady("nobody leads"))) == (WHOLE, [])
