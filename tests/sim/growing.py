"""A broker's part in a stream that gets more partitions, as `replicas.G9` of the broker: who leads one of them says
that it knows, stops when all know, and says so when all that it took is committed. The catalog's part is `growth.py`.

A leader that has stopped takes nothing before the stage is another, and a partition that is not counted yet takes
nothing at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.metadata.growth import GrowthStage, stage_of
from broker.metadata.info import StreamInfo
from tests.sim.metadata import name_of, place_of

if TYPE_CHECKING:
    from tests.sim.broker import Broker
    from tests.sim.replica import Replica

STOP_MS = 1_200
"""A stop that takes so long is given up."""


class Growing:
    """See the module."""

    def __init__(self) -> None:
        self._stops: dict[str, tuple[int, int]] = {}  # of a stream: as of when, and since when

    def forget_stops(self) -> None:
        """The process is gone."""
        self._stops = {}

    def stream_of(self: Broker, name: str) -> StreamInfo | None:  # type: ignore[misc]
        """The stream of a partition, as this broker's catalog has it."""
        stream, _ = place_of(name)
        return next((info for info in self.catalog.streams.values() if info.incarnation == stream), None)

    def takes(self: Broker, name: str) -> bool:  # type: ignore[misc]
        """Whether a partition that is led here takes records now."""
        info = self.stream_of(name)
        if info is None:
            return True
        return place_of(name)[1] < info.settings.partitions and not self._has_stopped(info)

    def _has_stopped(self: Broker, info: StreamInfo) -> bool:  # type: ignore[misc]
        stage = stage_of(self.catalog.cluster, info)
        return stage is not None and self._stops.get(info.incarnation, (-1, 0))[0] == stage.as_of

    def grow(self: Broker) -> None:  # type: ignore[misc]
        """Do for each stream what is next."""
        for info in self.catalog.streams.values():
            stage = stage_of(self.catalog.cluster, info)
            if stage is not None and self.has_session and (led := self._led_of(info)):
                self._see_to(info, stage, led)

    def _led_of(self: Broker, info: StreamInfo) -> dict[int, Replica]:  # type: ignore[misc]
        found = {n: self.replicas.get(name_of((info.incarnation, n))) for n in range(info.partitions_next)}
        return {n: r for n, r in found.items() if r is not None and r.leads and r.has_begun}

    def _see_to(self: Broker, info: StreamInfo, stage: GrowthStage, led: dict[int, Replica]) -> None:  # type: ignore[misc]
        if stage.is_stopping and not self._has_stopped(info):
            self._stops[info.incarnation] = stage.as_of, self.now_ms
        of = {"name": info.name, "incarnation": info.incarnation, "partitions": info.partitions_next}
        by = {"broker_id": self.name, "registration": self.incarnation, "as_of": stage.as_of}
        if stage.is_stopping and self.now_ms - self._stops[info.incarnation][1] > STOP_MS:
            self.world.saw("stop for more partitions given up")
            leaders = [[n, replica.leader.epoch] for n, replica in led.items()]
            self.submit({"kind": "confirm_partitions", **of, **by, "leaders": leaders, "gives_up": True})
            return
        said = self.catalog.cluster.confirmed
        able = {n: r for n, r in led.items() if said.get((info.incarnation, n)) != (stage.as_of, stage.is_stopping)}
        able = {n: r for n, r in able.items() if (r.has_committed_all if stage.is_stopping else r.may_commit)}
        if able:
            leaders = [[n, replica.leader.epoch] for n, replica in able.items()]
            flags = {"is_stopped": True} if stage.is_stopping else {}
            self.submit({"kind": "confirm_partitions", **of, **by, "leaders": leaders, **flags})
