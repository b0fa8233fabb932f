"""Small parts of a commit become one batch, in the order of the decision; nothing else of the group changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from broker.api.batch import decode_batch
from broker.api.errors import CorruptLog
from broker.api.schema import HEADERS_TYPE, SCHEMA
from broker.api.stream import StreamSettings
from broker.node.sinks.groups import SMALL_BYTES, batch_count, runs_of
from broker.sinks.ledger import NamedStage
from broker.sinks.stages import Part
from broker.storage.rows import RowBatch
from tests.support.simdisk import SimDisk
from tests.support.sinks import SINK, STREAM, Driver, Rig, World, rows_of


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def rig(disk: SimDisk) -> Iterator[Rig]:
    rig = Rig(disk)
    yield rig
    rig.drop()


def headed(values: Sequence[bytes]) -> RowBatch:
    rows = decode_batch(rows_of(values).compose(first_offset=0, leader_epoch=0, high_watermark=0))
    headers = pa.array([[("a", b"1")]] * len(values), HEADERS_TYPE)
    return RowBatch(rows.set_column(SCHEMA.get_field_index("headers"), SCHEMA.field("headers"), headers))


def a_part(rows: int, size: int = 1000, batches: int = 1) -> Part:
    return Part(first_offset=0, next_offset=rows + 1, rows=rows, batch_count=batches, byte_count=size)


def counts(stages: Sequence[Sequence[Part]], settings: StreamSettings | None = None) -> list[tuple[int, int]]:
    """The rows and the number of batches of each run."""
    runs = runs_of(stages, settings or StreamSettings())
    return [(sum(piece.part.rows for piece in run), batch_count(run)) for run in runs]


def test_neighbours_are_joined_across_stages_and_large_parts_stay() -> None:
    small, empty = a_part(3), a_part(0, batches=0)
    large, many = a_part(9, SMALL_BYTES + 1), a_part(8, batches=2)
    assert counts([[small, small], [empty], [small], [large], [small], [many], [small, small]]) == [
        (9, 1),
        (9, 1),
        (3, 1),
        (8, 2),
        (6, 1),
    ]
    assert counts([]) == []


def test_a_joined_batch_is_no_larger_than_the_stream_allows() -> None:
    stages = [[a_part(3)] for _ in range(7)]
    assert counts(stages, replace(StreamSettings(), batch_records=7)) == [(6, 1), (6, 1), (6, 1), (3, 1)]
    assert counts(stages, replace(StreamSettings(), batch_bytes=3500)) == [(9, 1), (9, 1), (3, 1)]


def stage_of(rig: Rig, driver: Driver, values: list[bytes], number: int, *, is_headed: bool = False) -> NamedStage:
    stage = f"{number + 1:032x}"
    rows = headed(values) if is_headed else rows_of(values)
    rig.store(STREAM, 0).put([rows], sink=SINK, epoch=driver.epoch, stage=stage, part=0, is_last=True)
    return NamedStage(stream=STREAM, partition=0, stage=stage, parts=1)


@pytest.mark.parametrize("odd", [None, 30])
def test_a_commit_of_many_small_stages_is_one_batch_in_the_order_of_the_commit(rig: Rig, odd: int | None) -> None:
    """Also if the rows of one of them cannot be joined without Arrow."""
    driver = Driver(World(rows=80), rig, 0)
    values = [[b"%d" % (2 * number), b"%d" % (2 * number + 1)] for number in range(40)]
    named = [stage_of(rig, driver, each, number, is_headed=number == odd) for number, each in enumerate(values)]
    order = [*range(0, 40, 2), *range(39, 0, -2)]
    rig.sinks.commit(SINK, driver.asked(driver.world.attempt(0)), [named[number] for number in order], {})
    ((decision, found),) = rig.visible(0)
    assert decision
    assert found == [value for number in order for value in values[number]]


def test_a_stage_that_rots_after_its_commit_was_decided_is_named(disk: SimDisk, rig: Rig) -> None:
    driver = Driver(World(rows=8), rig, 0)
    named = [stage_of(rig, driver, [b"a", b"rot" if number == 2 else b"b"], number) for number in range(4)]
    asked = driver.asked(driver.world.attempt(0))
    rig.sinks.decide(SINK, asked, rig.sinks.pin(SINK, asked, named))
    path = f"/data/{STREAM}/0/stages/{0:020d}.arrows"
    disk.flip(path, 8 * bytes(disk.read_file(path)).index(b"rot"))
    with pytest.raises(CorruptLog, match=named[2].stage):
        rig.sinks.complete(SINK)
    assert not rig.visible(0)
