"""Compaction against a dictionary, with power cuts at every step, a tiny map, appends and readers in between."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.storage.log import PartitionLog
from broker.storage.read import ReadPlan
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.keymap import ENTRY_BYTES
from broker.storage.segments.checkpoint import PARTITION_FILE, LogSettings
from tests.support.compacting import Keyed, check_compacted, keyed_batch, keyed_records, newest_of
from tests.support.effort import examples, first_short
from tests.support.logs import FOLDER, commit, create_log, open_log, plan_bytes
from tests.support.simdisk import MODES, Crashed, SimDisk, modes_at

RETENTION_MS = 1_000
SETTINGS = CompactionSettings(min_cleanable_dirty_percent=0, delete_retention_ms=RETENTION_MS)
SMALL = LogSettings(segment_bytes=4_000)

KEYS = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"d", b"e" * 300]))
VALUES = st.one_of(st.none(), st.binary(max_size=40))
BATCH = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)
STEP = st.one_of(
    st.tuples(st.just("append"), st.lists(BATCH, min_size=1, max_size=2), st.sampled_from([0, 0, 0, 9])),
    st.tuples(st.just("append"), st.lists(BATCH, min_size=1, max_size=1), st.just(0)),
    st.tuples(st.just("compact"), st.sampled_from([0, 4 * ENTRY_BYTES, 1 << 14]), st.integers(0, 2 * RETENTION_MS)),
    st.tuples(st.just("roll"), st.none(), st.none()),
    st.tuples(st.just("read"), st.none(), st.none()),
    st.tuples(st.just("reopen"), st.sampled_from(["kill", *MODES]), st.integers(0, 1 << 16)),
)


@dataclass
class Model:
    """The committed records, and when each tombstone was first below the clean end."""

    records: dict[int, Keyed] = field(default_factory=dict)
    sequence: int = 0

    def check(self, log: PartitionLog) -> None:
        """Q2: what is there was appended; there is all without a key, and of each key the newest but a tombstone."""
        found = keyed_records(log)
        assert all(self.records[at] == record for at, record in found.items())
        assert all(at in found for at, (key, _) in self.records.items() if key is None)
        kept = newest_of(found)
        for key, (at, value) in newest_of(self.records).items():
            if value is not None or key in kept:
                assert kept[key] == (at, value)


def held_bytes(plan: ReadPlan) -> bytes:
    return SCHEMA_BYTES + plan_bytes(plan) + END_OF_STREAM


@pytest.mark.parametrize("count", first_short([50, 150]))
def test_no_newest_record_is_ever_lost_and_none_comes_back(count: int) -> None:
    settings(max_examples=examples(count), deadline=None)(given(st.lists(STEP, max_size=25))(lived))()


def lived(steps: list[tuple[str, object, object]]) -> None:
    disk = SimDisk()
    log = create_log(disk, settings=SMALL)
    model, now_us, epoch = Model(), 0, 1
    with ExitStack() as stack:
        held: list[tuple[ReadPlan, bytes]] = []
        for kind, what, number in steps:
            if kind == "append":
                assert isinstance(what, list)
                stamp = {"producer_id": number, "sequence": model.sequence} if number else {}
                model.sequence += 1 if number else 0
                at = log.state.log_end_offset
                log.append([keyed_batch(records, **stamp) for records in what], leader_epoch=epoch, now_us=now_us)  # type: ignore[arg-type]
                model.records |= dict(enumerate((record for records in what for record in records), at))
                commit(log)
            elif kind == "compact":
                assert isinstance(what, int)
                assert isinstance(number, int)
                now_us += number * 1_000
                compact(log, SETTINGS, map_bytes=what, now_us=now_us)
            elif kind == "roll":
                log.roll_if_due(1 << 60)
            elif kind == "read":
                plan = stack.enter_context(log.reader.read(0))
                held.append((plan, held_bytes(plan)))
            else:
                disk = disk.after_kill() if what == "kill" else disk.after_crash(what, seed=number)  # type: ignore[arg-type]
                log = open_log(disk, settings=SMALL)
                commit(log)
                epoch += 1
                held = []
            model.check(log)
            check_compacted(log)
            for plan, data in held:
                assert held_bytes(plan) == data
        log.roll_if_due(1 << 60)
        for _ in range(200):
            now_us += 2 * RETENTION_MS * 1_000
            if compact(log, SETTINGS, map_bytes=3 * ENTRY_BYTES, now_us=now_us) is None:
                break
        check_compacted(log)
        kept = {at: record for at, record in model.records.items() if record[0] is None}
        kept |= {at: (key, value) for key, (at, value) in newest_of(model.records).items() if value is not None}
        assert keyed_records(log) == kept


def scenario(disk: SimDisk, model: Model) -> None:
    """Three passes with a small map, tombstones in their time, appends in between."""
    log = create_log(disk, settings=SMALL)
    number = 0
    for _ in range(3):
        for _ in range(4):
            records: list[Keyed] = [(b"k%d" % ((number + i) % 5), b"%d" % number * 9) for i in range(3)]
            records += [(None, b"n%d" % number), (b"t", None if number % 3 else b"t")]
            number += 1
            at = log.state.log_end_offset
            log.append([keyed_batch(records)], leader_epoch=1, now_us=0)
            commit(log)
            model.records |= dict(enumerate(records, at))
        log.roll_if_due(1 << 60)
        compact(log, SETTINGS, map_bytes=8 * ENTRY_BYTES, now_us=number * RETENTION_MS * 1_000)
        log.checkpoint()
    log.close()


@pytest.mark.parametrize("part", first_short(range(6)))
def test_a_power_cut_at_any_step_loses_nothing_and_brings_nothing_back(part: int) -> None:
    """Every step, in six parts."""
    whole = SimDisk(runs_ahead=True)
    scenario(whole, Model())
    assert whole.steps > 100
    for crash_at in range(1 + part, whole.steps + 1, 6):
        disk, model = SimDisk(crash_at=crash_at, seed=crash_at, runs_ahead=True), Model()
        with suppress(Crashed):
            scenario(disk, model)
        for mode in modes_at(crash_at):
            found = disk.after_crash(mode, seed=crash_at)
            if not found.exists(f"{FOLDER}/{PARTITION_FILE}"):
                continue
            log = open_log(found, settings=SMALL)
            commit(log)
            check_compacted(log)
            known = dict(model.records)
            for at, record in keyed_records(log).items():  # the append that was under way may have got through
                assert known.setdefault(at, record) == record
            Model(known).check(log)
            before = keyed_records(log)
            log.roll_if_due(1 << 60)
            compact(log, SETTINGS, map_bytes=1 << 12, now_us=0)
            check_compacted(log)
            Model(known | before).check(log)
