"""Runs by hand that concern the catalog: sessions, step-outs, operators who give up records, streams that go and come.

As those of `scenarios.py`, which lists them all.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from unittest.mock import patch

from broker.metadata.cluster import Cluster as OfCatalog
from broker.metadata.session import SESSION_MS
from broker.storage.inspect.scrub import scrub
from broker.storage.recovery import Ranges
from tests.sim.checker import Known
from tests.sim.clients import Consumer, IdPublisher, Publisher
from tests.sim.cluster import Cluster
from tests.sim.driven.node import Broker
from tests.sim.driven.seen import Seen
from tests.sim.machine import SYNC_MS
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
    for _ in range(12):
        controller = cluster.metadata.controller
        if cluster.world.seen["committed command refused"]:
            return
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
    raise AssertionError("no lapse came late")


def sessions_become_longer_and_would_become_shorter(cluster: Cluster) -> None:
    """A broker is cut off soon after each change, also under a controller that has just begun, and one that has its
    catalog from a snapshot. Here the length goes by the minimum of `p0`: there are too few partitions."""

    def length_ms(catalog: OfCatalog) -> int:
        state = catalog.partitions.get(("p0", 0))
        return 7_000 if state is not None and state.min_insync_replicas == 1 else SESSION_MS

    metadata, lapses = cluster.metadata, 0
    with patch.object(OfCatalog, "session_ms", length_ms):
        until(cluster, 3_000)
        for turn, minimum in enumerate((1, 2, 2, 1, 2, 2)):
            ask(cluster, "set_min_insync", stream="p0", min_insync_replicas=minimum)
            until(cluster, 150 * turn)
            away = next(broker for name, broker in cluster.brokers.items() if name != metadata.controller)
            if turn % 3 == 2:
                for broker in others_of(cluster, away):
                    broker.crash("kill")
                    broker.start()
            elif turn % 2:
                metadata.depose()
            while metadata.controller in (None, away.name):
                if metadata.controller == away.name:
                    metadata.depose()
                until(cluster, 50)
            cut_off(cluster, away)
            until(cluster, 10_000)
            lapses += not metadata.catalog.brokers[away.name].is_live
            cluster.network.cut.clear()
            until(cluster, 3_000)
    assert lapses > 3, f"{lapses} were taken for dead"
    assert any(info.session_ms > SESSION_MS for info in metadata.catalog.brokers.values()), "no session is long"


def fsyncs_fail_on_all_logs_of_a_broker(cluster: Cluster) -> None:
    """Its replicas step out together: by one command, and under the incarnations that they had. (Luck may have one of
    them be late: then they do so the next time.)"""
    until(cluster, 4_000)
    for _ in range(12):
        _fail_fsyncs(cluster, leader_of(cluster))
        until(cluster, 3_000)
        asked = [len(command["replicas"]) for command, _ in cluster.metadata.log if command["kind"] == "step_out"]
        if max(asked, default=0) > 1:
            return
    raise AssertionError("each stepped out for itself")


def _fail_fsyncs(cluster: Cluster, broker: Broker) -> None:
    """Of all logs here, once two have something to sync."""
    broker.sync_ms = 30
    for _ in range(4_000):
        until(cluster, 1)
        logs = [each.log for each in broker.replicas.values() if each.log]
        dirty = [log for log in logs if log.state.durable_end < log.state.log_end_offset]
        if len(dirty) > 1:
            broker.disk.fail("sync", errno.EIO, path=".arrows", times=len(dirty))
            break
    broker.sync_ms = SYNC_MS


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
    """Two lag, the third goes on alone and is gone. Nobody leads until the operator chooses. The loss is named."""
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


def _left_alone(cluster: Cluster) -> tuple[Broker, list[Broker]]:
    """One member of p0 after the other is killed, until one is left; that one, and those that went, in order. Something
    is committed without the first."""
    cluster.pace_ms = 60
    until(cluster, 4_000)
    sole = leader_of(cluster)
    gone = [one for one in others_of(cluster, sole) if "p0" in one.replicas]
    log = sole.replicas["p0"].log
    assert log is not None
    for one in gone:
        had = one.replicas["p0"].shadow[-1].next
        one.crash("kill")
        until(cluster, 4_000)
        while one is not gone[-1] and log.state.high_watermark <= had:  # the controller was gone, too, or a session
            until(cluster, 500)
    assert cluster.metadata.states["p0"].isr == (sole.name,), "it is not alone"
    return sole, gone


def _rot(cluster: Cluster, broker: Broker, first: int) -> None:
    """A bit flips in the batch of p0 that begins there, and somebody reads it."""
    replica = broker.replicas["p0"]
    assert replica.keep(), "no checkpoint tells of it"
    [message] = [bytes(each) for each in replica._read(first, first + 1, 1)]
    [path] = [path for path, inode in broker.disk.names.items() if message in inode.content and "p0/" in path]
    broker.disk.flip(path, 8 * (broker.disk.names[path].content.find(message) + len(message) - 3))
    cluster.checker.lose(broker.name, "p0", of_records=True)
    broker.guard(replica.scrub)
    for _ in range(200):
        if replica.is_damaged:
            return
        until(cluster, 5)
    raise AssertionError("nobody notices")


def _first_without(broker: Broker, lags: Broker) -> int:
    """Where the first commit group of p0 begins of which somebody else has nothing, synced or not."""
    end = lags.replicas["p0"].shadow[-1].next
    return next(batch.next for batch in broker.replicas["p0"].shadow if batch.next >= end and batch.ends_group)


def a_stream_is_damaged_where_it_is_alone(cluster: Cluster) -> None:
    """The one live member is damaged: it stays, until somebody is back who left when too few were in sync, and has
    what it lacks.
    """
    sole, (early, late) = _left_alone(cluster)
    _rot(cluster, sole, _first_without(sole, early))
    incarnation = sole.replicas["p0"].incarnation
    early.start()  # it left while enough were in sync, and cannot come past the damage
    until(cluster, 4_000)
    assert sole.replicas["p0"].incarnation == incarnation, "it has stepped out, and nobody else could lead"
    assert sum(command["kind"] == "step_out" for command, _ in cluster.metadata.log) == 0, "it asks in vain"
    late.start()
    for _ in range(60):
        if cluster.world.seen["mended"]:
            break
        until(cluster, 500)
    assert cluster.world.seen["mended"], "it has copied nothing"
    until(cluster, 1_000)
    assert not sole.replicas["p0"].is_damaged, "it is damaged still"
    assert cluster.checker.known["p0"].given_up == 0, "something is lost"


def a_stream_is_damaged_where_somebody_lags_beyond(cluster: Cluster) -> None:
    """The sole member is damaged below the end of one that is out of sync. That one has it."""
    until(cluster, 2_000)
    ask(cluster, "set_min_insync", stream="p0", min_insync_replicas=1)
    sole, (_, late) = _left_alone(cluster)
    assert not cluster.metadata.states["p0"].last_isr, "somebody else could lead"
    had = late.replicas["p0"].durable_end
    assert had < sole.replicas["p0"].durable_end, "nothing was stored without it"
    cluster.checker.known["p0"].spares = {late.name}
    _rot(cluster, sole, [batch.first for batch in sole.replicas["p0"].shadow if batch.next <= had][-8])
    until(cluster, 1_000)
    late.start()
    for _ in range(60):
        if cluster.world.seen["mended"]:
            break
        until(cluster, 500)
    assert cluster.world.seen["mended"], "it has copied nothing"
    until(cluster, 1_000)
    assert not sole.replicas["p0"].is_damaged, "it is damaged still"
    assert cluster.checker.known["p0"].given_up == 0, "something is lost"


def an_operator_gives_up_what_is_damaged(cluster: Cluster) -> None:
    """Nobody else has what is damaged. Its broker is stopped, another chosen: lost is what lies from there on."""
    until(cluster, 2_000)
    ask(cluster, "set_min_insync", stream="p0", min_insync_replicas=1)
    sole, (_, late) = _left_alone(cluster)
    first = _first_without(sole, late)
    cluster.checker.known["p0"].spares = {late.name}  # nothing is promised of more
    _rot(cluster, sole, first)
    late.start()
    until(cluster, 4_000)
    assert late.replicas["p0"].durable_end == first, "it came past the damage, or not up to it"
    sole.crash("kill")
    until(cluster, 4_000)
    known = cluster.checker.known["p0"]
    committed = known.end
    for _ in range(6):  # a renewal that is committed late may keep a dead broker alive for one more session
        ask(cluster, "elect_unclean", stream="p0", partition=0, broker_id=late.name)
        until(cluster, 1_000)
    assert leader_of(cluster) is late, "the operator has no say"
    assert known.given_up == committed - first > 0, "more or less is gone than is damaged, and what follows"
    sole.start()
    until(cluster, 4_000)
    assert not sole.replicas["p0"].is_damaged, "it is damaged still"


def _lost(replica: Seen) -> Ranges:
    """The ranges that are marked lost, once all was looked at."""
    log = replica.log
    assert log is not None
    at = log.state.log_start_offset
    while (piece := scrub(log, at)) is not None:
        at = piece.next_offset
    return log.state.lost_ranges


def _give_up(replica: Seen) -> None:
    log = replica.log
    assert log is not None
    assert log.epochs.led is not None, "it does not lead"
    [(start, end)] = log.state.lost_ranges
    assert replica.partition is not None
    aside = f"{replica.folder}.aside"
    replica.partition.damage.give_up([(start, end)], leader_epoch=log.epochs.led, aside=aside)
    replica.has_given_up(start, end)


def an_operator_gives_up_the_damaged_range_alone(cluster: Cluster) -> None:
    """Nobody else has what is damaged. It becomes empty, though the power goes meanwhile; lost is nothing else."""
    until(cluster, 2_000)
    ask(cluster, "set_min_insync", stream="p0", min_insync_replicas=1)
    sole, (early, late) = _left_alone(cluster)
    first, known = _first_without(sole, late), cluster.checker.known["p0"]
    known.spares = {late.name}
    _rot(cluster, sole, first)
    late.start()
    until(cluster, 4_000)
    assert late.replicas["p0"].durable_end == first, "it came past the damage, or not up to it"
    [(start, end)] = _lost(sole.replicas["p0"])
    for turn in range(6):
        if not _lost(sole.replicas["p0"]):
            break
        assert leader_of(cluster) is sole, "another leads, and lacks what is behind the damage"
        sole.disk.crash_at = sole.disk.steps + cluster.world.rng.randint(1, 60) if turn < 3 else None
        sole.guard(_give_up, sole.replicas["p0"])
        sole.disk.crash_at = None
        is_gone = sole.process == 0
        sole.start_if_gone()
        if is_gone and not _lost(sole.replicas["p0"]):  # before anybody hears of it
            sole.replicas["p0"].has_given_up(start, end)
        until(cluster, 6_000 if is_gone else 0)
    replica = sole.replicas["p0"]
    assert known.given_up == end - start > 0, "more or less is gone than was damaged"
    until(cluster, 4_000)
    assert late.name in cluster.metadata.states["p0"].isr, "it does not come past the range"
    assert not replica.is_damaged, "it is damaged still"
    sole.crash("kill")
    until(cluster, 4_000)
    assert leader_of(cluster) is late, "who followed past the range does not lead"
    early.start()
    sole.start()


def an_operator_puts_an_old_disk_back(cluster: Cluster) -> None:
    """A broker came back with an empty disk, and alone has what was acknowledged since. Its former disk is put back: it
    is refused, and nothing is lost when the right one is there again."""
    cluster.has_folders = True
    until(cluster, 2_000)
    state = cluster.metadata.states["p0"]
    leader = leader_of(cluster)
    one, other = (cluster.brokers[who] for who in state.replicas if who != leader.name)
    one.crash("kill")
    former = one.disk, 1
    one.replace_disk(cluster.new_disk())
    cluster.checker.lose(one.name, "p0")
    cluster.checker.lose(one.name, "p1")
    until(cluster, 4_000)
    one.start()
    until(cluster, 4_000)
    assert one.name in cluster.metadata.states["p0"].isr, "it has not caught up with its new disk"
    for away in (other, leader):
        away.crash("kill")
        until(cluster, 4_000)
    one.crash("kill")
    present = one.swap_disk(*former)
    for name in ("p0", "p1"):
        cluster.checker.lose(one.name, name)  # until its session has lapsed it is in sync by its name
    one.start()
    for _ in range(1_000):
        if one.process and cluster.metadata.states["p0"].leader is not None:
            until(cluster, 5)
    assert one.name in cluster.metadata.states["p0"].electable, "it may not lead"
    cluster.checker.forget(one.name)
    until(cluster, 1_000)
    assert one.process == 0, "it was not refused"
    one.swap_disk(*present)
    one.start()
    until(cluster, 4_000)
    assert leader_of(cluster) is one, "it does not lead with what it has"
    for back in (other, leader):
        back.start()


def an_operator_elects_who_lacks_what_was_trimmed(cluster: Cluster) -> None:
    """The chosen one ends below a trim. A replica that comes back from above it holds all that is acked from then
    on."""
    cluster.trims = False
    until(cluster, 2_000)
    ask(cluster, "set_min_insync", stream="p0", min_insync_replicas=1)
    sole, others = _left_alone(cluster)
    log = sole.replicas["p0"].log
    assert log is not None
    for _ in range(20):  # at first there may be no session
        sole.call("p0", "trim", lambda *_: None, log.state.high_watermark)
        until(cluster, 100)
    start = log.state.log_start_offset
    assert start, "nothing was trimmed"
    sole.crash("kill")
    for other in others:
        other.start()
    until(cluster, 4_000)
    chosen = others[-1]
    now = chosen.replicas["p0"].log
    assert now is not None
    had = now.state.log_end_offset
    assert had < start, "it lacks nothing of what was trimmed"
    ask(cluster, "elect_unclean", stream="p0", partition=0, broker_id=chosen.name)
    until(cluster, 400)
    sole.start()
    until(cluster, 6_000)
    assert now.state.log_end_offset > had, "nothing was stored since"
    mine = sole.replicas["p0"].log
    assert mine is not None
    assert mine.state.log_start_offset <= now.state.log_start_offset, (
        f"{sole.name} begins at {mine.state.log_start_offset}"
    )


def a_stream_below_its_minimum_is_read_on(cluster: Cluster) -> None:
    """Too few are in sync: nothing is stored, and what is committed is read."""
    cluster.trims = False
    sole, _ = _left_alone(cluster)
    reads = cluster.world.seen["read"]
    told: list[tuple[object, ...]] = []
    for _ in range(60):  # at first there may be no session
        sole.call("p0", "read", lambda *answer: told.append(answer), 0, -1)
        until(cluster, 100)
        if len(told) >= 20 and len(max(told, key=len)) == 5 and cluster.world.seen["read"] > reads:
            break
    what, _, start, end, batches = max(told, key=len)
    log = sole.replicas["p0"].log
    assert log is not None
    assert (what, start, end) == ("records", 0, log.state.high_watermark), "the end is not told"
    assert batches, "nothing is read"
    assert cluster.world.seen["read"] > reads, "consumers get nothing"


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
        committed = known.end
        metadata.lose(end)
        begin = {"v": 1, "kind": "begin_rescue", "cluster_id": "c", "epoch_last": metadata.catalog.epoch_last}
        assert "ok" in metadata.carry_out(begin)
        for broker in cluster.brokers.values():
            if broker is not leader:
                broker.start()
        until(cluster, 3_000)
        assert metadata.states["p0"].leader is None, "somebody leads before the end of the rescue"
        assert metadata.catalog.cluster.rescue is not None
        had = others[1].replicas["p0"].durable_end
        assert others[0].replicas["p0"].durable_end < had < committed, "they do not differ"
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
