"""Runs by hand in which replicas write their logs anew: that could bring a deleted key back, or keep somebody out.

As those of `scenarios.py`, which lists them all. Nobody compacts or joins here but who is told to, and only `p1`.
"""

from __future__ import annotations

from broker.replication.events import Acks
from broker.storage.log import PartitionLog
from broker.storage.rewrite.rewriting import BatchShape
from broker.storage.writing.replace import sealed_segments
from tests.sim.batches import Batch
from tests.sim.cluster import Cluster
from tests.sim.driven.node import Broker
from tests.sim.driven.rewriting import Rewriting
from tests.sim.driven.seen import Seen
from tests.sim.rewritten import records_of
from tests.sim.stage import ask, cut_off, leader_of, others_of, until

NAME = "p1"
KEY = b"deleted"
CALM_MS = 24_000
"""A follower that lacks nothing is answered every 10 s, by what was so when it asked (`answering.Q1`)."""


def replica_of(broker: Broker) -> Seen:
    return broker.replicas[NAME]


def rewriting_of(broker: Broker) -> Rewriting:
    rewriting = replica_of(broker).rewriting
    assert rewriting is not None
    return rewriting


def end_of(broker: Broker) -> int:
    log = replica_of(broker).log
    assert log is not None
    return log.state.log_end_offset


def alone(cluster: Cluster) -> None:
    """Nobody else publishes there, and nobody trims."""
    cluster.trims = False
    for repeater in cluster.repeaters:
        repeater.times = 1 << 30
    for publisher in cluster.publishers:
        publisher.is_stopped = publisher.is_stopped or publisher.partition == NAME
    until(cluster, 3_000)


def store(cluster: Cluster, value: bytes | None, key: bytes = KEY) -> int:
    """Write or delete a key, and wait until that is committed. Returns its offset."""
    told: list[int] = []
    for _ in range(20):
        replica_of(leader_of(cluster, NAME)).publish(
            lambda outcome, first=-1, end=-1: told.append(first) if outcome == "stored" else None,
            [Batch([value], keys=[key])],
            Acks.ALL,
        )
        for _ in range(30):
            until(cluster, 20)
            if told:
                return told[0]
    raise AssertionError("it is not stored")


def fill(cluster: Cluster, past: int, away: Broker | None = None) -> None:
    """Store other keys, until what stands up to there is sealed on all replicas but one that is away."""
    for _ in range(100):
        at = store(cluster, b"other", b"other")
        store(cluster, b"x" * 700, b"%d" % at)
        others = [one for one in cluster.brokers.values() if one.process and one is not away]
        logs = [replica_of(one).log for one in others if NAME in one.replicas]
        if all(log is not None and _is_sealed(log, past) for log in logs):
            return
    raise AssertionError(f"{past} is not sealed everywhere")


def _is_sealed(log: PartitionLog, past: int) -> bool:
    """So that a pass would come past there."""
    limit = min(log.remembered.rewritable_end(), log.state.high_watermark)
    return any(past < end <= limit for _, end in sealed_segments(log.state))


def compact(broker: Broker, past: int, shape: BatchShape | None = None) -> None:
    """All passes that are due, and one of them must have come past there."""
    replica = replica_of(broker)
    for _ in range(10):
        broker.guard(lambda: rewriting_of(broker).compact_now(0, shape=shape))
    assert replica.log is not None
    assert replica.log.state.compacted_to > past, (
        f"{broker.name} has compacted up to {replica.log.state.compacted_to} only"
    )


def holds_key(broker: Broker) -> dict[int, bytes | None]:
    """The records of `KEY` that are there."""
    replica = replica_of(broker)
    messages = replica._read(0, end_of(broker), 1 << 24)
    return {at: value for message in messages for at, (key, value) in records_of(message) if key == KEY}


def succeed(cluster: Cluster) -> Broker:
    """The leader does not reach the others for a while. Returns who leads then."""
    before = leader_of(cluster, NAME)
    cut_off(cluster, before)
    for _ in range(80):
        until(cluster, 100)
        state = cluster.metadata.states[NAME]
        if state.leader not in (before.name, None) and replica_of(leader_of(cluster, NAME)).leads:
            after = leader_of(cluster, NAME)
            cluster.network.cut.clear()
            until(cluster, 1_500)
            return after
    raise AssertionError("nobody else leads")


def tombstones_go_once_all_have_compacted(cluster: Cluster) -> None:
    """Lazy replicas do a pass because somebody waits for them; then the tombstone goes from all."""
    alone(cluster)
    fill(cluster, 0)
    for broker in cluster.brokers.values():  # the first pass is due by itself, those after it are not
        compact(broker, 0)
    store(cluster, b"value")
    at = store(cluster, None)
    fill(cluster, at)
    leader = leader_of(cluster, NAME)
    others = others_of(cluster, leader)
    compact(leader, at)
    assert holds_key(leader) == {at: None}, "a tombstone goes, and nobody else has compacted"
    for turn in range(2):
        until(cluster, CALM_MS)
        for broker in others:
            broker.guard(rewriting_of(broker).compact_now)
        assert turn or all(holds_key(broker) == {at: None} for broker in others), "one did no pass, or too much of one"
        until(cluster, CALM_MS)
        leader.guard(rewriting_of(leader).compact_now)
    left = [broker.name for broker in cluster.brokers.values() if holds_key(broker)]
    assert not left, f"{left} keep a tombstone that nobody needs"
    assert cluster.world.seen["tombstones let go"] >= 3


def a_copy_stops_between_a_value_and_its_tombstone(cluster: Cluster) -> None:
    """All have both. One compacts. Another is emptied, copies from the third up to the value, and the rest from the
    first: what was durable everywhere is no measure of what may go.
    """
    alone(cluster)
    value = store(cluster, b"value")
    fill(cluster, value)
    at = store(cluster, None)
    fill(cluster, at)
    first = leader_of(cluster, NAME)
    until(cluster, 1_000)
    compact(first, at)
    third = succeed(cluster)
    emptied = next(one for one in others_of(cluster, third) if one is not first)
    while first.name not in cluster.metadata.states[NAME].isr:
        until(cluster, 100)
    emptied.crash("kill")
    emptied.disk = cluster.new_disk()
    for name in cluster.metadata.states:
        cluster.checker.lose(emptied.name, name)
    until(cluster, 3_000)
    assert leader_of(cluster, NAME) is third
    emptied.start()
    for _ in range(20_000):
        until(cluster, 1)
        if NAME in emptied.replicas and replica_of(emptied).log is not None and end_of(emptied) > value:
            break
    assert value < end_of(emptied) <= at, f"{emptied.name} has copied up to {end_of(emptied)}"
    assert succeed(cluster) is first
    until(cluster, 3_000)
    assert holds_key(emptied).get(at, b"") is None, f"{emptied.name} has {holds_key(emptied)} of a key that is deleted"


def an_operator_elects_who_lacks_a_newer_value(cluster: Cluster) -> None:
    """A pass is stopped where both values were: the first is gone, and stands where the operator chose. The replica
    that comes back has it again."""
    alone(cluster)
    ask(cluster, "set_min_insync", stream=NAME, min_insync_replicas=1)
    at = store(cluster, b"value")
    fill(cluster, at)
    sole = leader_of(cluster, NAME)
    others = [one for one in others_of(cluster, sole) if NAME in one.replicas]
    for other in others:
        other.crash("kill")
        until(cluster, 4_000)
    assert cluster.metadata.states[NAME].isr == (sole.name,), "it is not alone"
    newer = store(cluster, b"newer")
    fill(cluster, newer)
    replica = replica_of(sole)
    for pieces in range(1, 400):
        sole.guard(lambda pieces=pieces: rewriting_of(sole).compact_now(0, stop=pieces))  # type: ignore[misc]
        if at not in holds_key(sole):
            break
    assert replica.log is not None
    assert replica.log.state.compacted_to <= at, "the pass has come to its end"
    assert newer in holds_key(sole)
    sole.crash("kill")
    for other in others:
        other.start()
    for _ in range(5):  # a new controller waits before it takes anybody for dead
        until(cluster, 4_000)
    assert cluster.metadata.states[NAME].leader is None
    ask(cluster, "elect_unclean", stream=NAME, partition=0, broker_id=others[0].name)
    until(cluster, 2_000)
    assert holds_key(others[0]) == {at: b"value"}, "the operator chose somebody else"
    sole.start()
    until(cluster, 6_000)
    assert sole.name in cluster.metadata.states[NAME].isr, "it does not come back"
    assert holds_key(sole) == {at: b"value"}, f"{sole.name} has {holds_key(sole)} of what is stored"


def a_replica_is_away_while_a_key_is_deleted(cluster: Cluster) -> None:
    """It has the value. A leader that began meanwhile has heard nothing of it: so no tombstone goes, and nothing else
    waits."""
    alone(cluster)
    value = store(cluster, b"value")
    store(cluster, b"stays", b"behind it")  # or it would be cut off with the batches that become empty
    until(cluster, 500)
    leader = leader_of(cluster, NAME)
    away = next(one for one in others_of(cluster, leader) if one.name != cluster.metadata.controller)
    cut_off(cluster, away)
    until(cluster, 3_000)
    at = store(cluster, None)
    fill(cluster, at, away)
    ask(cluster, "stop_broker", broker_id=leader.name, registration=leader.incarnation)
    for _ in range(3):
        until(cluster, 1_000)
        for broker in others_of(cluster, away):
            compact(broker, at)
            assert value not in holds_key(broker), f"{broker.name} keeps a value that is deleted for who is away"
    assert leader_of(cluster, NAME) not in (leader, away)
    cluster.network.cut.clear()
    until(cluster, 4_000)
    assert end_of(away) > at > value
    assert holds_key(away).get(at, b"") is None, f"{away.name} has {holds_key(away)} of a key that is deleted"


def a_stream_is_compacted_no_more(cluster: Cluster) -> None:
    """Records that were compacted away before that stay gone. A replica that copies the log has the ids of its leader's
    state file, and knows a repeat when it leads: the settings of now do not tell what the log lacks.
    """
    alone(cluster)
    at = send(cluster, 0)
    store(cluster, b"newer")
    fill(cluster, at + 2)
    leader = leader_of(cluster, NAME)
    compact(leader, at)
    assert at not in holds_key(leader), "it was not compacted away"
    ask(cluster, "alter_stream", name=NAME, settings={"cleanup": "delete"})
    until(cluster, 1_000)
    for other in others_of(cluster, leader):
        cluster.faults.inject("wipe", other)
        until(cluster, 6_000)
    assert leader_of(cluster, NAME) is leader, "another leads too early"
    leader.crash("kill")
    until(cluster, 4_000)
    leader.start()
    assert leader_of(cluster, NAME) is not leader, "nobody else leads"
    until(cluster, 1_000)
    assert send(cluster, 0) == at, "a repeat is stored again"
    assert cluster.world.seen["repeat known by its id"], "nobody says that it is a repeat"


def send(cluster: Cluster, number: int) -> int:
    """A message with an id and a key, until it is acknowledged. Returns where it is, or was."""
    known, value = cluster.checker.known[NAME], b"%s-with-an-id-%d" % (NAME.encode(), number)
    before = len(known.acked)
    for _ in range(150):
        replica_of(leader_of(cluster, NAME)).publish_ids(lambda *_: None, [value], KEY.decode())
        until(cluster, 60)
        told = [offset for what, offset, _ in known.acked[before:] if what == value]
        if told:
            return told[-1]
    raise AssertionError("it is not stored")


def a_follower_ends_within_a_joined_batch(cluster: Cluster) -> None:
    """It was away while its leader joined what it has with what it lacks: it cuts, though it has compacted all that it
    has, and copies that batch.
    """
    alone(cluster)
    for number in range(3):
        store(cluster, b"value", b"%d" % number)
    leader = leader_of(cluster, NAME)
    away = next(one for one in others_of(cluster, leader) if one.name != cluster.metadata.controller)
    until(cluster, 500)
    log = replica_of(away).log
    assert log is not None
    assert log.roll_if_due(away.elapsed_us + log.state.settings.segment_age_ms * 1_000)
    end = log.state.log_end_offset
    compact(away, end - 1)
    away.crash("kill")
    until(cluster, 3_000)
    for number in range(3, 6):
        store(cluster, b"value", b"%d" % number)
    fill(cluster, end + 3)
    compact(leader, end, BatchShape())
    leads = replica_of(leader).log
    assert leads is not None
    assert leads.reader.batch_start(end) < end, "no batch was joined over the end of the other"
    away.start()
    until(cluster, 4_000)
    assert away.name in cluster.metadata.states[NAME].isr, "it does not come back"
    copied = replica_of(away).log
    assert copied is not None
    assert copied.reader.batch_start(end) < end, "it has not cut its own end for the joined batch"
