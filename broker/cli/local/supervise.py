"""The foreground of `up`: shows what the processes write, and stops them in order.

The processes write to files; this follows the files and puts the name of the process before each
line. So they live on, whole, should this one be killed; `up` then finds them, `down` stops them.

S1  Brokers stop before NATS: the last acks still reach their publishers.
S2  If one ends by itself, the others are stopped and the command fails, with its name. With several brokers each is
    started again (`reviving.py`), whether others are left or none; only the end of NATS ends the command then.
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
from broker.api.plain import printable
from broker.cli.local.datafolder import Record, UpFolder
from broker.cli.local.processes import Process
from broker.cli.local.reviving import Health, Restart, Revival
from broker.cli.output import note

POLL_INTERVAL_S: Final = 0.1
STOP_TIMEOUT_S: Final = 30.0
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def supervise(folder: UpFolder, record: Record, processes: list[Process], *, restart: Restart | None = None) -> None:
    """Show logs until Ctrl-C, SIGTERM or SIGHUP, or until a process ends; then stop all.

    Args:
        restart: Starts one of several brokers again; None: there is one. `processes` and `record.processes` are kept up
            to date.
    Raises:
        LiftlogError: a process ended by itself.
        DeadlineExceeded: one had to be killed.
    """
    logs = [ShownLog(process) for process in processes]
    asked = threading.Event()
    health = Health(record.all_http) if restart is not None else None
    revival = Revival(restart, _tell) if restart is not None else None
    if health is not None:
        health.start()
    with _signals_set(asked):
        ended = None
        while not asked.is_set() and ended is None:
            asked.wait(POLL_INTERVAL_S)
            if sum(log.show() for log in logs) < len(logs):  # all of them are shown
                asked.set()
            ended = _ended(processes, revives=revival is not None)
            if ended is None and revival is not None and not asked.is_set():
                _revive(revival, folder, record, processes, logs)
            if health is not None and (line := health.news()) is not None and not _tell(line):
                asked.set()
        asked.clear()
        if health is not None:
            health.stop()
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


def _tell(line: str) -> bool:
    """Write of the cluster between the lines of the processes; False: stderr takes nothing any more (S4)."""
    try:
        note(f"{'cluster':<8} | {line}")
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        return False
    return True


def _is_broker(process: Process) -> bool:
    return process.name.startswith("broker-")


def _ended(processes: list[Process], *, revives: bool) -> Process | None:
    """The process without which it does not go on (S2)."""
    return next((each for each in processes if each.has_ended() and not (revives and _is_broker(each))), None)


def _revive(revival: Revival, folder: UpFolder, record: Record, processes: list[Process], logs: list[ShownLog]) -> None:
    others_left = any(_is_broker(process) and not process.has_ended() for process in processes)
    for at, process in enumerate(processes):
        found = revival.look(process, others_left=others_left) if _is_broker(process) else process
        if found is not process:
            logs[at].show()
            processes[at], logs[at] = found, ShownLog(found)
            record.processes[found.name] = found.identity
            try:
                folder.save(record)
            except LiftlogError as error:  # the disk is full: it runs all the same, and is stopped with the others
                _tell(f"{found.name} is not in the record: {error}")


def _stop(processes: list[Process], logs: list[ShownLog], hurry: threading.Event) -> list[str]:
    """Stop brokers, then NATS (S1); return the names of those that had to be killed."""
    killed = []
    for process in processes[1:]:  # brokers: those of a cluster need not wait for each other
        process.send(signal.SIGTERM)
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
