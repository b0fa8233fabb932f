"""The foreground of `up`: shows what the processes write, and stops them in order.

The processes write to files; this follows the files and puts the name of the process before each
line. So they live on, whole, should this one be killed; `up` then finds them, `down` stops them.

S1  Brokers stop before NATS: the last acks still reach their publishers.
S2  If one ends by itself, the others are stopped and the command fails.
S3  A second Ctrl-C kills what has not ended yet.
S4  When stderr is gone (`liftlog up 2>&1 | head`) nobody looks any more: that is a Ctrl-C, and the rest is silent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

from broker.api.errors import DeadlineExceeded, LiftlogError
from broker.cli.local.datafolder import Record, UpFolder
from broker.cli.local.processes import Process
from broker.cli.output import note, printable

POLL_INTERVAL_S: Final = 0.1
STOP_TIMEOUT_S: Final = 30.0
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def supervise(folder: UpFolder, record: Record, processes: list[Process]) -> None:
    """Show logs until Ctrl-C, SIGTERM or SIGHUP, or until a process ends; then stop all.

    Raises:
        LiftlogError: a process ended by itself.
        DeadlineExceeded: one had to be killed.
    """
    logs = [ShownLog(process) for process in processes]
    asked = threading.Event()
    with _signals_set(asked):
        ended = None
        while not asked.is_set() and ended is None:
            asked.wait(POLL_INTERVAL_S)
            if sum(log.show() for log in logs) < len(logs):  # all of them are shown
                asked.set()
            ended = next((process for process in processes if process.has_ended()), None)
        asked.clear()
        if ended is None:
            with contextlib.suppress(OSError):
                note("stopping")
        killed = _stop(processes, logs, asked)
    folder.forget(record)
    if ended is not None:
        raise LiftlogError(
            f"{ended.name} {ended.ending()}; stopped the others. Its log: {ended.log}", process=ended.name
        )
    if killed:
        raise DeadlineExceeded(f"killed, after {STOP_TIMEOUT_S:g} s: {', '.join(killed)}", processes=killed)


def _stop(processes: list[Process], logs: list[ShownLog], hurry: threading.Event) -> list[str]:
    """Stop brokers, then NATS (S1); return the names of those that had to be killed."""
    killed = []
    for process in reversed(processes):
        process.send(signal.SIGTERM)
        waited_s = 0.0
        while not process.has_ended() and waited_s < STOP_TIMEOUT_S and not hurry.is_set():
            process.wait(POLL_INTERVAL_S)
            waited_s += POLL_INTERVAL_S
            for log in logs:
                log.show()
        if not process.has_ended():
            killed.append(process.name)
            process.stop(timeout_s=STOP_TIMEOUT_S, force=True)
        for log in logs:
            log.show()
    return killed


class ShownLog:
    """Shows on stderr what a process appends to its log, line by line."""

    def __init__(self, process: Process) -> None:
        self._prefix = f"{process.name:<8} | "
        self._path = process.log
        self._position = process.log_position
        self._rest = b""

    def show(self) -> bool:
        """Show what is new; False: stderr takes nothing any more (S4)."""
        with open(self._path, "rb") as file:
            file.seek(self._position)
            data = file.read()
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            for line in lines:
                sys.stderr.write(self._prefix + printable(line.decode(errors="replace").replace("\t", "    ")) + "\n")
            if lines:
                sys.stderr.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            return False
        return True


@contextlib.contextmanager
def _signals_set(event: threading.Event) -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        event.set()

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
