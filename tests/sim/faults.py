"""Faults: each seed has its own mix, so that some runs see much of one thing and others of another.

Faults stay within the fault model (see the package): a disk that loses what it had fsynced does so only while another
member of the in-sync replicas, or of the last ones, has its own.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.api.batch import read_header
from broker.storage.segments.checkpoint import CHECKPOINT_FILE, Checkpoint
from tests.sim.commands import OfTheCatalog
from tests.sim.driven.changing import PAUSING
from tests.sim.machine import SYNC_MS
from tests.support.simdisk import MODES

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.driven.node import Broker
    from tests.sim.driven.seen import Seen
    from tests.sim.stored import Stored

POWER = MODES
WEIGHTS = {
    "kill": 4.0,
    "power": 4.0,
    "power_all": 1.5,
    "cut_within": 2.0,
    "wipe": 1.0,
    "flip_log": 1.0,
    "flip_index": 1.0,
    "flip_state": 1.0,
    "cut_file": 0.7,
    "full": 1.5,
    "fsync": 1.5,
    "pause": 3.0,
    "clock": 1.5,
    "isolate": 3.0,
    "one_way": 3.0,
    "split": 2.0,
    "flap": 1.5,
    "slow": 1.5,
    "controller": 1.5,
    "controller_midway": 1.5,
    "controller_stops": 1.5,
    "elect": 2.0,
    "assign": 1.5,
    "stop": 1.5,
    "minimum": 1.0,
    "below": 2.0,
    "unclean": 5.0,
    "takeovers": 1.5,
    "lapse": 1.0,
}
ROTS = {
    "flip_log": 20.0,
    "cut_file": 3.0,
    "vanish": 6.0,
    "scatter": 20.0,
    "parted": 12.0,
    "flip_index": 0.5,
    "flip_state": 0.5,
}
ROTTING = 2
"""Files are damaged in this one of four seeds, records most of all."""
OFTEN = 4.0
"""So much more often they close something."""
CLOSING = 3
"""In this one of four seeds little else happens: replicas move, brokers stop, and fsyncs fail."""
CLOSES = {"assign": 30.0, "stop": 12.0, "fsync": 20.0}

JOURNAL_WEIGHT = 20.0
"""The weight of a damaged journal of Raft, in the seeds that have any."""


def told_of(replica: Seen, path: str, reach: int, *, cut: bool) -> int:
    """So many bytes of a segment may be damaged, and the next open has something else to tell it by: a later segment,
    the checkpoint as it is, or the high watermark in a later batch, which a cut would take too.
    """
    kept = checkpoint_of(replica)
    committed_to, told = max(kept.high_watermark, kept.recovery_point), 0
    for first, _, end, high_watermark in reversed(last_batches(replica)):
        if first < committed_to:
            told = max(told, end)
        if not cut:
            committed_to = max(committed_to, high_watermark)
    return told if path == last_path(replica) else reach


def has_records(replica: Seen) -> bool:
    """Whether there is an open log with a file of records."""
    log = replica.log
    return log is not None and not log.state.is_closed and bool(log.state.chain.segments)


def last_path(replica: Seen) -> str:
    assert replica.log is not None
    return replica.log.state.chain.segments[-1].path


def last_batches(replica: Seen) -> list[tuple[int, int, int, int]]:
    """First offset, position, end, and high watermark in the header, of what the open segment has on the disk."""
    assert replica.log is not None
    live, inode = replica.log.state.chain.segments[-1].live, replica.broker.disk.names[last_path(replica)]
    found = []
    for entry in live.view().entries if live is not None else ():
        position, end = int(entry["position"]), int(entry["position"] + entry["length"])
        if inode.durable[position:end] == inode.content[position:end]:  # else it is not synced
            header = read_header(inode.content[position:end])
            found.append((header.first_offset, position, end, header.high_watermark))
    return found


def checkpoint_of(replica: Seen) -> Checkpoint:
    """As it is on the disk; an empty one if there is none."""
    disk = replica.broker.disk
    path = f"{replica.folder}/{CHECKPOINT_FILE}"
    found = Checkpoint.decode(bytes(disk.names[path].durable), where=path) if path in disk.names else None
    return found or Checkpoint()


class Faults(OfTheCatalog):
    """Lets something go wrong every now and then. `pace_ms`: so often, about."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        rng = self.world.rng
        self.pace_ms = rng.choice((500, 900, 1_500, 3_000))
        quiet = rng.choice((0.0, 0.3, 0.6))
        self.kinds = [kind for kind in WEIGHTS if rng.random() >= quiet] or ["kill"]
        for _ in self.kinds:
            rng.choice((0.3, 1, 1, 3))  # seeds keep their stories
        self.kinds = [kind for kind in self.kinds if kind not in ROTS] or ["kill"]
        if cluster.published is not None:  # whoever is elected unclean may publish a batch twice
            self.kinds = [kind for kind in self.kinds if kind != "unclean"] or ["kill"]
            self.pace_ms = max(self.pace_ms, 2_500)  # most of it goes wrong amid commits
        self.weights = [WEIGHTS[kind] * (OFTEN if kind in ("assign", "stop") else 1) for kind in self.kinds]
        if cluster.seed % 4 == CLOSING:
            self.kinds, self.weights = [*self.kinds, *CLOSES], [*self.weights, *CLOSES.values()]
            self.pace_ms = 400
        if cluster.changes is not None:
            self.pace_ms = max(self.pace_ms, 900 if cluster.nats is None else 2_000)
            if cluster.seed % 16 in PAUSING:
                self.pace_ms = 8_000
        if cluster.rots:
            self.kinds, self.weights = [*self.kinds, *ROTS], [*self.weights, *ROTS.values()]
            self.pace_ms = min(self.pace_ms, 900)
        if cluster.metadata.damages:
            self.kinds, self.weights = [*self.kinds, "journal"], [*self.weights, JOURNAL_WEIGHT]
        self.is_over = False
        self.world.after(rng.uniform(300, 3_000), self.next)

    def next(self) -> None:
        if self.is_over:
            return
        [kind] = self.world.rng.choices(self.kinds, self.weights)
        self.inject(kind)
        self.world.after(self.world.rng.expovariate(1 / self.pace_ms), self.next)

    def inject(self, kind: str, broker: Broker | None = None) -> None:
        """Let one thing go wrong, at a broker of its own choice if none is given."""
        broker = broker or self.pick()
        act: Callable[[Broker], object] = getattr(self, f"_{kind}")
        if act(broker) is not False:
            self.world.saw(f"fault: {kind}")

    def pick(self) -> Broker:
        """Any; leaders and the controller more often than others."""
        rng, cluster = self.world.rng, self.cluster
        if rng.random() < 0.5:
            leaders = [state.leader for state in cluster.metadata.states.values()]
            names = [name for name in (*leaders, cluster.metadata.controller) if name is not None]
            if names:
                return cluster.brokers[rng.choice(names)]
        return rng.choice(list(cluster.brokers.values()))

    def _later(self, low: float, high: float, act: Callable[[], object]) -> None:
        self.world.after(self.world.rng.uniform(low, high), act)

    # -- processes

    def _down(self, broker: Broker, mode: str) -> bool:
        if broker.process == 0:
            return False
        broker.crash(mode)
        self._later(50, 4_000, broker.start_if_gone)
        return True

    def _kill(self, broker: Broker) -> bool:
        return self._down(broker, "kill")

    def _power(self, broker: Broker) -> bool:
        return self._down(broker, self.world.rng.choice(POWER))

    def _power_all(self, broker: Broker) -> None:
        self.world.note("faults", "the power of all goes")
        mode = self.world.rng.choice(POWER)
        for one in self.cluster.brokers.values():
            if one.process:
                one.crash(mode if self.world.chance(0.7) else self.world.rng.choice(POWER))
                self._later(50, 2_500, one.start_if_gone)  # type: ignore[misc]

    def _cut_within(self, broker: Broker) -> bool:
        """The power goes in the midst of whatever changes the disk next."""
        if broker.process == 0:
            return False
        broker.disk.crash_at = broker.disk.steps + self.world.rng.randint(1, 40)
        self._later(3_000, 5_000, broker.start_if_gone)
        return True

    def _pause(self, broker: Broker) -> bool:
        if broker.process == 0:
            return False
        broker.paused_until_ms = self.world.now_ms + self.world.rng.choice((150, 700, 2_500, 5_000))
        broker.note(f"is stopped until {broker.paused_until_ms / 1000:.3f}")
        return True

    def _clock(self, broker: Broker) -> None:
        rng = self.world.rng
        if rng.random() < 0.5:
            broker.clock.change(rate=rng.choice((0.7, 0.9, 1.1, 1.5)))
        else:
            broker.clock.change(ahead_ms=rng.choice((50, 2_000, 60_000)))
        broker.wall_jump_ms = rng.choice((-3_600_000, 0, 3_600_000))

    # -- disks

    def spare(self, broker: Broker, name: str) -> bool:
        """Whether this replica's disk may lose what it has fsynced: another member lives and has its own."""
        cluster = self.cluster
        partition, bad = cluster.metadata.states[name], cluster.checker.known[name].bad
        others = {*partition.isr, *partition.last_isr} - {broker.name} - bad
        whole = [who for who in others if cluster.brokers[who].process and name in cluster.brokers[who].replicas]
        return broker.name not in {*partition.isr, *partition.last_isr} or len(whole) >= 1

    def _mine(self, broker: Broker) -> list[str]:
        return [name for name, state in self.cluster.metadata.states.items() if broker.name in state.replicas]

    def _wipe(self, broker: Broker) -> bool:
        """The machine comes back without its disk."""
        mine = self._mine(broker)
        if not all(self.spare(broker, name) for name in mine):
            return False
        broker.crash("kill")
        broker.note("has lost its disk")
        broker.replace_disk(self.cluster.new_disk())
        for name in mine:
            self.cluster.checker.lose(broker.name, name)
        if self.cluster.metadata.is_whole:  # it had the journal, too
            self.cluster.metadata.damage(broker.name, "all")
        self._later(50, 3_000, broker.start_if_gone)
        return True

    def _journal(self, broker: Broker) -> bool:
        """A broker comes back with its logs, and with a journal of Raft that lacks what it had acknowledged."""
        if broker.process == 0 or not self.cluster.metadata.is_whole:
            return False
        broker.crash("kill")
        self.cluster.metadata.damage(broker.name)
        self._later(50, 3_000, broker.start_if_gone)
        return True

    def _files(self, broker: Broker, name: str, endings: tuple[str, ...]) -> list[str]:
        folder = f"{broker.folder_of(name)}/"
        found = [path for path, inode in broker.disk.names.items() if path.startswith(folder) and inode.content]
        return [path for path in found if any(ending in path for ending in endings)]

    def _damage(self, broker: Broker, endings: tuple[str, ...], *, cut: bool = False, gone: bool = False) -> bool:
        rng = self.world.rng
        names = [name for name in self._mine(broker) if self.spare(broker, name)]
        names = [name for name in names if self._files(broker, name, endings)]
        if not names:
            return False
        name = rng.choice(names)
        path = rng.choice(self._files(broker, name, endings))
        inode = broker.disk.names[path]
        replica = broker.replicas.get(name)
        reach = len(inode.content)
        if ".arrows" in path:
            if broker.process == 0 or replica is None or not has_records(replica):
                return False
            reach = min(len(inode.durable), reach)
            if broker.name not in self.cluster.checker.known[name].bad and self.world.chance(0.5) and not gone:
                reach = told_of(replica, path, reach, cut=cut)
            elif not broker.guard(replica.keep):
                return False  # what nothing tells of would look like a torn tail
        if not reach or (gone and path not in broker.disk.names):
            return False
        if gone:
            broker.note(f"{path} is gone")
            broker.disk.lose(path)
            self.cluster.checker.lose(broker.name, name, of_records=True)
        if cut or gone:
            if cut:
                self.cut_to(broker, name, path, rng.randrange(reach))
            broker.crash("kill")  # whoever has it open would write beyond its end
            self._later(50, 2_000, broker.start_if_gone)
        else:
            self.flip(broker, name, path, rng.randrange(reach * 8))
        self._later(100, 3_000, lambda: self._scrub(broker, name))
        return True

    def cut_to(self, broker: Broker, name: str, path: str, size: int) -> None:
        """A file of a partition loses its end. A broker that has it open must be killed."""
        inode = broker.disk.names[path]
        for content in (inode.content, inode.durable):
            del content[size:]
        inode.pending.clear()
        inode.room = 0
        broker.note(f"{path} is cut to {size} bytes")
        self.cluster.checker.lose(broker.name, name, of_records=".arrows" in path)

    def flip(self, broker: Broker, name: str, path: str, bit: int) -> None:
        """A bit of a file of a partition is another."""
        broker.disk.flip(path, bit)
        self.cluster.checker.lose(broker.name, name, of_records=".arrows" in path)
        broker.note(f"bit {bit} of {path} flips")

    def _scrub(self, broker: Broker, name: str) -> None:
        replica = broker.replicas.get(name)
        if broker.process and replica is not None:
            broker.guard(replica.scrub)

    def _flip_log(self, broker: Broker) -> bool:
        return self._damage(broker, (".arrows",))

    def _flip_index(self, broker: Broker) -> bool:
        return self._damage(broker, (".index",))

    def _flip_state(self, broker: Broker) -> bool:
        return self._damage(broker, ("checkpoint", "epochs", "state-", "partition.json", "compaction"))

    def _cut_file(self, broker: Broker) -> bool:
        return self._damage(broker, (".arrows", ".index", "checkpoint", "epochs"), cut=True)

    def _vanish(self, broker: Broker) -> bool:
        """A file of records is not there any more."""
        return self._damage(broker, (".arrows",), gone=True)

    def _scatter(self, broker: Broker) -> bool:
        """Each replica of a partition loses another record, so that all are there and nobody has all; or all but one
        lose the same.
        """
        rng, cluster = self.world.rng, self.cluster
        names = [name for name in self._mine(broker) if self._are_whole(name)]
        if not names or cluster.rewrites:  # a batch here may be a part of a larger one there
            return False
        name = rng.choice(names)
        replicas = [cluster.brokers[who].replicas[name] for who in cluster.metadata.states[name].replicas]
        if not all(replica.broker.guard(replica.keep) for replica in replicas):
            return False
        logs = [replica.log for replica in replicas if replica.log is not None and replica.broker.process]
        start = max(log.state.log_start_offset for log in logs)
        end = min(min(log.state.durable_end, log.state.high_watermark) for log in logs)
        batches = [batch for _, batch in sorted(cluster.checker.known[name].at.items())]
        batches = [batch for batch in batches if start <= batch.first and batch.next <= end]
        if len(logs) < len(replicas) or len(batches) < len(replicas):
            return False
        chosen = rng.sample(batches, len(replicas))
        if rng.random() < 0.4:  # one record, that a single replica still has
            replicas.pop(rng.randrange(len(replicas)))
            chosen = chosen[:1] * len(replicas)
        for replica, batch in zip(replicas, chosen, strict=True):
            self._flip_within(replica, batch)
            cluster.checker.lose_one(replica.broker.name, name)
        return True

    def _parted(self, broker: Broker) -> bool:
        """A leader is cut off, goes on by itself, and comes back with damage in what nobody else has."""
        name, brokers = self._some()
        if not name:
            return False
        leader = brokers[-1]
        others = [one for one in self.cluster.brokers if one != leader.name]
        self._cut([pair for one in others for pair in ((leader.name, one), (one, leader.name))], 2_500, 4_000)
        self._later(900, 2_300, lambda: self._damage_end(leader, name))
        return True

    def _damage_end(self, broker: Broker, name: str) -> None:
        replica, known = broker.replicas.get(name), self.cluster.checker.known[name]
        if not broker.process or replica is None or not has_records(replica) or not self.spare(broker, name):
            return
        end = replica.durable_end
        batches = [one for one in replica.shadow if known.end <= one.first and one.next <= end]
        if not batches or replica.is_damaged or not broker.guard(replica.keep):
            return
        self._flip_within(replica, self.world.rng.choice(batches))
        self.cluster.checker.lose(broker.name, name, of_records=True)
        broker.crash("kill")
        self._later(50, 2_500, broker.start_if_gone)

    def _flip_within(self, replica: Seen, batch: Stored) -> None:
        assert replica.log is not None
        with replica.log.reader.read(batch.first, end=batch.next, stored=True) as plan:
            [place] = plan.ranges
        bit = self.world.rng.randrange(place.position * 8, (place.position + place.length) * 8)
        replica.broker.disk.flip(place.path, bit)
        replica.broker.note(f"bit {bit} of {place.path} flips, within {batch}")

    def _are_whole(self, name: str) -> bool:
        """Whether all replicas are in sync, run, and have their own."""
        cluster = self.cluster
        state, known, brokers = cluster.metadata.states[name], cluster.checker.known[name], cluster.brokers
        if known.is_lost or known.bad & {*state.replicas} or {*state.isr} != {*state.replicas}:
            return False
        found = [brokers[who].replicas.get(name) if brokers[who].process else None for who in state.replicas]
        logs = [None if replica is None or replica.is_damaged else replica.log for replica in found]
        return all(log is not None and log.state.failure is None and not log.state.lost_ranges for log in logs)

    def _full(self, broker: Broker) -> None:
        disk = broker.disk
        disk.bytes_max = disk.used_bytes + self.world.rng.choice((0, 300, 2_000))
        broker.note("the disk is full")

        def room() -> None:
            broker.disk.bytes_max = None

        self._later(300, 3_000, room)

    def _fsync(self, broker: Broker) -> bool:
        if broker.process == 0:
            return False
        self._slow_disk(broker)
        broker.disk.fail(
            "sync",
            errno.EIO,
            path=".arrows",
            after=self.world.rng.randint(0, 3),
            times=self.world.rng.choice((1, 1, 3)),
        )
        return True

    # -- links

    def _cut(self, pairs: list[tuple[str, str]], low: float, high: float) -> None:
        network = self.cluster.network
        new = [pair for pair in pairs if pair not in network.cut]
        network.cut.update(new)
        self._later(low, high, lambda: network.cut.difference_update(new))

    def _isolate(self, broker: Broker, longest_ms: float = 5_000) -> None:
        """From all other brokers, both ways; clients still come."""
        broker.note("is cut off from the others")
        others = [name for name in self.cluster.brokers if name != broker.name]
        self._cut([pair for name in others for pair in ((broker.name, name), (name, broker.name))], 300, longest_ms)

    def _one_way(self, broker: Broker) -> None:
        rng = self.world.rng
        others = [name for name in self.cluster.brokers if name != broker.name]
        some = rng.sample(others, rng.randint(1, len(others)))
        outward = rng.random() < 0.5
        broker.note(f"{'does not reach' if outward else 'is not reached by'} {','.join(some)}")
        self._cut([(broker.name, name) if outward else (name, broker.name) for name in some], 300, 5_000)

    def _split(self, broker: Broker) -> None:
        """A minority that has the controller, if it can be, does not reach the others: within it all is well."""
        rng, cluster = self.world.rng, self.cluster
        names = list(cluster.brokers)
        rng.shuffle(names)
        names.sort(key=lambda name: name != cluster.metadata.controller)
        some = names[: rng.randint(1, (len(names) - 1) // 2)]
        self.world.note("faults", f"{','.join(sorted(some))} do not reach the others")
        self._cut([pair for a in some for b in names if b not in some for pair in ((a, b), (b, a))], 300, 5_000)

    def _flap(self, broker: Broker) -> None:
        for _ in range(4):
            self._later(0, 4_000, lambda: self._cut([(broker.name, n) for n in self.cluster.brokers], 50, 400))

    def _slow(self, broker: Broker) -> None:
        network = self.cluster.network
        network.slow.add(broker.name)
        broker.sync_ms = self.world.rng.choice((60, 400, 1_500))

        def quick() -> None:
            network.slow.discard(broker.name)
            broker.sync_ms = SYNC_MS

        self._later(500, 4_000, quick)

    # -- several things in a row

    def _some(self) -> tuple[str, list[Broker]]:
        """A partition that is led, and its brokers: the leader last."""
        states = [(name, state) for name, state in self.cluster.metadata.states.items() if state.leader]
        if not states:
            return "", []
        name, state = self.world.rng.choice(states)
        others = [who for who in state.replicas if who != state.leader]
        self.world.rng.shuffle(others)
        return name, [self.cluster.brokers[who] for who in (*others, state.leader) if who is not None]

    def _below(self, broker: Broker) -> bool:
        """One after the other goes, the leader last, so that too few are in sync; they come back one by one."""
        name, brokers = self._some()
        for number, one in enumerate(brokers):
            self._later(900 * number, 900 * number + 1_200, lambda one=one: self._down(one, "kill"))  # type: ignore[misc]
        return bool(name)

    def _takeovers(self, broker: Broker) -> bool:
        """Leaders in a row lose the others, go on for a while, and are dead when they would be heard again."""
        name, _ = self._some()
        at_ms = 0.0
        for _ in range(self.world.rng.choice((2, 3, 3)) if name else 0):
            self.world.after(at_ms, self._take_over, name)
            at_ms += self.world.rng.uniform(1_300, 2_600)
        return bool(name)

    def _take_over(self, name: str) -> None:
        state = self.cluster.metadata.states.get(name)
        leader = None if state is None else state.leader
        if self.is_over or leader is None:
            return
        one = self.cluster.brokers[leader]
        self._isolate(one, 900)
        self._later(700, 900, lambda: self._down(one, "kill"))

    # -- the end

    def heal(self) -> None:
        """From now on nothing goes wrong any more."""
        cluster = self.cluster
        self.is_over = True
        if cluster.operator is not None:
            cluster.operator.heal()
        if cluster.changes is not None:
            cluster.changes.heal()
        if cluster.nats is not None:
            cluster.nats.heal()
        cluster.network.cut.clear()
        cluster.network.slow.clear()
        for broker in cluster.brokers.values():
            broker.disk.heal()
            broker.disk.crash_at = None
            broker.paused_until_ms = 0.0
            broker.sync_ms = SYNC_MS
            if broker.clock.rate != 1.0:
                broker.clock.change(rate=1.0)
            broker.start_if_gone()
