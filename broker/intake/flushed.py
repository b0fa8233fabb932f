"""A flushed batch, from its append to its last answer, and what the intake thread hears of it.

    append ─► HERE: durable on this broker ─► LEADERS: who waits for no more is answered ─► DONE: so are all others

HERE is told of batches that other brokers keep, too, and whose publishers await answers; LEADERS where some of these
wait for the leader alone. DONE is told of each, once. Where a batch counts: under way until it is durable here
(`flush.N2`), then as uncommitted until it is answered (uncommitted.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from broker.ingest import PendingBatch
from broker.node.partitions.sync import SyncRow

if TYPE_CHECKING:
    from broker.intake.flush import FlushSlot


class Told(Enum):
    """What is known of a batch from now on; or, with an error, that it will never be so."""

    HERE = auto()
    LEADERS = auto()
    DONE = auto()


@dataclass(slots=True, eq=False)
class Flushed:
    """See the module.

    Attributes:
        row: A tick has flushed it, and it is synced with that.
        thread: Appends it.
        is_apart: It is durable here at one time, and done at another.
        leader: Whom `DONE` answers, as `PendingBatch.acks` takes it.
        is_appending: The call that appends it has not returned, and it counts nowhere yet.
        is_durable, is_answered: As far as the intake thread has heard, which may be in either order.
        byte_count: Of its records, and of the acks that are kept beside the log.
    """

    slot: FlushSlot
    pending: PendingBatch
    row: SyncRow | None
    thread: int
    byte_count: int
    is_apart: bool = False
    leader: bool | None = None
    is_appending: bool = True
    is_durable: bool = False
    is_answered: bool = False
