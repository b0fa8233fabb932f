"""The ledger of sinks on the disk: the partition of `__commits`, and what its records say.

A question gets the committed state. A change is made under the lock, and is committed before the
ledger shows it.

C2  After a failed append the ledger is read anew: the record may be there or not. So it is when the
    partition has another leader epoch than when it was read. It is read once all that the log holds
    is committed (`committed.W1`), and whole (`committed.W3`).
C7  Nobody is told what the ledger holds while this broker may not answer for it: where others keep
    the partition too, another one may lead it.
C4  A change is judged under a leader epoch and appended under it, or not at all.
C5  The epoch of a record is its offset + 1. Nobody else appends here, so it is known before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from broker.api.batch import decode_batch
from broker.api.errors import LiftlogError, NotReady
from broker.node.partitions.partition import Partition
from broker.node.sinks.committed import WholeRead, append_durable, await_committed
from broker.sinks.ledger import Ledger
from broker.sinks.state import SinkState, removal_row, state_rows
from broker.storage.disk import disk_errors
from broker.storage.rows import RowBatch

log = logging.getLogger(__name__)

REWRITE_BYTES: Final = 32 << 20
WRITES_PER_LOOK: Final = 256
ROWS_PER_BATCH: Final = 256


@dataclass(frozen=True, slots=True)
class Removed:
    """Instead of a state: the sink is gone."""

    sink: str


Change = Callable[[Ledger, int], SinkState | Removed]
"""Takes the ledger and the epoch of the record; returns what is to be written. A state that is in the ledger already
is not written again. Its errors pass through, and then nothing is written."""


class CommitsLog:
    """See the module. Thread-safe; calls block.

    Args:
        partition: The one of `__commits`; nobody else appends to it.
        clock: Microseconds since 1970 UTC.
    """

    def __init__(self, partition: Partition, clock: Callable[[], int]) -> None:
        self._partition = partition
        self._clock = clock
        self._ledger: Ledger | None = None  # None: not read, or not to be trusted (C2)
        self._leader_epoch = partition.leader_epoch
        self._writes = 0
        self._lock = partition.replica.waits.lock()  # who holds it waits for the other replicas

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the coordinator now."""
        return self._partition.leader_epoch

    def ledger(self) -> Ledger:
        """The committed state. Does not wait for a change that is being written. Raises NotReady (C7)."""
        found = self._ledger
        if self._partition.end is None:  # C7
            raise NotReady(f"{self._partition}: this broker does not answer for the sinks, or not yet")
        if found is not None and self._leader_epoch == self._partition.leader_epoch:
            return found
        with self._lock:
            return self._read()

    def write(self, change: Change) -> SinkState | Removed:
        """Append what `change` makes of the ledger, asked with nothing in between (`ledger.D5`).

        Committed on return.

        Raises:
            NotLeader, StorageFailed, DiskFull: not known; the ledger tells when it is read the next time.
        """
        with self._lock:
            ledger = self._read()
            epoch = self._partition.log.state.log_end_offset + 1  # C5
            changed = change(ledger, epoch)
            if isinstance(changed, Removed):
                self._append([removal_row(changed.sink, timestamp_us=self._clock())], epoch)
                ledger.states.pop(changed.sink, None)
            elif ledger.states.get(changed.sink) is not changed:
                self._append([state_rows([changed], timestamp_us=self._clock())], epoch)
                ledger.apply(changed)
            else:
                return changed
            self._writes += 1
            if self._writes % WRITES_PER_LOOK == 0 and self._partition.log.state.byte_count > REWRITE_BYTES:
                self._rewrite(ledger)
            return changed

    def state(self, change: Callable[[Ledger, int], SinkState]) -> SinkState:
        """As `write`, for a change that leaves the sink in being."""
        changed = self.write(change)
        assert isinstance(changed, SinkState)
        return changed

    def _read(self) -> Ledger:
        """The ledger, read anew where it cannot be trusted (C2). Under the lock."""
        if self._ledger is None or self._leader_epoch != self._partition.leader_epoch:
            self._ledger = None
            leader_epoch = self._partition.leader_epoch
            await_committed(self._partition)
            ledger, read = Ledger(), WholeRead(self._partition)
            with disk_errors("reading the sinks"):
                for message in self._partition.log.reader.batches(self._partition.log.state.log_start_offset):
                    ledger.load(decode_batch(message))
            read.check()
            self._ledger, self._leader_epoch = ledger, leader_epoch
        return self._ledger

    def _append(self, rows: Sequence[pa.RecordBatch], epoch: int | None = None) -> None:
        try:
            batches = [RowBatch(batch) for batch in rows]
            result = append_durable(self._partition, batches, leader_epoch=self._leader_epoch)
            assert epoch in (None, result.first_offset + 1), "somebody else appends to the sinks' log"
        except BaseException:
            self._ledger = None
            raise

    def _rewrite(self, ledger: Ledger) -> None:
        """Every state once more, then let go of all before: each record is a whole state."""
        states = ledger.all()
        parts = [states[i : i + ROWS_PER_BATCH] for i in range(0, len(states), ROWS_PER_BATCH)]
        first = self._partition.log.state.log_end_offset
        try:
            if parts:
                self._append([state_rows(part, timestamp_us=self._clock()) for part in parts])
            self._partition.trim(first)
        except LiftlogError as error:  # what was asked is written; this is tried again after further writes
            log.warning("sink.rewrite_failed error=%s", error)
