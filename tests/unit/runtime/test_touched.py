"""Goal: a command costs what it changes. Of all partitions of a broker only those are looked at that it has touched,
and none is forgotten: after any order of commands each replica is assigned what it would be by a look at all.

Method: commands in an order of a seed, on one catalog; two brokers' worth of replicas that note their assignments, one
of which looks at all after each command.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.api.errors import LiftlogError
from broker.common.looping import ThreadLoop
from broker.metadata.catalog import SINCE, Catalog
from broker.metadata.cluster import Touched
from broker.metadata.partition import Place
from broker.node import replicas as module
from broker.node.placed import Assignment
from broker.node.replicas import Replicas
from broker.node.role_lines import RoleLines
from broker.node.wiring import Host
from tests.support.effort import seeds

BROKERS = ("a", "b", "c", "d")
KINDS = (
    *("register", "fail", "create", "create", "delete", "alter", "grow", "confirm", "isr", "isr", "isr"),
    *("opened", "opened", "step_out", "reassign", "preferred", "deleted", "renew", "fence", "fence"),
)


class Noting:
    """A replica that is gone at once when it is to be there no more."""

    def __init__(self, host: Any, at: Place, *_: Any, **__: Any) -> None:
        self.at, self.is_gone, self.assigned = at, False, host.assigned

    def assign(self, assigned: Assignment | None, *, is_deleted: bool = False) -> None:
        self.is_gone = assigned is None
        self.assigned[self.at] = assigned


class Service:
    """Gives what the commands have touched; or nothing, so that all is looked at."""

    def __init__(self, catalog: Catalog, *, tells: bool) -> None:
        self.catalog, self.tells = catalog, tells
        self.touched: Touched | None = None
        self.looked = 0


def replicas_of(service: Service, *, has_others: bool = True) -> tuple[Replicas, dict[Place, Assignment | None]]:
    assigned: dict[Place, Assignment | None] = {}
    pools = dict.fromkeys(("commands", "step_outs", "mending"))
    parts = {**pools, "roles": RoleLines(), "has_others": has_others}
    host = SimpleNamespace(me="a", service=service, now_ms=lambda: 0, assigned=assigned, make_loop=ThreadLoop, **parts)
    return Replicas(cast(Host, host), "pa"), assigned


class Commands:
    """Commands that may be, in an order of a seed."""

    def __init__(self, rng: random.Random, apply: Callable[..., Any], catalog: Catalog) -> None:
        self.rng, self.apply, self.catalog = rng, apply, catalog
        self.number = 0

    def one(self) -> None:
        cluster, rng = self.catalog.cluster, self.rng
        streams = list(self.catalog.streams.values())
        places = list(cluster.partitions)
        name = rng.choice(BROKERS)
        info = cluster.brokers.get(name)
        number = 0 if info is None else info.registration
        kind = rng.choice(KINDS)
        self.number += 1
        match kind:
            case "register":
                process = f"p{name}" if name == "a" else f"p{self.number}"
                sound: dict[str, list[int]] = {}
                for incarnation, partition in places:
                    sound.setdefault(incarnation, []).append(partition)
                address = rng.choice((1, 2))
                self.apply(
                    kind="register_broker",
                    broker_id=name,
                    incarnation=process,
                    http=f"{name}:{address}",
                    grpc=f"{name}:3",
                    after=number,
                    sound=sound,
                )
            case "fail" if name != "a" or rng.random() < 0.3:
                self.apply(kind="fail_broker", broker_id=name, registration=number)
            case "renew" if info is not None:
                self.apply(kind="renew_sessions", renewals={name: number})
            case "create":
                settings = {"subject": None, "partitions": rng.randint(1, 3)}
                what = {"name": f"s{self.number}", "incarnation": f"{self.number:032x}", "settings": settings}
                self.apply(kind="create_stream", created_us=1, replication_factor=rng.randint(1, 3), **what)
            case "delete" if streams:
                self.apply(kind="delete_stream", name=rng.choice(streams).name)
            case "alter" if streams:
                self.apply(kind="alter_stream", name=rng.choice(streams).name, changes={"retention_ms": self.number})
            case "fence" if streams:
                stream = rng.choice(streams)
                partition = rng.randrange(stream.settings.partitions)
                what = {"incarnation": stream.incarnation, "partition": partition}
                self.apply(kind="raise_fence", name=stream.name, after=stream.fence_of(partition), **what)
            case "grow" if streams:
                stream = rng.choice(streams)
                self.apply(kind="add_partitions", name=stream.name, partitions=stream.settings.partitions + 1)
            case "confirm" if streams:
                self.confirm(rng.choice(streams))
            case "isr" if places:
                self.isr(rng.choice(places))
            case "opened" if info is not None:
                mine = [[*at, s.step_outs_of(name)] for at, s in cluster.partitions.items() if name in s.replicas]
                self.apply(kind="report_opened", broker_id=name, registration=number, replicas=mine)
            case "step_out" if places and info is not None:
                at = rng.choice(places)
                steps = cluster.partitions[at].step_outs_of(name)
                values = {"broker_id": name, "registration": number, "replicas": [[*at, steps]]}
                self.apply(kind="step_out", why=rng.choice(("fsync", "damage")), **values)
            case "reassign" if places:
                at = rng.choice(places)
                target = rng.sample(BROKERS, rng.randint(1, 3))
                self.apply(kind="reassign", stream=at[0], partition=at[1], replicas=target)
            case "preferred" if places:
                at = rng.choice(places)
                self.apply(kind="elect_preferred", partitions={at[0]: [at[1]]})
            case "deleted":
                gone: dict[str, list[int]] = {}
                for incarnation, partition in cluster.leftovers.get(name, ()):
                    gone.setdefault(incarnation, []).append(partition)
                self.apply(kind="confirm_deleted", broker_id=name, partitions=gone)

    def confirm(self, stream: Any) -> None:
        for at in self.catalog.cluster.places_of(stream.incarnation):
            state = self.catalog.cluster.partitions[at]
            leader = None if state.leader is None else self.catalog.cluster.brokers[state.leader]
            if leader is not None:
                for is_stopped in (False, True):
                    stage = module.stage_of(self.catalog.cluster, stream) if stream.partitions_next else None
                    self.apply(
                        kind="confirm_partitions",
                        name=stream.name,
                        incarnation=stream.incarnation,
                        partitions=stream.partitions_next,
                        broker_id=leader.broker_id,
                        registration=leader.registration,
                        leaders=[[at[1], state.leader_epoch]],
                        as_of=0 if stage is None else stage.as_of,
                        is_stopped=is_stopped,
                        gives_up=False,
                    )

    def isr(self, at: Place) -> None:
        state = self.catalog.cluster.partitions[at]
        other = self.rng.choice(state.replicas)
        info = self.catalog.cluster.brokers.get(other)
        if state.leader is None or info is None:
            return
        add = {"add": [other, info.registration, state.step_outs_of(other)]}
        change = {"remove": other} if other in state.isr else add
        self.apply(
            kind="alter_isr",
            broker_id=state.leader,
            stream=at[0],
            partition=at[1],
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            **change,
        )


@pytest.mark.parametrize("seed", seeds(12))
def test_no_replica_is_forgotten(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PlacedReplica", Noting)
    monkeypatch.setitem(SINCE, "raise_fence", 1)
    catalog, accepted = Catalog(), set()
    few, all_of_it = Service(catalog, tells=True), Service(catalog, tells=False)
    (one, assigned), (other, assigned_all) = replicas_of(few), replicas_of(all_of_it)
    one._changed()

    def apply(**command: Any) -> None:
        result = catalog.apply({"v": 1, **command})
        if "ok" in result:
            accepted.add(command["kind"])
        few.touched = catalog.take_touched()
        one._changed()
        other._changed()
        assert assigned == assigned_all, command
        assert {at: of_it.info.fence_of(at[1]) for at, of_it in assigned.items() if of_it is not None} == {
            at: of_it.info.fence_of(at[1]) for at, of_it in assigned_all.items() if of_it is not None
        }, command
        assert one._replicas.keys() == other._replicas.keys(), command
        assert one._growing == {i.incarnation for i in catalog.streams.values() if i.partitions_next} or not one._shared

    commands = Commands(random.Random(seed), apply, catalog)
    for name in BROKERS:
        apply(
            kind="register_broker", broker_id=name, incarnation=f"p{name}", http=f"{name}:1", grpc=f"{name}:3", sound={}
        )
    for _ in range(300):
        commands.one()
    assert {"create_stream", "report_opened", "delete_stream", "reassign", "raise_fence"} <= accepted, accepted


def test_a_command_looks_at_what_it_has_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PlacedReplica", Noting)
    monkeypatch.setitem(SINCE, "raise_fence", 1)
    catalog = Catalog()
    service = Service(catalog, tells=True)
    one, _ = replicas_of(service)
    looked: list[Place] = []
    look_at = one._look_at
    monkeypatch.setattr(one, "_look_at", lambda at, *rest: (looked.append(at), look_at(at, *rest)))

    def apply(**command: Any) -> Any:
        result = catalog.apply({"v": 1, **command})
        service.touched = catalog.take_touched()
        looked.clear()
        one._changed()
        assert "ok" in result, result
        return result["ok"]

    numbers = {}
    for name in "abc":
        values = {"incarnation": f"p{name}", "http": f"{name}:1", "grpc": f"{name}:2", "sound": {}}
        numbers[name] = apply(kind="register_broker", broker_id=name, **values)["registration"]
    settings = {"subject": None, "partitions": 100}
    for stream in range(3):
        what = {"name": f"s{stream}", "incarnation": f"{stream:032x}", "settings": settings}
        apply(kind="create_stream", created_us=1, replication_factor=3, **what)
        assert len(looked) == 100
    for name in "abc":
        mine = [[*at, 0] for at in catalog.cluster.partitions]
        apply(kind="report_opened", broker_id=name, registration=numbers[name], replicas=mine)
    at, state = next((at, s) for at, s in catalog.cluster.partitions.items() if s.leader == "a")
    where = {"stream": at[0], "partition": at[1], "partition_epoch": state.partition_epoch}
    apply(kind="alter_isr", broker_id="a", leader_epoch=state.leader_epoch, remove="b", **where)
    assert looked == [at]
    apply(kind="renew_sessions", renewals={"b": numbers["b"]})
    assert looked == []
    apply(kind="raise_fence", name="s1", incarnation=f"{1:032x}", partition=7, after=0)
    assert looked == [(f"{1:032x}", 7)]


def test_a_fault_in_one_partition_is_met_again_and_keeps_no_other_from_its_assignment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PlacedReplica", Noting)
    catalog = Catalog()
    service = Service(catalog, tells=True)
    one, assigned = replicas_of(service)
    assign, met = one._assign, []

    def fails_once(at: Place, name: str, said: Assignment | None) -> None:
        if not met:
            met.append(at)
            raise LiftlogError("a fault of ours")
        assign(at, name, said)

    monkeypatch.setattr(one, "_assign", fails_once)

    def apply(**command: Any) -> None:
        assert "ok" in catalog.apply({"v": 1, **command})
        service.touched = catalog.take_touched()
        one._changed()

    apply(kind="register_broker", broker_id="a", incarnation="pa", http="a:1", grpc="a:2", sound={})
    settings = {"subject": None, "partitions": 3}
    apply(kind="create_stream", name="s", incarnation="0" * 32, created_us=1, settings=settings, replication_factor=1)
    assert len(assigned) == 2
    apply(kind="renew_sessions", renewals={"a": 1})
    assert sorted(assigned) == [("0" * 32, number) for number in range(3)]


class Ticked(Noting):
    """One that notes that time has passed."""

    partition, is_damaged, is_at_rest = None, False, True

    def __init__(self, host: Any, at: Place, *rest: Any, **named: Any) -> None:
        super().__init__(host, at, *rest, **named)
        self.restless: dict[Place, None] = rest[-1]
        self.ticks: list[int] = []

    def tick(self, now_ms: int, *, may_go: bool) -> None:
        self.ticks.append(now_ms)


def test_a_round_ticks_so_many_replicas_in_turn_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PlacedReplica", Ticked)
    monkeypatch.setattr(module, "TICKED_AT_ONCE", 4)
    catalog = Catalog()
    service = Service(catalog, tells=True)
    one, _ = replicas_of(service)

    def apply(**command: Any) -> None:
        assert "ok" in catalog.apply({"v": 1, **command})
        service.touched = catalog.take_touched()
        one._changed()

    def rounds(*at_ms: int, is_of_all: bool = False) -> list[list[int]]:
        for now_ms in at_ms:
            one._tick(now_ms, is_of_all=is_of_all)
        return [cast(Ticked, replica).ticks for replica in one.replicas()]

    apply(kind="register_broker", broker_id="a", incarnation="pa", http="a:1", grpc="a:2", sound={})
    settings = {"subject": None, "partitions": 10}
    apply(kind="create_stream", name="s", incarnation="0" * 32, created_us=1, settings=settings, replication_factor=1)
    assert rounds(1, 2, 3) == [[1]] * 4 + [[2]] * 4 + [[3]] * 2
    assert rounds(4) == [[1, 4]] * 4 + [[2]] * 4 + [[3]] * 2
    assert rounds(5, is_of_all=True) == [[1, 4, 5]] * 4 + [[2, 5]] * 4 + [[3, 5]] * 2
    apply(kind="create_stream", name="t", incarnation="1" * 32, created_us=1, settings=settings, replication_factor=1)
    assert [ticks[-1:] for ticks in rounds(6, 7, 8, 9, 10)] == [[at] for at in (6, 7, 8, 9, 10) for _ in range(4)]


def test_a_round_of_a_broker_that_is_alone_ticks_who_has_something_to_do_and_few_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PlacedReplica", Ticked)
    monkeypatch.setattr(module, "TICKED_AT_ONCE", 3)
    monkeypatch.setattr(module, "RESTING_AT_ONCE", 2)
    catalog = Catalog()
    service = Service(catalog, tells=True)
    one, _ = replicas_of(service, has_others=False)
    settings = {"subject": None, "partitions": 8}
    for command in (
        {"kind": "register_broker", "broker_id": "a", "incarnation": "pa", "http": "a:1", "grpc": "a:2", "sound": {}},
        {"kind": "create_stream", "name": "s", "incarnation": "0" * 32, "created_us": 1, "settings": settings},
    ):
        assert "ok" in catalog.apply({"v": 1, "replication_factor": 1, **command})
        service.touched = catalog.take_touched()
        one._changed()
    replicas = cast(list[Ticked], one.replicas())

    def ticked(now_ms: int) -> list[int]:
        one._tick(now_ms, is_of_all=False)
        return [number for number, replica in enumerate(replicas) if now_ms in replica.ticks]

    assert [ticked(now_ms) for now_ms in (1, 2, 3, 4, 5)] == [[0, 1], [2, 3], [4, 5], [6, 7], [0, 1]]
    for replica in replicas[3:7]:
        replica.is_at_rest = False
        replica.restless[replica.at] = None
    assert [ticked(now_ms) for now_ms in (6, 7)] == [[2, 3, 4, 5], [3, 4, 5, 6]]
    for replica in replicas:
        replica.is_at_rest = True
    assert [ticked(now_ms) for now_ms in (8, 9)] == [[6, 7], [0, 1]]
    assert not replicas[0].restless
