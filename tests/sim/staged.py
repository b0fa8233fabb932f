"""Runs by hand that concern the catalog: sessions, step-outs, operators who give up records, streams that go and come.

As those of `scenarios.py`, which lists them all.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from tests.sim.broker import Broker
from tests.sim.checker import Known
from tests.sim.clients import Consumer, IdPublisher, Publisher
from tests.sim.cluster import Cluster
from tests.sim.replica import Replica
from tests.sim.stage import Scenario, ask, cut_off, leader_of, others_of, until


def a_stale_leader_is_asked_by_who_has_seen_a_newer_one(cluster: Cluster) -> None:
    """It still has a session, and answers nothing: the question names an epoch that it has not heard of."""
    until(cluster, 4_000)
    for _ in range(4):
        leader = leader_of(cluster)
        cut_off(cluster, leader)
        for _ in range(60):
            until(cluster, 50)
            if leader_of(cluster) is not leader and leader.has_session:
                for consumer in cluster.consumers:
                    consumer.poll(leader.name)
        assert leader_of(cluster) is not leader, "nobody else leads"
        cluster.network.cut.clear()
        until(cluster, 2_000)


def a_lapse_is_committed_after_the_broker_is_back(cluster: Cluster) -> None:
    """A controller that does not hear a broker fails it, and is deposed; its successor renews the session meanwhile."""
    until(cluster, 3_000)
    for _ in range(5):
        controller = cluster.metadata.controller
        if controller is None:
            until(cluster, 500)
            continue
        away = next(name for name in cluster.brokers if name != controller)
        cluster.metadata.depose_at = "fail_broker"
        cluster.network.cut |= {(away, controller), (controller, away)}
        while cluster.metadata.depose_at:
            until(cluster, 20)
        cluster.network.cut.clear()
        until(cluster, 2_000)
    assert cluster.world.seen["committed command refused"], "no lapse came late"


def fsyncs_fail_on_all_logs_of_a_broker(cluster: Cluster) -> None:
    """Its replicas step out together: by one command, and under the incarnations that they had."""
    until(cluster, 4_000)
    broker = leader_of(cluster)
    broker.sync_ms = 300
    dirty: list[Replica] = []
    for _ in range(4_000):
        until(cluster, 1)
        dirty = [
            each for each in broker.replicas.values() if each.log and each.log.durable_end < each.log.log_end_offset
        ]
        if len(dirty) > 1:
            break
    broker.disk.fail("sync", errno.EIO, path=".arrows", times=len(dirty))
    for replica in dirty:
        leads, core = replica.leads, replica.leader if replica.leads else replica.follower
        broker.guard(replica._sync_and_tell, core.generation, replica._lead_step if leads else replica._follow_step)
    until(cluster, 3_000)
    asked = [len(command["replicas"]) for command, _ in cluster.metadata.log if command["kind"] == "step_out"]
    assert max(asked, default=0) > 1, "each stepped out for itself"


def a_step_out_does_not_come_through(cluster: Cluster) -> None:
    """The broker cannot say that its fsync failed: the process ends, and the next one knows what is durable."""
    until(cluster, 4_000)
    while cluster.metadata.controller in (None, leader_of(cluster).name):
        cluster.metadata.depose()
        until(cluster, 1_000)
    broker, controller = leader_of(cluster), cluster.metadata.controller or ""
    process = broker.process
    broker.disk.fail("sync", errno.EIO, path=".arrows", times=1)
    while not any(replica.stepping for replica in broker.replicas.values()):
        until(cluster, 1)
    cluster.network.cut |= {(broker.name, controller), (controller, broker.name)}
    until(cluster, 8_000)
    assert broker.process != process, "it goes on although nobody knows of the failed fsync"
    cluster.network.cut.clear()


def an_operator_elects_who_lacks_records(cluster: Cluster) -> None:
    """Two lag, the third goes on alone and is gone. Nobody leads until the operator chooses. What is lost is named."""
    until(cluster, 3_000)
    ask(cluster, "set_min_insync", stream="p0", min_insync_replicas=1)
    until(cluster, 500)
    sole = leader_of(cluster)
    others = [one for one in others_of(cluster, sole) if "p0" in one.replicas]
    for broker in others:
        broker.crash("kill")
    until(cluster, 4_000)
    sole.crash("kill")
    for broker in others:
        broker.start()
    until(cluster, 4_000)
    known, state = cluster.checker.known["p0"], cluster.metadata.states["p0"]
    assert state.leader is None, f"{state.leader} was elected, and lacks what {sole.name} has"
    committed, chosen = known.end, others[0].name
    had = cluster.brokers[chosen].replicas["p0"].durable_end
    ask(cluster, "elect_unclean", stream="p0", partition=0, broker_id=chosen)
    until(cluster, 2_000)
    state = cluster.metadata.states["p0"]
    assert (state.leader, state.unclean_epoch) == (chosen, state.leader_epoch), "the catalog does not say so"
    assert known.given_up == committed - had > 0, "more or less is gone than it lacked"
    sole.start()  # and gives up what it alone had


def rescue(is_gone: bool) -> Scenario:
    def scenario(cluster: Cluster) -> None:
        until(cluster, 4_000)
        metadata, known = cluster.metadata, cluster.checker.known["p0"]
        end = len(metadata.log)
        ask(cluster, "set_min_insync", stream="p0", min_insync_replicas=1)
        leader = leader_of(cluster)
        others = [one for one in others_of(cluster, leader) if "p0" in one.replicas]
        others[0].crash("kill")  # this one will lack most, and the catalog will call it in sync
        until(cluster, 3_000)
        others[1].crash("kill")
        until(cluster, 4_000)
        for broker in cluster.brokers.values():
            broker.crash("lost")
        had, committed = others[1].replicas["p0"].durable_end, known.end
        assert others[0].replicas["p0"].durable_end < had < committed, "they do not differ"
        metadata.lose(end)
        begin = {"v": 1, "kind": "begin_rescue", "cluster_id": "c", "epoch_last": metadata.catalog.epoch_last}
        assert "ok" in metadata.carry_out(begin)
        for broker in cluster.brokers.values():
            if broker is not leader:
                broker.start()
        until(cluster, 3_000)
        assert metadata.states["p0"].leader is None, "somebody leads before the end of the rescue"
        assert metadata.catalog.cluster.rescue is not None
        number = metadata.catalog.cluster.rescue.number
        ask(cluster, "end_rescue", rescue=number, brokers=sorted(cluster.brokers))  # too early: one is missing
        until(cluster, 1_000)
        if is_gone:
            ask(cluster, "excuse_replicas", rescue=number, broker_id=leader.name)
        else:
            leader.start()
        until(cluster, 3_000)
        ask(cluster, "end_rescue", rescue=number, brokers=sorted(cluster.brokers))
        until(cluster, 3_000)
        state = metadata.states["p0"]
        assert state.leader is not None, "nobody leads after the rescue"
        assert bool(state.unclean_epoch) == is_gone, "the catalog does not say whether anything may be lost"
        assert known.given_up == (committed - had if is_gone else 0), f"{known.given_up} records are gone"

    gone = "The one who had most is gone, and excused: what it alone had is lost, by name."
    scenario.__doc__ = f"A new catalog group begins with an old copy. {gone if is_gone else 'Nothing is lost.'}"
    return scenario


def recreation(happens: Callable[[Cluster, Broker], None], *, of_leader: bool) -> Scenario:
    def scenario(cluster: Cluster) -> None:
        until(cluster, 4_000)
        metadata, checker = cluster.metadata, cluster.checker
        while metadata.controller in (None, leader_of(cluster).name):
            metadata.depose()
            until(cluster, 1_000)
        leader = leader_of(cluster)
        away = (
            leader if of_leader else next(one for one in others_of(cluster, leader) if one.name != metadata.controller)
        )
        happens(cluster, away)
        checker.known["p0"].is_lost = True  # nothing is promised of it any more
        ask(cluster, "delete_stream", name="p0")
        checker.known["again"] = Known()
        made = {"name": "p0", "incarnation": "again", "created_us": 2, "settings": {}}
        ask(cluster, "create_stream", **made, replication_factor=3, min_insync_replicas=2)
        for _ in range(20):
            if "again" in metadata.states:
                break
            until(cluster, 500)
            ask(cluster, "create_stream", **made, replication_factor=3, min_insync_replicas=2)
        cluster.publishers += [Publisher(cluster, "again", cluster.next_producer_id(), "again.0")]
        cluster.publishers += [IdPublisher(cluster, "again", "again.1")]
        cluster.consumers.append(Consumer(cluster, "again"))
        until(cluster, 3_000)
        cluster.heal()
        until(cluster, 4_000)
        held = [one.name for one in cluster.brokers.values() if "p0" in one.replicas or one.disk.exists("/data/p0")]
        assert not held, f"{held} have replicas of a stream that is no more"
        assert not metadata.catalog.deleted, "the catalog waits for folders to be deleted"
        assert checker.known["again"].end > 0, "nothing is stored in the new one"

    scenario.__doc__ = "A stream is deleted and made anew while a replica is away; what was is never heard of again."
    return scenario


def stopped(cluster: Cluster, broker: Broker) -> None:
    broker.paused_until_ms = cluster.world.now_ms + 3_500


def killed(cluster: Cluster, broker: Broker) -> None:
    broker.crash("kill")
