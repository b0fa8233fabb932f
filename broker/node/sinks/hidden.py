"""The hidden log of one partition's stages where others keep it too: in an internal partition of its own.

    notes, parts ─► companion, led here ─► followers ─► committed: answered

Q1  The table is read under one leadership of the partition and one of the companion, once all that the companion holds
    is committed (`committed.W1`). Another epoch of either, and it is read anew. So it is when the log of the companion
    was recovered in place, which the only replica does (`placed.V10`): what it held may be cut.
Q2  Appended notes count in the table at once, and are answered when they are committed (`stage_log.G1`). If they are
    not, the leadership is over, and so is the table.
Q3  A broker that may not answer for the partition, or for its companion, answers nothing about stages.
Q4  A question what may be let go (`floor`) waits for no other broker: the answer is "nothing", and it is asked again.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.api.encodable import Encodable
from broker.api.errors import NotReady, StorageFailed
from broker.node.partitions.partition import Partition
from broker.node.sinks.committed import COMMITTED_S, Awaited, WholeRead, await_committed
from broker.node.sinks.stage_log import HiddenLog, read_table
from broker.sinks.stages import StageTable
from broker.storage.disk import disk_errors
from broker.storage.log import AppendResult, PartitionLog, StoredGroup


class ReplicatedStageLog(HiddenLog):
    """See the module.

    Args:
        main: The partition.
        companion: Has its stages.
    """

    floor_wait_s = 0.5  # Q4: a large part is made durable under the lock, which waits for the other replicas

    def __init__(self, main: Partition, companion: Partition, *, clock: Callable[[], int]) -> None:
        super().__init__(main, clock=clock)
        self._replicated = main
        self.companion = companion
        self._companion_epoch = -1
        self._recoveries = -1  # of the companion's log, when the table was read
        self._last: Awaited | None = None

    def open(self) -> PartitionLog:
        """As `HiddenLog.open`."""
        return self.companion.log

    def ready(self, *, wait_s: float = COMMITTED_S) -> StageTable:
        """As `HiddenLog.ready` (Q1, Q3)."""
        self._main.check_open(decided=True)
        for partition in (self._replicated, self.companion):
            if not partition.serves:
                raise NotReady(f"{partition}: this broker does not lead it, or not yet")
        if self.companion.log.state.failure is not None:
            self._distrust()
            self.companion.commit_all()  # recovers it, if there is no other replica
        if self._recoveries != self.companion.generation:
            self._distrust()
        epochs = self._main.leader_epoch, self.companion.leader_epoch
        if epochs != (self.leader_epoch, self._companion_epoch):
            self._distrust()
            self.leader_epoch, self._companion_epoch = epochs
        if self._table is None:
            await_committed(self.companion, wait_s)
            recoveries, read = self.companion.generation, WholeRead(self.companion)
            with disk_errors(f"reading the stages of {self._main}"):
                table = read_table(self.companion.log)
            read.check()
            if (*epochs, recoveries) != self._now():
                raise NotReady(f"{self._main}: it has another leader epoch since, or its stages were recovered")
            self._table, self._recoveries = table, recoveries
        return self._table

    def _now(self) -> tuple[int, int, int]:
        return self._main.leader_epoch, self.companion.leader_epoch, self.companion.generation

    def _distrust(self) -> None:
        super()._distrust()
        self._last = None

    def make_durable(self, generation: int) -> None:
        """As `HiddenLog.make_durable`: on the disks of all that are in sync (Q2)."""
        last = self._last
        if last is not None:
            last.outcome(self.companion)
        if generation != self.generation or self._recoveries != self.companion.generation:
            raise StorageFailed(f"{self._main}: its stages are led anew; the request may have been done")

    def _append_group(self, group: StoredGroup | list[Encodable]) -> AppendResult:
        awaited = Awaited()
        result = self.companion.append_now(group, awaited, decided=True, leader_epoch=self._companion_epoch)
        self._last = awaited
        return result

    def _let_go(self, before: int) -> None:
        self.companion.trim(before)
