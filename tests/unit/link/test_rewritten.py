"""Goal: with each fetch, and beside the bytes, a leader's driver says which records are gone from its log."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import cast

from broker.link.answering import Answering, AnswerStream, FollowerSlot
from broker.link.codec import Answered, decode
from broker.node.partitions.partition import Partition
from broker.replication.messages import Fetch, Records
from broker.storage.log import PartitionLog
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from tests.support.published import batch_from_nats, with_id
from tests.support.simdisk import SimDisk

NOW_US = 1_000_000
SETTINGS = LogSettings(is_sole_replica=False, dedup_window_ms=60_000)
IDENTITY = LogIdentity(cluster_id="c", stream="s", incarnation="i", partition=0)


def test_a_log_may_lack_records_also_when_its_stream_is_compacted_no_more() -> None:
    """The defect: a replica copied a log that had once been compacted, and got no state file. It knew no id of the
    records that are gone, and stored a repeat again when it led (the simulator's scenario
    `a_stream_is_compacted_no_more`).
    """
    log = PartitionLog.create(SimDisk(), "/s", IDENTITY, SETTINGS, now_us=NOW_US)
    log.lead(1)
    end = log.append([batch_from_nats([(b"v", with_id("x"))], NOW_US)], leader_epoch=1, now_us=NOW_US).next_offset
    log.syncer.sync()
    log.state.advance_high_watermark(end)
    log.roll_if_due(NOW_US + SETTINGS.segment_age_ms * 2_000)
    assert log.handover.rewritten_to() == end
    answering = Answering.__new__(Answering)
    answering._log = log
    fetch = Fetch(follower="b", incarnation=(1, 0), epoch=1, offset=0, last_epoch=-1, durable_end=0, log_start=0)
    assert answering._fetch_arrived(fetch, -1).rewritten_to == end


class Leading:
    """A partition that is led in epoch 1, and all of it committed."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log

    def leadership(self) -> tuple[int, int, tuple[str, ...]]:
        return 1, self.log.state.high_watermark, ("a", "b")


class Reads:
    """A stream that takes what it is told at once."""

    broker = "b"


def test_what_is_written_anew_between_the_answer_and_its_bytes_is_said_to_be_so() -> None:
    """The core answers a fetch; before the bytes are read, the records become committed and are compacted."""
    log = PartitionLog.create(SimDisk(), "/s", IDENTITY, replace(SETTINGS, segment_bytes=3_000), now_us=NOW_US)
    log.lead(1)
    for number in range(12):
        key = "same" if number in (0, 3) else f"other-{number}"
        headers = (*with_id(f"id-{number}"), ("Liftlog-Key", key))
        log.append([batch_from_nats([(b"x" * 300, headers)], NOW_US)], leader_epoch=1, now_us=NOW_US)
    log.syncer.sync()
    answering = Answering.__new__(Answering)
    answering.at, answering._log, answering._partition = ("i", 0), log, cast(Partition, Leading(log))
    answering._bytes_max, answering._wait_s, answering._lock = 1 << 20, 0.2, threading.Condition()
    answering._now_s = time.monotonic
    fetch = Fetch(follower="b", incarnation=(1, 0), epoch=1, offset=0, last_epoch=-1, durable_end=0, log_start=0)
    looked_up = answering._fetch_arrived(fetch, -1)
    records = Records(
        epoch=1, incarnation=(1, 0), offset=0, high_watermark=0, log_start=0, rewritten_to=looked_up.rewritten_to
    )
    log.state.advance_high_watermark(12)
    report = compact(log, CompactionSettings(min_cleanable_dirty_percent=0), map_bytes=1 << 16, now_us=NOW_US + 1)
    assert report is not None
    assert report.records_gone
    slot = FollowerSlot(answering, cast(AnswerStream, Reads()), records=records)
    [frame] = answering._records(slot, records)
    said = decode(frame)
    assert isinstance(said, Answered)
    assert isinstance(said.answer, Records)
    assert said.data
    assert said.answer.rewritten_to > 0
