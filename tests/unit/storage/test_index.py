"""Where each batch lies: bisection over offsets and times, the file's own check, the bound of the cache."""

from __future__ import annotations

import numpy as np
import pytest
from crc32c import crc32c

from broker.api.schema import SCHEMA_BYTES
from broker.storage.segments.index import (
    ENTRY,
    ENTRY_BYTES,
    LEAST_TIMESTAMP_US,
    GrowingIndex,
    IndexCache,
    IndexView,
    counted_entries,
    footer_of,
    sealed_entries,
)

START = len(SCHEMA_BYTES)


def index_of(*batches: tuple[int, int, int]) -> GrowingIndex:
    """From (first offset, max timestamp, length)."""
    index, position = GrowingIndex(), START
    for first, timestamp, length in batches:
        index.append(first, position, timestamp, length, 7)
        position += length
    return index


def test_entry_is_32_bytes_in_the_documented_order() -> None:
    index = index_of((5, -1, 896))
    assert index.view().entries.tobytes() == (
        (5).to_bytes(8, "little")
        + START.to_bytes(8, "little")
        + (-1).to_bytes(8, "little", signed=True)
        + (896).to_bytes(4, "little")
        + (7).to_bytes(4, "little")
    )


def test_footer_is_32_bytes_in_the_documented_order() -> None:
    """Golden: magic, version, CRC-32C of the entries, how many, where the last batch ends."""
    footer = footer_of(index_of((0, 4, 8), (1, 2, 16)).view().entries)
    assert footer == (
        b"LIFTINDX"
        + (1).to_bytes(4, "little")
        + 0x8803E3AA.to_bytes(4, "little")
        + (2).to_bytes(8, "little")
        + (START + 24).to_bytes(8, "little")
    )


def test_offset_is_found_in_the_last_batch_that_begins_before_it() -> None:
    view = index_of((10, 0, 8), (13, 0, 8), (20, 0, 8)).view()
    assert [view.find(offset) for offset in (9, 10, 12, 13, 19, 20, 99)] == [-1, 0, 0, 1, 1, 2, 2]
    assert [view.find_from(offset) for offset in (9, 10, 11, 20, 21)] == [0, 0, 1, 2, 3]


def test_time_is_found_by_the_running_maximum() -> None:
    view = index_of((0, 5, 8), (1, 3, 8), (2, 9, 8), (3, 9, 8)).view()
    assert view.max_timestamps.tolist() == [5, 5, 9, 9]
    assert [view.find_time(time) for time in (4, 5, 6, 9, 10)] == [0, 0, 2, 2, 4]


def test_empty_index_ends_after_the_schema() -> None:
    view = GrowingIndex().view()
    assert (len(view), view.end, view.max_timestamp_us, view.find(3)) == (0, START, LEAST_TIMESTAMP_US, -1)
    assert IndexView(view.entries).contiguous


def test_view_does_not_change_when_the_index_grows() -> None:
    index = index_of((0, 0, 8))
    view = index.view()
    for first in range(1, 500):
        index.append(first, START + 8 * first, first, 8, 0)
    assert view.first_offsets.tolist() == [0]
    assert index.view().first_offsets.tolist() == list(range(500))
    assert GrowingIndex(index.view().entries).view().entries.tolist() == index.view().entries.tolist()


def test_rows_are_those_that_numpy_would_have_made() -> None:
    rows = [
        (0, START, -5, 1, 0),
        (1, START + 1, -(1 << 63), (1 << 32) - 1, (1 << 32) - 1),
        (1 << 62, (1 << 62) + 7, (1 << 63) - 1, 888, 1 << 31),
    ]
    index = GrowingIndex()
    for row in rows:
        index.append(*row)
    made = np.array(rows, ENTRY)
    made["max_timestamp_us"] = np.maximum.accumulate(made["max_timestamp_us"])
    assert index.view().entries.tobytes() == made.tobytes()
    assert (index.end, index.max_timestamp_us) == ((1 << 62) + 7 + 888, (1 << 63) - 1)


@pytest.mark.parametrize("count", [1, 16, 17, 1_000])
def test_room_that_was_made_is_not_made_again_and_changes_nothing(count: int) -> None:
    index = GrowingIndex()
    index.append(0, 568, 5, 100, 1)
    view = index.view()
    index.make_room(count)
    memory = index._memory
    for number in range(1, 1 + count):
        index.append(number, 568 + 100 * number, 5, 100, 1)
    assert index._memory is memory
    assert len(view) == 1
    assert view.entries[0] == index.view().entries[0]
    assert index.view().first_offsets.tolist() == list(range(1 + count))


def test_gap_between_batches_is_known() -> None:
    whole = index_of((0, 0, 8), (1, 0, 16)).view().entries
    assert IndexView(whole).contiguous
    gap = whole.copy()
    gap["position"][1] += 8
    assert not IndexView(gap).contiguous
    late = whole.copy()
    late["position"] += 8
    assert not IndexView(late).contiguous


def test_sealed_file_is_believed_only_whole() -> None:
    entries = index_of((0, 4, 8), (1, 2, 16), (9, 9, 24)).view().entries
    data = entries.tobytes() + footer_of(entries)
    found = sealed_entries(data)
    assert found is not None
    assert found.tolist() == entries.tolist()
    for size in range(len(data)):
        assert sealed_entries(data[:size]) is None
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert sealed_entries(bytes(flipped)) is None
    assert sealed_entries(data + bytes(ENTRY_BYTES)) is None


def test_tail_file_is_believed_as_far_as_the_checkpoint_says() -> None:
    entries = index_of((0, 4, 8), (1, 2, 16)).view().entries
    crc = 0
    for entry in entries:  # the CRC is carried on from flush to flush
        crc = crc32c(entry.tobytes(), crc)
    found = counted_entries(entries.tobytes() + b"more", 2, crc)
    assert found is not None
    assert found.tolist() == entries.tolist()
    assert counted_entries(entries.tobytes()[:-1], 2, crc) is None
    assert counted_entries(bytes(64), 2, crc) is None
    nothing = counted_entries(b"", 0, 0)
    assert nothing is not None
    assert len(nothing) == 0


@pytest.mark.parametrize("bytes_max", [0, ENTRY_BYTES * 100, ENTRY_BYTES * 250])
def test_cache_stays_within_its_bound_and_keeps_what_was_used_last(bytes_max: int) -> None:
    cache = IndexCache(bytes_max)
    for serial in range(10):
        cache.put(serial, IndexView(np.zeros(100, ENTRY)))
        assert cache.get(0 if cache.get(0) else serial) is not None
    assert cache.byte_count <= max(bytes_max, ENTRY_BYTES * 100)
    if bytes_max == ENTRY_BYTES * 250:
        assert cache.get(0) is not None, "was asked for each time"
        assert cache.get(5) is None
    cache.drop(0)
    cache.drop(9)
    cache.drop(77)
    assert cache.byte_count == 0
