"""Goal: what an operator asks is judged before any command is sent, and what is sent may be sent again.

Method: the operator's calls over a real catalog, which carries each command out at once; no Raft, no disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.errors import (
    InvalidRequest,
    InvalidSetting,
    LiftlogError,
    NotReady,
    UnknownPartition,
    UnknownStream,
    from_problem,
)
from broker.control.operating.admin import ClusterAdmin
from broker.metadata.catalog import COMMAND_VERSION, Catalog
from broker.metadata.partition import PartitionState, Place
from tests.support.logs import create_log, row_batch
from tests.support.simdisk import SimDisk


class Service:
    """A catalog of brokers and one stream `s` of two partitions. `fails_at`: so many commands are carried out first."""

    def __init__(self, brokers: str, replicas: int) -> None:
        self.catalog = Catalog()
        self.sent: list[Mapping[str, Any]] = []
        self.fails_at: int | None = None
        self.has_session = True
        self.registrations = {broker: self.register(broker) for broker in brokers}
        self.do(
            "create_stream",
            name="s",
            incarnation="i",
            created_us=1,
            settings={"partitions": 2},
            internal=False,
            replication_factor=replicas,
        )
        for broker, number in self.registrations.items():
            for at, state in self.catalog.cluster.partitions.items():
                if broker in state.replicas:
                    self.do("report_opened", broker_id=broker, registration=number, replicas=[[*at, 0]])

    def register(self, broker: str) -> int:
        named = {"broker_id": broker, "incarnation": f"p-{broker}", "http": f"{broker}:1", "grpc": f"{broker}:2"}
        raft = f"{broker}.x@{broker}:3"
        return int(self.do("register_broker", **named, raft=raft, sound={})["registration"])

    def do(self, kind: str, **values: Any) -> Any:
        result = self.catalog.apply({"v": COMMAND_VERSION, "kind": kind, **values})
        if "error" in result:
            raise from_problem(result["error"])
        return result["ok"]

    def execute(self, command: Mapping[str, Any], **_: object) -> Any:
        if self.fails_at is not None and len(self.sent) >= self.fails_at:
            raise LiftlogError("the controller is gone")
        self.sent.append(command)
        return self.do(**{key: value for key, value in command.items() if key != "v"})

    def read(self, *, timeout_s: float) -> Catalog:
        return self.catalog

    def fail(self, broker: str) -> None:
        info = self.catalog.brokers[broker]
        self.do("fail_broker", broker_id=broker, registration=info.registration, renewal=info.renewal)

    def catch_up(self, broker: str) -> None:
        """It joins the ISR of all that it keeps."""
        for at, state in list(self.catalog.cluster.partitions.items()):
            if broker in state.replicas and broker not in state.isr:
                self.do("report_opened", broker_id=broker, registration=self.registrations[broker], replicas=[[*at, 0]])
                state = self.state(at)
                if broker not in state.isr:
                    add = [broker, self.registrations[broker], 0]
                    epochs = {"leader_epoch": state.leader_epoch, "partition_epoch": state.partition_epoch}
                    self.do("alter_isr", broker_id=state.leader, stream=at[0], partition=at[1], add=add, **epochs)

    def state(self, at: Place) -> PartitionState:
        return self.catalog.cluster.partitions[at]


def made(brokers: str = "ab", replicas: int = 2, later: str = "cd") -> tuple[Service, ClusterAdmin]:
    """`later`: brokers that keep nothing."""
    service = Service(brokers, replicas)
    service.registrations |= {broker: service.register(broker) for broker in later}
    return service, ClusterAdmin("a", service, open_here=list, may_change=lambda: service.has_session)  # type: ignore[arg-type]


def run(call: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(call)


def test_a_broker_without_a_session_moves_nothing() -> None:
    """D6."""
    service, admin = made()
    service.has_session = False
    before, sent = admin.placements(), len(service.sent)
    for call in (
        lambda: admin.reassign("s", None, ["c", "d"], None),
        lambda: admin.drain("b", fewer_replicas=False),
        lambda: admin.remove_broker("d"),
        lambda: admin.elect_preferred("s", None),
    ):
        with pytest.raises(NotReady):
            run(call())
    assert (admin.placements(), len(service.sent)) == (before, sent)
    service.has_session = True
    assert run(admin.reassign("s", None, ["c", "d"], None))


def test_a_stream_is_moved_so_that_its_leaders_differ_and_back_again() -> None:
    service, admin = made()
    before = {each.partition: each.replicas for each in admin.placements()}
    asked = run(admin.reassign("s", None, ["c", "d"], None))
    assert [each.target for each in asked] == [("c", "d"), ("d", "c")]
    assert [each.health for each in asked] == ["under_replicated"] * 2
    for number, replicas in before.items():
        run(admin.reassign("s", number, replicas, None))
    assert {each.partition: each.replicas for each in admin.placements()} == before
    assert all(each.target is None for each in admin.placements())
    assert run(admin.reassign("s", 1, before[1], None))[0].replicas == before[1], "again"
    assert service.catalog.cluster.leftovers, "who had begun to copy deletes it"


@pytest.mark.parametrize("after", [0, 1])
def test_a_move_that_was_cut_short_is_made_again(after: int) -> None:
    service, admin = made()
    service.fails_at = after
    with pytest.raises(LiftlogError, match="gone") as error:
        run(admin.reassign("s", None, ["c", "d"], None))
    assert error.value.fields.get("sent", False) == (after > 0)
    service.fails_at = None
    asked = run(admin.reassign("s", None, ["c", "d"], None))
    assert [each.target for each in asked] == [("c", "d"), ("d", "c")]
    for broker in "cd":
        service.catch_up(broker)
    assert [(each.replicas, each.health) for each in admin.placements()] == [(("c", "d"), "ok"), (("d", "c"), "ok")]


def test_what_cannot_be_is_refused_and_nothing_is_sent() -> None:
    service, admin = made()
    service.fail("d")
    service.sent.clear()
    with pytest.raises(InvalidRequest, match="broker d does not live"):
        run(admin.reassign("s", 0, ["d"], None))
    with pytest.raises(InvalidRequest, match="no broker 'z' is registered; these are: a, b, c, d"):
        run(admin.reassign("s", None, ["z"], None))
    with pytest.raises(UnknownStream):
        run(admin.reassign("t", None, ["a"], None))
    with pytest.raises(UnknownPartition):
        run(admin.elect_preferred("s", 2))
    with pytest.raises(InvalidRequest, match="no broker 'z'"):
        run(admin.drain("z", fewer_replicas=False))
    assert not service.sent
    with pytest.raises(InvalidSetting, match="min_insync_replicas=2: only 1"):
        run(admin.reassign("s", 0, ["c"], 2))


def test_a_drain_gives_each_replica_another_broker_and_keeps_the_minimum() -> None:
    service, admin = made("ab", 2, later="c")
    service.do("set_min_insync", stream="i", min_insync_replicas=2)
    victim = admin.placements()[0].replicas[0]
    drained = run(admin.drain(victim, fewer_replicas=False))
    assert [each.partition for each in drained.moving] == [
        each.partition for each in admin.placements() if victim in each.replicas
    ]
    assert all(victim not in (each.target or ()) for each in drained.moving)
    sent = len(service.sent)
    run(admin.drain(victim, fewer_replicas=False))
    assert len(service.sent) == sent, "it is asked for already"
    for broker in "abc".replace(victim, ""):
        service.catch_up(broker)
    assert run(admin.drain(victim, fewer_replicas=False)).moving == ()
    assert all((each.min_insync_replicas, len(each.replicas)) == (2, 2) for each in admin.placements())
    with pytest.raises(InvalidRequest, match="lives"):
        run(admin.remove_broker(victim))
    service.fail(victim)
    run(admin.remove_broker(victim))
    assert victim not in service.catalog.brokers
    assert service.catalog.cluster.removed == {f"{victim}.x@{victim}:3": victim}


@pytest.mark.parametrize("after", [0, 1])
def test_a_drain_goes_on_where_a_stream_is_deleted_amid_it(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed with `unknown_partition`, and left the partitions of other streams where they were."""
    service, admin = made(brokers="abc", later="d")
    service.do(
        "create_stream", name="t", incarnation="j", created_us=1, settings={}, internal=False, replication_factor=3
    )
    execute = service.execute

    def deletes_first(command: Mapping[str, Any], **terms: object) -> Any:
        if len(service.sent) == after:
            service.do("delete_stream", name="s")
        return execute(command, **terms)

    monkeypatch.setattr(service, "execute", deletes_first)
    assert run(admin.drain("b", fewer_replicas=False)).stuck == ()
    [(at, state)] = service.catalog.cluster.partitions.items()
    assert (at, set(state.target or state.replicas)) == (("j", 0), {"a", "c", "d"})


@pytest.mark.parametrize("stream", [None, "s"])
def test_leaders_are_elected_where_a_stream_is_deleted_amid_it(
    stream: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed with `unknown_partition`, and no other stream was led by its preferred replicas (chaos, seed 25000)."""
    service, admin = made()
    service.do(
        "create_stream", name="t", incarnation="j", created_us=1, settings={}, internal=False, replication_factor=2
    )
    execute = service.execute

    def deletes_first(command: Mapping[str, Any], **terms: object) -> Any:
        if "s" in service.catalog.streams:
            service.do("delete_stream", name="s")
        return execute(command, **terms)

    monkeypatch.setattr(service, "execute", deletes_first)
    if stream is not None:
        with pytest.raises(UnknownStream):
            run(admin.elect_preferred(stream, None))
        return
    elected = run(admin.elect_preferred(None, None))
    assert {each.stream for each in (*elected.moved, *elected.passed)} == {"t"}


@pytest.mark.parametrize("kind", ["reassign", "remove_broker", "elect_preferred"])
def test_a_command_that_was_carried_out_is_in_doubt_where_nobody_tells_what_came_of_it(kind: str) -> None:
    """A plain `not_ready` says that nothing was changed."""
    service, admin = made()
    service.fail("d")
    reads = service.read

    def read(*, timeout_s: float) -> Catalog:
        if any(command["kind"] == kind for command in service.sent):
            raise NotReady("no controller answers")
        return reads(timeout_s=timeout_s)

    service.read = read  # type: ignore[method-assign]
    calls = {
        "reassign": lambda: admin.reassign("s", None, ["a", "c"], None),
        "remove_broker": lambda: admin.remove_broker("d"),
        "elect_preferred": lambda: admin.elect_preferred("s", None),
    }
    with pytest.raises(NotReady) as told:
        run(calls[kind]())
    assert told.value.fields == {"sent": True}


def test_with_nobody_to_take_its_place_a_drain_needs_to_be_told() -> None:
    service, admin = made("ab", 2, later="")
    with pytest.raises(InvalidRequest, match=r"start another one$"):
        run(admin.drain("b", fewer_replicas=False))  # D5: it lives
    with pytest.raises(InvalidRequest, match=r"for a broker that is gone, and b is live: stop it first$"):
        run(admin.drain("b", fewer_replicas=True))
    service.fail("b")
    with pytest.raises(InvalidRequest, match="--fewer-replicas"):
        run(admin.drain("b", fewer_replicas=False))
    assert all("b" in each.replicas for each in admin.placements())
    with pytest.raises(InvalidRequest, match="is assigned 2 partitions") as refused:
        run(admin.remove_broker("b"))
    assert refused.value.keeps == ["s/0", "s/1"]
    assert run(admin.drain("b", fewer_replicas=True)).moving == ()
    assert [each.replicas for each in admin.placements()] == [("a",), ("a",)]
    run(admin.remove_broker("b"))


def test_what_only_the_drained_broker_has_stays_and_is_named() -> None:
    service, admin = made("ab", 1, later="")
    [of_b] = [each for each in admin.placements() if each.replicas == ("b",)]
    service.fail("b")
    drained = run(admin.drain("b", fewer_replicas=True))
    assert (drained.moving, [each.partition for each in drained.stuck]) == ((), [of_b.partition])
    with pytest.raises(InvalidRequest, match="is assigned 1"):
        run(admin.remove_broker("b"))


def test_preferred_leaders_and_who_stays() -> None:
    service, admin = made("ab", 2, later="")
    service.fail("b")
    service.do("renew_sessions", renewals={"b": service.registrations["b"]})
    service.catch_up("b")
    assert [each.leader for each in admin.placements()] == ["a", "a"]
    found = run(admin.elect_preferred(None, None))
    [moved] = found.moved
    assert (moved.leader, moved.replicas[0]) == ("b", "b")
    assert [each.leader for each in found.passed] == ["a"]


def test_an_unclean_election_is_known_as_one() -> None:
    service, admin = made("ab", 2, later="")
    service.do("set_min_insync", stream="i", min_insync_replicas=1)
    service.fail("b")
    service.fail("a")
    service.do("renew_sessions", renewals={"b": service.registrations["b"]})
    assert [each.health for each in admin.placements()] == ["offline"] * 2
    chosen = run(admin.elect_unclean("s", 1, "b", 77))
    assert chosen.leader == "b"
    assert chosen.leader_epoch == chosen.unclean_epoch == 78
    with pytest.raises(InvalidRequest, match="has a leader"):
        run(admin.elect_unclean("s", 1, "b", 77))


def begun(service: Service) -> int:
    if service.catalog.cluster.cluster_id is None:
        service.do("form_cluster", cluster_id="x")
    return int(service.do("begin_rescue", cluster_id="x", epoch_last=service.catalog.epoch_last)["rescue"])


def report(service: Service, broker: str, *logs: tuple[str, int, int, int]) -> None:
    number, rescue = service.catalog.brokers[broker].registration, service.catalog.cluster.rescue
    assert rescue is not None
    named = {"broker_id": broker, "registration": number, "rescue": rescue.number, "epoch_seen": -1}
    service.do("report_logs", **named, logs=[list(each) for each in logs])


def test_a_rescue_says_who_is_missing_and_what_it_came_to() -> None:
    service, admin = made("ab", 2, later="")
    assert run(admin.rescue()).rescue is None
    number = begun(service)
    service.fail("b")
    report(service, "a", ("i", 0, 2, 7), ("lost", 3, 9, 5))
    found = run(admin.rescue())
    assert (found.rescue, found.partitions, found.reported, found.missing) == (number, 2, ("a",), ("b",))
    assert [(each.broker, each.stream, each.partition) for each in found.missing_replicas] == [("a", "s", 1)]
    found = run(admin.excuse("b", None, None))
    assert (found.excused, found.missing) == (("b",), ())
    with pytest.raises(InvalidRequest, match=r"1 replicas are not there any more, to be excused: s/1 of a") as refused:
        run(admin.end_rescue(["a", "b"]))
    assert refused.value.fields["replicas"] == [["a", "s", 1]]
    found = run(admin.excuse("a", "s", 1))
    assert [(each.broker, each.stream, each.partition) for each in found.excused_replicas] == [("a", "s", 1)]
    assert not found.missing_replicas
    ended = run(admin.end_rescue(["a", "b"]))
    told = [
        (each.partition, each.leader, each.log_end_offset, each.is_lost, each.is_whole) for each in ended.partitions
    ]
    assert told == [(0, "a", 7, False, False), (1, None, 0, True, False)]
    assert [(each.broker, each.stream, each.partition) for each in ended.unknown] == [("a", "lost", 3)]
    assert run(admin.rescue()).rescue is None


def test_with_all_reports_nothing_is_lost() -> None:
    service, admin = made("ab", 2, later="")
    begun(service)
    for broker, end in (("a", 7), ("b", 9)):
        report(service, broker, ("i", 0, 2, end), ("i", 1, 2, 4))
    ended = run(admin.end_rescue(["a", "b"]))
    told = [(each.partition, each.leader, each.log_end_offset, each.is_whole) for each in ended.partitions]
    assert told[0] == (0, "b", 9, True)
    assert told[1][2:] == (4, True)


def test_what_a_rescue_cannot_do_is_refused_and_nothing_is_sent() -> None:
    service, admin = made("ab", 2, later="")
    for call in (admin.excuse("b", None, None), admin.end_rescue(["a", "b"])):
        with pytest.raises(InvalidRequest, match="no rescue is under way"):
            run(call)
    begun(service)
    report(service, "a", ("i", 0, 2, 7))
    with pytest.raises(InvalidRequest, match="broker b lives, and reports its logs by itself"):
        run(admin.excuse("b", None, None))
    with pytest.raises(InvalidRequest, match="no broker 'z' is registered"):
        run(admin.excuse("z", None, None))
    with pytest.raises(UnknownStream):
        run(admin.excuse("a", "nothing", None))
    with pytest.raises(UnknownPartition):
        run(admin.excuse("a", "s", 7))
    assert not service.sent
    with pytest.raises(InvalidRequest, match=r"start, or excuse: b; start, or leave out .*: z"):
        run(admin.end_rescue(["a", "b", "z"]))


def test_a_copy_of_a_compacted_log_that_was_interrupted_says_so() -> None:
    """`follower.F12`: what it was told is on disk. It has all once it ends above."""
    log = create_log(SimDisk())
    kept: Any = SimpleNamespace(stream="s", partition=1, log=log)
    service: Any = Service("a", 1)
    admin = ClusterAdmin("a", service, open_here=lambda: [kept], may_change=lambda: True)
    said = []
    for _ in range(3):
        log.state.raise_superseded(2, 1)
        said += [(end.log_end_offset, end.is_interrupted) for end in admin.ends()]
        log.append([row_batch([b"x"])], leader_epoch=1, now_us=1)
    assert said == [(0, False), (1, True), (2, False)]
