"""The stages of a partition: every transition, every refusal, and that the notes give the same table again."""

from __future__ import annotations

import pytest

from broker.api.batch import decode_batch
from broker.api.errors import (
    CorruptLog,
    InvalidRequest,
    LiftlogError,
    RequestTooLarge,
    StageLost,
    StagesFull,
    UnknownFormatVersion,
)
from broker.sinks.notes import (
    GroupFinished,
    Note,
    PartStored,
    StageDropped,
    StagePinned,
    decode_note,
    encode_note,
    note_batch,
    notes_in,
)
from broker.sinks.stages import StageTable

A, B, D = "a" * 32, "b" * 32, "d" * 32


def part(
    number: int,
    *,
    is_last: bool = False,
    stage: str = A,
    rows: int = 1,
    at_us: int = 0,
    sink: str = "q",
    epoch: int = 1,
) -> PartStored:
    return PartStored(stage=stage, sink=sink, epoch=epoch, part=number, is_last=is_last, rows=rows, stored_us=at_us)


def pin(stage: str = A, *, batch_id: int = 0, search_from: int = 10, epoch: int = 1) -> StagePinned:
    return StagePinned(stage=stage, sink="q", epoch=epoch, batch_id=batch_id, search_from=search_from, pinned_us=0)


FINISHED = GroupFinished(decision=D, sink="q", stages=(A,), first_offset=10, next_offset=12)


def table_of(*notes: Note) -> StageTable:
    """Note n stands at [10 n, 10 n + 10), with 100 bytes."""
    table = StageTable()
    for n, note in enumerate(notes):
        table.apply(note, first_offset=10 * n, next_offset=10 * n + 10, byte_count=100)
    return table


def check_pin(table: StageTable, **more: object) -> StagePinned | None:
    return table.check_pin(A, **{"sink": "q", "epoch": 1, "batch_id": 0, "parts": None, **more})  # type: ignore[arg-type]


def test_the_same_part_again_is_known_and_another_in_its_place_is_refused() -> None:
    table = table_of(part(0))
    assert not StageTable().has_part(part(0))
    assert table.has_part(part(0, at_us=99))
    for other in (part(0, rows=2), part(0, is_last=True), part(0, sink="another"), part(0, epoch=2)):
        with pytest.raises(InvalidRequest):
            table.has_part(other)


def test_no_part_comes_behind_the_last_one() -> None:
    with pytest.raises(InvalidRequest):
        table_of(part(0), part(1, is_last=True)).has_part(part(2))
    with pytest.raises(InvalidRequest):
        table_of(part(0), part(1, is_last=True)).has_part(part(2, is_last=True))
    with pytest.raises(InvalidRequest):
        table_of(part(3, is_last=True)).has_part(part(2, is_last=True))
    with pytest.raises(InvalidRequest):
        table_of(part(5)).has_part(part(3, is_last=True))
    assert not table_of(part(2, is_last=True)).has_part(part(0))


@pytest.mark.parametrize("end", [StageDropped(stage=A, why="expired"), FINISHED], ids=["dropped", "finished"])
def test_a_late_part_of_a_stage_that_is_gone_is_refused(end: Note) -> None:
    table = table_of(part(0), end)
    with pytest.raises(StageLost):
        table.has_part(part(1))
    with pytest.raises(StageLost):
        check_pin(table)
    assert table.byte_count == 0


def test_only_a_sealed_stage_is_pinned() -> None:
    for notes in ((), (part(0),), (part(1, is_last=True),)):
        with pytest.raises(StageLost):
            check_pin(table_of(*notes))
    sealed = table_of(part(1, is_last=True), part(0))
    assert check_pin(sealed) is None
    assert check_pin(sealed, parts=2) is None
    with pytest.raises(StageLost):
        check_pin(sealed, parts=3)


def test_a_stage_is_pinned_for_one_batch_of_its_own_sink() -> None:
    table = table_of(part(0, is_last=True), pin())
    assert check_pin(table) == pin()
    with pytest.raises(InvalidRequest):
        check_pin(table, batch_id=1)
    for asked in (lambda: check_pin(table, sink="another"), lambda: table.has_part(part(0, sink="another"))):
        with pytest.raises(InvalidRequest, match=r"belongs to another sink|is pinned") as refused:
            asked()
        assert "'q'" not in str(refused.value), "whoever asks may not see that one"


def test_a_newer_epoch_may_pin_a_stage_anew_and_an_older_one_may_not() -> None:
    """T4: what an older epoch may decide is over once a newer one has pinned."""
    table = table_of(part(0, is_last=True), pin(epoch=3))
    assert check_pin(table, epoch=4) == pin(epoch=3)
    with pytest.raises(StageLost, match="newer owner"):
        check_pin(table, epoch=2)


def test_what_older_owners_staged_is_known_but_for_what_is_pinned() -> None:
    table = table_of(part(0, is_last=True), part(0, stage=B, epoch=2), part(0, stage=D, is_last=True), pin(D))
    assert table.superseded("q", 2) == [A]
    assert table.superseded("q", 3) == [A, B]
    assert table.superseded("another", 9) == []


def test_a_stage_that_no_commit_could_take_is_refused_with_the_settings_name() -> None:
    table = table_of(part(0))
    table.check_share(A, 100, 200)
    for stage, size in ((A, 101), (B, 201)):
        with pytest.raises(RequestTooLarge, match=r"sinks\.group_bytes_max=200"):
            table.check_share(stage, size, 200)


def test_a_lease_counts_from_the_newest_part_and_not_for_a_pinned_stage() -> None:
    table = table_of(part(0, at_us=0), part(1, is_last=True, at_us=50))
    assert table.expired(149, 100) == []
    assert table.expired(150, 100) == [A]
    table.apply(pin(), first_offset=20, next_offset=21, byte_count=100)
    assert table.expired(1 << 60, 100) == []


def test_the_floor_is_the_least_offset_at_which_a_group_may_stand() -> None:
    table = table_of(part(0, is_last=True), part(0, is_last=True, stage=B))
    assert table.floor() is None
    for note in (pin(search_from=30), pin(B, search_from=20)):
        table.apply(note, first_offset=20, next_offset=21, byte_count=100)
    assert table.floor() == 20
    table.apply(StageDropped(stage=B, why=""), first_offset=30, next_offset=31, byte_count=100)
    assert table.floor() == 30


def test_live_stages_and_finished_groups_that_may_be_asked_for_are_kept() -> None:
    table = table_of(part(0, is_last=True, stage=B), part(0, is_last=True), pin(), FINISHED)
    assert table.needed_offset(99) == 0
    table.apply(StageDropped(stage=B, why=""), first_offset=40, next_offset=41, byte_count=100)
    assert table.needed_offset(99) == 30, "the finished note"
    table.forget([D])
    assert table.needed_offset(99) == 99
    assert table.freed_bytes == 200


def test_a_full_table_names_its_limit() -> None:
    table = table_of(part(0), part(1))
    table.check_room(201)
    with pytest.raises(StagesFull, match=r"sinks\.stage_bytes_max=200"):
        table.check_room(200)


@pytest.mark.parametrize("note", [part(3, is_last=True), pin(), StageDropped(stage=A, why="expired"), FINISHED])
def test_notes_survive_their_records(note: Note) -> None:
    assert decode_note(encode_note(note)) == note
    message = note_batch([note, note], subject="s", timestamp_us=0).compose(
        first_offset=0, leader_epoch=0, high_watermark=0
    )
    assert notes_in(decode_batch(message)) == [note, note]


@pytest.mark.parametrize(
    "value,error",
    [
        (b"", CorruptLog),
        (b"[]", CorruptLog),
        (b'{"v":1,"kind":"pin"}', CorruptLog),
        (b'{"v":9,"kind":"pin"}', UnknownFormatVersion),
        (b'{"v":1,"kind":"from the future"}', UnknownFormatVersion),
    ],
)
def test_a_note_that_is_not_understood_stops_the_reading(value: bytes, error: type[LiftlogError]) -> None:
    with pytest.raises(error):
        decode_note(value)
