"""Memory: the broker's resident memory while intake runs flat out for a minute.

Retention keeps the log small, as its sealed segments are no part of the question; what is counted are offsets.
`rss_mib` is the greatest resident memory that the kernel has seen of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.intake import run_intake
from benchmarks.ours import Liftlog
from benchmarks.proc import cpu_s, rss_mib, rss_peak_mib

RETENTION_BYTES = 2 << 30


def cases(*, tiny: bool) -> Sequence[Case]:
    seconds = 0.5 if tiny else 60.0
    return [
        Case(
            name=f"memory-{size}B-{publishers}pub",
            metric="rss_mib",
            unit="MiB",
            parameters={"value_bytes": size, "publishers": publishers, "seconds": seconds},
            open=_opener(size, publishers, seconds),
            targets=(Target(of="rss_mib", most=400),),
            repeats_max=1,
        )
        for size, publishers in (((1024, 4),) if tiny else ((100, 1), (1024, 4)))
    ]


def _opener(size: int, publishers: int, seconds: float) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        def turn() -> Measures:
            with Liftlog(folder, settings={"retention_bytes": RETENTION_BYTES}) as place:
                idle_mib = rss_mib(place.pid)
                found = run_intake(place, publishers, size=size, seconds=seconds)
                return {
                    "rss_mib": rss_peak_mib(place.pid),
                    "rss_idle_mib": idle_mib,
                    "server_cpu_s": cpu_s(place.pid),
                    **found,
                }

        yield {"liftlog": turn}

    return open_sides
