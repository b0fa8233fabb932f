"""The reserve: refused in time, seldom asked for, over by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.api.errors import DiskFull
from broker.common.disk_reserve import LOOK_S, SHARE, Room, free_and_total
from tests.support.logs import row_batch
from tests.unit.runtime.test_control import running


class Place:
    """A file system and a clock, as the test says."""

    def __init__(self, free: int, total: int) -> None:
        self.free, self.total = free, total
        self.now_s = 0.0
        self.looks = 0

    def look(self, path: str) -> tuple[int, int]:
        self.looks += 1
        return self.free, self.total

    def room(self, reserve_bytes: int) -> Room:
        return Room("/data", reserve_bytes, look=self.look, clock=lambda: self.now_s)


def test_records_are_refused_before_the_reserve_is_touched_and_again_accepted_when_there_is_room() -> None:
    place = Place(free=1_000, total=100_000)
    room = place.room(400)
    room.check()
    place.free, place.now_s = 400, 1.0
    with pytest.raises(DiskFull) as caught:
        room.check()
    assert (caught.value.fields["free_bytes"], caught.value.fields["limit"]) == (400, 400)
    assert room.is_short
    place.free, place.now_s = 401, 2.0
    room.check()
    assert not room.is_short


def test_who_grows_stops_in_order_and_a_follower_begins_again_where_a_leader_may() -> None:
    place = Place(free=1_000, total=1_000_000)
    room = place.room(800)
    steps = {
        800: (room.users.check, "a leader"),
        600: (room.users.check_followed, "its follower"),
        400: (room.own.check, "a leader of the broker's own streams"),
        300: (room.own.check_followed, "their follower"),
    }
    for free, (stops, what) in steps.items():
        place.free, place.now_s = free + 1, place.now_s + 1
        stops()
        place.free, place.now_s = free, place.now_s + 1
        with pytest.raises(DiskFull, match=str(free)):
            stops()
        assert room.is_short, what
        for later, (goes_on, _) in steps.items():
            if later < free:
                goes_on()
    place.free, place.now_s = 800, place.now_s + 1
    room.users.check_followed()
    with pytest.raises(DiskFull):
        room.users.check_followed(again=True)
    place.free, place.now_s = 801, place.now_s + 1
    room.users.check_followed(again=True)


def test_what_is_about_to_be_written_counts() -> None:
    """E5: else one large body would take all that is kept."""
    place = Place(free=1_000, total=1_000_000)
    room = place.room(800)
    room.users.check(199)
    with pytest.raises(DiskFull, match="200 are to be written"):
        room.users.check(200)
    room.users.check(199)
    room.users.check_followed(399)
    with pytest.raises(DiskFull):
        room.users.check_followed(400)
    assert not room.is_short


def test_what_was_written_counts_without_asking_the_system() -> None:
    """A fast writer cannot run through the reserve between two looks; a slow one causes one look in a while."""
    place = Place(free=1_000, total=100_000)
    room = place.room(400)
    for _ in range(5):
        room.check()
        room.took(100)
    assert place.looks == 1
    room.took(100)  # 600 since the look: as far as is known the reserve is reached
    place.free = 400
    with pytest.raises(DiskFull):
        room.check()
    assert place.looks == 2
    for _ in range(100):
        with pytest.raises(DiskFull):
            room.check()
    assert place.looks == 2, "it is not asked for each refusal"
    place.now_s += LOOK_S
    place.free = 5_000
    room.check()
    assert place.looks == 3


def test_a_small_disk_keeps_a_share_and_zero_keeps_nothing() -> None:
    place = Place(free=SHARE, total=SHARE * 10)
    room = place.room(1 << 30)
    room.check()
    assert room.reserve_bytes == 10
    nothing = Place(free=0, total=100)
    nothing.room(0).check()
    assert nothing.looks == 0


def test_a_disk_that_does_not_answer_refuses_nothing() -> None:
    """The write itself will tell."""

    def look(path: str) -> tuple[int, int]:
        raise OSError(5, "Input/output error")

    room = Room("/data", 100, look=look)
    room.check()
    assert [value for *_, value in room.samples()] == [-1, 0.0]


def test_the_system_says_what_is_free(tmp_path: Path) -> None:
    free, total = free_and_total(str(tmp_path))
    assert 0 < free <= total


async def test_what_is_staged_counts_too(tmp_path: Path) -> None:
    """A sink that is fast cannot run through the reserve between two looks either."""
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {})
        room = broker._room
        place = Place(free=room._wanted + 3_000, total=1 << 60)
        epoch = (await broker.sinks.open("sink", "owner", is_one_shot=False)).epoch
        room._look, room._clock, room._looked_s = place.look, lambda: place.now_s, float("-inf")

        async def stage(part: int) -> None:
            batches = [row_batch([b"v" * 1_000])]
            await broker.sinks.stage(
                "s", 0, batches, sink="sink", epoch=epoch, stage="0" * 32, part=part, is_last=False
            )

        await stage(0)
        assert place.looks == 1
        place.free = room._wanted
        with pytest.raises(DiskFull):
            await stage(1)
        assert place.looks == 2
