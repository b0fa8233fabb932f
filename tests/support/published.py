"""Batches as they come from NATS, ids and expectations included, for tests of what a log makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from broker.ingest import Builder, Intake, PendingBatch
from broker.storage.log import PartitionLog
from tests.unit.ingest.wire import answers_in, hmsg

Headers = tuple[tuple[str, str], ...]


def with_id(text: str) -> Headers:
    return (("Nats-Msg-Id", text),) if text else ()


def expecting(sequence: int) -> Headers:
    """The last record of the subject must be this one."""
    return (("Nats-Expected-Last-Subject-Sequence", str(sequence)),)


def batch_from_nats(
    records: Sequence[tuple[bytes, Headers]], now_us: int, *, subjects: Sequence[str] = ()
) -> PendingBatch:
    """A batch of (value, headers), each awaiting its answer on `r<i>`; `subjects`: of each, else "s"."""
    builder = Builder(
        stream="orders",
        partition=0,
        partition_count=1,
        reply_acks=True,
        default_ack="all",
        record_bytes_max=1 << 20,
        batch_bytes=1 << 20,
        batch_records=1 << 16,
    )
    intake = Intake()
    intake.route(1, [builder], partition_by="subject_suffix")
    wire = b"".join(
        hmsg(subjects[i] if subjects else "s", value, *headers, reply=f"r{i}")
        for i, (value, headers) in enumerate(records)
    )
    intake.feed(wire, now_us)
    return builder.take()


def publish(
    log: PartitionLog, records: Sequence[tuple[bytes, Headers]], now_us: int, *, subjects: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Append (value, headers); what each publisher is told once it is durable, in order."""
    batch = batch_from_nats(records, now_us, subjects=subjects)
    result = log.append([batch], leader_epoch=0, now_us=now_us)
    assert result.next_offset - result.first_offset == batch.record_count
    told = {int(reply[1:]): json.loads(body) for reply, body in answers_in(batch.acks(result.first_offset))}
    assert sorted(told) == list(range(len(records)))
    return [told[i] for i in range(len(records))]
