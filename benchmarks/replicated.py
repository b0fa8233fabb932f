"""Three brokers, three replicas, an ack when all that are in sync have fsynced the record. Beside JetStream with three.

`window` and `one` as in acked.py, with the same publisher. JetStream's default acknowledges when a
majority has written and nobody has synced (`jetstream-r3`); `jetstream-r3-always` syncs first, as
ours does.

`failover`: the leader is killed with -9 under paced load, again and again; each time counts until
the next ack. In one of four rounds at least the leader is the controller, too. `handover`: the
leader is stopped by SIGTERM.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import nats
import nats.errors

from benchmarks.acked import Place, turns
from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.jetstream_cluster import JetStreamCluster
from benchmarks.ours_cluster import LiftlogCluster
from benchmarks.peers import STREAM, SUBJECT
from benchmarks.window import Acked, run_window

SEED = 2
SIZE = 100
WINDOW = 4096
SUBJECT_0 = f"{SUBJECT}.0"
SLOWEST = "jetstream-r3-always"
CONTROLS_EACH = 4
"""In so many rounds one at least has a leader that is the controller."""
TRY_S = 0.1
"""A publisher that has no ack after so long asks again."""


def cases(*, tiny: bool) -> Sequence[Case]:
    window_count = 5_000 if tiny else 1_000_000
    one_count = 100 if tiny else 10_000
    kills = 1 if tiny else 20

    def window(side: str, port: int) -> Measures:
        count = window_count // 20 if side == SLOWEST else window_count
        run = run_window(port, seed=SEED, size=SIZE, subject=SUBJECT_0, count=count, window=WINDOW)
        return {"rate": run.count / run.seconds, **_measures(run)}

    def one(side: str, port: int) -> Measures:
        return _measures(run_window(port, seed=SEED, size=SIZE, subject=SUBJECT_0, count=one_count, window=1))

    common = {"value_bytes": SIZE, "publishers": 1, "seed": SEED, "replicas": 3}
    return [
        Case(
            name="replicated-window",
            metric="rate",
            unit="messages/s",
            parameters={**common, "messages": window_count, "window": WINDOW, "publisher": "raw socket"},
            open=_opener(window, tiny=tiny),
            targets=(Target(of="liftlog/jetstream-r3", least=1.0),),
        ),
        Case(
            name="replicated-one",
            metric="p50_ms",
            unit="ms",
            parameters={**common, "messages": one_count, "window": 1, "publisher": "raw socket"},
            open=_opener(one, tiny=tiny),
        ),
        Case(
            name="failover",
            metric="median_s",
            unit="s",
            parameters={"rounds": kills, "replicas": 3, "brokers": 3, "publisher": "nats-py, one message in flight"},
            open=_failovers(kills),
            targets=(
                Target(of="median_s", most=1.5),
                Target(of="max_s", most=5.0),
                Target(of="liftlog-handover:max_s", most=0.5),
            ),
            repeats_max=1,
        ),
    ]


def _measures(run: Acked) -> Measures:
    latencies = {f"p{text}_ms": run.percentile_ms(float(text)) for text in ("50", "99")}
    return {**latencies, "acked": run.count, "seconds": run.seconds}


def _opener(publish: Callable[[str, int], Measures], *, tiny: bool) -> Callable[[Path], Any]:
    def places(folder: Path) -> Mapping[str, Callable[[], AbstractContextManager[Place]]]:
        slowest = {} if tiny else {SLOWEST: lambda: JetStreamCluster(folder, sync_always=True)}
        return {"liftlog": lambda: LiftlogCluster(folder), "jetstream-r3": lambda: JetStreamCluster(folder), **slowest}

    return turns(publish, places)


def _failovers(kills: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        def killed() -> Measures:
            with LiftlogCluster(folder) as place:
                return killed_leaders(place, kills)

        def handed_over() -> Measures:
            with LiftlogCluster(folder) as place:
                return asyncio.run(_rounds(place, kills, lambda broker: place.brokers.brokers[broker].stop() and None))

        yield {"liftlog": killed, "liftlog-handover": handed_over}

    return open_sides


def killed_leaders(place: LiftlogCluster, rounds: int) -> Measures:
    """Kill the leader so often under paced load. Seconds until the next ack: `median_s` and `max_s`."""
    return asyncio.run(_rounds(place, rounds, lambda broker: place.brokers.brokers[broker].kill9()))


async def _rounds(place: LiftlogCluster, rounds: int, end: Callable[[str], None]) -> Measures:
    """End the leader so often. The longest time without an ack around each end; and what of all that was lost."""
    acks: list[tuple[float, int]] = []
    stop = asyncio.Event()
    publishing = asyncio.create_task(_publish(place.url, acks, stop))
    gaps, controllers = [], 0
    for number in range(rounds):
        await asyncio.to_thread(place.brokers.in_sync, STREAM, 3)
        if number % CONTROLS_EACH == 0:
            await asyncio.to_thread(_let_the_leader_control, place)
        leader = await asyncio.to_thread(place.brokers.leader, STREAM)
        controllers += leader == await asyncio.to_thread(place.brokers.controller)
        await _more(acks, 50)
        ended_s, before = time.monotonic(), len(acks)
        await asyncio.to_thread(end, leader)
        await _more(acks, 50)
        times = [at for at, _ in acks[max(0, before - 50) :] if at >= ended_s - 0.5]
        gaps.append(max(b - a for a, b in itertools.pairwise(times)))
        place.brokers.brokers[leader].start(wait=False)
        await asyncio.to_thread(place.brokers.wait_ready, leader)
    stop.set()
    await publishing
    stored = await asyncio.to_thread(place.stored)
    return {
        "median_s": statistics.median(gaps),
        "max_s": max(gaps),
        "led_and_controlled": controllers,
        "acked": len(acks),
        "lost": max(0, len({offset for _, offset in acks}) - stored),
    }


def _let_the_leader_control(place: LiftlogCluster) -> None:
    """Restart whoever is the controller until it is the leader. It leads nothing, so nothing of the stream moves."""
    while (controller := place.brokers.controller()) != place.brokers.leader(STREAM):
        place.brokers.brokers[controller].stop()
        place.brokers.brokers[controller].start(wait=False)
        place.brokers.wait_ready(controller)
        place.brokers.in_sync(STREAM, 3)


async def _more(acks: list[tuple[float, int]], count: int) -> None:
    """Until so many more have come."""
    goal, deadline_s = len(acks) + count, time.monotonic() + 60
    while len(acks) < goal:
        assert time.monotonic() < deadline_s, "no ack for a minute"
        await asyncio.sleep(0.005)


async def _publish(url: str, acks: list[tuple[float, int]], stop: asyncio.Event) -> None:
    """One message after the other, each with an id and repeated until its ack comes; (time, offset) of each ack."""
    client = await nats.connect(url, max_reconnect_attempts=-1)
    stream, number = client.jetstream(timeout=TRY_S), 0
    while not stop.is_set():
        try:
            ack = await stream.publish(SUBJECT_0, b"%d" % number, headers={"Nats-Msg-Id": str(number)})
        except (nats.errors.Error, OSError):
            await asyncio.sleep(0.01)
            continue
        acks.append((time.monotonic(), ack.seq - 1))
        number += 1
    await client.close()
