"""A catalog that lost its last commands is fitted to the logs: nothing committed is lost, no epoch comes again.

The cluster of `cluster.py` lives for a while, and here its replicas have logs: lists of leader epochs, one for each
record. Leaders append, members of the ISR have it all at once, others have part of it and may have been cut. Then the
catalog is an older one, and everybody who still has a disk reports.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from broker.api.errors import LiftlogError
from broker.metadata.catalog import Catalog
from broker.metadata.cluster import FEATURE_LEVEL
from broker.metadata.partition import PartitionState, Place
from tests.properties.metadata.cluster import Cluster, Command
from tests.support.effort import examples, first_short, seeded

Log = list[int]


class Logs(Cluster):
    """See the module. `committed`: by partition; `unclean`: those of which an operator has given up records."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.logs: dict[tuple[str, Place], Log] = {}
        self.committed: dict[Place, Log] = {}
        self.epochs = 0

    def apply(self, command: Command) -> dict[str, Any]:
        before = dict(self.cluster.partitions)
        result = super().apply(command)
        if "ok" in result:
            for at, state in self.cluster.partitions.items():
                self.advance(command, result["ok"], at, before.get(at), state)
        self.epochs = max(self.epochs, self.cluster.epoch_last)
        return result

    def advance(
        self, command: Command, ok: dict[str, Any], at: Place, before: PartitionState | None, now: PartitionState
    ) -> None:
        if before is None:
            return
        if (lost := self.lost_by(command, ok, at, before)) is not None:
            self.logs.pop((lost, at), None)
            if now.has_led and not now.electable:  # nobody has it: lost before any rescue
                self.committed.pop(at, None)
        for broker in now.replicas:
            if broker in now.opened or broker in now.isr:
                self.logs.setdefault((broker, at), [])
        if now.leader is None:
            return
        log = self.logs[now.leader, at]
        if now.unclean_epoch == now.leader_epoch:
            self.committed[at] = log[: len(self.committed.get(at, ()))]
        log += [now.leader_epoch] * self.rng.randrange(3)
        for broker in now.replicas:
            if broker in now.isr:
                self.logs[broker, at] = list(log)
            elif (broker, at) in self.logs and broker not in now.last_isr and self.rng.random() < 0.5:
                self.logs[broker, at] = log[: self.rng.randint(0, len(log))]
        if len(now.isr) >= now.min_insync_replicas:
            self.committed[at] = list(log)


@pytest.mark.parametrize("seed", first_short(range(0, examples(60), 20)))
def test_what_was_committed_is_there_after_a_rescue(seed: int) -> None:
    """Q1 to Q4. A broker that lost its folder is excused: then nothing is promised, and the partition says so."""
    for each in range(seed, seed + 20):
        rng = random.Random(seeded(each))
        world = Logs(rng)
        world.apply({"v": 1, "kind": "form_cluster", "cluster_id": "c"})
        older = world.catalog.snapshot()
        for step in range(rng.randint(40, 200)):
            if step % 40 == 0 and rng.random() < 0.7:
                older = world.catalog.snapshot()
            world.step(rng)
        rescued(world, Catalog.restore(json.loads(json.dumps(older))), rng)


def rescued(world: Logs, catalog: Catalog, rng: random.Random) -> None:
    def apply(kind: str, **named: Any) -> dict[str, Any]:
        nonlocal catalog
        command = {"v": 1, "kind": kind, **named}
        restored = Catalog.restore(json.loads(json.dumps(catalog.snapshot())))
        try:
            judged = {"ok": catalog.judge(command)}
        except LiftlogError as error:
            judged = {"error": error.to_problem()}
        assert catalog.snapshot() == restored.snapshot(), "M7"
        result = catalog.apply(command)
        assert judged == result, "M7"
        assert restored.apply(command) == result
        assert restored.snapshot() == catalog.snapshot()
        return result

    brokers = sorted({*world.catalog.brokers, *catalog.brokers})
    places = dict(catalog.cluster.partitions)
    number = apply("begin_rescue", cluster_id="c", epoch_last=catalog.epoch_last)["ok"]["rescue"]
    folders = {b: {at: log for (broker, at), log in world.logs.items() if broker == b} for b in brokers}
    gone = {b for b in brokers if rng.random() < 0.1}
    for broker in rng.sample(brokers, len(brokers)):
        assert "error" in apply("end_rescue", rescue=number, brokers=brokers), "Q2"
        if broker in gone:
            continue
        sound: dict[str, list[int]] = {}
        for stream, partition in folders[broker]:
            sound.setdefault(stream, []).append(partition)
        named = {"broker_id": broker, "incarnation": "p", "http": "h", "grpc": "g", "sound": sound}
        named["feature_level_max"] = FEATURE_LEVEL
        for _ in range(rng.randint(1, 2)):  # the second time it has to report anew
            registration = apply("register_broker", **named)["ok"]["registration"]
            seen = max([-1, *(epoch for log in folders[broker].values() for epoch in log)])
            logs = [[*at, log[-1] if log else -1, len(log)] for at, log in sorted(folders[broker].items())]
            said = {
                "broker_id": broker,
                "registration": registration,
                "rescue": number,
                "epoch_seen": seen,
                "logs": logs,
            }
            assert "ok" in apply("report_logs", **said)
    there = [broker for broker in brokers if broker in catalog.brokers]
    if not there:
        return
    for broker in sorted(gone & catalog.brokers.keys()):
        missing = apply("excuse_replicas", broker_id=broker, rescue=number)["ok"]
        assert broker not in missing["brokers"]
    ended = apply("end_rescue", rescue=number, brokers=there)
    excused = []
    while "error" in ended:
        assert not ended["error"]["brokers"], ended
        broker, stream, partition = ended["error"]["replicas"][0]
        excused.append((broker, (stream, partition)))
        apply("excuse_replicas", broker_id=broker, rescue=number, partitions={stream: [partition]})
        ended = apply("end_rescue", rescue=number, brokers=there)
    for at, was in places.items():
        state = catalog.cluster.partitions[at]
        holders = {b: folders[b][at] for b in brokers if b not in gone and at in folders[b]}
        if not holders:
            assert state.leader is None, "Q4"
            assert [*at] in ended["ok"]["lost"], "Q4"
            continue
        [first] = state.isr
        assert state.leader in (first, None)
        assert state.leader_epoch > world.epochs, "Q1"
        assert catalog.epoch_last > world.epochs, "Q1"
        log = holders[first]
        assert all((log[-1:], len(log)) >= (other[-1:], len(other)) for other in holders.values()), "Q3"
        assert all(holders[b] == log for b in state.last_isr), "Q3"
        was_lost = was.has_led and not was.electable
        is_whole = not was_lost and not any(b in gone or (b, at) in excused for b in was.replicas)
        assert (state.unclean_epoch > number) != is_whole, "Q3"
        if is_whole and at in world.cluster.partitions:
            assert log[: len(world.committed.get(at, ()))] == world.committed.get(at, []), "Q3"
        for broker in state.replicas:
            assert at not in catalog.cluster.leftovers.get(broker, ()), "Q3: it would delete what it keeps"
