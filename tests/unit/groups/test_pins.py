"""Pins: what is placed is what was seen, or is refused with what is there (K1); they are no consumers (K2)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from broker.api.stream import OFFSETS_STREAM
from broker.groups.offsets import ConsumerOffset, OffsetTable, decode_offset, offset_rows
from broker.groups.pins import Pin, PinTable, decode_pin
from broker.node.partitions.consumers import Consumers
from tests.support.backend import LogBackend


def test_a_pin_survives_its_record() -> None:
    pin = Pin(name="q.1", text='{"é": [1]}', version=2**50, timestamp_us=5)
    assert decode_pin(pin.key, pin.value()) == pin


@pytest.mark.parametrize(
    "key,value",
    [
        (b"a/b/1", b"{}"),
        (b"//pin/a", b"nonsense"),
        (b"//pin/a", b'{"v":2,"text":"","version":1,"timestamp_us":1}'),
        (b"//pin/a", b'{"v":1,"text":1,"version":1,"timestamp_us":1}'),
        (b"//pin/\xff", b'{"v":1,"text":"","version":1,"timestamp_us":1}'),
    ],
)
def test_a_record_of_another_kind_is_skipped(key: bytes, value: bytes) -> None:
    assert decode_pin(key, value) is None


def test_a_pin_is_no_consumer_whatever_it_is_called() -> None:
    table = OffsetTable()
    for name in ("a", "1", "a/1", "a/b/1", ""):
        pin = Pin(name=name, text="x", version=1, timestamp_us=1)
        assert decode_offset(pin.key, pin.value()) is None
        table.apply(offset_rows([(pin.key, pin.value()), (pin.key, None)], timestamp_us=1))
    assert table.consumers() == []
    assert decode_pin(ConsumerOffset(consumer="pin", stream="s", partition=0, offset=1).key, b"{}") is None


def test_a_pin_that_was_forgotten_has_no_successor_with_its_version() -> None:
    table = PinTable()
    first = table.get("q").next("x", now_us=100)
    table.apply(offset_rows([(first.key, first.value())], timestamp_us=1))
    assert (table.get("q"), table.silent(100), table.silent(101)) == (first, [], ["q"])
    assert first.next("y", now_us=50).version == 101, "a clock that was set back"
    table.apply(offset_rows([(first.key, None)], timestamp_us=1))
    assert table.get("q").version == 0
    assert table.get("q").next("z", now_us=102).version > first.version


@pytest.mark.parametrize("seed", range(5))
def test_of_many_who_place_at_once_each_builds_on_the_last(tmp_path: Path, seed: int) -> None:
    """Each adds its name to the text it has seen. Nobody's is lost; what is told stays; it is there after a restart."""

    async def run() -> tuple[list[str], Consumers, dict[str, str]]:
        backend = LogBackend(tmp_path / str(seed))
        rng, told = random.Random(seed), dict[str, str]()

        async def one(number: int) -> None:
            name, pin = rng.choice(["q", "r"]), None
            while True:
                pin = pin or backend.offsets.pin(name)
                await asyncio.sleep(rng.choice([0, 0.001]))
                pin, placed = await backend.offsets.place_pin(name, f"{pin.text}{number},", version=pin.version)
                assert backend.offsets.pin(name).version >= pin.version
                if placed:
                    told[str(number)] = name
                    return

        await asyncio.gather(*(one(number) for number in range(20)))
        texts = [backend.offsets.pin(name).text for name in ("q", "r")]
        again = Consumers(backend.partition(OFFSETS_STREAM, 0))
        assert [again.pin(name).text for name in ("q", "r")] == texts
        assert again.consumers() == []
        assert await again.expire_pins(1 << 60) == sorted(set(told.values()))
        assert Consumers(backend.partition(OFFSETS_STREAM, 0)).pin("q").version == 0
        backend.close()
        return texts, again, told

    texts, _, told = asyncio.run(run())
    for name, text in zip(("q", "r"), texts, strict=True):
        assert sorted(text.split(",")[:-1]) == sorted(number for number, at in told.items() if at == name)
    assert len(told) == 20
