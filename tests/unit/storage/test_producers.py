"""The table of producers and the file that it is kept in.

Goal: what is the next group, a repeat, a gap, fenced, forgotten; and that bytes give the table back or a clear error.
"""

from __future__ import annotations

import contextlib
import random

import pytest

from broker.api.errors import (
    CorruptLog,
    LiftlogError,
    OutOfSequence,
    Overloaded,
    ProducerFenced,
    UnknownFormatVersion,
    UnknownProducer,
)
from broker.storage.memory.producers import WINDOW_GROUPS, Group, GroupStamp, ProducerTable
from broker.storage.memory.state_files import StateFiles, decode_state, encode_state, list_states, load_state
from tests.support.simdisk import Crashed, SimDisk

EXPIRY_US = 1_000


def check(table: ProducerTable, stamp: GroupStamp, *, record_count: int = 2, now_us: int = 0) -> Group | None:
    return table.check(stamp, record_count=record_count, now_us=now_us, expiry_us=EXPIRY_US, ids_max=2)


def append(table: ProducerTable, stamp: GroupStamp, first_offset: int, *, now_us: int = 0) -> None:
    assert check(table, stamp, now_us=now_us) is None
    table.note(stamp, first_offset, first_offset + 2, now_us=now_us)


@pytest.fixture
def table() -> ProducerTable:
    """Producer 1 in epoch 0 with groups 0 to 9, of two records each."""
    made = ProducerTable()
    for sequence in range(10):
        append(made, GroupStamp(1, 0, sequence), 2 * sequence)
    return made


def test_the_last_five_groups_may_be_repeated_and_get_the_offsets_of_then(table: ProducerTable) -> None:
    for sequence in range(10 - WINDOW_GROUPS, 10):
        assert check(table, GroupStamp(1, 0, sequence)) == Group(sequence, 2 * sequence, 2 * sequence + 2)


@pytest.mark.parametrize("sequence", [0, 4, 11, 1 << 62])
def test_a_gap_and_what_is_too_old_are_out_of_sequence(table: ProducerTable, sequence: int) -> None:
    with pytest.raises(OutOfSequence) as caught:
        check(table, GroupStamp(1, 0, sequence))
    assert caught.value.expected == 10
    assert check(table, GroupStamp(1, 0, 10)) is None


def test_another_group_under_a_used_number_is_no_repeat(table: ProducerTable) -> None:
    with pytest.raises(OutOfSequence, match="2 records, this one has 3"):
        check(table, GroupStamp(1, 0, 9), record_count=3)


def test_a_newer_epoch_begins_at_0_and_fences_the_older_one(table: ProducerTable) -> None:
    with pytest.raises(OutOfSequence) as gap:
        check(table, GroupStamp(1, 1, 10))
    assert gap.value.expected == 0
    append(table, GroupStamp(1, 1, 0), 20)
    for sequence in (0, 9, 10):
        with pytest.raises(ProducerFenced) as caught:
            check(table, GroupStamp(1, 0, sequence))
        assert caught.value.producer_epoch == 1
    assert check(table, GroupStamp(1, 1, 0)) == Group(0, 20, 22)


def test_an_id_that_is_not_known_begins_at_0_only(table: ProducerTable) -> None:
    assert check(table, GroupStamp(2, 0, 0)) is None
    with pytest.raises(UnknownProducer):
        check(table, GroupStamp(2, 0, 1))


def test_an_idle_id_expires_and_use_keeps_it(table: ProducerTable) -> None:
    append(table, GroupStamp(2, 0, 0), 20, now_us=500)
    assert check(table, GroupStamp(1, 0, 9), now_us=900) is not None  # a repeat is a use
    assert check(table, GroupStamp(1, 0, 9), now_us=1_600) is not None
    with pytest.raises(UnknownProducer):
        check(table, GroupStamp(2, 0, 1), now_us=1_600)
    with pytest.raises(UnknownProducer):
        check(table, GroupStamp(1, 0, 10), now_us=2_600)
    assert len(table) == 0


def test_a_full_table_refuses_new_ids_and_forgets_none() -> None:
    table = ProducerTable()
    append(table, GroupStamp(1, 0, 0), 0)
    append(table, GroupStamp(2, 0, 0), 2, now_us=10)
    with pytest.raises(Overloaded) as caught:
        check(table, GroupStamp(3, 0, 0), now_us=20)
    assert caught.value.limit == 2
    assert check(table, GroupStamp(1, 0, 1), now_us=20) is None
    assert check(table, GroupStamp(3, 0, 0), now_us=1_005) is None


def test_batches_of_a_group_that_are_found_one_by_one_are_one_group() -> None:
    table = ProducerTable()
    for at in (0, 3, 6):
        table.note(GroupStamp(1, 0, 0), at, at + 3, now_us=0, continues=at > 0)
    assert check(table, GroupStamp(1, 0, 0), record_count=9) == Group(0, 0, 9)


def test_a_producer_that_began_again_after_it_was_forgotten_is_found_as_it_is_now() -> None:
    table = ProducerTable()
    for sequence, at in ((0, 0), (1, 2), (0, 4)):
        table.note(GroupStamp(1, 0, sequence), at, at + 2, now_us=0)
    assert check(table, GroupStamp(1, 0, 0)) == Group(0, 4, 6)
    assert check(table, GroupStamp(1, 0, 1)) is None


def test_a_snapshot_gives_the_table_back(table: ProducerTable) -> None:
    append(table, GroupStamp((1 << 63) - 1, (1 << 32) - 1, 0), 20, now_us=7)
    data = table.snapshot()
    again = ProducerTable.restore(data)
    assert again.snapshot() == data
    assert check(again, GroupStamp(1, 0, 9)) == Group(9, 18, 20)
    assert check(again, GroupStamp(1, 0, 10)) is None


def test_other_bytes_are_a_table_or_a_documented_error(table: ProducerTable) -> None:
    data = table.snapshot()
    for size in range(len(data)):
        with pytest.raises(LiftlogError):
            ProducerTable.restore(data[:size])
    with pytest.raises(CorruptLog):
        ProducerTable.restore(data + b"x")
    with pytest.raises(UnknownFormatVersion):
        ProducerTable.restore(b"\x02" + data[1:])
    rng = random.Random(1)
    for _ in range(2_000):
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        with contextlib.suppress(CorruptLog):
            ProducerTable.restore(bytes(flipped))


def test_a_state_file_gives_its_sections_back() -> None:
    sections = {"producers": b"abc", "ids": b"", "other": bytes(100)}
    data = encode_state(4711, sections)
    assert decode_state(data, 4711, where="f") == sections
    assert decode_state(data, 4712, where="f") is None
    assert decode_state(encode_state(0, {}), 0, where="f") == {}


def test_every_flipped_bit_and_every_cut_of_a_state_file_is_seen() -> None:
    data = encode_state(5, {"producers": b"abc"})
    for size in range(len(data)):
        assert decode_state(data[:size], 5, where="f") is None
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_state(bytes(flipped), 5, where="f") is None


def test_a_state_file_of_a_later_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr("broker.storage.memory.state_files.FORMAT_VERSION", 2)
        data = encode_state(5, {})
    with pytest.raises(UnknownFormatVersion, match="where"):
        decode_state(data, 5, where="where")


@pytest.mark.parametrize("crash_at", range(1, 12))
def test_power_may_go_at_any_step_of_a_new_state_file(crash_at: int) -> None:
    """T4: one of the two is whole, whatever is left of names and bytes."""
    disk = SimDisk()
    disk.makedirs("/f")
    files = StateFiles(disk, "/f")
    files.save(1, {"a": b"old"}, high_watermark=2)
    disk.sync_dir("/f")
    disk.crash_at = disk.steps + crash_at
    with contextlib.suppress(Crashed):
        files.save(2, {"a": b"new"}, high_watermark=2)
    for seed in range(20):
        found = disk.after_crash("reordered", seed=seed)
        states = list_states(found, "/f")
        assert load_state(found, "/f", states[0]) == {"a": b"new" if states[0] == 2 else b"old"}
