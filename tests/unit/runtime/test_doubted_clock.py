"""A clock that jumps ahead deletes nothing before somebody had the time to notice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from broker.api.stream import settings_from
from broker.background.cleaner import Cleaner
from broker.background.doubted_clock import AHEAD_S, DOUBT_S, KEEP_S, DoubtedClock, kept_clock
from broker.common.elapsed import elapsed_us, wall_us
from broker.config.configuration import load
from broker.groups.offsets import offset_rows
from broker.node.partitions.partition import Partition
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import open_json, seal_json
from tests.support.processes import eventually
from tests.support.simdisk import SimDisk
from tests.unit.runtime.test_partition import HeldPool, disk, partition, pool

__all__ = ["disk", "partition", "pool"]  # fixtures

DAY_S = 86_400


class Machine:
    """Two clocks that a test moves."""

    def __init__(self, wall_s: float = 1_000.0 * DAY_S) -> None:
        self.wall_s = wall_s
        self.passed_s = 5.0
        self.clock = DoubtedClock(lambda: int(self.wall_s * 1e6), lambda: int(self.passed_s * 1e6))

    def pass_(self, seconds: float) -> None:
        self.wall_s += seconds
        self.passed_s += seconds

    @property
    def now_s(self) -> float:
        return self.clock.now_us() / 1e6


@pytest.fixture
def machine() -> Machine:
    return Machine()


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().split()[0] for record in caplog.records]


def test_time_that_passes_is_believed(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    for seconds in (0, 1, 3_600, 400 * DAY_S):  # asleep for long, too
        machine.pass_(seconds)
        assert machine.now_s == machine.wall_s
    assert events(caplog) == []


def test_a_jump_ahead_is_doubted_and_the_time_goes_on(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    before = machine.now_s
    machine.wall_s += 365 * DAY_S
    machine.pass_(10)
    assert machine.now_s == before + 10
    machine.pass_(DOUBT_S - 1)
    assert machine.now_s == before + DOUBT_S + 9
    assert events(caplog) == ["clock.doubted"]


def test_who_is_not_set_back_is_believed_in_the_end(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.wall_s += 365 * DAY_S
    machine.clock.now_us()
    machine.pass_(DOUBT_S)
    assert machine.now_s == machine.wall_s
    machine.pass_(DAY_S)
    assert machine.now_s == machine.wall_s
    assert events(caplog) == ["clock.doubted", "clock.believed"]


def test_who_is_set_back_is_right_again_and_doubted_anew(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        machine.wall_s += 365 * DAY_S
        machine.clock.now_us()
        machine.pass_(DOUBT_S - 10)
        machine.wall_s -= 365 * DAY_S
        assert machine.now_s == machine.wall_s
    machine.wall_s += 365 * DAY_S
    before = machine.now_s
    machine.pass_(20)
    assert machine.now_s == before + 20
    assert events(caplog) == ["clock.doubted", "clock.right_again"] * 2 + ["clock.doubted"]


def test_a_step_back_is_believed_at_once(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.wall_s -= 365 * DAY_S
    assert machine.now_s == machine.wall_s
    machine.pass_(5)
    assert machine.now_s == machine.wall_s
    assert events(caplog) == []


def test_a_small_step_is_believed(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.wall_s += AHEAD_S
    assert machine.now_s == machine.wall_s
    assert events(caplog) == []


def test_a_second_jump_while_the_first_is_doubted_does_not_shorten_the_doubt(machine: Machine) -> None:
    before = machine.now_s
    for _ in range(10):
        machine.wall_s += 30 * DAY_S
        machine.clock.now_us()
        machine.pass_(DOUBT_S / 10 - 1)
    assert machine.now_s == before + DOUBT_S - 10


def test_a_start_compares_with_what_the_life_before_believed(machine: Machine) -> None:
    """By the clock that nobody sets, if the machine has not started since; and a second life doubts for as long."""
    kept: list[tuple[int, int]] = []
    wall, passed = machine.clock._wall_us, machine.clock._passed_us
    first = DoubtedClock(wall, passed, keep=lambda *values: kept.append(values))
    first.now_us()
    for _ in range(3):
        machine.pass_(KEEP_S)
        first.now_us()
    assert len(kept) == 4
    machine.pass_(3 * DAY_S)
    right = DoubtedClock(wall, passed, kept=kept[-1])
    assert right.now_us() == wall()
    machine.wall_s += 365 * DAY_S
    wrong = DoubtedClock(wall, passed, kept=kept[-1])
    assert wrong.now_us() == wall() - 365 * DAY_S * 1_000_000
    machine.pass_(DOUBT_S)
    assert wrong.now_us() == wall()


@pytest.mark.parametrize("boot", ["same", "other", ""])
def test_the_file_of_the_clock_says_how_much_time_has_passed_only_in_one_run_of_the_machine(boot: str) -> None:
    disk = SimDisk()
    disk.makedirs("/data")
    began = kept_clock(disk, "/data", "same").now_us()
    values = open_json(disk.read_file("/data/clock"), where="")
    assert values is not None
    month_us = 30 * DAY_S * 1_000_000
    values["believed_us"] -= month_us  # as if it had been written a month ago, by either clock
    values["at_us"] -= min(month_us, values["at_us"])
    passed_us = json.loads(disk.read_file("/data/clock").rpartition(b" ")[0])["at_us"] - values["at_us"]
    disk.replace_file("/data/clock", seal_json(values))
    found = kept_clock(disk, "/data", boot).now_us()
    expected = began - month_us + (passed_us if boot == "same" else 0)
    assert 0 <= found - expected < 60_000_000


def test_on_a_full_disk_the_clock_goes_on_and_the_former_file_stands() -> None:
    disk = SimDisk()
    disk.makedirs("/data")
    kept_clock(disk, "/data", "same").now_us()
    before = disk.read_file("/data/clock")
    disk.bytes_max = disk.used_bytes
    began = wall_us()
    assert began <= kept_clock(disk, "/data", "same").now_us() <= wall_us()
    assert disk.read_file("/data/clock") == before
    assert list(disk.names) == ["/data/clock"]
    disk.heal()
    kept_clock(disk, "/data", "same").now_us()
    assert disk.read_file("/data/clock") != before


@pytest.mark.parametrize(
    "content", [b"", b"{} 00000000\n", seal_json({}), seal_json({"believed_us": -1, "at_us": "x"})]
)
def test_a_file_of_the_clock_that_is_no_use_is_none(content: bytes) -> None:
    disk = SimDisk()
    disk.makedirs("/data")
    disk.replace_file("/data/clock", content)
    assert abs(kept_clock(disk, "/data", "same").now_us() - wall_us()) < 60_000_000


def test_retention_deletes_nothing_for_a_clock_that_jumped(
    partition: Partition, pool: HeldPool, machine: Machine
) -> None:
    """With the machine's own clock the first round deletes everything."""
    kept = settings_from({"retention_ms": 3_600_000})
    partition.alter(replace(partition.info, settings=kept))
    stamp = int(machine.wall_s * 1e6)
    partition.append_now([RowBatch(offset_rows([(b"k", b"v")], timestamp_us=stamp))], lambda *_: None)
    pool.go.release()
    eventually(lambda: partition.log.state.high_watermark == 1)
    rounds = 0

    def count() -> None:
        nonlocal rounds
        rounds += 1

    cleaner = Cleaner(
        load(None, {"LIFTLOG_CLEANER_INTERVAL_MS": "10"}),
        lambda: [partition],
        moved=set,
        also=count,
        clock=machine.clock,
        elapsed=lambda: elapsed_us() + int(machine.passed_s * 1e6),
    )
    machine.wall_s += 365 * DAY_S
    cleaner.start()
    try:
        eventually(lambda: rounds >= 3)
        assert partition.log.state.log_start_offset == 0
        machine.pass_(DOUBT_S)
        eventually(lambda: partition.log.state.log_start_offset == 1)
    finally:
        cleaner.stop()
