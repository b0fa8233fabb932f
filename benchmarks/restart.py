"""Restart: from the start of the process to `/readyz`, with a gibibyte of log.

`liftlog` was stopped by SIGTERM; `liftlog-killed` by kill -9 in the middle of intake, so that it must look for the end
of its log. Both include the start of Python itself; both check that no record that consumers could read is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.intake import run_intake
from benchmarks.ours import Liftlog
from benchmarks.publisher import Publishers
from tests.support.processes import eventually

SIZE = 100
RECORD_BYTES = 150
"""About what a record of SIZE takes in the log."""


def cases(*, tiny: bool) -> Sequence[Case]:
    log_bytes = 4 << 20 if tiny else 1 << 30
    return [
        Case(
            name="restart-tiny" if tiny else "restart-1GiB",
            metric="start_s",
            unit="s",
            parameters={"log_bytes": log_bytes, "value_bytes": SIZE},
            open=_opener(log_bytes),
            targets=(Target(of="start_s", most=2.0), Target(of="liftlog-killed:start_s", most=2.0)),
        )
    ]


def _opener(log_bytes: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        with Liftlog(folder) as place:
            run_intake(place, 1, size=SIZE, count=log_bytes // RECORD_BYTES)

            def started(before: int) -> Measures:
                started_s = time.monotonic()
                place.broker.start()
                return {
                    "start_s": time.monotonic() - started_s,
                    "records": place.stored(),
                    "lost": max(0, before - place.stored()),
                }

            def clean() -> Measures:
                before = place.stored()
                place.broker.stop()
                return started(before)

            def killed() -> Measures:
                at_first = place.stored()
                with Publishers(place.port, 1, size=SIZE, seconds=60.0, rate=200_000.0) as sources:
                    sources.go()
                    before = eventually(lambda: stored if (stored := place.stored()) > at_first else 0)
                    place.broker.kill9()
                return started(before)

            yield {"liftlog": clean, "liftlog-killed": killed}

    return open_sides
