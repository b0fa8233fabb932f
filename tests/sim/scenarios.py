"""Runs by hand: what Jepsen did to NATS 2.12.1 (report of 2025-12-08: 131,418 of 930,005 acknowledged messages were
gone after a coordinated power failure, 679,153 of 1,367,069 after one flipped bit on a minority), and two failovers in
a row.

Each takes a cluster of three without faults of its own, and says what must have happened for it to mean anything.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.storage.segments.checkpoint import CHECKPOINT_FILE
from broker.storage.segments.epochs import EPOCHS_FILE
from tests.sim.clients import Repeater
from tests.sim.cluster import Cluster
from tests.sim.driven.node import Broker
from tests.sim.faults import checkpoint_of, last_batches, last_path, told_of
from tests.sim.stage import Scenario, cut_off, leader_of, made, others_of, until
from tests.sim.staged import (
    a_lapse_is_committed_after_the_broker_is_back,
    a_stale_leader_is_asked_by_who_has_seen_a_newer_one,
    a_step_out_does_not_come_through,
    a_stream_below_its_minimum_is_read_on,
    a_stream_is_damaged_where_it_is_alone,
    a_stream_is_damaged_where_somebody_lags_beyond,
    an_operator_elects_who_lacks_records,
    an_operator_elects_who_lacks_what_was_trimmed,
    an_operator_gives_up_the_damaged_range_alone,
    an_operator_gives_up_what_is_damaged,
    an_operator_puts_an_old_disk_back,
    fsyncs_fail_on_all_logs_of_a_broker,
    killed,
    recreation,
    rescue,
    sessions_become_longer_and_would_become_shorter,
    stopped,
)
from tests.sim.staged_clocks import clocks_are_apart_and_are_set
from tests.sim.staged_rewrites import (
    a_copy_stops_between_a_value_and_its_tombstone,
    a_follower_ends_within_a_joined_batch,
    a_replica_is_away_while_a_key_is_deleted,
    a_stream_is_compacted_no_more,
    an_operator_elects_who_lacks_a_newer_value,
    tombstones_go_once_all_have_compacted,
)
from tests.sim.world import Violation

__all__ = ["SCENARIOS", "guarded", "made", "played"]


def power_failure_of_all(cluster: Cluster) -> None:
    """All at once lose what they had not fsynced, again and again."""
    until(cluster, 4_000)
    for mode in ("lost", "torn", "reordered", "zeros", "lost"):
        for broker in cluster.brokers.values():
            broker.crash(mode)
        for broker in cluster.brokers.values():
            broker.start()
        until(cluster, 2_500)


def os_crash_of_one_with_pauses_and_partitions(cluster: Cluster) -> None:
    """The leader's machine loses what it had not fsynced while another is stopped, then cut off."""
    until(cluster, 4_000)
    for _ in range(3):
        leader = leader_of(cluster)
        one, other = others_of(cluster, leader)
        one.paused_until_ms = cluster.world.now_ms + 1_500
        until(cluster, 300)
        leader.crash("lost")
        until(cluster, 700)
        leader.start()
        cut_off(cluster, other)
        until(cluster, 2_500)
        cluster.network.cut.clear()
        until(cluster, 1_500)


def _damage(kind: str) -> Scenario:
    def scenario(cluster: Cluster) -> None:
        until(cluster, 4_000)
        for _ in range(3):
            broker = cluster.world.rng.choice(list(cluster.brokers.values()))
            cluster.faults.inject(kind, broker)
            until(cluster, 700)
            if broker.process:
                broker.crash("lost")  # so that it has to believe its disk
                until(cluster, 300)
                broker.start()
            until(cluster, 3_000)
        assert cluster.world.seen[f"fault: {kind}"], "nothing was damaged"

    scenario.__doc__ = f"{kind} on one machine, which then loses power and comes back."
    return scenario


def _damage_what_no_checkpoint_tells_of(cluster: Cluster, broker: Broker, kind: str) -> None:
    """Damage what p0's replica here has acknowledged since its last checkpoint; a cut begins before that."""
    for _ in range(3_000):
        until(cluster, 1)
        replica, state = broker.replicas.get("p0"), cluster.metadata.states["p0"]
        if replica is None or replica.log is None or broker.name not in state.isr:
            continue
        path, batches, kept = last_path(replica), last_batches(replica), checkpoint_of(replica)
        told, committed = max(kept.recovery_point, kept.high_watermark), cluster.checker.known["p0"].end
        reach = told_of(replica, path, len(broker.disk.names[path].durable), cut=kind == "cut")
        fit = [b for b in batches if b[2] <= reach and (b[0] >= told) == (kind == "flip") and b[0] < committed]
        if fit and committed > told:
            _, position, end, _ = fit[-1]
            if kind == "cut":
                cluster.faults.cut_to(broker, "p0", path, position)
            else:
                cluster.faults.flip(broker, "p0", path, 8 * end - 20)
            return
    raise AssertionError("no checkpoint lags")


def acknowledged_records_go_that_no_checkpoint_tells_of(cluster: Cluster) -> None:
    """The power of all goes. The preferred replica has lost the end of what it had acknowledged, is back first, and
    looks as after a power cut but for a high watermark. Its broker starts twice, and both times it is told.
    """
    cluster.pace_ms = 150
    until(cluster, 4_000)
    for kind in ("flip", "cut", "flip"):
        broker = cluster.brokers[cluster.metadata.states["p0"].replicas[0]]
        _damage_what_no_checkpoint_tells_of(cluster, broker, kind)
        for one in cluster.brokers.values():
            one.crash("lost")
        broker.start()
        broker.crash("kill")  # before anybody hears of it
        broker.start()
        until(cluster, 50)
        for one in others_of(cluster, broker):
            one.start()
        until(cluster, 4_000)
        assert broker.name in cluster.metadata.states["p0"].isr, "it has not caught up"
    assert cluster.world.seen["replica behind"] == 6, "it has not noticed, or forgotten meanwhile"


def a_checkpoint_is_gone(cluster: Cluster) -> None:
    """The file is missing beside the records. The replica is none, and begins anew."""
    until(cluster, 4_000)
    broker = others_of(cluster, leader_of(cluster))[0]
    replica = broker.replicas["p0"]
    assert replica.log is not None
    assert replica.log.state.log_end_offset
    broker.crash("kill")
    broker.disk.unlink(f"{replica.folder}/{CHECKPOINT_FILE}")
    cluster.checker.lose(broker.name, "p0")
    broker.start()
    until(cluster, 4_000)
    assert cluster.world.seen["damaged checkpoint"], "it is taken for a log that is seconds old"
    assert broker.name in cluster.metadata.states["p0"].isr, "it does not come back"


def an_old_file_of_epochs_is_put_back(cluster: Cluster) -> None:
    """The broker that has it leads. If it believed the file, it would lack epochs below what its batches say: those in
    sync would cut what is committed, and whoever copies all anew would never agree with it."""
    until(cluster, 4_000)
    one = leader_of(cluster)
    path = f"{one.replicas['p0'].folder}/{EPOCHS_FILE}"
    old = one.disk.read_file(path)
    for _ in range(4):
        leader_of(cluster).crash("kill")
        until(cluster, 3_000)
        for broker in cluster.brokers.values():
            broker.start_if_gone()
        until(cluster, 3_000)
    assert one.disk.read_file(path) != old, "nobody else has led"
    one.crash("kill")
    one.disk.replace_file(path, old)
    one.start()
    until(cluster, 3_000)
    for _ in range(6):
        if leader_of(cluster) is one:
            break
        leader_of(cluster).crash("kill")
        until(cluster, 3_000)
        for broker in cluster.brokers.values():
            broker.start_if_gone()
        until(cluster, 3_000)
    assert leader_of(cluster) is one, "it does not lead"
    cluster.faults.inject("wipe", others_of(cluster, one)[0])
    until(cluster, 4_000)


def two_failovers_each_losing_a_tail(cluster: Cluster) -> None:
    """Two leaders in a row append what nobody else gets; the third leads, and all agree byte for byte."""
    cluster.pace_ms = 60
    until(cluster, 4_000)
    for _ in range(2):
        leader = leader_of(cluster)
        cut_off(cluster, leader)  # clients still come: it appends a tail of its own
        until(cluster, 4_000)
        assert leader_of(cluster) is not leader, "nobody else leads"
        heir = leader_of(cluster)
        cluster.network.cut.clear()
        leader.crash("kill")  # it keeps its tail, and does not give it up before the next failover
        until(cluster, 300)
        heir.note("leads after a failover")
        leader.start()
        cut_off(cluster, leader)
        until(cluster, 1_000)
        cluster.network.cut.clear()
        until(cluster, 200)
    cluster.heal()
    until(cluster, 3_000)
    assert cluster.world.seen["truncation"] >= 2, "no tail was given up"


def a_wiped_follower_of_a_log_that_begins_within_a_batch(cluster: Cluster) -> None:
    """It begins anew at the batch that holds the log start: stored batches are appended whole (once seed 17)."""
    until(cluster, 4_000)
    for _ in range(4):
        leader = leader_of(cluster)
        log = leader.replicas["p0"].log
        assert log is not None
        wide = [batch for batch in leader.replicas["p0"].shadow if batch.next - batch.first > 1]
        inside = [
            batch.first + 1 for batch in wide if log.state.log_start_offset < batch.first < log.state.high_watermark - 1
        ]
        leader.call("p0", "trim", lambda *answer: None, inside[len(inside) // 2])
        until(cluster, 800)
        cluster.faults.inject("wipe", others_of(cluster, leader)[0])
        until(cluster, 3_500)
    assert cluster.world.seen["reset"], "nobody began anew above 0"


def replicas_that_began_anew_lead(cluster: Cluster) -> None:
    """The last leader has never had the group that its producer still repeats: only its state file tells of it."""
    repeater = Repeater(cluster, "p0", cluster.next_producer_id(), times=1 << 30)
    until(cluster, 4_000)
    assert repeater.first >= 0, "nothing to repeat"
    leader = leader_of(cluster)
    log = leader.replicas["p0"].log
    assert log is not None
    leader.call("p0", "trim", lambda *answer: None, log.state.high_watermark)
    until(cluster, 1_500)
    for other in others_of(cluster, leader):
        cluster.faults.inject("wipe", other)
        until(cluster, 6_000)
    assert leader_of(cluster) is leader, "another leads too early"
    assert cluster.world.seen["reset"] >= 2, "nobody began anew above 0"
    leader.crash("kill")
    until(cluster, 4_000)
    leader.start()
    assert leader_of(cluster) is not leader, "nobody else leads"
    until(cluster, 4_000)


def a_session_comes_back_while_the_leader_asks_it_in(cluster: Cluster) -> None:
    """The first of two tries to add it may be refused: the second must be too (once seed 467)."""
    until(cluster, 4_000)
    for _ in range(8):
        controller, leader = cluster.metadata.controller, leader_of(cluster).name
        if controller is None:
            until(cluster, 600)
            continue
        away = next(name for name in cluster.brokers if name not in (controller, leader))
        cluster.network.cut |= {(away, controller), (controller, away)}
        until(cluster, cluster.world.rng.choice((2_200, 2_600, 3_000)))
        cluster.network.cut.clear()
        until(cluster, 700)
    assert cluster.world.seen["session lapsed"], "nobody was taken for dead"


def controller_changes_while_the_isr_does(cluster: Cluster) -> None:
    """Commands of the old controller are lost, or committed and nobody is told."""
    until(cluster, 3_000)
    for _ in range(4):
        leader = leader_of(cluster)
        slow = next(one for one in others_of(cluster, leader) if one.name != cluster.metadata.controller)
        cluster.network.cut |= {(leader.name, slow.name), (slow.name, leader.name)}
        asked = cluster.world.seen["ISR asked to shrink"]
        for _ in range(1_500):
            if leader_of(cluster) is not leader or cluster.world.seen["ISR asked to shrink"] > asked:
                break
            until(cluster, 10)
        cluster.metadata.depose()
        cluster.network.cut.clear()
        until(cluster, 1_500)
    assert cluster.world.seen["ISR asked to shrink"], "nobody was asked out"


def one_way_links_that_flap(cluster: Cluster) -> None:
    """Each leader in turn is heard and does not hear, or the other way round."""
    until(cluster, 3_000)
    for turn in range(6):
        leader = leader_of(cluster)
        for one in others_of(cluster, leader):
            cluster.network.cut.add((leader.name, one.name) if turn % 2 else (one.name, leader.name))
        until(cluster, cluster.world.rng.choice((300, 1_200, 2_500)))
        cluster.network.cut.clear()
        until(cluster, 800)


SCENARIOS: dict[str, Scenario] = {
    "power_failure_of_all": power_failure_of_all,
    "os_crash_of_one_with_pauses_and_partitions": os_crash_of_one_with_pauses_and_partitions,
    "flipped_bit_in_a_log": _damage("flip_log"),
    "flipped_bit_in_an_index": _damage("flip_index"),
    "flipped_bit_in_a_state_file": _damage("flip_state"),
    "truncated_files": _damage("cut_file"),
    "acknowledged_records_go_that_no_checkpoint_tells_of": acknowledged_records_go_that_no_checkpoint_tells_of,
    "a_checkpoint_is_gone": a_checkpoint_is_gone,
    "an_old_file_of_epochs_is_put_back": an_old_file_of_epochs_is_put_back,
    "two_failovers_each_losing_a_tail": two_failovers_each_losing_a_tail,
    "a_wiped_follower_of_a_log_that_begins_within_a_batch": a_wiped_follower_of_a_log_that_begins_within_a_batch,
    "replicas_that_began_anew_lead": replicas_that_began_anew_lead,
    "a_session_comes_back_while_the_leader_asks_it_in": a_session_comes_back_while_the_leader_asks_it_in,
    "controller_changes_while_the_isr_does": controller_changes_while_the_isr_does,
    "one_way_links_that_flap": one_way_links_that_flap,
    "a_stale_leader_is_asked_by_who_has_seen_a_newer_one": a_stale_leader_is_asked_by_who_has_seen_a_newer_one,
    "a_lapse_is_committed_after_the_broker_is_back": a_lapse_is_committed_after_the_broker_is_back,
    "sessions_become_longer_and_would_become_shorter": sessions_become_longer_and_would_become_shorter,
    "fsyncs_fail_on_all_logs_of_a_broker": fsyncs_fail_on_all_logs_of_a_broker,
    "a_step_out_does_not_come_through": a_step_out_does_not_come_through,
    "an_operator_elects_who_lacks_records": an_operator_elects_who_lacks_records,
    "an_operator_elects_who_lacks_what_was_trimmed": an_operator_elects_who_lacks_what_was_trimmed,
    "an_operator_gives_up_the_damaged_range_alone": an_operator_gives_up_the_damaged_range_alone,
    "an_operator_gives_up_what_is_damaged": an_operator_gives_up_what_is_damaged,
    "an_operator_puts_an_old_disk_back": an_operator_puts_an_old_disk_back,
    "a_stream_below_its_minimum_is_read_on": a_stream_below_its_minimum_is_read_on,
    "a_stream_is_damaged_where_it_is_alone": a_stream_is_damaged_where_it_is_alone,
    "a_stream_is_damaged_where_somebody_lags_beyond": a_stream_is_damaged_where_somebody_lags_beyond,
    "a_stream_is_made_anew_while_its_leader_is_cut_off": recreation(cut_off, of_leader=True),
    "a_stream_is_made_anew_while_its_leader_is_stopped": recreation(stopped, of_leader=True),
    "a_stream_is_made_anew_while_a_follower_is_down": recreation(killed, of_leader=False),
    "the_catalog_loses_commands": rescue(is_gone=False),
    "the_catalog_loses_commands_and_a_broker_is_gone": rescue(is_gone=True),
    "tombstones_go_once_all_have_compacted": tombstones_go_once_all_have_compacted,
    "a_copy_stops_between_a_value_and_its_tombstone": a_copy_stops_between_a_value_and_its_tombstone,
    "a_replica_is_away_while_a_key_is_deleted": a_replica_is_away_while_a_key_is_deleted,
    "a_stream_is_compacted_no_more": a_stream_is_compacted_no_more,
    "a_follower_ends_within_a_joined_batch": a_follower_ends_within_a_joined_batch,
    "an_operator_elects_who_lacks_a_newer_value": an_operator_elects_who_lacks_a_newer_value,
    "clocks_are_apart_and_are_set": clocks_are_apart_and_are_set,
}


def guarded(run: Callable[[], object]) -> str:
    """The rule that does not hold; empty: all do."""
    try:
        run()
    except Violation as violation:
        return str(violation)
    except (AssertionError, LookupError, ValueError, AttributeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def played(cluster: Cluster, name: str) -> str:
    """A scenario, and then the end of every run. Returns what does not hold."""

    def run() -> None:
        with cluster.bugs.noticed():
            SCENARIOS[name](cluster)
            cluster.end()

    try:
        return guarded(run)
    finally:
        cluster.close()
