"""Three brokers under load, and everything that happens to processes, by a seed; then an outside judge looks.

    publishers    over NATS, without ids: what becomes of a message is told by its ack, or by whoever reads it
    readers       over HTTP; they know nothing of liftlog but where a leader is said to be. One of them asks any replica
    operators     change streams meanwhile, commit, trim, compact, expect (`operators.py`, B1 to B10)
    faults        one after the other, at any moment: `FAULTS`, and `CUTS` between hosts of their own, or `LINES`
                  between replica ports (`lines.py`). The brokers are those of the soak: calls of their disks fail on
                  demand, and a power cut takes what was not synced

D1  The history has no fault (`tests/history`): nothing that was acknowledged is unseen, moved, doubled or out of order.
    No reader is told that the stream is gone, or that it ends before what he has read.
D2  Each partition is acknowledged and each reader answered again within `GO_ON_S` of each fault's end, and within
    `HEAL_S` all replicas of all streams are in sync.
D3  In the end all replicas of a partition have the same records, in each stream, by pyarrow alone, and all brokers the
    same catalog. Brokers stop one after the other, and write on to streams of their own (`OWN`) meanwhile: who stops
    sooner has the beginning of what the others have, and all that was committed when the first one stopped.
D4  No broker has written a traceback, or ended by itself.
D5  A fault that cannot be played here is named. It is never left out silently.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from broker.api.errors import LiftlogError
from broker.api.schema import SCHEMA
from broker.api.stream import AUDIT_STREAM, OFFSETS_STREAM
from tests.cluster.lines import Line, lines_of
from tests.cluster.operators import Operators
from tests.history.judge import faults, judge
from tests.history.ops import read
from tests.history.record import Recorder
from tests.history.users import Pollers, Senders, read_to_the_end
from tests.soak.faults import Faults
from tests.soak.operator import SEGMENTS, SMALL_FILES
from tests.support.clusters import IDS, RealCluster
from tests.support.network import HERE, Network, is_allowed
from tests.support.processes import NatsServer, eventually

STREAM: Final = "told"
BIG: Final = "big"
SLOW_BYTES_PER_S: Final = 100_000
COMPACTED: Final = ("keys-ops", "__offsets")
OWN: Final = (AUDIT_STREAM,)
"""Streams that brokers write to by themselves, to the end."""
PARTITIONS: Final = 3
SENDERS: Final = 6
"""More than there are partitions: a commit has several of their records."""
DISK_BYTES: Final = 256 << 20
DISK_BYTES_A_MINUTE: Final = 24 << 20
"""The disk of each broker: in a minute it gets 12 MB at most, while its segments are too young to be joined."""
ACKS_MIN: Final = 4
GAVE_UP: Final = 70
"""How a broker ends that cannot write its catalog, or that it steps out (`runtime.clustered`)."""
GO_ON_S: Final = 60.0
HEAL_S: Final = 120.0
SETTINGS: Final = {
    "name": STREAM,
    "subject": STREAM,
    "partitions": PARTITIONS,
    "partition_by": "subject_suffix",
    "replication_factor": 3,
    "min_insync_replicas": 2,
    "segment_bytes": 1 << 16,
}


@dataclass
class Run:
    """The running cluster, on which the faults act. `harmed`: brokers whose disk has failed. `lines`: before the
    replica ports; none where `network` is."""

    cluster: RealCluster
    nats: NatsServer
    network: Network | None
    rng: random.Random
    senders: Senders
    pollers: Pollers
    disks: dict[str, Faults]
    lines: dict[str, Line] = field(default_factory=dict)
    harmed: set[str] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)

    def any(self) -> str:
        return self.rng.choice(sorted(self.cluster.brokers))

    def leader(self) -> str:
        return self.cluster.leader(STREAM, self.rng.randrange(PARTITIONS))

    def pause(self, most_s: float) -> None:
        time.sleep(self.rng.uniform(0, most_s))

    def start_if_ended(self, broker: str, why: str) -> None:
        """It may be about to end."""
        process = self.cluster.brokers[broker]
        assert process.process is not None
        with suppress(subprocess.TimeoutExpired):
            process.process.popen.wait(1.0)
            self.seen[why] += 1
            process.kill9()
            process.start(wait=False)
            self.cluster.wait_ready(broker)

    def look(self) -> None:
        """D4. A broker whose disk has failed may still end."""
        for broker, process in self.cluster.brokers.items():
            assert process.process is not None, f"{broker} was not started again"
            code = process.process.popen.poll()
            if code == GAVE_UP and broker in self.harmed:
                self.start_if_ended(broker, "gave up later")
            else:
                assert code is None, f"D4: {broker} has ended by itself, with {code}: {process.output()[-4_000:]}"

    def go_on(self) -> None:
        """D2."""
        acks, answered = Counter(self.senders.acks), self.pollers.answered

        def missing() -> list[str]:
            late = [
                f"partition {each}" for each in range(PARTITIONS) if self.senders.acks[each] < acks[each] + ACKS_MIN
            ]
            return late + [f"reader {n}" for n, count in enumerate(self.pollers.answered) if count == answered[n]]

        try:
            eventually(lambda: not missing(), timeout_s=GO_ON_S)
        except AssertionError as error:
            raise AssertionError(f"D2: {', '.join(missing())}: nothing goes on: {error}") from None
        self.pollers.look()


def kill(run: Run, *brokers: str) -> None:
    """SIGKILL, all at once; started again after a while, perhaps killed once more while they start."""
    for broker in brokers:
        run.cluster.brokers[broker].kill9()
    if len(brokers) == 1 and run.rng.random() < 0.5:
        run.go_on()  # two are a majority
    else:
        run.pause(3.0)
    for broker in brokers:
        run.cluster.brokers[broker].start(wait=False)
    if run.rng.random() < 0.2:
        run.pause(1.5)
        run.cluster.brokers[brokers[0]].kill9()
        run.cluster.brokers[brokers[0]].start(wait=False)
    for broker in brokers:
        run.cluster.wait_ready(broker)


def freeze(run: Run, *brokers: str, for_s: float | None = None) -> None:
    """SIGSTOP, and SIGCONT: sessions lapse meanwhile, or nearly do."""
    pids = [run.cluster.brokers[broker].pid for broker in brokers]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(for_s or run.rng.choice([0.3, 1.5, 2.2, 3.0, 8.0]) * run.rng.uniform(0.8, 1.2))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def restart(run: Run, *brokers: str) -> None:
    """SIGTERM and a start, one after the other: leaderships are handed over."""
    for broker in brokers:
        assert run.cluster.brokers[broker].stop() == 0, f"{broker} did not stop cleanly"
        run.cluster.brokers[broker].start(wait=False)
        run.cluster.wait_ready(broker)


def lead_in_turns(run: Run) -> None:
    """An operator has others lead the stream and the consumers' offsets, and others again before they have begun."""
    with run.cluster.client(deadline_s=GO_ON_S) as client:
        for _ in range(run.rng.randint(2, 6)):
            order = everybody(run)
            for stream in (STREAM, OFFSETS_STREAM):
                client.reassign(stream, order)
            client.elect_preferred()
            run.pause(0.8)


def restart_nats(run: Run) -> None:
    """Nothing of it is kept: publishers and brokers connect again."""
    (run.nats.kill9 if run.rng.random() < 0.5 else run.nats.stop)()
    run.pause(1.0)
    run.nats.start()


def cut_off(run: Run, broker: str) -> None:
    """No cable to the other two. Publishers and readers still reach it, and NATS does."""
    assert run.network is not None
    run.network.cut_off(broker)
    if run.rng.random() < 0.5:
        run.go_on()  # two are a majority
    _cut_for_a_while(run)


def mute(run: Run, broker: str) -> None:
    """All that it sends to NATS, publishers and readers vanishes, its acks too. The other brokers hear it."""
    assert run.network is not None
    run.network.cut(broker, HERE)
    _cut_for_a_while(run)


def cut_one_way(run: Run) -> None:
    """All that some brokers send to some others vanishes. Every second time the link comes and goes."""
    assert run.network is not None
    ways = [(source, target) for source in run.network.hosts for target in run.network.hosts if source != target]
    for _ in range(run.rng.choice([1, 1, 4])):
        for source, target in run.rng.sample(ways, run.rng.randint(1, 3)):
            run.network.cut(source, target)
        _cut_for_a_while(run)


def slow_lines(run: Run, *brokers: str) -> None:
    """100 kB/s, while more than that is stored: an answer to a follower takes 20 s and more."""
    with run.cluster.client(deadline_s=GO_ON_S) as client:
        for broker in brokers:
            run.lines[broker].down.bytes_per_s = SLOW_BYTES_PER_S
        if BIG not in {each.name for each in client.streams()}:
            client.create_stream(BIG, replication_factor=3, min_insync_replicas=2)
        for _ in range(4):
            with suppress(LiftlogError):  # in doubt, as the ISR shrinks amid it
                client.append(BIG, 0, [{"value": run.rng.randbytes(1 << 16)} for _ in range(16)])
        time.sleep(run.rng.uniform(10, 30))
    for line in run.lines.values():
        line.heal()


def hold_lines(run: Run, *brokers: str) -> None:
    """Nothing passes, one way or both, and the connections stay. Then it goes on, or they break."""
    for broker in brokers:
        line = run.lines[broker]
        for way in run.rng.choice([(line.up,), (line.down,), (line.up, line.down)]):
            way.bytes_per_s = 0
    time.sleep(run.rng.choice([0.5, 3.0, 8.0, 35.0]) * run.rng.uniform(0.8, 1.2))
    for broker in brokers:
        if run.rng.random() < 0.5:
            run.lines[broker].cut()
        run.lines[broker].heal()


def cut_lines(run: Run, *brokers: str) -> None:
    """Connections break again and again, at any place of a frame; for a while none is taken."""
    for _ in range(run.rng.randint(5, 40)):
        for broker in brokers:
            run.lines[broker].cut()
        run.pause(0.3)
    for broker in brokers:
        run.lines[broker].is_refusing = True
        run.lines[broker].cut()
    time.sleep(run.rng.choice([0.3, 3.0, 6.0]))
    for broker in brokers:
        run.lines[broker].heal()


def crumble_lines(run: Run, *brokers: str) -> None:
    """A few bytes at a time."""
    for broker in brokers:
        for way in (run.lines[broker].up, run.lines[broker].down):
            way.piece_bytes = run.rng.choice([5, 11, 100])
    run.pause(8.0)
    for broker in brokers:
        run.lines[broker].heal()


def flip_bits(run: Run, *brokers: str) -> None:
    """As TCP lets them through, but far more of them."""
    for broker in brokers:
        for way in (run.lines[broker].up, run.lines[broker].down):
            way.flips = run.rng.choice([0.0003, 0.003, 0.03])
    run.pause(20.0)
    for broker in brokers:
        run.lines[broker].heal()


def _cut_for_a_while(run: Run) -> None:
    assert run.network is not None
    time.sleep(run.rng.choice([0.3, 1.5, 3.0, 8.0]) * run.rng.uniform(0.8, 1.2))
    run.network.heal()


def fill_the_disk(run: Run, broker: str) -> None:
    """Not a byte is free for a while. A process whose catalog cannot be written ends, and is started again."""
    process = run.cluster.brokers[broker]
    run.harmed.add(broker)
    filler = process.folder / "data" / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    time.sleep(run.rng.choice([0.5, 3.0, 8.0]) * run.rng.uniform(0.8, 1.2))
    filler.unlink()
    run.start_if_ended(broker, "ended on a full disk")


def fail(run: Run, broker: str, call: str) -> None:
    """Some calls of the disk fail under records, or under whatever is no segment; lost pages are gone at once, or stay.
    A replica steps out; a process whose catalog or step-out cannot be written ends, and is started again."""
    match = run.rng.choice([f"/{STREAM}/.*{SEGMENTS}", f"/{STREAM}/.*{SEGMENTS}", SEGMENTS, SMALL_FILES])
    run.harmed.add(broker)
    evict, share = run.rng.random() < 0.7, run.rng.choice([0.3, 1.0])
    for _ in range(run.rng.choice([1, 3, 10])):
        with suppress(OSError):  # it has ended
            count = run.rng.choice([1, 1, 3])
            run.disks[broker].order("fail", call=call, match=match, count=count, evict=evict, share=share)
        time.sleep(0.1)
    run.pause(1.0)
    with suppress(OSError):
        run.disks[broker].order("clear")
    run.start_if_ended(broker, f"ended when a {call} failed")


def cut_power(run: Run, *brokers: str) -> None:
    """Each page that was not synced may be lost."""
    for broker in brokers:
        run.disks[broker].power_cut(run.rng.randrange(1 << 30))
    kill(run, *brokers)


def set_clocks(run: Run) -> None:
    """The time of day jumps by an hour or two on some brokers, and then they are as far apart."""
    for broker in everybody(run):
        run.disks[broker].order("clock", ahead_ms=run.rng.choice((-3_600_000, 0, 3_600_000)))


def follower(run: Run) -> str:
    """A broker that does not lead the first partition."""
    return run.rng.choice(sorted(set(run.cluster.brokers) - {run.cluster.leader(STREAM)}))


def everybody(run: Run) -> list[str]:
    """All brokers, in any order."""
    return run.rng.sample(sorted(run.cluster.brokers), len(run.cluster.brokers))


FAULTS: Final[dict[str, Callable[[Run], None]]] = {
    "kill a leader": lambda run: kill(run, run.leader()),
    "kill the controller": lambda run: kill(run, run.cluster.controller()),
    "kill any": lambda run: kill(run, run.any()),
    "kill two": lambda run: kill(run, *everybody(run)[:2]),
    "kill all": lambda run: kill(run, *everybody(run)),
    "freeze a leader": lambda run: freeze(run, run.leader()),
    "freeze the controller": lambda run: freeze(run, run.cluster.controller()),
    "freeze two": lambda run: freeze(run, *everybody(run)[:2]),
    "restart one": lambda run: restart(run, run.any()),
    "restart all in turns": lambda run: restart(run, *everybody(run)),
    "lead in turns": lead_in_turns,
    "restart nats-server": restart_nats,
    "power cut of a leader": lambda run: cut_power(run, run.leader()),
    "power cut of all": lambda run: cut_power(run, *everybody(run)),
    "fsyncs fail": lambda run: fail(run, run.any(), "fsync"),
    "fsyncs of a leader fail": lambda run: fail(run, run.leader(), "fsync"),
    "writes fail": lambda run: fail(run, run.any(), "write"),
    "set clocks": set_clocks,
    "reads fail": lambda run: fail(run, run.any(), "read"),
}
CUTS: Final[dict[str, Callable[[Run], None]]] = {
    "cut a leader off": lambda run: cut_off(run, run.leader()),
    "cut the controller off": lambda run: cut_off(run, run.cluster.controller()),
    "cut one way": cut_one_way,
    "mute a leader": lambda run: mute(run, run.leader()),
    "fill a leader's disk": lambda run: fill_the_disk(run, run.leader()),
    "fill any disk": lambda run: fill_the_disk(run, run.any()),
}
"""Where network namespaces and file systems may be made."""
LINES: Final[dict[str, Callable[[Run], None]]] = {
    "slow line of a leader": lambda run: slow_lines(run, run.leader()),
    "slow lines": lambda run: slow_lines(run, *everybody(run)),
    "hold the line of a leader": lambda run: hold_lines(run, run.leader()),
    "hold two lines": lambda run: hold_lines(run, *everybody(run)[:2]),
    "cut lines": lambda run: cut_lines(run, *everybody(run)),
    "flipped bits on lines": lambda run: flip_bits(run, *everybody(run)),
    "lines in crumbs": lambda run: crumble_lines(run, *everybody(run)),
    "freeze a leader for 12 s": lambda run: freeze(run, run.leader(), for_s=12.0),
    "freeze a leader for 40 s": lambda run: freeze(run, run.leader(), for_s=40.0),
    "freeze a follower for 12 s": lambda run: freeze(run, follower(run), for_s=12.0),
    "freeze a follower for 40 s": lambda run: freeze(run, follower(run), for_s=40.0),
}
"""Where they are asked for by name: there is a relay before each replica port then, and no hosts of their own."""


@dataclass(frozen=True)
class Figures:
    """The figures of a run.

    Attributes:
        operations: Lines of the history.
        elsewhere: Answers with records from brokers that do not lead.
        faults: How often each was played; 0: never.
        left_out: Faults that were asked for, and cannot be played here.
        seen: Outcomes of the operators' commands, and causes by which brokers ended.
    """

    seed: int
    acks: int
    records: int
    operations: int
    elsewhere: int
    seconds: float
    faults: Counter[str]
    left_out: list[str]
    seen: Counter[str]

    def __str__(self) -> str:
        numbers = [f"{name} {value:,.0f}" for name, value in vars(self).items() if isinstance(value, int | float)]
        lines = [", ".join(numbers), _listed(self.faults), _listed(self.seen)]
        return "\n".join([*lines, *([f"left out: {', '.join(self.left_out)}"] if self.left_out else [])])


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))


def run(
    folder: Path,
    seed: int,
    *,
    only: Sequence[str] | None = None,
    minutes: float = 0.0,
    history: Path | None = None,
) -> Figures:
    """These faults, one after the other, or any for so long. AssertionError: D1 to D4.

    Args:
        history: Where it is written; None: `history.jsonl` in the folder.
    """
    with ExitStack() as stack:
        through_lines = only is not None and not LINES.keys().isdisjoint(only)
        network = stack.enter_context(Network(IDS)) if is_allowed() and not through_lines else None
        if network is not None:
            for broker in IDS:
                size = DISK_BYTES + int(minutes * DISK_BYTES_A_MINUTE)
                stack.enter_context(small_disk(folder / broker / "data", size))
        nats = NatsServer(folder / "nats", host=network.here if network is not None else "127.0.0.1")
        stack.callback(nats.stop)
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))  # a short path
        disks = {broker: Faults(sockets / broker) for broker in IDS}
        cluster = RealCluster(
            folder,
            nats.start(),
            network=network,
            command=lambda broker: ("tests.soak.broker", "--faults", str(disks[broker].path)),
        )
        lines = stack.enter_context(lines_of(cluster)) if through_lines else {}
        stack.callback(cluster.stop)
        with Recorder(history or folder / "history.jsonl") as recorder:
            figures = _run(cluster.start(), nats, network, disks, lines, recorder, seed, only, minutes)
        committed = {stream: committed_of(cluster, stream) for stream in OWN}
        for broker in cluster.brokers:
            assert cluster.brokers[broker].stop() == 0, f"D4: {broker} did not stop cleanly"
        with recorder.path.open() as lines:
            found = judge(read(lines))
        assert not faults(found), f"D1: {[(name, found[name][:3]) for name in faults(found)]}, see {recorder.path}"
        for broker, process in cluster.brokers.items():
            for word in ("Traceback", "_bug"):
                output = process.output()
                assert word not in output, f"D4: {broker}: {output[output.index(word) - 2_000 :][:6_000]}"
        compare({broker: folder / broker / "data" for broker in cluster.brokers}, committed)
    return figures


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A file system of its own, in memory. It is there for as long as the block does not fail."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    yield
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _run(
    cluster: RealCluster,
    nats: NatsServer,
    network: Network | None,
    disks: dict[str, Faults],
    lines: dict[str, Line],
    recorder: Recorder,
    seed: int,
    only: Sequence[str] | None,
    minutes: float,
) -> Figures:
    rng = random.Random(seed)
    began_s = time.monotonic()
    known = FAULTS | (CUTS if network is not None else {}) | (LINES if lines else {})
    asked = (FAULTS | CUTS).keys() if only is None else only
    left_out = sorted(set(asked) - known.keys())
    if left_out:
        print(f"LEFT OUT, as network namespaces are not allowed here: {', '.join(left_out)}", flush=True)

    def plan() -> Iterator[str]:
        if only is not None:
            yield from (what for what in only if what in known)
            return
        deck: list[str] = []  # all of them before any comes again
        while time.monotonic() - began_s < minutes * 60:
            deck = deck or rng.sample(sorted(known), len(known))
            yield deck.pop()

    cluster.brokers["a"].request("POST", "/v1/streams", SETTINGS)
    for partition in range(PARTITIONS):
        cluster.in_sync(STREAM, len(cluster.brokers), partition)
    senders = Senders(recorder, nats.url, subject_of=subject_of, partitions=PARTITIONS, senders=SENDERS)
    pollers = Pollers(recorder, cluster.addresses, STREAM, PARTITIONS, count=2, luck=random.Random(seed))
    run = Run(cluster, nats, network, rng, senders, pollers, disks, lines)
    operators = Operators(cluster.addresses, nats.url, seed)
    played = Counter(dict.fromkeys(asked, 0))
    try:
        operators.begin()
        run.go_on()
        for what in plan():
            print(f"{time.monotonic() - began_s:8.1f} s  {what}", flush=True)
            run.pause(0.5)  # any moment
            known[what](run)
            played[what] += 1
            run.go_on()
            run.look()
            operators.look()
            if rng.random() < 0.5:  # else the next one comes while replicas catch up
                heal(cluster)
        heal(cluster)
        run.seen += operators.stop()
        senders.stop()
        pollers.stop()
        heal(cluster)
        agree(cluster)
    finally:
        operators.close()
        senders._stop.set()
        pollers._stop.set()
        print(f"{time.monotonic() - began_s:8.1f} s  seed {seed}: {_listed(played)}", flush=True)
    records = read_to_the_end(recorder, cluster.addresses, STREAM, PARTITIONS)
    assert records >= senders.acked
    return Figures(
        seed=seed,
        acks=senders.acked,
        records=records,
        operations=recorder.count,
        elsewhere=pollers.elsewhere,
        seconds=time.monotonic() - began_s,
        faults=played,
        left_out=left_out,
        seen=run.seen,
    )


def heal(cluster: RealCluster) -> None:
    """D2: each partition that there is has been whole since, one or the other time: operators go on."""
    waiting: set[tuple[str, int]] | None = None
    with cluster.client(deadline_s=HEAL_S) as client:

        def is_whole() -> bool:
            nonlocal waiting
            found = client.placements()
            broken = {(each.stream, each.partition) for each in found if each.health != "ok" or each.target is not None}
            waiting = broken if waiting is None else waiting & broken
            return not waiting

        try:
            eventually(is_whole, timeout_s=HEAL_S)
        except AssertionError as error:
            raise AssertionError(f"D2: {sorted(waiting or ())} not in sync: {error}") from None


def agree(cluster: RealCluster) -> None:
    """D3: nobody has another catalog."""

    def is_one() -> bool:
        try:
            first, *others = [process.get("/v1/cluster/partitions") for process in cluster.brokers.values()]
        except OSError:
            return False
        return all(each["partitions"] == first["partitions"] for each in others)

    eventually(is_one, timeout_s=HEAL_S, what="D3: all brokers tell the same of all partitions")


def subject_of(partition: int) -> str:
    return f"{STREAM}.{partition}" if partition else STREAM


def committed_of(cluster: RealCluster, stream: str) -> int:
    """So far a stream of one partition is committed."""

    def look() -> int | None:
        with suppress(OSError):
            found: int | None = cluster.state(stream)["high_watermark"]
            return found
        return None

    found = eventually(look, timeout_s=HEAL_S, what=f"the end of {stream}")
    assert found is not None
    return found


def compare(folders: Mapping[str, Path], committed: Mapping[str, int]) -> None:
    """D3. Batches may differ: each replica joins small ones by itself. So may what is gone: each removes segments whose
    records are all below the log start, and compacts, by itself.

    Args:
        committed: So far each stream of `OWN` was committed when no broker had stopped.
    """
    kept: dict[Path, list[str]] = defaultdict(list)
    for broker, data in folders.items():
        for path in sorted((data / "streams").glob("*/*/*")):
            if path.name.isdigit():
                kept[path.relative_to(data)].append(broker)
    for place, brokers in kept.items():
        held = {broker: rows_of(folders[broker] / place) for broker in brokers}
        stream = place.parts[1]
        ends = {broker: end_of(held[broker], folders[broker] / place) for broker in brokers}
        if stream in OWN:
            for broker in brokers:
                least = max(known_of(folders[broker] / place), committed.get(stream, 0))
                assert ends[broker] >= least, f"D3: {place} of {broker} ends at {ends[broker]}, {least} was committed"
            brokers.sort(key=ends.__getitem__)
        if stream == STREAM:
            offsets = held[brokers[0]].column("offset").to_pylist()
            assert offsets == list(range(len(offsets))) != [], f"D3: {place}: offsets have gaps"
            assert len(brokers) >= SETTINGS["replication_factor"], f"D3: {place} is on {brokers}"
        for one, other in pairwise(brokers):
            begin = max(begin_of(folders[broker] / place) for broker in (one, other))
            end = min(ends[one], ends[other]) if stream in OWN else None
            compare_rows(held[one], held[other], begin, stream in COMPACTED, f"D3: {place} of {one} and {other}", end)


def begin_of(folder: Path) -> int:
    """The offset at which the first segment begins; it may hold nothing."""
    return min((int(segment.stem) for segment in folder.glob("*.arrows")), default=0)


def end_of(rows: pa.Table, folder: Path) -> int:
    """The offset behind the last record; where a log without records begins."""
    return int(pc.max(rows.column("offset")).as_py()) + 1 if rows.num_rows else begin_of(folder)


def known_of(folder: Path) -> int:
    """So far a replica knew its log to be committed when it was closed."""
    text, _, _ = (folder / "checkpoint").read_text().rpartition(" ")
    return int(json.loads(text)["high_watermark"])


def compare_rows(
    one: pa.Table, other: pa.Table, begin: int, is_compacted: bool, what: str, end: int | None = None
) -> None:
    """`end`: so far; None: to the end of both."""
    tables = [table.filter(pc.greater_equal(table.column("offset"), begin)) for table in (one, other)]
    if end is not None:
        tables = [table.filter(pc.less(table.column("offset"), end)) for table in tables]
    if is_compacted:
        offsets = [table.column("offset").combine_chunks() for table in tables]
        tables = [
            table.filter(pc.is_in(table.column("offset"), at))
            for table, at in zip(tables, reversed(offsets), strict=True)
        ]
    assert tables[0].equals(tables[1]), f"{what} differ: {tables[0].num_rows} and {tables[1].num_rows} from {begin} on"


def rows_of(folder: Path) -> pa.Table:
    """All records of a replica, whatever its segments and batches are."""
    segments = [SCHEMA.empty_table()]
    for segment in sorted(folder.glob("*.arrows")):
        with pa.ipc.open_stream(segment.read_bytes()) as stream:
            segments.append(stream.read_all())
    return pa.concat_tables(segments).combine_chunks()
