"""Stock nats.go beside our raw sockets, where a Go toolchain and its modules are there; else skipped, and said so.

The program is go/main.go; it is built once per content into the user's cache folder.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.harness import Measures, Skipped
from benchmarks.peers import STREAM

SOURCE = Path(__file__).parent / "go"
BUILD_TIMEOUT_S = 300


def publish(port: int, *, subject: str, size: int, count: int, window: int) -> Measures:
    """`js.PublishAsync`, at most `window` acks outstanding. Raises Skipped without Go."""
    return _run(port, "publish", subject=subject, size=size, count=count, window=window)


def consume(port: int, *, count: int) -> Measures:
    """Read `count` messages of the JetStream stream by an ordered consumer. Raises Skipped without Go."""
    return _run(port, "consume", stream=STREAM, count=count)


def _run(port: int, what: str, **options: object) -> Measures:
    flags = [f"-{name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [program(), f"-url=nats://127.0.0.1:{port}", *flags, what], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise RuntimeError(f"nats.go {what}: {done.stderr.strip()}")
    found: Measures = json.loads(done.stdout)
    return found


@functools.cache
def program() -> str:
    """Build the program, or find what was built of the same sources before.

    Raises:
        Skipped: no Go, or it cannot build (no network for the modules, say).
    """
    go = shutil.which("go")
    if go is None:
        raise Skipped("no Go toolchain: nats.go is not measured")
    digest = hashlib.sha256()
    for source in sorted(SOURCE.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "liftlog"
    built = cache / f"bench-go-{digest.hexdigest()[:16]}"
    if not built.exists():
        cache.mkdir(parents=True, exist_ok=True)
        new = built.with_suffix(f".{os.getpid()}")
        try:
            subprocess.run(
                [go, "build", "-o", str(new), "."],
                cwd=SOURCE,
                check=True,
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT_S,
            )
        except subprocess.CalledProcessError as error:
            reason = error.stderr.strip().splitlines()[-1:] or ["no output"]
            raise Skipped(f"go build failed, nats.go is not measured: {reason[0]}") from error
        except subprocess.TimeoutExpired as error:
            raise Skipped(f"go build took over {BUILD_TIMEOUT_S} s, nats.go is not measured") from error
        new.rename(built)
    return str(built)
