"""Where the stages of sinks are kept, as who needs them sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker.metadata.catalog import StreamInfo
from broker.node.partitions.partition import Partition
from broker.node.sinks.stage_log import HiddenLog


class StagePlaces(Protocol):
    """Beside each partition in another one, `beside.Companions`, or in a folder, `here.StagesHere`.

    Attributes:
        in_folder: In a folder beside each log; else in partitions of their own.
    """

    in_folder: bool

    def of(self, main: Partition, *, wait_s: float = 0.0) -> Partition: ...
    def log_of(self, main: Partition, companion: Partition) -> HiddenLog: ...
    def may_have(self, incarnation: str, partition: int) -> bool: ...
    def numbers(self, info: StreamInfo) -> Sequence[int]: ...
