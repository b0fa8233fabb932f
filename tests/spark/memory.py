"""What processes hold: open files and sockets, threads, memory; now, and at most since it was asked to begin anew."""

from __future__ import annotations

import os
from pathlib import Path

KIB = 1024
MIB = 1024 * KIB


def held(pid: int) -> dict[str, int]:
    """Of a process now, and the most memory that it had. Bytes are those in memory (resident)."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "handles": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "bytes": int(status["VmRSS"].split()[0]) * KIB,
        "bytes_max": int(status["VmHWM"].split()[0]) * KIB,
    }


def begin_anew(pid: int) -> None:
    """From now on the most memory counts that it has from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def what(pid: int) -> str:
    """A Python process by what Spark started it for."""
    words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    return words.partition(" -m ")[2]
