"""Liftbridge: its own bench, unchanged, against liftlog and against Liftbridge.

BENCH_LIFTBRIDGE_HOME names a folder with Liftbridge's three programs, built from its source: `go build -o HOME .
./bench/producer ./bench/consumer`. All sides are skipped where it does not. Each server has a nats-server of its own
and one partition, and each run of the producer a new stream.

`publish`: one client sends so many messages, waits until all of them are acked, and sends the next. liftlog acks what
is on disk, Liftbridge what is in the page cache: it never calls fsync. `read`: one client subscribes from the
beginning.
`server_cpu_us` is what the server used of the processor for each message. Several clients at once are not measured:
the bench then stops in the middle, with Liftbridge too, and says so beforehand.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Measures, Side, Skipped, Target
from benchmarks.ours import Liftlog
from benchmarks.proc import cpu_s
from tests.support.processes import NatsServer, Process, eventually, free_port

HOME = "BENCH_LIFTBRIDGE_HOME"
PROGRAMS = ("liftbridge", "producer", "consumer")
VALUE_BYTES = 256
TIMEOUT_S = 120
SETTINGS = """host: 127.0.0.1
port: {port}
data.dir: {folder}
nats.servers: [{nats}]
clustering.raft.bootstrap.seed: true
telemetry.enabled: false
logging.level: error
"""


def cases(*, tiny: bool) -> Sequence[Case]:
    windows = {1: 200, 100: 2_000} if tiny else {1: 5_000, 100: 200_000, 5_000: 400_000}
    read = 2_000 if tiny else 400_000
    published = [
        Case(
            name=f"liftbridge-publish-{window}",
            metric="rate",
            unit="messages/s",
            parameters={"value_bytes": VALUE_BYTES, "messages": count, "window": window},
            open=partial(_open_sides, partial(_publish, count, window)),
            targets=(Target(of="liftlog/liftbridge", least=1.0),),
        )
        for window, count in windows.items()
    ]
    return [
        *published,
        Case(
            name="liftbridge-read",
            metric="rate",
            unit="messages/s",
            parameters={"value_bytes": VALUE_BYTES, "messages": read},
            open=partial(_open_sides, partial(_read, read)),
            targets=(Target(of="liftlog/liftbridge", least=1.0),),
        ),
    ]


class _Place:
    """A server that speaks Liftbridge's API, and the bench's programs.

    Attributes:
        pid: The server's.
    """

    def __init__(self, home: Path, port: int, pid: int) -> None:
        self.pid = pid
        self._home = home
        self._port = port
        self._numbers = itertools.count()
        self._filled = ""

    def is_ready(self) -> bool:
        """Whether it makes streams by now."""
        to = ("--servers", f"127.0.0.1:{self._port}", "--stream", "first", "--subject", "first")
        command = [str(self._home / "producer"), *to, "--messages", "1", "--create-stream", "--delete-stream"]
        return not subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False).returncode

    def publish(self, count: int, window: int) -> Measures:
        """To a new stream. Raises Skipped: not all was acked."""
        self._filled = stream = f"s{next(self._numbers)}"
        what = ("--subject", stream, "--messages", str(count), "--message-size", str(VALUE_BYTES), "--create-stream")
        found, used_s = self._run("producer", stream, count, *what, "--pub-batch", str(window))
        return {**_rate(found), "p50_ms": _ms(found["latency_p50"]), "p99_ms": _ms(found["latency_p99"]), **used_s}

    def read(self, count: int) -> Measures:
        """What was published last, from the beginning. Raises Skipped: not all came."""
        if not self._filled:
            self.publish(count, 1_000)
        found, used_s = self._run("consumer", self._filled, count, "--expected", str(count), "--duration", "60s")
        return {**_rate(found), **used_s}

    def _run(self, program: str, stream: str, count: int, *arguments: str) -> tuple[dict[str, Any], Measures]:
        before_s = cpu_s(self.pid)
        to = ("--servers", f"127.0.0.1:{self._port}", "--stream", stream)
        command = [str(self._home / program), *to, *arguments, "--output", "json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise Skipped(f"Liftbridge's {program} took over {TIMEOUT_S} s") from error
        at = done.stdout.rfind("\n{")
        found = json.loads(done.stdout[at:]) if at >= 0 else {}
        if found.get("total_messages") != count or found.get("errors"):
            print(f"{program}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}", flush=True)
            raise Skipped(f"Liftbridge's {program} came to {found.get('total_messages', 0)} of {count} messages")
        return found, {"server_cpu_us": 1e6 * (cpu_s(self.pid) - before_s) / count}


def _rate(found: Mapping[str, Any]) -> Measures:
    return {"rate": found["messages_per_second"], "seconds": found["total_messages"] / found["messages_per_second"]}


def _ms(text: str) -> float:
    """Of a duration as Go writes it, less than a minute."""
    for unit, factor in (("ns", 1e-6), ("µs", 1e-3), ("ms", 1.0), ("s", 1e3)):
        if text.endswith(unit) and text.removesuffix(unit).replace(".", "", 1).isdigit():
            return float(text.removesuffix(unit)) * factor
    raise Skipped(f"Liftbridge's bench says {text!r} for a latency")


def _publish(count: int, window: int, place: _Place) -> Measures:
    return place.publish(count, window)


def _read(count: int, place: _Place) -> Measures:
    return place.read(count)


@contextmanager
def _open_sides(turn: Callable[[_Place], Measures], folder: Path) -> Iterator[Mapping[str, Side]]:
    home = os.environ.get(HOME)
    if home is None or not all(os.access(Path(home) / program, os.X_OK) for program in PROGRAMS):
        reason = f"{HOME} names no programs of Liftbridge"
        yield {"liftlog": partial(_skipped, reason), "liftbridge": partial(_skipped, reason)}
        return
    port = free_port()
    with (
        Liftlog(folder, env={"LIFTLOG_LIFTBRIDGE_LISTEN": f"127.0.0.1:{port}"}) as ours,
        _running(Path(home), folder) as theirs,
    ):
        yield {
            "liftlog": partial(turn, _Place(Path(home), port, ours.pid)),
            "liftbridge": partial(turn, theirs),
        }


def _skipped(reason: str) -> Measures:
    raise Skipped(reason)


@contextmanager
def _running(home: Path, folder: Path) -> Iterator[_Place]:
    """Liftbridge, with all settings that it comes with but for where it listens."""
    with ExitStack() as stack:
        nats = NatsServer(folder / "liftbridge-nats").start()
        stack.callback(nats.stop)
        port, file = free_port(), folder / "liftbridge.yaml"
        file.write_text(SETTINGS.format(port=port, folder=folder / "liftbridge", nats=nats.url))
        server = Process([str(home / "liftbridge"), "--config", str(file)], folder / "liftbridge.log")
        stack.callback(_stop, server)
        place = _Place(home, port, server.popen.pid)
        eventually(lambda: _listens(port) and place.is_ready(), timeout_s=60, what="Liftbridge has a leader")
        yield place


def _stop(server: Process) -> None:
    server.popen.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        server.popen.wait(30)
    server.kill9()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
