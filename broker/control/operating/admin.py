"""Replicas are moved, leaders elected, brokers drained and removed, because an operator says so.

    asked (HTTP, any broker) ─► this broker's catalog has all that was acknowledged ─► judge ─► command ─► applied here

    a broker that is gone for good: drain ─► others copy what it kept ─► remove ─► its vote goes, its folder is refused

D1  An answer is of a catalog that has the command: whoever asks this broker next sees what came of it.
D2  A call that could never end is refused, and says why: a target that does not live, a drain with nobody to give to.
D3  Each partition is one command, which names what should be. A call that was cut short is made again as it was.
D4  A drain moves partitions that have a copy elsewhere. Those that only the drained broker has stay, and are named.
D5  Nothing has fewer replicas because a live broker was drained: the controller gives internal streams as many as there
    are brokers, and would give it back what it has just lost.
D6  A broker without a session moves nothing, and nothing is moved late (`changes.X6`, `X7`). Rescues know no session.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from broker.api.errors import InvalidRequest, NotReady, UnknownPartition, UnknownStream, partly
from broker.api.placements import Drained, Elected, GivenUp, Placement, ReplicaEnd, RescueEnded, RescueState
from broker.control.operating import losing, rescuing
from broker.control.operating.changes import check_may_change, in_time, waits
from broker.control.operating.draining import kept_by, planned
from broker.control.service import Catalogs
from broker.metadata.catalog import COMMAND_VERSION, Catalog, StreamInfo
from broker.metadata.cluster import Cluster
from broker.metadata.partition import PartitionState, Place
from broker.node.folders import ASIDE
from broker.node.partitions.partition import Partition

log = logging.getLogger(__name__)

READ_S: Final = 5.0


class ClusterAdmin:
    """See the module. Implements `contract.backend.AdminView`.

    Args:
        open_here: The replicas that are open on this broker.
        may_change: D6.
    """

    def __init__(
        self,
        me: str,
        service: Catalogs,
        *,
        open_here: Callable[[], Iterable[Partition]],
        may_change: Callable[[], bool],
    ) -> None:
        self._me = me
        self._service = service
        self._open_here = open_here
        self._may_change = may_change

    # -- what there is ----------------------------------------------------------------------------------------

    def placements(self) -> list[Placement]:
        """All partitions, as this broker's catalog has them."""
        catalog = self._service.catalog
        names = _names(catalog)
        return [_placement(names[at[0]], at, s) for at, s in _sorted(catalog, names)]

    def ends(self) -> list[ReplicaEnd]:
        """The copies on this broker."""
        return sorted((_end_of(self._me, kept) for kept in self._open_here()), key=lambda e: (e.stream, e.partition))

    # -- what is changed --------------------------------------------------------------------------------------

    async def reassign(
        self, stream: str, partition: int | None, replicas: Sequence[str], min_insync_replicas: int | None
    ) -> list[Placement]:
        """Have these brokers keep a partition, or all of a stream; the first one is its preferred leader.

        With a whole stream each partition begins the list one broker later. Else one broker would lead them all.
        """
        catalog = await self._fresh()
        info = _info(catalog, stream)
        places = _places(catalog, info, partition)
        present = {broker for at in places for broker in catalog.cluster.partitions[at].replicas}
        self._check_targets(catalog.cluster, replicas, present)
        least = {} if min_insync_replicas is None else {"min_insync_replicas": min_insync_replicas}
        for done, at in enumerate(places):
            by = at[1] % len(replicas) if partition is None else 0
            target = [*replicas[by:], *replicas[:by]]
            with partly(done > 0):
                await self._change("reassign", stream=at[0], partition=at[1], replicas=target, **least)
        log.info("cluster.reassigned stream=%s partitions=%d replicas=%s", stream, len(places), ",".join(replicas))
        return self._now(await self._after(), places)

    def _check_targets(self, cluster: Cluster, replicas: Sequence[str], present: set[str]) -> None:
        """D2. Raises InvalidRequest."""
        for broker in replicas:
            info = cluster.brokers.get(broker)
            if info is None:
                known = ", ".join(sorted(cluster.brokers))
                raise InvalidRequest(f"no broker {broker!r} is registered; these are: {known}", broker=broker)
            if not info.is_live and broker not in present:
                raise InvalidRequest(f"broker {broker} does not live: it could not copy anything", broker=broker)

    async def drain(self, broker: str, *, fewer_replicas: bool) -> Drained:
        """Have others keep what a broker keeps (D4), as many of them if there are so many.

        Args:
            fewer_replicas: Where there is nobody to take its place, have one replica less.
        """
        catalog = await self._fresh()
        cluster = catalog.cluster
        _broker(cluster, broker)
        moves, stuck = planned(cluster, broker, fewer_replicas=fewer_replicas)
        for done, (at, (target, least)) in enumerate(moves.items()):
            with partly(done > 0), suppress(UnknownPartition):  # its stream was deleted meanwhile
                await self._change(
                    "reassign", stream=at[0], partition=at[1], replicas=list(target), min_insync_replicas=least
                )
        if moves:
            log.info("cluster.drained broker=%s partitions=%d stuck=%d", broker, len(moves), len(stuck))
        catalog = await self._after()
        kept = [at for at, _ in kept_by(catalog.cluster, broker)]
        return Drained(
            broker=broker,
            moving=tuple(self._now(catalog, [at for at in kept if at not in stuck])),
            stuck=tuple(self._now(catalog, [at for at in kept if at in stuck])),
        )

    async def remove_broker(self, broker: str) -> None:
        """Give a broker up for good. Refused while it lives, or keeps anything."""
        catalog = await self._fresh()
        _broker(catalog.cluster, broker)
        try:
            await self._change("remove_broker", broker_id=broker)
        except InvalidRequest as error:
            kept = [at for at, _ in kept_by(catalog.cluster, broker)]
            named = [f"{each.stream}/{each.partition}" for each in self._now(catalog, kept)]
            raise InvalidRequest(error.message, **error.fields, keeps=named) from None
        await self._after()
        log.warning("cluster.broker_removed broker=%s", broker)

    async def elect_preferred(self, stream: str | None, partition: int | None) -> Elected:
        """Have the preferred replicas lead where they may: all partitions, those of a stream, or one."""
        said = None
        while said is None:
            catalog = await self._fresh()
            if stream is None:
                places = [at for at, _ in _sorted(catalog, _names(catalog))]
            else:
                places = _places(catalog, _info(catalog, stream), partition)
            asked: dict[str, list[int]] = {}
            for incarnation, number in places:
                asked.setdefault(incarnation, []).append(number)
            with suppress(UnknownPartition):  # a stream was deleted meanwhile: those that are left
                said = await self._change("elect_preferred", partitions=asked)
        moved = [(incarnation, number) for incarnation, number, _ in said["moved"]]
        log.info("cluster.elected_preferred asked=%d moved=%d", len(places), len(moved))
        catalog = await self._after()
        passed = [at for at in places if at not in moved]
        return Elected(moved=tuple(self._now(catalog, moved)), passed=tuple(self._now(catalog, passed)))

    async def elect_unclean(self, stream: str, partition: int, broker: str, epoch_seen: int) -> Placement:
        """Have a replica lead that may lack committed records. They are lost then.

        Args:
            epoch_seen: The greatest leader epoch that any copy has.
        """
        catalog = await self._fresh()
        [at] = _places(catalog, _info(catalog, stream), partition)
        await self._change("elect_unclean", stream=at[0], partition=at[1], broker_id=broker, epoch_seen=epoch_seen)
        log.warning("cluster.elected_unclean partition=%s/%d leader=%s", stream, partition, broker)
        [now] = self._now(await self._after(), [at])
        return now

    async def accept_loss(self, stream: str, partition: int, *, is_accepted: bool) -> GivenUp:
        """Let what is damaged be empty, of a partition that is led here, where nobody else has it (`losing`).

        Raises:
            InvalidRequest: it is not accepted, nothing is damaged, or there is another way.
            NotReady: this broker does not serve it, or cannot tell yet.
        """
        catalog = await self._fresh()
        [at] = _places(catalog, _info(catalog, stream), partition)
        state, name = catalog.cluster.partitions[at], f"{stream}/{partition}"
        led = next((p for p in self._open_here() if (p.incarnation, p.partition) == at and p.serves), None)
        if led is None or state.leader != self._me or state.leader_epoch != led.leader_epoch:
            raise NotReady(f"{name}: this broker does not lead it now")
        lost, aside = led.log.state.lost_ranges, f"{led.log.state.folder}{ASIDE}"
        if not lost and led.damage.given_up and is_accepted:  # `damage.P16`
            return GivenUp(stream=stream, partition=partition, leader=self._me, ranges=led.damage.given_up, aside=aside)
        ends = led.follower_ends()
        ranges = losing.to_give_up(
            name,
            self._me,
            state,
            catalog.cluster,
            lost=lost,
            ends=ends,
            high_watermark=led.log.state.high_watermark,
            asked=led.damage.asked_for_lost(),
        )
        if not is_accepted:
            raise losing.refusal(name, self._me, state, catalog.cluster, ranges)
        borders = sorted({end for end in ends.values() if end >= 0})
        with partly(True):
            await asyncio.to_thread(
                led.damage.give_up, ranges, leader_epoch=state.leader_epoch, aside=aside, borders=borders
            )
        log.warning("replica.loss_accepted partition=%s ranges=%s aside=%s", name, ranges, aside)
        return GivenUp(stream=stream, partition=partition, leader=self._me, ranges=ranges, aside=aside)

    # -- a rescue ---------------------------------------------------------------------------------------------

    async def rescue(self) -> RescueState:
        """How far a rescue of the catalog is, if one is under way."""
        return rescuing.state_of(await self._fresh())

    async def excuse(self, broker: str, stream: str | None, partition: int | None) -> RescueState:
        """Give up what a broker may have: all, or of a stream, or of a partition.

        Raises:
            InvalidRequest: no rescue is under way, nobody has this name, or it lives and has yet to report.
        """
        catalog = await self._fresh()
        number = rescuing.number_of(catalog)
        _broker(catalog.cluster, broker)
        rescuing.check_excuse(catalog, broker)
        named = {}
        if stream is not None:
            info = _info(catalog, stream)
            named = {"partitions": {info.incarnation: [at[1] for at in _places(catalog, info, partition)]}}
        await self._execute("excuse_replicas", broker_id=broker, rescue=number, **named)
        log.warning("cluster.excused broker=%s stream=%s partition=%s", broker, stream, partition)
        return rescuing.state_of(await self._after())

    async def end_rescue(self, brokers: Sequence[str]) -> RescueEnded:
        """Let the log lead that has most, of each partition.

        Raises:
            InvalidRequest: no rescue is under way, or some have neither reported nor been excused.
        """
        before = await self._fresh()
        number, rescue = rescuing.number_of(before), before.cluster.rescue
        assert rescue is not None, "it has a number"
        try:
            said = await self._execute("end_rescue", rescue=number, brokers=list(brokers))
        except InvalidRequest as error:
            raise rescuing.told(error, before) from None
        after = await self._after()
        log.warning("cluster.rescue_ended rescue=%d partitions=%d", number, len(rescue.places))
        return rescuing.ended(rescue, said, after)

    # -- helpers ----------------------------------------------------------------------------------------------

    async def _fresh(self) -> Catalog:
        """The catalog with all that was acknowledged before (D1). Raises NotReady: no controller has answered."""
        return await waits(partial(self._service.read, timeout_s=READ_S))

    async def _after(self) -> Catalog:
        """As `_fresh`, once a command was carried out. An error says that it may have been: `sent`."""
        with partly(True):
            return await self._fresh()

    async def _change(self, kind: str, **values: Any) -> Any:
        """D6."""
        check_may_change(self._may_change)
        return await in_time(self._service, _command(kind, **values))

    async def _execute(self, kind: str, **values: Any) -> Any:
        return await waits(partial(self._service.execute, _command(kind, **values)))

    def _now(self, catalog: Catalog, places: Iterable[Place]) -> list[Placement]:
        names, partitions = _names(catalog), catalog.cluster.partitions
        found = [(at, partitions.get(at)) for at in places]
        return [_placement(names[at[0]], at, s) for at, s in found if s is not None and at[0] in names]


def _command(kind: str, **values: Any) -> dict[str, Any]:
    return {"v": COMMAND_VERSION, "kind": kind, "request_id": uuid.uuid4().hex, **values}


def _names(catalog: Catalog) -> dict[str, str]:
    """Names of streams, by incarnation. The catalog is read a value at a time (`streams.U3`)."""
    return {info.incarnation: info.name for info in list(catalog.streams.values())}


def _sorted(catalog: Catalog, names: Mapping[str, str]) -> list[tuple[Place, PartitionState]]:
    found = [(at, state) for at, state in list(catalog.cluster.partitions.items()) if at[0] in names]
    return sorted(found, key=lambda each: (names[each[0][0]], each[0][1]))


def _placement(name: str, at: Place, state: PartitionState) -> Placement:
    return Placement(
        stream=name,
        partition=at[1],
        leader=state.leader,
        leader_epoch=state.leader_epoch or -1,
        replicas=state.replicas,
        isr=state.isr,
        last_isr=state.last_isr,
        min_insync_replicas=state.min_insync_replicas,
        target=state.target,
        unclean_epoch=state.unclean_epoch,
    )


def _end_of(me: str, kept: Partition) -> ReplicaEnd:
    end = kept.log.state.log_end_offset
    return ReplicaEnd(
        broker=me,
        stream=kept.stream,
        partition=kept.partition,
        last_epoch=kept.log.epochs.epoch_of(end - 1) if end else -1,
        log_end_offset=end,
        is_interrupted=kept.log.state.log_start_offset < end < kept.log.state.superseded[0],
    )


def _info(catalog: Catalog, stream: str) -> StreamInfo:
    info = catalog.streams.get(stream)
    if info is None:
        raise UnknownStream(f"no stream {stream!r}", stream=stream)
    return info


def _places(catalog: Catalog, info: StreamInfo, partition: int | None) -> list[Place]:
    places = sorted(at for at in list(catalog.cluster.partitions) if at[0] == info.incarnation)  # `streams.U3`
    if partition is None:
        return places
    if (info.incarnation, partition) not in places:
        raise UnknownPartition(
            f"stream {info.name!r} has no partition {partition}, it has {len(places)}", partitions=len(places)
        )
    return [(info.incarnation, partition)]


def _broker(cluster: Cluster, broker: str) -> None:
    """Raises InvalidRequest."""
    if broker not in cluster.brokers:
        known = ", ".join(sorted(cluster.brokers))
        raise InvalidRequest(f"no broker {broker!r} is registered; these are: {known}", broker=broker)
