"""Encrypted: what `encryption = "aes-256-gcm"` costs, beside the same stream without it (`plain`).

`intake`: one publisher flat out, as in the intake benchmark. `fetch`: a client reads all of it from the page cache.
`one`: one message in flight, each waits for its ack. One broker.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.acked import SUBJECT_0
from benchmarks.fetch import read_all
from benchmarks.harness import Case, Measures, Side
from benchmarks.intake import run_intake, run_lossless
from benchmarks.ours import Liftlog
from benchmarks.window import run_window

SEED = 11
SIDES: Mapping[str, Mapping[str, Any]] = {"liftlog": {"encryption": "aes-256-gcm"}, "plain": {}}


def cases(*, tiny: bool) -> Sequence[Case]:
    records = {100: 20_000, 1024: 5_000} if tiny else {100: 8_000_000, 1024: 1_500_000}
    awaited = 200 if tiny else 20_000
    sizes = [1024] if tiny else [100, 1024]
    return [
        *(
            Case(
                name=f"encrypted-intake-{size}B",
                metric="rate",
                unit="messages/s",
                parameters={"value_bytes": size, "messages": records[size], "seed": SEED},
                open=_intake(size, records[size]),
            )
            for size in sizes
        ),
        *(
            Case(
                name=f"encrypted-fetch-{size}B",
                metric="rate",
                unit="records/s",
                parameters={"value_bytes": size, "records": records[size], "seed": SEED},
                open=_fetch(size, records[size]),
            )
            for size in sizes
        ),
        Case(
            name="encrypted-one-100B",
            metric="p50_ms",
            unit="ms",
            parameters={"value_bytes": 100, "messages": awaited, "window": 1, "seed": SEED},
            open=_one(awaited),
        ),
    ]


def place(folder: Path, side: str) -> Liftlog:
    """A broker with such a stream."""
    key = base64.b64encode(bytes(range(32))).decode()
    return Liftlog(folder, settings=SIDES[side], env={"LIFTLOG_ENCRYPTION_KEY_COMMAND": f"echo,{key}"})


def _intake(size: int, count: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        def turn(side: str) -> Measures:
            return run_lossless(lambda: place(folder, side), 1, size=size, count=count)

        yield {"liftlog": lambda: turn("liftlog"), "plain": lambda: turn("plain")}

    return open_sides


def _fetch(size: int, count: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        with place(folder, "liftlog") as ours, place(folder, "plain") as plain:
            stored = [int(run_intake(each, 1, size=size, count=count)["stored"]) for each in (ours, plain)]
            read_all(ours, 1)  # the first read loads modules
            read_all(plain, 1)
            yield {"liftlog": lambda: read_all(ours, stored[0]), "plain": lambda: read_all(plain, stored[1])}

    return open_sides


def _one(count: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        def turn(side: str) -> Measures:
            with place(folder, side) as of:
                run = run_window(of.port, seed=SEED, size=100, subject=SUBJECT_0, count=count, window=1)
            return {f"p{share}_ms": run.percentile_ms(share) for share in (50, 99)}

        yield {"liftlog": lambda: turn("liftlog"), "plain": lambda: turn("plain")}

    return open_sides
