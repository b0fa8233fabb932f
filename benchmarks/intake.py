"""Intake: plain NATS messages, published without waiting for anything, until they are counted where they end up.

Publishers are processes that send prepared PUB lines flat out. Ours counts offsets in the log through the HTTP API
(fsynced, as every stream is by default), JetStream what its stream holds (file storage, its default: no fsync), the
drain what a subscriber that only calls recv() was sent. `rate` is messages per second from the first byte published to
the last message counted. `disk` is how many values of that size a single writer gets to the disk per second, 1 MiB at a
time, each followed by fdatasync: what is fsynced cannot be faster, and a virtual disk may be several times slower where
it was never written before.

JetStream drops what it cannot take: its rate is what it stored per second. Ours is quoted only where nothing was lost:
if a flat-out turn loses messages, the turn is repeated ever slower until none is lost, and that rate is quoted
(`paced` is how often it was slowed down). The same holds for the drain.

`intake-ids`: the same messages with a `Nats-Msg-Id` each, all different, beside the plain ones (`plain`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.ours import Liftlog
from benchmarks.peers import Drain, JetStream, Place, write_to_disk
from benchmarks.proc import cpu_s, rss_peak_mib
from benchmarks.publisher import Publishers

SEED = 1
STILL_S = 3.0
"""Nothing more is counted for so long after the last publisher was done: the rest is lost."""
POLL_S = 0.02
SLOWER = 0.9
ATTEMPTS_MAX = 15
"""The last of them goes at a quarter of the rate."""


def cases(*, tiny: bool) -> Sequence[Case]:
    counts = {100: 20_000, 1024: 5_000} if tiny else {100: 6_000_000, 1024: 2_000_000}
    targets = {
        100: (Target(of="liftlog/jetstream", least=3.0), Target(of="liftlog/drain", least=0.6)),
        1024: (Target(of="liftlog/jetstream", least=2.0), Target(of="liftlog/drain", least=0.45)),
    }
    return [
        Case(
            name=f"intake-{size}B-{publishers}pub",
            metric="rate",
            unit="messages/s",
            parameters={"value_bytes": size, "publishers": publishers, "messages": counts[size], "seed": SEED},
            open=_opener(size, publishers, counts[size] // publishers),
            targets=targets[size],
        )
        for size in (100, 1024)
        for publishers in (1, 4)
        if not tiny or (size, publishers) in ((100, 1), (1024, 4))
    ] + [
        Case(
            name="intake-ids-100B-1pub",
            metric="rate",
            unit="messages/s",
            parameters={"value_bytes": 100, "publishers": 1, "messages": counts[100] // 2, "seed": SEED},
            open=_opener_with_ids(100, counts[100] // 2),
            targets=(Target(of="liftlog/plain", least=0.6),),
        )
    ]


def _opener(size: int, publishers: int, each: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        def jetstream() -> Measures:
            with JetStream(folder) as place:
                found = run_intake(place, publishers, size=size, count=each)
                return {**found, "server_cpu_s": cpu_s(place.pid), "server_rss_peak_mib": rss_peak_mib(place.pid)}

        yield {
            "liftlog": lambda: run_lossless(lambda: Liftlog(folder), publishers, size=size, count=each),
            "jetstream": jetstream,
            "drain": lambda: run_lossless(lambda: Drain(folder, size=size), publishers, size=size, count=each),
            "disk": lambda: write_to_disk(folder, size=size, count=publishers * each),
        }

    return open_sides


def _opener_with_ids(size: int, count: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        yield {
            "liftlog": lambda: run_lossless(lambda: Liftlog(folder), 1, size=size, count=count, ids=True),
            "plain": lambda: run_lossless(lambda: Liftlog(folder), 1, size=size, count=count),
        }

    return open_sides


def run_intake(
    place: Place,
    publishers: int,
    *,
    size: int,
    watch: Callable[[], None] = lambda: None,
    reports: list[dict[str, Any]] | None = None,
    **options: Any,
) -> Measures:
    """Publish, and follow the place's count until all is there or nothing more comes.

    Args:
        watch: Called at every look at the count.
        reports: Gets what each publisher reported.
        options: Each publisher's: `count`, `seconds`, `rate`, `ids`, `hash`; as `publisher.publish` takes them.
    Returns:
        rate (stored per second), published, stored, lost, seconds, published_rate (what the server took in per second).
    """
    before = place.stored()
    with Publishers(place.port, publishers, size=size, seed=SEED, **options) as sources:
        sources.go()
        stored, seen_s = 0, time.monotonic()
        while True:
            running = sources.running()
            now = place.stored() - before
            now_s = time.monotonic()
            if now != stored:
                stored, seen_s = now, now_s
            watch()
            if not running:
                break
            time.sleep(POLL_S)
        results = sources.results()
    published = sum(result["sent"] for result in results)
    still_since_s = now_s
    while stored < published and time.monotonic() - max(seen_s, still_since_s) < STILL_S:
        time.sleep(POLL_S)
        now = place.stored() - before
        if now != stored:
            stored, seen_s = now, time.monotonic()
        watch()
    if reports is not None:
        reports += results
    started_s = min(result["started_s"] for result in results)
    flushed_s = max(result["flushed_s"] for result in results)
    seconds = seen_s - started_s
    return {
        "rate": stored / seconds,
        "published": published,
        "stored": stored,
        "lost": published - stored,
        "seconds": seconds,
        "published_rate": published / (flushed_s - started_s),
    }


def run_lossless(place: Callable[[], Place], publishers: int, *, size: int, **options: Any) -> Measures:
    """`run_intake` flat out; while that loses messages, again in a fresh place: at what it stored, then ever slower.

    Returns:
        The measures of the last turn, and how often it was slowed down (`paced`); `lost` > 0 only if nothing helped.
    """
    rate: float | None = None
    for attempt in range(ATTEMPTS_MAX):
        with place() as target:
            found = run_intake(target, publishers, size=size, rate=rate, **options)
            if isinstance(target, Liftlog):
                found["server_cpu_s"] = cpu_s(target.pid)
                found["server_rss_peak_mib"] = rss_peak_mib(target.pid)
        found["paced"] = attempt
        if not found["lost"]:
            break
        print(f"    lost {found['lost']:,.0f} of {found['published']:,.0f}: again, slower", flush=True)
        rate = (rate or found["rate"] / publishers / SLOWER) * SLOWER
    return found
