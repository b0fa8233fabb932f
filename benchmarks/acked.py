"""Acked publish: messages with a reply subject, by one publisher that counts the acks.

`window`: at most 4,096 messages are unacknowledged, as with nats.go's PublishAsync; messages per second from the first
sent to the last ack. `one`: one message in flight, each waits for its ack: latency. `10k`: 10,000 messages a second,
sent when they are due; latency counts from then. The publisher is the raw socket of window.py for all sides; where Go
is installed, nats.go's own `js.PublishAsync` publishes to both as well (`-go` cases).

Ours acknowledges after fsync (`liftlog`, the default) or before it (`liftlog-interval`: `fsync=interval`). JetStream's
default acknowledges before any fsync (`jetstream`); `jetstream-always` is its `sync_interval: always`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from benchmarks import nats_go
from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.ours import Liftlog
from benchmarks.peers import SUBJECT, JetStream
from benchmarks.window import Acked, run_rate, run_window

SEED = 2
SIZE = 100
WINDOW = 4096
RATE = 10_000
SUBJECT_0 = f"{SUBJECT}.0"
PAIR = ("liftlog", "jetstream")
SLOWEST = "jetstream-always"
"""It manages some thousand messages a second; its turns are that much shorter. nats.go gives up on it ("stalled")."""


def cases(*, tiny: bool) -> Sequence[Case]:
    window_count = 20_000 if tiny else 2_000_000
    one_count = 200 if tiny else 20_000
    rate_count = 3_000 if tiny else 100_000

    def window(side: str, port: int) -> Measures:
        count = window_count // 100 if side == SLOWEST else window_count
        run = run_window(port, seed=SEED, size=SIZE, subject=SUBJECT_0, count=count, window=WINDOW)
        return {"rate": run.count / run.seconds, **_measures(run)}

    def one(side: str, port: int) -> Measures:
        run = run_window(port, seed=SEED, size=SIZE, subject=SUBJECT_0, count=one_count, window=1)
        return _measures(run)

    def paced(side: str, port: int) -> Measures:
        count = rate_count // 10 if side == SLOWEST else rate_count
        run = run_rate(port, seed=SEED, size=SIZE, subject=SUBJECT_0, count=count, rate=RATE)
        return _measures(run)

    def stock(side: str, port: int) -> Measures:
        count = window_count // 100 if side == SLOWEST else window_count // 2
        return nats_go.publish(port, subject=SUBJECT_0, size=SIZE, count=count, window=WINDOW)

    common = {"value_bytes": SIZE, "publishers": 1, "seed": SEED}
    return [
        Case(
            name="acked-window",
            metric="rate",
            unit="messages/s",
            parameters={**common, "messages": window_count, "window": WINDOW, "publisher": "raw socket"},
            open=_opener(window, pair_only=tiny),
            targets=(Target(of="liftlog/jetstream", least=1.25),),
        ),
        Case(
            name="acked-window-go",
            metric="rate",
            unit="messages/s",
            parameters={**common, "messages": window_count // 2, "window": WINDOW, "publisher": "nats.go PublishAsync"},
            open=_opener(stock, pair_only=tiny, without=SLOWEST),
            targets=(Target(of="liftlog/jetstream", least=1.25),),
        ),
        Case(
            name="acked-one",
            metric="p50_ms",
            unit="ms",
            parameters={**common, "messages": one_count, "window": 1, "publisher": "raw socket"},
            open=_opener(one, pair_only=False),
            targets=(Target(of="p50_ms", most=0.6), Target(of="liftlog-interval:p50_ms", most=0.35)),
        ),
        Case(
            name="acked-10k",
            metric="p99_ms",
            unit="ms",
            parameters={**common, "messages": rate_count, "messages_per_s": RATE, "publisher": "raw socket"},
            open=_opener(paced, pair_only=tiny),
            targets=(Target(of="p99_ms", most=5.0),),
        ),
    ]


def _measures(run: Acked) -> Measures:
    latencies = {f"p{text}_ms": run.percentile_ms(float(text)) for text in ("50", "99", "99.9")}
    return {**latencies, "acked": run.count, "seconds": run.seconds}


class Place(Protocol):
    """Where messages are published to, for one turn."""

    @property
    def port(self) -> int: ...

    def stored(self) -> int:
        """Messages that can be read from it."""


Places = Callable[[Path], Mapping[str, Callable[[], AbstractContextManager[Place]]]]


def turns(publish: Callable[[str, int], Measures], places: Places) -> Callable[[Path], Any]:
    """One side for each place: publish to it, and count what was acknowledged and is not there."""

    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        def side(name: str, place: Callable[[], AbstractContextManager[Place]]) -> Side:
            def turn() -> Measures:
                with place() as target:
                    found = publish(name, target.port)
                    found["lost"] = max(0, found["acked"] - target.stored())
                    return found

            return turn

        yield {name: side(name, place) for name, place in places(folder).items()}

    return open_sides


def _opener(publish: Callable[[str, int], Measures], *, pair_only: bool, without: str = "") -> Callable[[Path], Any]:
    def places(folder: Path) -> Mapping[str, Callable[[], AbstractContextManager[Place]]]:
        all_places: Mapping[str, Callable[[], AbstractContextManager[Place]]] = {
            "liftlog": lambda: Liftlog(folder),
            "jetstream": lambda: JetStream(folder),
            "liftlog-interval": lambda: Liftlog(folder, settings={"fsync": "interval"}),
            SLOWEST: lambda: JetStream(folder, sync_always=True),
        }
        return {n: place for n, place in all_places.items() if n != without and (n in PAIR or not pair_only)}

    return turns(publish, places)
