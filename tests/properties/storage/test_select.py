"""Goal: a read of some records, or of some columns, finds exactly what a choice after a read of all would find.

Method: random logs with compaction, trims and lost ranges, random conditions, answers of any size; the choice is made
again by a slow second implementation, one record at a time. Between reads the log changes, so that filters of batches
which are gone, cut off and written anew, or compacted are there; and likewise what is known of columns. Every answer is
taken as a client takes it, which checks each of its bytes.
"""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.api.batch import decode_batch
from broker.api.columns import Columns, columns_in, schema_bytes
from broker.api.conditions import Conditions
from broker.api.errors import BadBatch
from broker.api.schema import END_OF_STREAM, HEADERS_TYPE, SCHEMA, SCHEMA_BYTES
from broker.client.reading.frames import read_messages
from broker.serving.http.sending import read_ranges
from broker.storage.blooms import BloomCache, questions_of
from broker.storage.column_crcs import ColumnCrcs
from broker.storage.disk import OsDisk
from broker.storage.inspect.scrub import scrub
from broker.storage.log import PartitionLog
from broker.storage.picking import PurePicking
from broker.storage.project import project
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.rewriting import BatchShape
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.select import after_older, select
from tests.support.effort import examples, first_short, seeded
from tests.support.logs import commit, create_log

SUBJECTS = ("a", "a.b", "a.b.c", "b.b", "a.é.c", "a.b.c.d", "axb", "a.*x")
KEYS = (None, b"", b"k", b"\xff\x00", b"longer" * 20)
PATTERNS = ("a", "a.b", "*.b", "a.*", "a.>", ">", "a.*.c", "b.>", "*", "a.é.c", "nothing.*")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPACTION = CompactionSettings(min_cleanable_dirty_percent=0, delete_retention_ms=0)


def batch_of(rng: random.Random) -> RowBatch:
    n = rng.choice([1, 1, 2, 5, 30])
    subjects = SUBJECTS if rng.random() < 0.7 else rng.sample(SUBJECTS, 1)
    keys = KEYS if rng.random() < 0.7 else rng.sample(KEYS, 1)
    columns = [
        pa.array([rng.randrange(-5, 50) for _ in range(n)], pa.timestamp("us", "UTC")),
        pa.array([rng.choice(subjects) for _ in range(n)]),
        pa.array([rng.choice(keys) for _ in range(n)], pa.binary()),
        pa.array([rng.choice([None, b"", rng.randbytes(30)]) for _ in range(n)], pa.binary()),
        pa.array([rng.choice([None, [], [{"key": "h", "value": b"v"}]]) for _ in range(n)], HEADERS_TYPE),
        pa.array([rng.choice([None, "r"]) for _ in range(n)], pa.string()),
    ]
    return RowBatch(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names[1:]))


def grow(rng: random.Random, log: PartitionLog, folder: Path, epochs: Iterator[int]) -> None:
    for step in range(rng.randrange(4, 25)):
        if rng.random() < 0.1:  # as a follower whose leader has less: other batches may stand there afterwards
            log.follow(next(epochs))
            # it refuses what is below
            lowest = min(max(log.state.log_start_offset, log.state.superseded[0]), log.state.high_watermark)
            log.truncate(rng.randint(lowest, log.state.high_watermark))
        epoch = next(epochs)
        log.lead(epoch)
        log.append([batch_of(rng) for _ in range(rng.randint(1, 3))], leader_epoch=epoch, now_us=step)
        commit(log)
        match rng.randrange(8):
            case 0:
                log.roll_if_due(1 << 60)
                compact(log, COMPACTION, map_bytes=1 << 14, now_us=step)
            case 1:
                log.trim(rng.randrange(log.state.log_start_offset, log.state.high_watermark + 1))
            case 2:
                log.roll_if_due(1 << 60)
                damage(rng, log, folder)
                look_for_damage(log)
            case 3:
                log.roll_if_due(1 << 60)
                shape = BatchShape(batch_records=rng.choice([20, 200]), compression=rng.choice(["none", "lz4", "zstd"]))
                coalesce(log, CoalescingSettings(min_age_ms=0, shape=shape), {}, now_us=1 << 50)


def damage(rng: random.Random, log: PartitionLog, folder: Path) -> None:
    segment = rng.choice(sorted(folder.glob("*.arrows")))
    size = segment.stat().st_size
    if size < len(SCHEMA_BYTES) + 1000 or log.state.log_start_offset == log.state.high_watermark:
        return
    with segment.open("r+b") as file:
        at = rng.randrange(len(SCHEMA_BYTES), size - 8)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << rng.randrange(8)]))


def look_for_damage(log: PartitionLog) -> None:
    offset: int | None = log.state.log_start_offset
    while offset is not None and offset < log.state.high_watermark:
        piece = scrub(log, offset)
        offset = None if piece is None else piece.next_offset


def look_at(log: PartitionLog, offset: int) -> None:
    """Where a reader has met damage: it is there."""
    piece = scrub(log, offset)
    assert piece is not None, "the damage is where the reader stands"
    assert piece.lost, "the damage is where the reader stands"


def selection_of(rng: random.Random) -> Conditions:
    def some(value: Any) -> Any:
        return value if rng.random() < 0.4 else None

    return Conditions(
        subjects=tuple(rng.sample(PATTERNS, rng.randint(1, 3))) if rng.random() < 0.6 else (),
        key=some(rng.choice(KEYS)),
        since_us=some(rng.randrange(-10, 60)),
        until_us=some(rng.randrange(-10, 60)),
    )


def fits(pattern: list[str], subject: list[str]) -> bool:
    """By the rules of NATS, token by token."""
    if not pattern or not subject:
        return not pattern and not subject
    if pattern[0] == ">":
        return True
    return pattern[0] in ("*", subject[0]) and fits(pattern[1:], subject[1:])


def chosen(row: dict[str, Any], wanted: Conditions) -> bool:
    subject, at = row["subject"].split("."), (row["timestamp"] - EPOCH) // timedelta(microseconds=1)
    return (
        (not wanted.subjects or any(fits(pattern.split("."), subject) for pattern in wanted.subjects))
        and (wanted.key is None or row["key"] == wanted.key)
        and (wanted.since_us is None or at >= wanted.since_us)
        and (wanted.until_us is None or at < wanted.until_us)
    )


def read(
    log: PartitionLog, start: int, end: int, wanted: Conditions, columns: Columns | None, max_bytes: int
) -> tuple[list[dict[str, Any]], int]:
    """The rows, as a client goes on from answer to answer, and says where it meets damage; and how many answers had
    some columns only."""
    found: list[dict[str, Any]] = []
    offset, questions, projected = start, questions_of(wanted), 0
    while offset < end:
        begin = after_older(log, offset, end, wanted)
        held: list[int] = []
        with log.reader.read(begin, end=end, max_bytes=max_bytes, questions=questions) as plan:
            try:
                if wanted:
                    select(plan, wanted, held.append, asked=offset, columns=columns)
                if columns is not None:
                    project(plan, columns, held.append, selected_from=offset if wanted else None)
            except BadBatch:
                look_at(log, offset)
                continue
            assert plan.bytes == sum(part.length for part in plan.ranges)
            assert plan.next_offset > offset
            assert not held or max(held) < 1 << 17
            schema = SCHEMA_BYTES if plan.columns is None else schema_bytes(plan.columns)
            body = io.BytesIO(schema + read_ranges(plan.ranges) + END_OF_STREAM)
            projected += plan.columns is not None
        try:
            for message in read_messages(body.readinto, len(body.getvalue()), columns=columns):
                rows = message.rows().to_pylist()
                found += [row for row in rows if max(offset, start) <= row["offset"] < end]
                offset = max(offset, message.header.next_offset)
            offset = plan.next_offset
        except BadBatch:
            look_at(log, offset)
    return [{name: row[name] for name in columns or SCHEMA.names} for row in found], projected


@pytest.mark.parametrize("number", first_short(range(examples(25)), count=8))
def test_a_read_of_some_records_is_a_choice_of_a_read_of_all(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seeded(163) * 1000 + number)
    few = BloomCache(rng.choice([2_000, 1 << 20]))  # with the former most filters are forgotten again
    monkeypatch.setattr("broker.storage.read.BLOOMS", few)
    monkeypatch.setattr("broker.storage.select.BLOOMS", few)
    monkeypatch.setattr("broker.storage.project.MEAN_BYTES_MIN", 0)
    monkeypatch.setattr("broker.storage.project.CHOSEN_SHARE", 3)  # headers are most of such a batch
    monkeypatch.setattr("broker.storage.project.HELD_BYTES_MAX", rng.choice([1, 9_000, 1 << 20]))
    monkeypatch.setattr("broker.storage.project.WHOLE_BYTES_MAX", rng.choice([1, 9_000, 1 << 20]))
    monkeypatch.setattr("broker.storage.column_crcs.REMEMBERED_BYTES_MIN", rng.choice([0, 1_200]))
    known = ColumnCrcs(rng.choice([3, 1_000]))
    monkeypatch.setattr("broker.storage.project.CRCS_OF_COLUMNS", known)
    monkeypatch.setattr("broker.storage.select.CRCS_OF_COLUMNS", known)
    monkeypatch.setattr("broker.storage.select.JUDGED_BYTES_MAX", rng.choice([1, 9_000, 1 << 20]))
    monkeypatch.setattr("broker.storage.select.MADE_BYTES_MAX", rng.choice([1, 3_000, 1 << 20]))
    monkeypatch.setattr("broker.storage.select.SHAPE", BatchShape(batch_bytes=rng.choice([1, 2_000, 256 << 10])))
    monkeypatch.setattr("broker.storage.made.WINDOW_BYTES", rng.choice([1, 3_000, 256 << 10]))
    if rng.random() < 0.5:
        monkeypatch.setattr("broker.storage.select.Picking", PurePicking)
        monkeypatch.setattr("broker.storage.picking._rows_equal", None)
    log = create_log(OsDisk(), settings=LogSettings(segment_bytes=8_000), folder=str(tmp_path / "log"))
    epochs = itertools.count(1)
    projected = 0
    for _ in range(3):
        grow(rng, log, tmp_path / "log", epochs)
        reads = []
        for _ in range(10):
            if rng.random() < 0.1:
                damage(rng, log, tmp_path / "log")
            wanted = selection_of(rng)
            start, end = sorted(rng.randint(log.state.log_start_offset, log.state.high_watermark) for _ in range(2))
            columns = columns_in(rng.sample(SCHEMA.names, rng.randrange(6))) if rng.random() < 0.7 else None
            rows, count = read(log, start, end, wanted, columns, rng.choice([1, 3_000, 1 << 20]))
            reads.append((wanted, columns, start, end, rows))
            projected += count
            assert few.byte_count <= few.bytes_max
        all_rows = [
            row
            for message in log.reader.batches(log.state.log_start_offset)
            for row in decode_batch(message).to_pylist()
        ]
        damaged = log.state.lost_ranges
        for wanted, columns, start, end, found in reads:
            expected = [
                {name: row[name] for name in columns or SCHEMA.names}
                for row in all_rows
                if start <= row["offset"] < end and chosen(row, wanted)
            ]
            whole = [row for row in found if not any(a <= row["offset"] < b for a, b in damaged)]  # as it was before
            assert whole == expected, (wanted, columns)
    assert projected
    log.close()
