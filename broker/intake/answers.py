"""Answers to publishers: made for a batch, sent to the NATS connection, and counted.

    appended, durable ──► the flush (flush.py): when, and for whom ──► blob_of ──► give ──┐
    not appended ─────────────────────────────────────────────────────────────► refuse ──┴─► socket

`blob_of` works in any thread: in that which learns that a batch is durable. All else lives on the intake thread.

N3  A refused or failed record is answered and counted; the rest of its batch is not touched.
N4  A repeat (by its id) is answered like a record of the batch that it came with: its original was appended before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.api.errors import (
    LiftlogError,
    NotEnoughReplicas,
    NotLeader,
    NotReady,
    Overloaded,
    ReadOnly,
    StreamPaused,
    UnknownStream,
)
from broker.common.metrics import BATCH_RECORDS
from broker.ingest import PendingBatch
from broker.ingest.answers import ack_error, error_answer
from broker.node.partitions.partition import Outcome, Partition
from broker.storage.log import AppendResult

log = logging.getLogger(__name__)

SHOWN_INTERVAL_S = 1.0
"""So often at most it is logged that a batch waits for other brokers; all are counted."""

CLOSED = (ReadOnly, StreamPaused, UnknownStream)
"""Somebody closed the stream to publishers: no fault, so it is counted and answered, not logged for each batch."""
LATER = (NotEnoughReplicas, NotLeader, NotReady, Overloaded)
"""Other brokers are waited for: who awaits an ack sends again, and each batch meets the same. Logged now and then."""


class Answers:
    """The answers of one broker to its publishers.

    Args:
        send: Writes bytes to the NATS connection, if there is one.
        wall_us: The time, for acks.
        now_s: The clock of the intake thread's loop.

    Attributes:
        counts: Batches, and records by what became of them.
    """

    def __init__(self, send: Callable[[bytes], None], now_s: Callable[[], float], wall_us: Callable[[], int]) -> None:
        self.send = send
        self.wall_us = wall_us
        self.counts = dict.fromkeys(
            (
                "acks_sent",
                "batches",
                "append_failed_records",
                "duplicate_records",
                "refused_stream_closed",
                "refused_expectation",
                "refused_ids_full",
                "refused_subject_unknown",
            ),
            0,
        )
        self._now_s = now_s
        self._shown_s = -SHOWN_INTERVAL_S

    def give(self, pending: PendingBatch, blob: bytes, outcome: Outcome) -> None:
        """Send the answers to a batch that was appended, and count it."""
        if blob:
            self.send(blob)  # before all else: somebody waits for it
        counts = self.counts
        counts["batches"] += 1
        if any(pending.settled):
            repeats, wrong, full, unsure = pending.settled
            counts["duplicate_records"] += repeats
            counts["refused_expectation"] += wrong
            counts["refused_ids_full"] += full
            counts["refused_subject_unknown"] += unsure
        if not isinstance(outcome, int):
            counts["append_failed_records"] += pending.record_count
        else:
            counts["acks_sent"] += pending.awaited_count
        BATCH_RECORDS.observe(pending.record_count)

    def refuse(self, partition: Partition, pending: PendingBatch, error: LiftlogError) -> None:
        """Send the answers to a batch that was not appended, and count it."""
        if isinstance(error, CLOSED):
            self.counts["refused_stream_closed"] += pending.record_count
        else:
            self.counts["append_failed_records"] += pending.record_count
            if not isinstance(error, LATER) or self._may_show_later():
                log.error(
                    "intake.append_failed partition=%s records=%d reason=%s error=%s",
                    partition,
                    pending.record_count,
                    error.reason,
                    error,
                )
        answer = error_answer(error)
        blob = pending.errors(*answer, ack_error=ack_error(error)) if pending.awaited_count else b""
        self.send(blob)

    def _may_show_later(self) -> bool:
        now_s = self._now_s()
        is_due = now_s - self._shown_s >= SHOWN_INTERVAL_S
        if is_due:
            self._shown_s = now_s
        return is_due


def blob_of(
    pending: PendingBatch, result: AppendResult, outcome: Outcome, leader: bool | None, *, now_us: int
) -> bytes:
    """The answers to the publishers of a batch. `leader`: as `PendingBatch.acks` takes it."""
    if isinstance(outcome, int):
        return pending.acks(result.first_offset, leader, now_us=now_us)
    return pending.errors(*error_answer(outcome), leader, ack_error=ack_error(outcome))
