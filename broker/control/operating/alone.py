"""Answers to the operator of a cluster, where there is one broker: it has nobody to give anything to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from broker.api.errors import NotSupported
from broker.api.placements import Drained, Elected, GivenUp, Placement, ReplicaEnd, RescueEnded, RescueState

Led = tuple[str, int, int]
"""A stream, the number of a partition, and its leader epoch."""
ALONE: Final = "this broker is alone: there is no other one to give a partition to"


class AloneAdmin:
    """Implements `contract.backend.AdminView`.

    Args:
        partitions: All.
    """

    def __init__(self, me: str, partitions: Callable[[], Iterable[Led]]) -> None:
        self._me = me
        self._partitions = partitions

    def placements(self) -> list[Placement]:
        """Each partition is here."""
        ids = (self._me,)
        return [
            Placement(stream=stream, partition=number, leader=self._me, leader_epoch=epoch, replicas=ids, isr=ids)
            for stream, number, epoch in self._partitions()
        ]

    def ends(self) -> list[ReplicaEnd]:
        """Nobody asks."""
        return []

    async def reassign(
        self, stream: str, partition: int | None, replicas: Sequence[str], min_insync_replicas: int | None
    ) -> list[Placement]:
        """Raises NotSupported."""
        raise NotSupported(ALONE)

    async def drain(self, broker: str, *, fewer_replicas: bool) -> Drained:
        """Raises NotSupported."""
        raise NotSupported(ALONE)

    async def remove_broker(self, broker: str) -> None:
        """Raises NotSupported."""
        raise NotSupported(ALONE)

    async def elect_preferred(self, stream: str | None, partition: int | None) -> Elected:
        """It leads everything."""
        return Elected(moved=())

    async def elect_unclean(self, stream: str, partition: int, broker: str, epoch_seen: int) -> Placement:
        """Raises NotSupported."""
        raise NotSupported(ALONE)

    async def accept_loss(self, stream: str, partition: int, *, is_accepted: bool) -> GivenUp:
        """Raises NotSupported."""
        raise NotSupported("a broker that is alone reads past what is lost: nothing has to be given up")

    async def rescue(self) -> RescueState:
        """It needs none."""
        return RescueState(rescue=None)

    async def excuse(self, broker: str, stream: str | None, partition: int | None) -> RescueState:
        """Raises NotSupported."""
        raise NotSupported(ALONE)

    async def end_rescue(self, brokers: Sequence[str]) -> RescueEnded:
        """Raises NotSupported."""
        raise NotSupported(ALONE)
