"""Coalescing against a list: appends of all kinds, compaction, retention, readers, and power cuts at every step."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storage.log import PartitionLog
from broker.storage.read import ReadPlan
from broker.storage.rewrite.coalescing import CoalescingSettings, KnownSegments, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.rewriting import BatchShape
from broker.storage.segments.checkpoint import PARTITION_FILE, LogSettings
from tests.properties.storage.test_compaction import held_bytes
from tests.support.compacting import check_compacted, keyed_batch, keyed_records
from tests.support.effort import examples, first_short
from tests.support.logs import FOLDER, commit, create_log, open_log
from tests.support.simdisk import MODES, Crashed, SimDisk, modes_at

SMALL = LogSettings(segment_bytes=6_000)
COMPACTION = CompactionSettings(min_cleanable_dirty_percent=0, delete_retention_ms=0)
RECORD = tuple[int, bytes | None, bytes | None]
"""Timestamp in microseconds, key, value."""

VALUES = st.one_of(st.none(), st.binary(max_size=30), st.sampled_from([b"x" * 700, b"xyz" * 400]))
RECORDS = st.lists(
    st.tuples(st.one_of(st.none(), st.sampled_from([b"a", b"b"])), VALUES),
    min_size=1,
    max_size=4,
)
SHAPES = st.builds(
    BatchShape,
    batch_bytes=st.sampled_from([0, 300, 1 << 20]),
    batch_records=st.sampled_from([3, 1 << 16]),
    compression=st.sampled_from(["none", "lz4", "zstd"]),
)
STEP = st.one_of(
    st.tuples(st.just("append"), st.lists(RECORDS, min_size=1, max_size=2), st.integers(0, 50)),
    st.tuples(st.just("trickle"), RECORDS, st.integers(0, 50)),
    st.tuples(st.just("stamped"), RECORDS, st.integers(1, 2)),
    st.tuples(st.just("repeat"), st.none(), st.integers(1, 2)),
    st.tuples(st.just("roll"), st.none(), st.booleans()),
    st.tuples(st.just("coalesce"), SHAPES, st.sampled_from([2_000, 6_000])),
    st.tuples(st.just("compact"), st.one_of(st.none(), SHAPES), st.none()),
    st.tuples(st.just("trim"), st.none(), st.integers(0, 100)),
    st.tuples(st.just("read"), st.none(), st.none()),
    st.tuples(st.just("reopen"), st.sampled_from(["kill", "close", *MODES]), st.integers(0, 1 << 16)),
)


@dataclass
class Model:
    """The appended records by offset; the last five groups of each producer, and its next sequence."""

    records: dict[int, RECORD] = field(default_factory=dict)
    groups: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)  # sequence, first, next
    is_compacted: bool = False

    def check(self, log: PartitionLog) -> None:
        found = {at: record for at, record in keyed_records(log).items() if at >= log.state.log_start_offset}
        wanted = {at: (key, value) for at, (_, key, value) in self.records.items() if at >= log.state.log_start_offset}
        if self.is_compacted:
            assert all(wanted[at] == record for at, record in found.items())
            assert all(at in found for at, (key, _) in wanted.items() if key is None)
        else:
            assert found == wanted
        times = [(us, at) for at, (us, _, _) in sorted(self.records.items()) if at in found]
        for wanted_us in (0, 25, 51):
            expected = next((at for us, at in times if us >= wanted_us), None)
            assert log.reader.offset_for_time(wanted_us) == expected


def append(log: PartitionLog, model: Model, groups: list[list[tuple[bytes | None, bytes | None]]], **stamp: int) -> int:
    time_us = stamp.pop("timestamp_us", 0)
    epoch = stamp.pop("leader_epoch")
    at = log.state.log_end_offset
    batches = [keyed_batch(records, timestamp_us=time_us, **stamp) for records in groups]
    result = log.append(batches, leader_epoch=epoch, now_us=0)
    assert not result.duplicate
    flat = [(time_us, key, value) for records in groups for key, value in records]
    model.records |= dict(enumerate(flat, at))
    return result.next_offset


@pytest.mark.parametrize("count", first_short([40, 120]))
def test_records_offsets_times_and_stamps_outlive_any_coalescing(count: int) -> None:
    settings(max_examples=examples(count), deadline=None)(given(st.lists(STEP, max_size=30))(lived))()


def lived(steps: list[tuple[str, object, object]]) -> None:
    disk = SimDisk()
    log = create_log(disk, settings=SMALL)
    model, epoch = Model(), 1
    memory: KnownSegments = {}
    with ExitStack() as stack:
        held: list[tuple[ReadPlan, bytes]] = []
        for kind, what, number in steps:
            if kind == "append":
                append(log, model, what, timestamp_us=number, leader_epoch=epoch)  # type: ignore[arg-type]
            elif kind == "trickle":
                for i, record in enumerate(what):  # type: ignore[arg-type, var-annotated]
                    append(log, model, [[record]], timestamp_us=number - i, leader_epoch=epoch)  # type: ignore[operator]
            elif kind == "stamped":
                assert isinstance(number, int)
                for record in what:  # type: ignore[attr-defined]
                    groups = model.groups.setdefault(number, [])
                    sequence = groups[-1][0] + 1 if groups else 0
                    at = log.state.log_end_offset
                    end = append(log, model, [[record]], leader_epoch=epoch, producer_id=number, sequence=sequence)
                    groups.append((sequence, at, end))
            elif kind == "repeat":
                assert isinstance(number, int)
                for sequence, first, _ in model.groups.get(number, [])[-5:]:
                    batch = keyed_batch([(None, None)], producer_id=number, sequence=sequence)
                    answer = log.append([batch], leader_epoch=epoch, now_us=0)
                    assert (answer.duplicate, answer.first_offset) == (True, first)
            elif kind == "roll":
                commit(log)
                if number:
                    epoch += 1
                log.roll_if_due(1 << 60)
            elif kind == "coalesce":
                assert isinstance(what, BatchShape)
                assert isinstance(number, int)
                wanted = CoalescingSettings(shape=what, min_age_ms=0, segment_bytes=number)
                for _ in range(20):
                    if coalesce(log, wanted, memory, now_us=1 << 50) is None:
                        break
                else:
                    raise AssertionError("it does not come to rest")
            elif kind == "compact":
                model.is_compacted = True
                compact(log, COMPACTION, map_bytes=1 << 14, now_us=1 << 50, shape=what)  # type: ignore[arg-type]
            elif kind == "trim":
                assert isinstance(number, int)
                commit(log)
                log.trim(max(log.state.log_start_offset, log.state.high_watermark * number // 100))
            elif kind == "read":
                commit(log)
                plan = stack.enter_context(log.reader.read(log.state.log_start_offset))
                held.append((plan, held_bytes(plan)))
            else:
                commit(log)
                if what == "close":
                    log.close()
                kept = what if what in MODES else None
                disk = disk.after_crash(kept, seed=number) if kept else disk.after_kill()  # type: ignore[arg-type]
                log = open_log(disk, settings=SMALL)
                epoch += 1
                memory, held = {}, []
            commit(log)
            model.check(log)
            check_compacted(log)
            for plan, data in held:
                assert held_bytes(plan) == data


def scenario(disk: SimDisk, model: Model, ends: list[int]) -> None:
    """Trickling segments joined thrice, the later times with what was joined before; the log start moves once."""
    log = create_log(disk, settings=SMALL)
    memory: KnownSegments = {}
    shape = BatchShape(batch_records=7, compression="lz4")
    wanted = CoalescingSettings(min_age_ms=0, segment_bytes=20_000, shape=shape)
    for turn in range(3):
        for _ in range(3):
            for i in range(3):
                sequence = len(model.records)
                append(log, model, [[(None, b"%d" % i * 300)]], leader_epoch=1 + turn, producer_id=5, sequence=sequence)
                ends.append(commit(log))
            log.roll_if_due(1 << 60)
        append(log, model, [[(None, b"tail")]], leader_epoch=1 + turn, producer_id=5, sequence=len(model.records))
        ends.append(commit(log))
        while coalesce(log, wanted, memory, now_us=1 << 50) is not None:
            pass
        log.checkpoint()
        if turn == 1:
            log.trim(4)
    log.close()


@pytest.mark.parametrize("part", first_short(range(6)))
def test_a_power_cut_at_any_step_loses_nothing_and_shows_nothing_twice(part: int) -> None:
    """Every step, in six parts."""
    whole = SimDisk(runs_ahead=True)
    scenario(whole, Model(), [])
    assert whole.steps > 200
    joined = 0
    for crash_at in range(1 + part, whole.steps + 1, 6):
        disk, model, ends = SimDisk(crash_at=crash_at, seed=crash_at, runs_ahead=True), Model(), [0]
        with suppress(Crashed):
            scenario(disk, model, ends)
        for mode in modes_at(crash_at):
            found = disk.after_crash(mode, seed=crash_at)
            if not found.exists(f"{FOLDER}/{PARTITION_FILE}"):
                continue
            log = open_log(found, settings=SMALL)
            commit(log)
            check_compacted(log)
            joined += any("interrupted join" in note for note in log.state.recovery.notes)
            assert log.state.log_start_offset in (0, 4)
            assert log.state.log_end_offset >= ends[-1]  # what was committed is there
            stored = {at: record for at, record in keyed_records(log).items() if at >= log.state.log_start_offset}
            assert sorted(stored) == list(range(log.state.log_start_offset, log.state.log_end_offset))
            for at, (_, key, value) in model.records.items():
                assert at < log.state.log_start_offset or at >= log.state.log_end_offset or stored[at] == (key, value)
            end = log.state.log_end_offset
            for sequence in range(max(0, end - 5), end):
                batch = keyed_batch([(None, None)], producer_id=5, sequence=sequence)
                assert log.append([batch], leader_epoch=9, now_us=0).first_offset == sequence
            # After a clean stop nothing is looked for; that of a checkpoint goes when its mark is taken away.
            log.checkpoint(withdraw=True)
            assert not any("/join-" in name or name.endswith(".tmp") for name in found.names)
    assert joined > 1
