"""Operations of clients, written down as they begin and end. The form is that of `ops.py`. Thread-safe."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Recorder:
    """Writes a history to a file. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._began_ns = time.monotonic_ns()
        self._processes = 0
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._file.close()

    def process(self) -> Process:
        """Another client, which does one thing after the other."""
        with self._lock:
            self._processes += 1
            return Process(self, self._processes - 1)

    def note(self, process: int, kind: str, f: str, value: Any, error: str | None = None) -> None:
        line = {"type": kind, "process": process, "f": f, "value": value}
        if error is not None:
            line["error"] = error
        with self._lock:
            if self._file.closed:  # the run is over, and this client was told so
                return
            self._file.write(json.dumps({"index": self.count, **line, "time": time.monotonic_ns() - self._began_ns}))
            self._file.write("\n")
            self.count += 1


class Process:
    """One client. Each `begin` is followed by one of `ok`, `fail` and `info`."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder = recorder
        self.number = number
        self._f = ""
        self._value: Any = None

    def begin(self, f: str, value: Any) -> None:
        self._f, self._value = f, value
        self._recorder.note(self.number, "invoke", f, value)

    def ok(self, value: Any) -> None:
        """It was done, with this outcome."""
        self._recorder.note(self.number, "ok", self._f, value)

    def fail(self, why: str) -> None:
        """It was surely not done."""
        self._recorder.note(self.number, "fail", self._f, self._value, why)

    def info(self, why: str) -> None:
        """Nobody knows whether it was done."""
        self._recorder.note(self.number, "info", self._f, self._value, why)

    def assign(self, keys: list[int]) -> None:
        """It polls these keys from now on."""
        self.begin("assign", keys)
        self.ok(keys)
