"""Where the stages of sinks are kept, as who needs them sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker.metadata.catalog import StreamInfo
from broker.node.partitions.replicated import ReplicatedPartition
from broker.node.sinks.stage_log import HiddenLog


class StagePlaces(Protocol):
    """Beside each partition in another one, `beside.Companions`, or in a folder, `here.StagesHere`.

    Attributes:
        in_folder: In a folder beside each log; else in partitions of their own.
    """

    in_folder: bool

    def of(self, main: ReplicatedPartition, *, wait_s: float = 0.0) -> ReplicatedPartition: ...
    def log_of(self, main: ReplicatedPartition, companion: ReplicatedPartition) -> HiddenLog: ...
    def may_have(self, incarnation: str, partition: int) -> bool: ...
    def numbers(self, info: StreamInfo) -> Sequence[int]: ...
