"""Idle: the cost of a broker with a hundred streams when nothing is published.

`cpu_percent` of one core, over a while that begins once the work of creating the streams has died down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.ours import Liftlog
from benchmarks.proc import cpu_s, rss_mib

SETTLE_S = 3.0


def cases(*, tiny: bool) -> Sequence[Case]:
    streams = 5 if tiny else 100
    seconds = 0.5 if tiny else 30.0
    return [
        Case(
            name=f"idle-{streams}streams",
            metric="cpu_percent",
            unit="% of a core",
            parameters={"streams": streams, "seconds": seconds},
            open=_opener(streams, seconds, settle_s=0.2 if tiny else SETTLE_S),
            targets=(Target(of="cpu_percent", most=2.0),),
            repeats_max=3,
        )
    ]


def _opener(streams: int, seconds: float, settle_s: float) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        with Liftlog(folder) as place:
            for number in range(streams - 1):  # and `bench`
                place.create_stream(f"idle-{number}", subject=f"idle.{number}.>")
            time.sleep(settle_s)

            def turn() -> Measures:
                used_s, started_s = cpu_s(place.pid), time.monotonic()
                time.sleep(seconds)
                used_s, passed_s = cpu_s(place.pid) - used_s, time.monotonic() - started_s
                process = Path(f"/proc/{place.pid}")
                return {
                    "cpu_percent": 100 * used_s / passed_s,
                    "rss_mib": rss_mib(place.pid),
                    "open_files": len(list((process / "fd").iterdir())),
                    "threads": len(list((process / "task").iterdir())),
                }

            yield {"liftlog": turn}

    return open_sides
