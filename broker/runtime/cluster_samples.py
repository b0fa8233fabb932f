"""Samples for /metrics that only brokers of a cluster have, read when scraped: docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from broker.common.metrics import Sample
from broker.intake.driver import IntakeDriver
from broker.metadata.catalog import Catalog
from broker.metadata.partition import Place
from broker.node.streams import PlacedStreams
from broker.runtime.samples import OFFLINE, PARTITION_LABELS, common_samples, partition_samples


def cluster_samples(
    me: str,
    catalog: Catalog,
    streams: PlacedStreams,
    intake: IntakeDriver | None,
    *,
    started: bool,
    has_session: bool,
    connections: Mapping[str, int],
    refused: Mapping[str, int],
    bulk_bytes: int,
    raft_refused: int,
    group: Mapping[str, Any] | None,
    weaker: int,
    shut: Collection[Place],
) -> Iterator[Sample]:
    """All samples of one broker. A partition's numbers come from its leader; each replica tells of its log.

    Args:
        connections, refused, bulk_bytes: As the link counts them.
        group: As of `plane.status`; None: the Raft thread gives no answer.
        weaker: Brokers with a weaker `auth.mode`.
        shut: Replicas here that are kept shut.
    """
    yield from common_samples(intake, started=started)
    yield "liftlog_session_open", "1 while this broker may lead", (), (), float(has_session)
    states = dict(catalog.cluster.partitions)
    led = [state for state in states.values() if state.leader == me]
    yield "liftlog_partitions_led", "Partitions that this broker leads", (), (), len(led)
    few = sum(len(state.isr) < len(state.replicas) for state in led)
    yield "liftlog_partitions_under_replicated", "Partitions led here with replicas out of sync", (), (), few
    yield "liftlog_replicas_shut", "Replicas here whose keys are lost, or another log's", (), (), len(shut)
    offline = {incarnation for incarnation, _ in shut}
    yield "liftlog_streams_offline", OFFLINE, (), (), len(offline)
    below = sum(len(state.isr) < state.min_insync_replicas for state in led)
    yield "liftlog_partitions_below_minimum", "Partitions led here that take no records", (), (), below
    nobody = sum(state.leader is None for state in states.values())
    yield "liftlog_partitions_without_leader", "Partitions of the cluster that nobody leads", (), (), nobody
    for partition in streams.led():
        at = (partition.stream, str(partition.partition))
        state = states.get((partition.incarnation, partition.partition))
        isr = 0 if state is None else len(state.isr)
        yield "liftlog_partition_in_sync_replicas", "Replicas in sync", PARTITION_LABELS, at, isr
        for broker, lag in sorted(partition.lags().items()):
            text = "Offsets that a follower has not told to be on its disk"
            yield "liftlog_replica_lag", text, (*PARTITION_LABELS, "broker"), (*at, broker), lag
        given_up = sum(end - start for start, end in partition.damage.given_up)
        yield "liftlog_partition_given_up_offsets", "Offsets that an operator gave up", PARTITION_LABELS, at, given_up
    for kept in streams.all_partitions():
        at, text = (kept.stream, str(kept.partition)), "Damaged offsets that were copied from other replicas"
        yield "liftlog_partition_mended_offsets", text, PARTITION_LABELS, at, kept.damage.mended_count
        yield from partition_samples(kept, at)
    for what, count in sorted(connections.items()):
        yield "liftlog_replica_connections_total", "Connections to leaders", ("what",), (what,), count
    for reason, count in sorted(refused.items()):
        yield "liftlog_replica_refused_total", "Brokers and strangers not let in", ("reason",), (reason,), count
    yield "liftlog_replica_bulk_bytes_total", "Bytes that followers here fetched in bulk", (), (), bulk_bytes
    yield "liftlog_raft_refused_total", "Connections cut at the Raft port, brokers refused", (), (), raft_refused
    yield "liftlog_auth_weaker_brokers", "Brokers that let callers do what this one refuses", (), (), weaker
    if group is not None and group["voters"]:  # else this broker is alone: no vote can be lost
        yield from _votes(me, group)


def _votes(me: str, group: Mapping[str, Any]) -> Iterator[Sample]:
    """The group that keeps the catalog, as this broker knows it."""
    votes = group["voters"]
    there = sum(each["is_registered"] and each["is_live"] for each in votes)
    spare = there - len(votes) // 2 - 1
    yield "liftlog_controller", "1 while this broker is the controller", (), (), float(group["controller"] == me)
    yield "liftlog_votes", "Votes in the group that keeps the catalog", (), (), len(votes)
    yield "liftlog_votes_there", "Votes that can be given now", (), (), there
    yield "liftlog_votes_to_spare", "So many more may be lost before nothing can be decided", (), (), spare
