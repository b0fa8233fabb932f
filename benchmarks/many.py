"""Many: ten thousand idle partitions, and a thousand streams with one message a second each, on one broker.

`many-idle`: `cpu_percent` of one core while nothing happens, and what creating, killing and starting them takes.
`many-trickle`: every message is stored at once by itself, as nobody sends two; JetStream has as many streams of its
own. Ours is fsynced before it counts as stored, JetStream's is not. Each stream has a message before the clock starts.
`many-burst`: one message to each of a thousand streams at once, until the last ack. JetStream acks
before it fsyncs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.ours import Liftlog
from benchmarks.peers import JetStream
from benchmarks.proc import cpu_s, rss_mib
from benchmarks.window import AckCounter
from benchmarks.wire import Wire
from tests.support.processes import eventually

SUBJECT = "many"
VALUE = b"x" * 100
STEP_S = 0.01


def cases(*, tiny: bool) -> Sequence[Case]:
    streams, each = (3, 4) if tiny else (100, 100)
    trickling = 10 if tiny else 1_000
    seconds = 0.5 if tiny else 30.0
    return [
        Case(
            name="many-idle",
            metric="cpu_percent",
            unit="% of a core",
            parameters={"streams": streams, "partitions": streams * each, "seconds": seconds},
            open=_idle(streams, each, seconds, settle_s=0.2 if tiny else 3.0),
            targets=(
                Target(of="cpu_percent", most=5.0),
                Target(of="rss_mib", most=1024),
                Target(of="start_killed_s", most=5.0),
            ),
            repeats_max=1,
        ),
        Case(
            name="many-trickle",
            metric="cpu_percent",
            unit="% of a core",
            parameters={"streams": trickling, "messages_per_s": trickling, "seconds": seconds},
            open=_trickle(trickling, seconds),
            repeats_max=1,
        ),
        Case(
            name="many-burst",
            metric="burst_ms",
            unit="ms until the last ack",
            parameters={"streams": trickling, "bursts": 3 if tiny else 40},
            open=_burst(trickling, 3 if tiny else 40),
        ),
    ]


def _idle(streams: int, each: int, seconds: float, settle_s: float) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        def turn() -> Measures:
            with Liftlog(folder) as place:
                begun, before_s = time.monotonic(), cpu_s(place.pid)
                for number in range(streams):
                    place.create_stream(f"idle-{number}", subject=f"idle.{number}", partitions=each)
                found = {"create_s": time.monotonic() - begun, "create_cpu_s": cpu_s(place.pid) - before_s}
                for path, name in (("/metrics", "metrics_s"), ("/v1/streams", "list_s"), ("/v1/watch", "watch_s")):
                    begun = time.monotonic()
                    place.broker.get(path)
                    found[name] = time.monotonic() - begun
                place.broker.kill9()
                begun = time.monotonic()
                place.broker.start()
                found["start_killed_s"] = time.monotonic() - begun
                time.sleep(settle_s)
                return {**found, **_watched(place.pid, seconds)}

        yield {"liftlog": turn}

    return open_sides


def _watched(pid: int, seconds: float, act: Callable[[float], None] = time.sleep) -> Measures:
    """Measure what a process uses while `act` runs."""
    used_s, started_s = cpu_s(pid), time.monotonic()
    act(seconds)
    used_s, passed_s = cpu_s(pid) - used_s, time.monotonic() - started_s
    process = Path(f"/proc/{pid}")
    return {
        "cpu_percent": 100 * used_s / passed_s,
        "rss_mib": rss_mib(pid),
        "open_files": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
    }


def _trickle(streams: int, seconds: float) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        def ours() -> Measures:
            with Liftlog(folder) as place:
                for number in range(streams):
                    place.create_stream(f"many-{number}", subject=f"{SUBJECT}.{number}")

                def stored() -> int:
                    listed = place.broker.get("/v1/streams")["streams"]
                    return sum(p["high_watermark"] for stream in listed for p in stream["partitions"])

                before = _fsyncs(place)
                found = _publish(place.port, place.pid, streams, seconds, stored)
                return {**found, "fsyncs_per_s": (_fsyncs(place) - before) / seconds}

        def jetstream() -> Measures:
            with JetStream(folder) as place:
                for number in range(streams):
                    name, subject = f"many-{number}", f"{SUBJECT}.{number}"
                    place.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": [subject], "storage": "file"})

                def stored() -> int:
                    infos = (place.ask(f"STREAM.INFO.many-{number}") for number in range(streams))
                    return sum(int(info["state"]["messages"]) for info in infos)

                return _publish(place.port, place.pid, streams, seconds, stored)

        yield {"liftlog": ours, "jetstream": jetstream}

    return open_sides


def _burst(streams: int, bursts: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        def ours() -> Measures:
            with Liftlog(folder) as place:
                for number in range(streams):
                    place.create_stream(f"many-{number}", subject=f"{SUBJECT}.{number}")
                _bursts(place.port, place.pid, streams, 2)  # every log has its segment
                before = _fsyncs(place)
                found = _bursts(place.port, place.pid, streams, bursts)
                return {**found, "fsyncs": (_fsyncs(place) - before) / bursts}

        def jetstream() -> Measures:
            with JetStream(folder) as place:
                for number in range(streams):
                    name, subject = f"many-{number}", f"{SUBJECT}.{number}"
                    place.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": [subject], "storage": "file"})
                _bursts(place.port, place.pid, streams, 2)
                return _bursts(place.port, place.pid, streams, bursts)

        yield {"liftlog": ours, "jetstream": jetstream}

    return open_sides


def _bursts(port: int, pid: int, streams: int, bursts: int) -> Measures:
    """One message to each stream, all at once; when all are acked, the next burst."""
    lines = [
        b"PUB %s.%d _INBOX.burst.%d %d\r\n%s\r\n" % (SUBJECT.encode(), n, n, len(VALUE), VALUE) for n in range(streams)
    ]
    burst, taken_s, used_s = b"".join(lines), [], cpu_s(pid)
    with Wire(port) as wire:
        wire.subscribe("_INBOX.burst.*")
        for _ in range(bursts):
            acks = AckCounter()
            begun = time.monotonic()
            wire.socket.sendall(burst)
            while acks.count < streams:
                data = wire.socket.recv(1 << 20)
                if not data:
                    raise ConnectionError("nats-server closed the connection")
                acks.feed(data)
            taken_s.append(time.monotonic() - begun)
    taken_ms = sorted(1000 * taken for taken in taken_s)
    return {
        "burst_ms": taken_ms[len(taken_ms) // 2],
        "longest_ms": taken_ms[-1],
        "cpu_ms": 1000 * (cpu_s(pid) - used_s) / bursts,
        "rss_mib": rss_mib(pid),
    }


def _publish(port: int, pid: int, streams: int, seconds: float, stored: Callable[[], int]) -> Measures:
    """One message a second to each stream, evenly spread, for a while; then all that arrived. Before: one to each."""
    with Wire(port) as wire:
        wire.socket.sendall(b"".join(_line(number) for number in range(streams)))
        wire.flush()
    eventually(lambda: stored() >= streams)
    sent = 0

    def publish(seconds: float) -> None:
        nonlocal sent
        with Wire(port) as wire:
            begun = time.monotonic()
            while (passed_s := time.monotonic() - begun) < seconds:
                due = int(passed_s * streams)
                wire.socket.sendall(b"".join(_line(n % streams) for n in range(sent, due)))
                sent = due
                time.sleep(STEP_S)
            wire.flush()

    found = _watched(pid, seconds, publish)
    arrived = _settled(stored, streams + sent) - streams
    return {**found, "sent": sent, "lost": max(0, sent - arrived)}


def _line(stream: int) -> bytes:
    return b"PUB %s.%d %d\r\n%s\r\n" % (SUBJECT.encode(), stream, len(VALUE), VALUE)


def _settled(stored: Callable[[], int], wanted: int) -> int:
    try:
        eventually(lambda: stored() >= wanted)
    except AssertionError:
        return stored()
    return stored()


def _fsyncs(place: Liftlog) -> float:
    found = re.search(rb"^liftlog_fsync_seconds_count (\S+)", place.broker.get("/metrics"), re.MULTILINE)
    assert found is not None
    return float(found[1])
