"""A restamped batch is byte for byte what encoding its rows at the new offsets gives."""

from __future__ import annotations

import pytest

from broker.api.batch import BatchHeader, decode_batch, encode_batch, read_header, verify_batch
from broker.api.errors import BadBatch
from broker.sinks.restamp import RestampedBatch, StampedBatch
from tests.support.sinks import rows_of

PLACE = {"first_offset": 1 << 40, "leader_epoch": 9, "high_watermark": 7, "group_index": 1, "group_count": 3}


@pytest.mark.parametrize("values", [[b"a"], [b""] * 9, [b"x" * n for n in range(50)]], ids=["one", "empty", "many"])
def test_restamping_is_the_same_as_encoding_anew(values: list[bytes]) -> None:
    stored = rows_of(values).compose(first_offset=5, leader_epoch=2, high_watermark=3, decision=77)
    moved = RestampedBatch(memoryview(bytearray(stored)), read_header(stored), 1 << 127)
    assert (moved.record_count, moved.max_timestamp_us) == (len(values), 7)
    message = moved.compose(**PLACE)
    assert bytes(message) == bytes(rows_of(values).compose(**PLACE, decision=1 << 127))
    assert verify_batch(message).decision == 1 << 127
    assert decode_batch(message).column("offset").to_pylist() == list(range(1 << 40, (1 << 40) + len(values)))


def test_a_message_is_restamped_in_the_memory_that_it_was_read_into() -> None:
    stored = rows_of([b"a", b"b"]).compose(first_offset=5, leader_epoch=2, high_watermark=3)
    block = memoryview(bytearray(stored))
    assert RestampedBatch(block, read_header(stored), 1).compose(**PLACE) is block
    assert read_header(block).first_offset == PLACE["first_offset"]


def test_a_stamped_batch_names_the_stage_whatever_the_log_says() -> None:
    message = StampedBatch(rows_of([b"a"]), 42).compose(**PLACE, decision=0)
    assert read_header(message).decision == 42


def test_a_batch_that_lost_rows_is_refused() -> None:
    rows = decode_batch(rows_of([b"a", b"b"]).compose(first_offset=0, leader_epoch=0, high_watermark=0))
    compacted = encode_batch(rows.slice(1), BatchHeader(first_offset=0, last_offset=1))
    with pytest.raises(BadBatch, match="rewritten"):
        RestampedBatch(compacted, read_header(compacted), 1)
