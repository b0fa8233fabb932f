"""A metadata plane in a process of its own, which is told what to do line by line; and the side that tells it.

stdin   {"number", "call": execute | status | has_session | read | stop, "command"}     one JSON object a line
stdout  {"number", "ok" or "error"}; {"event": "ready"}, {"event": "halted"}
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from broker.api.errors import LiftlogError, from_problem

ROOT = Path(__file__).parents[2]


def main(settings: dict[str, Any]) -> None:
    """The process."""
    from broker.control.identity import Identity
    from broker.control.plane import Addresses, Plane
    from broker.storage.disk import OsDisk

    lock = threading.Lock()

    def say(value: dict[str, Any]) -> None:
        with lock:
            sys.stdout.write(json.dumps(value) + "\n")
            sys.stdout.flush()

    def halt(why: str) -> None:
        say({"event": "halted", "why": why})
        os._exit(70)

    identity = Identity(**{**settings["identity"], "named": tuple(map(tuple, settings["identity"]["named"]))})
    plane = Plane(identity, disk=OsDisk(), folder=settings["folder"], halt=halt)
    plane.start()
    plane.register(Addresses(http=f"{identity.broker_id}:1", grpc=f"{identity.broker_id}:2"))
    say({"event": "ready"})
    pool = ThreadPoolExecutor(32)

    def serve(asked: dict[str, Any]) -> None:
        calls = {
            "execute": lambda: plane.service.execute(asked["command"], timeout_s=asked["timeout_s"]),
            "read": lambda: sorted(plane.service.read(timeout_s=asked["timeout_s"]).producers),
            "status": lambda: plane.status(timeout_s=asked["timeout_s"]),
            "has_session": plane.has_session,
        }
        try:
            say({"number": asked["number"], "ok": calls[asked["call"]]()})
        except LiftlogError as error:
            say({"number": asked["number"], "error": error.to_problem()})

    for line in sys.stdin:
        asked = json.loads(line)
        if asked["call"] == "stop":
            plane.hand_over()
            plane.stop()
            os._exit(0)
        pool.submit(serve, asked)


class PlaneProcess:
    """Starts one, and tells it what to do from any thread."""

    def __init__(self, identity: dict[str, Any], folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self.is_ready = threading.Event()
        self.why = ""
        self.errors = (folder.parent / f"{folder.name}.err").open("ab")
        settings = json.dumps({"identity": identity, "folder": str(folder)})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.plane_process", settings],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if said.get("event") == "ready":
                self.is_ready.set()
            elif "event" in said:
                self.why = said["why"]
            elif "error" in said:
                self._waiting.pop(said["number"]).set_exception(from_problem(said["error"]))
            else:
                self._waiting.pop(said["number"]).set_result(said["ok"])
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(ConnectionError("the process is gone"))

    def ask(self, call: str, command: dict[str, Any] | None = None, *, timeout_s: float = 30.0) -> Future[Any]:
        """Have it make a call."""
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
        asked = {"number": number, "call": call, "command": command, "timeout_s": timeout_s}
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(asked).encode() + b"\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            if self._waiting.pop(number, None) is not None:
                future.set_exception(ConnectionError("the process is gone"))
        return future

    def ready(self) -> PlaneProcess:
        """Wait until it is registered."""
        deadline = time.monotonic() + 60
        while not self.is_ready.wait(0.1):
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.errors.name}"
            assert time.monotonic() < deadline, f"not ready within a minute: {self.errors.name}"
        return self

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """As a power switch would; returns when it is gone."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.wait()
        self._thread.join()
        self.errors.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
