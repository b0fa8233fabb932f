"""One round: processes up, everybody at work, the operator at large; then peace, a power cut, and the check.

begin ── operate for so long ── all well again: everybody gets on ── writers end ── memory, descriptors
                                                           └── power cut ── start ── check ── logs
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.api.errors import LiftlogError
from broker.client import connect
from tests.soak.checker import check
from tests.soak.cluster import ClusterOperator
from tests.soak.faults import Faults
from tests.soak.ledger import History, Ledger, Story, Violation
from tests.soak.operator import Operator
from tests.soak.producer import IdempotentWriter, PlainWriter
from tests.soak.publishers import Publishers
from tests.soak.reader import Reader
from tests.soak.replicas import check_replicas, committed
from tests.soak.sink import SinkWriter
from tests.soak.world import CAPTURED, STREAMS, WRITTEN, World, begins_as, check_log, window_ms_of
from tests.support.clusters import IDS, RealCluster
from tests.support.processes import BrokerProcess, NatsServer

MEMORY_BYTES_MAX = 200 << 20
"""So much more memory may a broker take in the end than after its start,"""
DESCRIPTORS_MAX = 64
"""and so many more descriptors. (Each partition keeps its file open; there are at most 30.)"""
ENVIRONMENT = {
    "LIFTLOG_CLEANER_INTERVAL_MS": "100",
    "LIFTLOG_CLEANER_CHECKPOINT_INTERVAL_MS": "200",
    "LIFTLOG_SCRUB_INTERVAL_MS": "500",
    "LIFTLOG_LIMITS_DISK_RESERVE_BYTES": str(1 << 20),
}


@dataclass
class Outcome:
    """The outcome of a round.

    Attributes:
        violation: The rule that did not hold; None: all did.
        story: The operations near it.
        figures: Numbers by name.
    """

    seed: int
    violation: Violation | None = None
    story: str = ""
    figures: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:,.0f}" for name, value in self.figures.items())


def run_round(
    folder: Path,
    seed: int,
    seconds: float,
    *,
    mutant: str | None = None,
    effort: float = 1.0,
    operations: Collection[str] | None = None,
    brokers: int = 1,
) -> Outcome:
    """Run one round in an empty folder.

    Args:
        brokers: 1, or 3: a cluster.
        seconds: How long the operator is at large; beginning and end come on top.
        mutant: The mend that is taken out.
        effort: How fast writers write.
        operations: Operations that the operator may do; None: all.
    """
    kind = Operator if brokers == 1 else ClusterOperator
    folder.mkdir(parents=True, exist_ok=True)
    sockets = Path(tempfile.mkdtemp(prefix="soak-"))  # the path of a socket must be short
    story = Story(folder / "story.txt")
    ledger = Ledger(story)
    outcome = Outcome(seed)
    try:
        with ExitStack() as stack:
            nats = NatsServer(folder / "nats").start()
            stack.callback(nats.stop)
            disks = {name: Faults(sockets / name) for name in (IDS[:brokers] if brokers > 1 else ("broker",))}
            started, stop = _start(folder, nats, disks, ["--mutant", mutant] if mutant else [])
            stack.callback(stop)
            addresses = [broker.address for broker in started.values()]
            client = stack.enter_context(connect(addresses, timeout_s=20, deadline_s=20))
            hasty = stack.enter_context(connect(addresses, timeout_s=20, deadline_s=2))
            world = World(nats, started, disks, client, hasty, ledger, CAPTURED, WRITTEN, victim=next(iter(disks)))
            names = kind.operations if operations is None else operations
            _work(world, kind(world, str(seed), names), seconds, effort, outcome)
            outcome.figures |= check(client, ledger)
            ranges = committed(world) if brokers > 1 else []
            stop()
            nats.stop()
            outcome.figures |= check_replicas(folder, sorted(disks), ledger, ranges)
            _check_logs(folder)
    except Violation as violation:
        outcome.violation = violation
    except (LiftlogError, AssertionError, OSError) as error:
        outcome.violation = Violation(f"the soak itself met {error!r}")
        outcome.violation.__cause__ = error
    finally:
        story.close()
        shutil.rmtree(sockets, ignore_errors=True)
    if outcome.violation is not None:
        outcome.story = story.near(outcome.violation.since_s, outcome.violation.until_s)
    outcome.figures |= {"acks": ledger.ack_count, "repeated": ledger.repeat_count}
    return outcome


def _start(
    folder: Path, nats: NatsServer, disks: dict[str, Faults], options: list[str]
) -> tuple[dict[str, BrokerProcess], Callable[[], object]]:
    """One broker, or a cluster; and what stops them."""

    def command(name: str) -> list[str]:
        return ["tests.soak.broker", "--faults", str(disks[name].path), *options]

    if len(disks) > 1:
        cluster = RealCluster(folder, nats, ids=tuple(disks), command=command, **ENVIRONMENT)
        try:
            return cluster.start().brokers, cluster.stop
        except BaseException:
            cluster.stop()
            raise
    ((name, _),) = disks.items()
    broker = BrokerProcess(folder / name, nats, env=ENVIRONMENT, command=command(name))
    return {name: broker.start()}, broker.stop


def _work(world: World, operator: Operator, seconds: float, effort: float, outcome: Outcome) -> None:
    ledger, address, name = world.ledger, world.addresses, str(outcome.seed)
    for stream in STREAMS:
        settings = begins_as(stream, len(world.brokers))
        world.client.create_stream(stream, **settings)
        ledger.histories[stream] = history_of(stream, settings)
    memory_before = {broker: _memory(process.pid) for broker, process in world.brokers.items()}
    with ExitStack() as stack:
        publishers = Publishers(world.nats.port, ledger, CAPTURED, name, effort)
        writers = [
            IdempotentWriter("p0", ledger, "http", address, name, 0.05 / effort),
            PlainWriter("p1", ledger, "http", address, name, 0.05 / effort),
            SinkWriter("s0", ledger, "sunk", address, name, 0.1 / effort),
        ]
        readers = [Reader(f"f{i}", ledger, [*STREAMS], address, name) for i in range(3)]
        for stop in (*(one.stop for one in readers), *(one.stop for one in writers), publishers.stop):
            stack.callback(stop)
        stack.push(lambda kind, *_: ledger.give_up() if kind else None)
        world.all_go_on()
        operator.run(time.monotonic() + seconds)
        outcome.figures["operations"] = operator.count
        _check_all_work(world, readers)
    world.look()
    outcome.figures["seen by readers"] = sum(reader.record_count for reader in readers)
    _check_memory(world, memory_before, outcome)
    ledger.story.tell("power cut, and all is checked")
    for disk in world.disks.values():
        disk.power_cut(outcome.seed)
    for broker in world.brokers.values():
        broker.kill9()
        broker.start(wait=False)
    for broker in world.brokers.values():
        broker.wait_ready()


def history_of(stream: str, settings: Mapping[str, Any]) -> History:
    """The history of a stream that begins with these settings."""
    return History(
        stream,
        windows=[(0.0, float("inf"), window_ms_of(settings))] if "subject" in settings else [],
        may_expire=stream == "loose",
        may_compact="cleanup" in settings,
        is_loose=settings.get("fsync") == "interval",
    )


def _check_all_work(world: World, readers: list[Reader]) -> None:
    """Intake, HTTP, sinks and readers get on."""
    world.ledger.story.tell("all well: does everybody get on?")
    since_s = time.monotonic()
    world.all_go_on()
    for reader in readers:
        while world.ledger.freshest_s.get(reader.name, 0.0) <= since_s:
            world.look()
            if time.monotonic() > since_s + 60:
                raise Violation(f"the reader {reader.name} gets nothing more", since_s, since_s)
            time.sleep(0.01)


def _check_memory(world: World, memory_before: dict[str, int], outcome: Outcome) -> None:
    """Nobody is connected any more."""
    deadline_s = time.monotonic() + 30
    while True:
        pids = {name: broker.pid for name, broker in world.brokers.items()}
        memory = max(_memory(pid) - memory_before[name] for name, pid in pids.items())
        descriptors = max(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids.values())
        if memory <= MEMORY_BYTES_MAX and descriptors <= DESCRIPTORS_MAX + 40:
            break
        if time.monotonic() > deadline_s:
            raise Violation(
                f"the broker holds {memory >> 20} MiB more than in the beginning, {descriptors} descriptors"
            )
        time.sleep(0.1)
    outcome.figures |= {"MiB more": memory >> 20, "descriptors": descriptors}


def _memory(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def _check_logs(folder: Path) -> None:
    for path in (*folder.glob("*/broker.log"), folder / "nats" / "nats.log"):
        check_log(path.read_text(errors="replace"))
