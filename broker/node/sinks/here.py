"""Stages of a broker that is alone: in a folder beside each log (`stage_log.StageLog`), not in further partitions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from weakref import WeakSet

from broker.metadata.catalog import StreamInfo
from broker.metadata.partition import Place
from broker.node.partitions.partition import Partition
from broker.node.sinks.stage_log import HiddenLog, StageLog, is_staged
from broker.storage.disk import Disk, disk_errors


class StagesHere:
    """As `beside.Companions`: what is beside a partition is the partition itself.

    Args:
        find: The partition that is open here.
        boot_id: As `PartitionLog.open` takes it.
        clock: Microseconds since 1970 UTC.
    """

    in_folder = True

    def __init__(
        self,
        disk: Disk,
        find: Callable[[Place], Partition | None],
        *,
        boot_id: str,
        clock: Callable[[], int],
    ) -> None:
        self._disk, self._find = disk, find
        self._boot_id, self._clock = boot_id, clock
        self._lock = threading.Lock()
        self._bare: WeakSet[Partition] = WeakSet()  # nothing was ever staged in these
        self._asked: WeakSet[Partition] = WeakSet()  # and of these it is not known for good

    def of(self, main: Partition, *, wait_s: float = 0.0) -> Partition:
        """See the class."""
        return main

    def log_of(self, main: Partition, companion: Partition) -> HiddenLog:
        """The log of its stages. From now on something may be staged."""
        with self._lock:
            self._asked.add(main)
            self._bare.discard(main)
        with disk_errors(f"looking for stages of {main}"):
            return StageLog(self._disk, main, boot_id=self._boot_id, clock=self._clock)

    def may_have(self, incarnation: str, partition: int) -> bool:
        """Whether anything may have been staged in a partition: nobody knows of one that is not open, or that was just
        closed while somebody looks after it. StorageFailed: the disk does not say."""
        main = self._find((incarnation, partition))
        return main is None or self._is_staged(main)

    def numbers(self, info: StreamInfo) -> Sequence[int]:
        """The open partitions of a stream in which anything was ever staged."""
        mains = ((number, self._find((info.incarnation, number))) for number in range(info.settings.partitions))
        return [number for number, main in mains if main is not None and self._is_staged(main)]

    def _is_staged(self, main: Partition) -> bool:
        """The disk is asked once, until somebody wants the log of its stages: else each round would cost ten thousand
        looks."""
        if main in self._bare:
            return False
        with disk_errors(f"looking for stages of {main}"):
            found = is_staged(self._disk, main)
        if not found:
            with self._lock:
                if main not in self._asked:
                    self._bare.add(main)
        return found
