"""Catching up: how fast an empty replica copies a log, and what publishers notice of it.

Three brokers; the stream is on two of them, and is filled. Then the third becomes a replica: `mb_s` is what it has
stored when all three are in sync, by the time until then. `liftlog`: nobody publishes meanwhile. `liftlog-loaded`: a
publisher sends half of what the stream takes at most, each message when it is due; `p99_ratio` is its ack latency
during the copy by that before. `of_cp` is `mb_s` by what one process reaches that copies the leader's files right
afterwards, and fsyncs them: a page cache that has to grow may take a third of what one takes that has been there.
All brokers, the publisher and nats-server share the machine, and its disk.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.ours_cluster import LiftlogCluster
from benchmarks.peers import STREAM, SUBJECT
from benchmarks.window import Acked, run_rate, run_window
from tests.support.processes import eventually

SEED = 3
SIZE = 1_000
WINDOW = 1_024
SUBJECT_0 = f"{SUBJECT}.0"
TICK_S = 0.002
"""At high rates the publisher sends all that is due at once, so often."""


def cases(*, tiny: bool) -> Sequence[Case]:
    count = 5_000 if tiny else 1_000_000
    return [
        Case(
            name="catch-up-tiny" if tiny else "catch-up-1GB",
            metric="mb_s",
            unit="MB/s",
            parameters={"messages": count, "value_bytes": SIZE, "brokers": 3},
            open=lambda folder: _sides(folder, count, load_s=1.0 if tiny else 10.0),
            targets=(
                Target(of="mb_s", least=150.0),
                Target(of="liftlog-loaded:mb_s", least=150.0),
                Target(of="liftlog-loaded:p99_ratio", most=2.0),
            ),
        )
    ]


@contextmanager
def _sides(folder: Path, count: int, *, load_s: float) -> Iterator[Mapping[str, Side]]:
    def idle() -> Measures:
        with _filled(folder, count) as (place, _):
            copied = _copied(place, lambda: None)
            begun_s = time.monotonic()
            size = sum(_copied_file(file, folder / "copy") for file in _segments(place, place.brokers.leader(STREAM)))
            return {**copied, "of_cp": copied["mb_s"] * 1e6 * (time.monotonic() - begun_s) / size}

    def loaded() -> Measures:
        with _filled(folder, count) as (place, rate), ThreadPoolExecutor(1) as pool:
            before = _paced(place, rate / 2, load_s).percentile_ms(99)
            publishing: list[Future[Acked]] = []
            copied = _copied(place, lambda: publishing.append(pool.submit(_paced, place, rate / 2, load_s)))
            meanwhile = publishing[0].result().percentile_ms(99)
            return {**copied, "half_rate": rate / 2, "p99_ms": meanwhile, "p99_ratio": meanwhile / before}

    yield {"liftlog": idle, "liftlog-loaded": loaded}


@contextmanager
def _filled(folder: Path, count: int) -> Iterator[tuple[LiftlogCluster, float]]:
    """A cluster with two replicas of `count` messages, and how many of them it took a second."""
    with LiftlogCluster(folder, settings={"replication_factor": 2}, in_sync=2) as place:
        run = run_window(place.port, seed=SEED, size=SIZE, subject=SUBJECT_0, count=count, window=WINDOW)
        yield place, run.count / run.seconds


def _copied(place: LiftlogCluster, begin: Callable[[], None]) -> Measures:
    """`begin` is called when the third broker is a replica: the leader goes on in another epoch then, and refuses
    what is under way."""
    stored, before = place.stored(), place.brokers.state(STREAM)
    begun_s = time.monotonic()
    with place.brokers.client() as client:
        client.alter(STREAM, replication_factor=3)
    eventually(lambda: place.brokers.state(STREAM)["leader_epoch"] != before["leader_epoch"], what="a third replica")
    place.brokers.leader(STREAM)
    begin()
    place.brokers.in_sync(STREAM, 3)
    took_s = time.monotonic() - begun_s
    [copy] = {*place.brokers.brokers} - {*before["replicas"]}
    size = sum(file.stat().st_size for file in _segments(place, copy))
    return {"mb_s": size / took_s / 1e6, "seconds": took_s, "mb": size / 1e6, "lost": max(0, stored - place.stored())}


def _segments(place: LiftlogCluster, broker: str) -> list[Path]:
    return sorted((place.brokers.brokers[broker].folder / "data" / "streams" / STREAM).rglob("*.arrows"))


def _copied_file(file: Path, to: Path) -> int:
    """Copy it and have it on the disk. Returns its size."""
    shutil.copyfile(file, to)
    with to.open("rb") as copy:
        os.fsync(copy.fileno())
    size = to.stat().st_size
    to.unlink()
    return size


def _paced(place: LiftlogCluster, rate: float, seconds: float) -> Acked:
    return run_rate(
        place.port, seed=SEED, size=SIZE, subject=SUBJECT_0, count=int(rate * seconds), rate=rate, tick_s=TICK_S
    )
