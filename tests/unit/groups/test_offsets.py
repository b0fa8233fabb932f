"""The offset table equals the newest record of each key (O1)."""

from __future__ import annotations

import random

import pytest

from broker.api.errors import UnknownConsumer
from broker.groups.offsets import ConsumerOffset, OffsetTable, decode_offset, offset_rows


def test_offset_survives_its_record() -> None:
    offset = ConsumerOffset(
        consumer="c",
        stream="s.1",
        partition=3,
        offset=2**40,
        leader_epoch=7,
        incarnation="i",
        timestamp_us=5,
        metadata="é",
    )
    assert decode_offset(offset.key, offset.value()) == offset


@pytest.mark.parametrize(
    "key,value",
    [
        (b"a/b", b"{}"),
        (b"a/b/c", b'{"v":1}'),
        (b"a/b/1", b"nonsense"),
        (b"a/b/1", b'{"v":2,"offset":1}'),
        (b"\xff", b""),
    ],
)
def test_record_of_another_kind_is_skipped(key: bytes, value: bytes) -> None:
    assert decode_offset(key, value) is None


@pytest.mark.parametrize("seed", range(20))
def test_table_is_the_newest_record_of_each_key(seed: int) -> None:
    rng = random.Random(seed)
    table = OffsetTable()
    model: dict[bytes, ConsumerOffset] = {}
    for _ in range(rng.randint(1, 10)):
        entries: list[tuple[bytes, bytes | None]] = []
        for _ in range(rng.randint(1, 10)):
            offset = ConsumerOffset(
                consumer=rng.choice("ab"),
                stream=rng.choice("xy"),
                partition=rng.randrange(2),
                offset=rng.randrange(100),
            )
            if rng.random() < 0.2:
                entries.append((offset.key, None))
                model.pop(offset.key, None)
            else:
                entries.append((offset.key, offset.value()))
                model[offset.key] = offset
        table.apply(offset_rows(entries, timestamp_us=1))
    assert {o.key: o for c in table.consumers() for o in table.get(c)} == model
    with pytest.raises(UnknownConsumer):
        table.get("nobody")


def test_a_consumer_is_silent_when_its_last_commit_was_before_a_time() -> None:
    table = OffsetTable()
    offsets = [
        ConsumerOffset(consumer="a", stream="s", partition=0, offset=1, timestamp_us=10),
        ConsumerOffset(consumer="a", stream="s", partition=1, offset=1, timestamp_us=30),
        ConsumerOffset(consumer="b", stream="s", partition=0, offset=1, timestamp_us=20),
    ]
    table.apply(offset_rows([(o.key, o.value()) for o in offsets], timestamp_us=0))
    assert table.silent(20) == []
    assert table.silent(21) == ["b"]
    assert table.silent(31) == ["a", "b"]
