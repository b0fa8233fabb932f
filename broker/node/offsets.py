"""Consumer offsets: whoever leads the offset stream keeps them.

    leadership begins ─► its beginning is committed ─► the log is read, in a thread ─► commits, lags

O1  The table is read anew for each leadership, from all that was committed before it: what another leader has stored
    meanwhile is in it. Before that nobody is answered.
O2  A commit is appended in the leadership whose table was read, or refused (`partition.P6`).
O3  A table that passed over damage is not used where others have what is lost (`committed.W3`): an offset that was
    committed would go back.
O4  The log is read by one thread for each leadership, and a table is replaced by one of a later leadership only: what
    was committed since it was read stands in it alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress

from broker.api.errors import LiftlogError, NotReady, UnknownStream
from broker.api.stream import OFFSETS_STREAM
from broker.groups.fencing import GroupProgress
from broker.groups.offsets import ConsumerOffset
from broker.groups.pins import Pin
from broker.groups.progress import GroupOffset, Read
from broker.node.partitions.consumers import Consumers, Decided
from broker.node.partitions.partition import Partition
from broker.node.sinks.committed import WholeRead

log = logging.getLogger(__name__)


class PlacedConsumers:
    """See the module. Implements `OffsetsView`; its calls raise NotLeader and NotReady besides.

    Args:
        find: The partition of a stream if it is led and served here; raises as `PlacedStreams.partition`.
        executor: Reads the log.
        why_missing: Why there is no stream of offsets yet.
    """

    def __init__(
        self, find: Callable[[str, int], Partition], executor: Executor, why_missing: Callable[[], str]
    ) -> None:
        self._find = find
        self._why_missing = why_missing
        self._executor = executor
        self._lock = threading.Lock()
        self._present: Consumers | None = None
        self._reading: tuple[Partition, int] | None = None

    def here(self) -> Consumers:
        """The table, if this broker keeps it.

        Raises:
            NotLeader: another broker does: `leader`.
            NotReady: nobody does yet, or the log is still being read (O1).
        """
        try:
            partition = self._find(OFFSETS_STREAM, 0)
        except UnknownStream:
            raise NotReady(self._why_missing()) from None
        at = partition, partition.leader_epoch
        present = self._present
        if present is not None and present.at == at:
            return present
        with self._lock:
            present = self._present
            if present is not None and present.at == at:  # since a moment ago
                return present
            is_asked = self._reading == at
            self._reading = at
        if not is_asked:
            self._executor.submit(self._read, *at)
        raise NotReady(f"consumer offsets are being read: leader epoch {at[1]} of {partition} has just begun")

    def begin(self) -> None:
        """Read the table now, if its log is led here, so that who asks first has an answer. Waits for the disk."""
        with suppress(LiftlogError):  # who asks is told
            partition = self._find(OFFSETS_STREAM, 0)
            at = partition, partition.leader_epoch
            with self._lock:
                if self._reading == at:
                    return
                self._reading = at
            self._read(*at)

    def _read(self, partition: Partition, leader_epoch: int) -> None:
        try:
            if partition.end is not None:
                read = WholeRead(partition)
                found = Consumers(partition, leader_epoch=leader_epoch)
                read.check()
                with self._lock:
                    if self._reading != (partition, leader_epoch):  # another leadership has begun (O4)
                        return
                    self._present, self._reading = found, None
                log.info("offsets.read partition=%s epoch=%d", partition, leader_epoch)
        except (LiftlogError, OSError) as error:
            log.warning("offsets.not_read partition=%s error=%s", partition, error)
        finally:
            with self._lock:
                if self._reading == (partition, leader_epoch):
                    self._reading = None

    def consumers(self) -> list[str]:
        """As `OffsetsView`."""
        return self.here().consumers()

    def knows(self, consumer: str) -> bool:
        """As `OffsetsView`."""
        return self.here().knows(consumer)

    def get(self, consumer: str) -> list[ConsumerOffset]:
        """As `OffsetsView`."""
        return self.here().get(consumer)

    async def commit(self, consumer: str, offsets: Sequence[ConsumerOffset]) -> None:
        """As `OffsetsView`."""
        await self.here().commit(consumer, offsets)

    async def forget(self, consumer: str) -> None:
        """As `OffsetsView`."""
        await self.here().forget(consumer)

    def pin(self, name: str) -> Pin:
        """As `OffsetsView`."""
        return self.here().pin(name)

    async def place_pin(self, name: str, text: str, *, version: int) -> tuple[Pin, bool]:
        """As `OffsetsView`."""
        return await self.here().place_pin(name, text, version=version)

    def group_names(self) -> list[str]:
        """As `OffsetsView`."""
        return self.here().group_names()

    def group_offsets(self, group: str) -> dict[Read, GroupOffset]:
        """As `OffsetsView`."""
        return self.here().group_offsets(group)

    async def move_group(
        self, group: str, stream: str, read: Read, epoch: int, decide: Callable[[GroupProgress], Decided]
    ) -> GroupProgress:
        """As `OffsetsView`."""
        return await self.here().move_group(group, stream, read, epoch, decide)
