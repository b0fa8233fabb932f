"""Integrity: intake for half a minute at 80 % of the rate that was just reached loses and changes nothing.

First a flat-out turn as in the intake benchmark; then a fresh broker takes paced publishers for the whole time.
Afterwards the log is read by the client and compared with what the publishers sent: the count, and for each publisher
the SHA-256 over its values in order. All values differ, so equal hashes mean none lost, none twice, none out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.intake import run_intake, run_lossless
from benchmarks.ours import Liftlog
from benchmarks.payload import ValueHashes
from benchmarks.peers import STREAM
from broker.client.client import connect

SHARE = 0.8


def cases(*, tiny: bool) -> Sequence[Case]:
    seconds = 0.5 if tiny else 30.0
    return [
        Case(
            name=f"integrity-{size}B-{publishers}pub",
            metric="rate",
            unit="messages/s",
            parameters={"value_bytes": size, "publishers": publishers, "seconds": seconds, "share_of_reached": SHARE},
            open=_opener(size, publishers, seconds, probe=(20_000 if tiny else 400_000_000 // size) // publishers),
            targets=(Target(of="lost", most=0), Target(of="equal", least=1)),
            repeats_max=1,
        )
        for size, publishers in (((100, 4),) if tiny else ((100, 1), (100, 4), (1024, 1)))
    ]


def _opener(size: int, publishers: int, seconds: float, probe: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        def turn() -> Measures:
            reached = run_lossless(lambda: Liftlog(folder), publishers, size=size, count=probe)["rate"]
            with Liftlog(folder) as place:
                reports: list[dict[str, Any]] = []
                rate = SHARE * reached / publishers
                found = run_intake(place, publishers, size=size, reports=reports, seconds=seconds, rate=rate, hash=True)
                found["equal"] = int(hashes(place.address, publishers, size) == [r["sha256"] for r in reports])
                found["reached_rate"] = reached
                return found

        yield {"liftlog": turn}

    return open_sides


def hashes(address: str, publishers: int, size: int) -> list[str]:
    """Per publisher, the hash over its values in the log, in order of offsets."""
    found = ValueHashes(publishers, size)
    with connect(address) as client:
        for batch in client.read(STREAM, columns=["value"]):
            found.update(batch.column("value"))
    return found.hexdigests()
