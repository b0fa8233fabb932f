"""What the background does for a partition that is led here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.node.partitions.partition import Partition
from broker.storage.rewrite.coalescing import CoalescingSettings
from broker.storage.rewrite.compaction import CompactionSettings


@dataclass(frozen=True, slots=True)
class Chores:
    """The work to do for a partition; None: not that.

    Attributes:
        marks: Where others keep it too: `tombstones_below` and `compact_to` of `compact`, asked before each pass.
        passed: Called after each of them, also if none was due: then tombstones may have been found to wait.
    """

    partition: Partition
    compaction: CompactionSettings | None
    coalescing: CoalescingSettings | None
    marks: Callable[[], tuple[int, int]] = lambda: (0, 0)
    passed: Callable[[], None] = lambda: None
