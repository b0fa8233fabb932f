"""Publisher processes: prepared PUB lines through a socket, as fast as it takes them or at a rate.

    python -m benchmarks.publisher '{"port": 4222, "size": 100, "count": 1000000, ...}'

says `ready` on stdout, waits for a line on stdin, publishes, waits for the server's PONG (everything is
taken in) and prints one JSON line. `Publishers` runs several of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.payload import Messages
from benchmarks.wire import Wire

ROOT = Path(__file__).parent.parent
NEVER = 1 << 62


def publish(
    wire: Wire, messages: Messages, *, count: int = NEVER, seconds: float = 1e9, rate: float | None = None
) -> dict[str, Any]:
    """Publish `count` messages, or until `seconds` have passed, whichever is first.

    Args:
        rate: Messages per second; what is due is sent about every millisecond. None: flat out.
    Returns:
        sent, and when (CLOCK_MONOTONIC, the same for all processes): started_s, sent_s (the last byte was
        handed to the kernel), flushed_s (the server has taken it in).
    """
    send = wire.socket.sendall
    width = messages.width
    sent = 0
    block, block_number = messages.block(0), 0
    started_s = time.monotonic()
    deadline_s = started_s + seconds
    while sent < count:
        now_s = time.monotonic()
        if now_s >= deadline_s:
            break
        row = sent % messages.rows
        if (number := sent // messages.rows) != block_number:
            block, block_number = messages.block(number), number
        due = NEVER if rate is None else int((now_s - started_s) * rate) + 1 - sent
        if due <= 0:
            time.sleep(min(max(0.001, -due / rate), deadline_s - now_s))  # type: ignore[operator]
            continue
        rows = min(due, messages.rows - row, count - sent)
        send(block[row * width : (row + rows) * width])
        sent += rows
        if rate is not None and rows == due:
            time.sleep(0.0005)
    sent_s = time.monotonic()
    wire.flush()
    return {"sent": sent, "started_s": started_s, "sent_s": sent_s, "flushed_s": time.monotonic()}


class Publishers:
    """Several publisher processes of one run, started together; a context manager that leaves none behind."""

    def __init__(
        self, port: int, publishers: int, *, size: int, subject: str = "bench", seed: int = 1, **options: Any
    ) -> None:
        """`options` as `publish` takes them (`count` and `rate` of *each*), `ids`, and `hash`: also report SHA-256."""
        self._commands = [
            json.dumps(
                {"port": port, "size": size, "seed": seed, "publisher": n, "subject": f"{subject}.{n}", **options}
            )
            for n in range(publishers)
        ]
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Publishers:
        for command in self._commands:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.publisher", command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                )
            )
        for process in self._processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                self.__exit__()
                raise RuntimeError("a publisher did not start; its error is above")
        return self

    def go(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def running(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def results(self) -> Sequence[dict[str, Any]]:
        """Wait for all; what each of them reports."""
        found = []
        for process in self._processes:
            output, _ = process.communicate()
            if process.returncode:
                raise RuntimeError("a publisher failed; its error is above")
            found.append(json.loads(output))
        return found

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def main(argument: str) -> None:
    options = json.loads(argument)
    wants_hash = options.pop("hash", False)
    messages = Messages(
        seed=options.pop("seed"),
        publisher=options.pop("publisher"),
        size=options.pop("size"),
        subject=options.pop("subject"),
        ids=options.pop("ids", False),
    )
    with Wire(options.pop("port")) as wire:
        print("ready", flush=True)
        sys.stdin.readline()
        result = publish(wire, messages, **options)
    if wants_hash:
        result["sha256"] = messages.hash(result["sent"])
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
