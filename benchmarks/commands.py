"""Commands: how long a person waits for `liftlog stream list` and for `liftlog --help`.

Each side is a process from its start to its end, the best of some runs (others only say what else the machine did);
`python` is `python -c pass`, the least that any command written in Python takes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.ours import Liftlog

COMMAND = "from broker.cli.start import main; main()"


def cases(*, tiny: bool) -> Sequence[Case]:
    runs = 1 if tiny else 20
    return [
        Case(
            name="commands-tiny" if tiny else "commands",
            metric="ms",
            unit="ms",
            parameters={"runs": runs},
            open=_opener(runs),
            targets=(Target(of="ms", most=250.0), Target(of="help:ms", most=120.0)),
        )
    ]


def _opener(runs: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        with Liftlog(folder) as place:
            environment = {name: value for name, value in os.environ.items() if not name.startswith("LIFTLOG_")}
            environment["LIFTLOG_BROKERS"] = place.broker.address

            def side(code: str, *arguments: str) -> Side:
                def turn() -> Measures:
                    walls_s, cpus_s = [], []
                    for _ in range(runs):
                        started_s, used_s = time.perf_counter(), _children_cpu_s()
                        command = [sys.executable, "-c", code, *arguments]
                        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
                        walls_s.append(time.perf_counter() - started_s)
                        cpus_s.append(_children_cpu_s() - used_s)
                    return {"ms": 1000 * min(walls_s), "cpu_ms": 1000 * min(cpus_s)}

                return turn

            yield {
                "liftlog": side(COMMAND, "stream", "list"),
                "help": side(COMMAND, "--help"),
                "python": side("pass"),
            }

    return open_sides


def _children_cpu_s() -> float:
    """CPU time of children that have ended, in seconds."""
    times = os.times()
    return times.children_user + times.children_system
