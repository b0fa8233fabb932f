"""A partition that is led here, and that no other broker keeps."""

from __future__ import annotations

import weakref
from concurrent.futures import Executor
from functools import partial

from broker.metadata.catalog import StreamInfo
from broker.metadata.partition import PartitionState
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncExecutor
from broker.replication.events import Effect, StartMoved, Trim


class LedAlone(Partition):
    """Goes by what is changed at once, and is served as soon as it is led.

    Args:
        leader_epoch: Under which it is led from the start; -1: not before `lead`.
    """

    def __init__(
        self,
        info: StreamInfo,
        replica: Replica,
        *,
        pool: SyncExecutor,
        appender: Executor,
        leader_epoch: int = -1,
        me: str = "self",
        has_others: bool = False,
    ) -> None:
        super().__init__(
            info,
            replica,
            me=me,
            has_session=lambda: True,
            to_others=partial(_do, weakref.ref(self)),
            pool=pool,
            appender=appender,
            has_others=has_others,
        )
        if leader_epoch >= 0:
            self.lead(leader_epoch)

    def lead(self, leader_epoch: int, state: PartitionState | None = None) -> None:
        super().lead(leader_epoch, state or led_by(self._core.me, leader_epoch))
        self.serve(leader_epoch)

    def alter(self, info: StreamInfo) -> None:
        self.hear(info)
        super().alter(info)
        self.serve(self.leader_epoch, info)


def led_by(me: str, epoch: int) -> PartitionState:
    """The state of a partition that nobody else keeps."""
    return PartitionState(replicas=(me,), isr=(me,), leader=me, leader_epoch=epoch, opened=(me,))


def _do(found: weakref.ref[LedAlone], effect: Effect) -> None:
    partition = found()
    if partition is not None and isinstance(effect, Trim):
        partition.log.trim(effect.start)
        partition.step(StartMoved(partition.log.state.log_start_offset))
