"""A rescue of the catalog (`metadata/rescue.py`) as an operator sees it: streams by name, and what it came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.api.errors import InvalidRequest
from broker.api.placements import RescuedPartition, RescuedReplica, RescueEnded, RescueState
from broker.metadata.catalog import Catalog
from broker.metadata.info import Rescue
from broker.metadata.rescue import missing_in

SHOWN = 20


def number_of(catalog: Catalog) -> int:
    """The number of the rescue that is under way. Raises InvalidRequest: none is."""
    if catalog.cluster.rescue is None:
        raise InvalidRequest("no rescue is under way, or not any more: liftlog cluster rescue status")
    return catalog.cluster.rescue.number


def state_of(catalog: Catalog) -> RescueState:
    """How far it is."""
    rescue = catalog.cluster.rescue
    if rescue is None:
        return RescueState(rescue=None)
    missing, names = missing_in(catalog.cluster), _names(catalog)
    return RescueState(
        rescue=rescue.number,
        partitions=sum(at in catalog.cluster.partitions for at in rescue.places),
        reported=tuple(sorted(rescue.logs)),
        excused=tuple(sorted(broker for broker, stream, _ in rescue.excused if not stream)),
        excused_replicas=_replicas((each for each in rescue.excused if each[1]), names),
        missing=tuple(missing["brokers"]),
        missing_replicas=_replicas(missing["replicas"], names),
    )


def check_excuse(catalog: Catalog, broker: str) -> None:
    """Raises InvalidRequest for a broker that lives and is about to report: what it has need not be given up."""
    rescue = catalog.cluster.rescue
    if rescue is not None and catalog.brokers[broker].is_live and broker not in rescue.logs:
        raise InvalidRequest(
            f"broker {broker} lives, and reports its logs by itself in a moment: liftlog cluster rescue status",
            broker=broker,
        )


def told(error: InvalidRequest, catalog: Catalog) -> InvalidRequest:
    """The refusal of an end, with names."""
    silent = list(error.fields.get("brokers", ()))
    lacking = _replicas(error.fields.get("replicas", ()), _names(catalog))
    if not silent and not lacking:
        return error
    parts = []
    if known := [each for each in silent if each in catalog.brokers]:
        parts.append(f"start, or excuse: {', '.join(known)}")
    if unknown := [each for each in silent if each not in catalog.brokers]:
        parts.append(f"start, or leave out (the catalog does not know them): {', '.join(unknown)}")
    if lacking:
        shown = ", ".join(f"{each.stream}/{each.partition} of {each.broker}" for each in lacking[:SHOWN])
        parts.append(f"{len(lacking)} replicas are not there any more, to be excused: {shown}")
    fields = {"brokers": silent, "replicas": [[each.broker, each.stream, each.partition] for each in lacking]}
    return InvalidRequest(f"{error.message}. {'; '.join(parts)}", **{**error.fields, **fields})


def ended(rescue: Rescue, said: Mapping[str, Any], after: Catalog) -> RescueEnded:
    """The outcome of a rescue.

    Args:
        rescue: As it was before the end. said: The catalog's answer. after: Has it.
    """
    names = _names(after)
    lost = {(stream, number) for stream, number in said["lost"]}
    partitions = []
    for at in rescue.places:
        state = after.cluster.partitions.get(at)
        if state is None or at[0] not in names:
            continue  # its stream was deleted since
        ends = [logs[at] for logs in rescue.logs.values() if at in logs]
        partitions.append(
            RescuedPartition(
                stream=names[at[0]],
                partition=at[1],
                leader=state.leader,
                log_end_offset=max(ends, default=(-1, 0))[1],
                is_lost=at in lost,
                is_whole=state.unclean_epoch <= rescue.number,
            )
        )
    return RescueEnded(
        rescue=rescue.number,
        partitions=tuple(sorted(partitions, key=lambda each: (each.stream, each.partition))),
        unknown=_replicas(said["unknown"], names),
    )


def _names(catalog: Catalog) -> dict[str, str]:
    return {info.incarnation: info.name for info in list(catalog.streams.values())}


def _replicas(found: Iterable[Iterable[Any]], names: Mapping[str, str]) -> tuple[RescuedReplica, ...]:
    made = [RescuedReplica(broker=b, stream=names.get(s, s), partition=n) for b, s, n in found]
    return tuple(sorted(made, key=lambda each: (each.broker, each.stream, each.partition)))
