"""The stacks of processes that make no progress: of all of their threads, Java's and Python's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def descendants(pid: int, command: str = "") -> list[int]:
    """Processes below this one whose command line names something."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        queue += children
        found += [child for child in children if command in _command(child)]
    return found


def stacks(pids: list[int]) -> str:
    """The stacks of each process that is still there. A Java without jstack writes its stacks to its own output
    instead."""
    beside = Path(sys.executable).parent / "py-spy"
    py_spy = str(beside) if beside.exists() else shutil.which("py-spy")
    told = []
    for pid in pids:
        command = _command(pid)
        if "java" in command.split(" ")[0]:
            jstack = shutil.which("jstack")
            if jstack is None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGQUIT)
                continue
            told.append(_output(pid, command, [jstack, str(pid)]))
        elif "python" in command and py_spy is not None:
            told.append(_output(pid, command, [py_spy, "dump", "--pid", str(pid)]))
    return "\n".join(told)


def _output(pid: int, command: str, dump: list[str]) -> str:
    try:
        done = subprocess.run(dump, capture_output=True, timeout=60)
        text = (done.stdout + done.stderr).decode(errors="replace")
    except subprocess.TimeoutExpired:
        text = f"{dump[0]} did not answer"
    return f"=== {pid} {command[:200]} … {command[-200:]}\n{text}"


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    return ""
