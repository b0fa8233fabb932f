"""Processor time and memory of a process, from /proc."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of a process and its threads so far, in seconds; steps of 10 ms."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split(" ")
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def rss_mib(pid: int) -> float:
    """Resident memory now, in MiB."""
    return _status_kib(pid, "VmRSS") / 1024


def rss_peak_mib(pid: int) -> float:
    """The greatest resident memory so far, in MiB."""
    return _status_kib(pid, "VmHWM") / 1024


def _status_kib(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise ValueError(f"/proc/{pid}/status has no {name}")


@contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """A new folder in `folder`, removed with the block: dirty pages of one turn do not reach the next one's disk."""
    found = Path(tempfile.mkdtemp(dir=folder))
    try:
        yield found
    finally:
        shutil.rmtree(found, ignore_errors=True)
