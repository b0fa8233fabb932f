"""The scrub thread: it finds what rots, goes on where it stopped, and passes over what cannot be read.

Method: real partitions on the fake disk, the real thread; pieces are let through one by one where it matters.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.api.stream import settings_from
from broker.background import scrubber
from broker.background.scrubber import Scrubber, load_position
from broker.common.elapsed import MACHINE
from broker.config import configuration as config
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncPool
from broker.node.partitions.watch import ChangeHub
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogIdentity, LogSettings, seal_json
from tests.support.led_alone import LedAlone
from tests.support.logs import commit, row_batch
from tests.support.processes import eventually
from tests.support.simdisk import SimDisk

PATH = "/data/scrub"
NAMES = ("a", "b", "c")
BATCHES = 8


def samples(made: Scrubber) -> dict[str, float]:
    return {name.removeprefix("liftlog_scrub_"): value for name, _, _, _, value in made.samples()}


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.makedirs("/data")
    return made


@pytest.fixture
def partitions(disk: SimDisk) -> Iterator[list[Partition]]:
    """Three streams of eight batches each."""
    pool, hub = SyncPool(1), ChangeHub(asyncio.new_event_loop())
    made = []
    with ThreadPoolExecutor(1) as appender:
        for name in NAMES:
            info = StreamInfo(name=name, incarnation="i", created_us=0, settings=settings_from({}))
            identity = LogIdentity(cluster_id="c", stream=name, incarnation="i", partition=0)
            log = PartitionLog.create(disk, f"/{name}", identity, LogSettings(), now_us=0)
            for _ in range(BATCHES):
                log.append([row_batch([b"v" * 100])], leader_epoch=1, now_us=0)
            commit(log)
            made.append(
                LedAlone(
                    info,
                    Replica(info, 0, log, appender=appender, hub=hub, clocks=MACHINE),
                    leader_epoch=1,
                    pool=pool,
                    appender=appender,
                )
            )
        yield made
    pool.close()


@pytest.fixture
def scrub_of(disk: SimDisk, partitions: list[Partition]) -> Iterator[Callable[..., Scrubber]]:
    made: list[Scrubber] = []

    def make(**settings: Any) -> Scrubber:
        given = {"scrub.interval_ms": 20, "scrub.bytes_per_s": 1 << 40, "data_dir": "/data", **settings}
        made.append(Scrubber(config.load(None, {}, given), disk, lambda: partitions))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop()


def flip(disk: SimDisk, name: str) -> None:
    disk.flip(f"/{name}/{0:020d}.arrows", (568 + 900) * 8)


def test_passes_follow_one_another_and_find_what_rots_between_them(
    disk: SimDisk, partitions: list[Partition], scrub_of: Callable[..., Scrubber]
) -> None:
    made = scrub_of()
    eventually(lambda: samples(made)["passes_total"] >= 1)
    assert samples(made)["lost_ranges_total"] == 0
    flip(disk, "b")
    eventually(lambda: samples(made)["lost_ranges_total"] == 1)
    assert [p.log.state.lost_ranges for p in partitions] == [(), ((0, 1),), ()]
    passes = samples(made)["passes_total"]
    eventually(lambda: samples(made)["passes_total"] >= passes + 2)
    assert samples(made)["lost_ranges_total"] == 1, "counted once"


def test_a_pass_that_ended_in_the_future_holds_up_no_other(disk: SimDisk, scrub_of: Callable[..., Scrubber]) -> None:
    """The clock was ahead then. It would be a year until the next one."""
    disk.replace_file(PATH, seal_json({"finished_us": time.time_ns() // 1000 + 365 * 86_400_000_000}))
    made = scrub_of()
    eventually(lambda: samples(made)["passes_total"] >= 1)


def test_it_goes_on_where_it_stopped(
    disk: SimDisk, partitions: list[Partition], scrub_of: Callable[..., Scrubber], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped within the second partition: the next run begins at that offset and does the rest only."""
    asked: list[tuple[str, int]] = []
    original = Replica.scrub
    go_on = threading.Event()

    def scrub(self: Replica, offset: int, **how: Any) -> Any:
        asked.append((self.stream, offset))
        assert (self.stream, offset) != ("b", 3) or go_on.wait(60)
        return original(self, offset, bytes_max=1)

    monkeypatch.setattr(Replica, "scrub", scrub)
    monkeypatch.setattr(scrubber, "LOOK_S", 60)
    first = scrub_of()
    eventually(lambda: ("b", 3) in asked)
    stopping = threading.Thread(target=first.stop)
    stopping.start()
    eventually(first._stop.is_set)
    go_on.set()
    stopping.join(60)
    found = load_position(disk, PATH)
    assert found.place == ("b", "i", 0)
    stopped_at = found.offset
    assert stopped_at in (3, 4)
    asked.clear()
    second = scrub_of(**{"scrub.interval_ms": 60_000})
    second.stop()  # it had not looked yet: nothing is forgotten
    assert load_position(disk, PATH) == found
    third = scrub_of()
    eventually(lambda: samples(third)["passes_total"] >= 1)
    assert asked[: BATCHES - stopped_at + 1] == [("b", at) for at in range(stopped_at, BATCHES + 1)]
    assert ("a", 0) not in asked[: asked.index(("c", BATCHES))]


def test_a_partition_that_cannot_be_read_is_passed_over_and_not_marked(
    disk: SimDisk, partitions: list[Partition], scrub_of: Callable[..., Scrubber], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubber, "RETRY_S", 0.001)
    disk.fail("pread", errno.EIO, path="/b/", times=1_000_000)
    made = scrub_of()
    eventually(lambda: samples(made)["passes_total"] >= 1)
    assert samples(made)["failed_partitions_total"] >= 1
    assert all(p.log.state.lost_ranges == () for p in partitions)
    disk.heal()
    before = samples(made)["passes_total"]
    eventually(lambda: samples(made)["passes_total"] >= before + 2)
    failed = samples(made)["failed_partitions_total"]
    passes = samples(made)["passes_total"]
    eventually(lambda: samples(made)["passes_total"] > passes)
    assert samples(made)["failed_partitions_total"] == failed


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        b'{"format_version":1,"stream":"a"} 00000000',
        seal_json({"stream": 1}),
        seal_json({"offset": None}),
        seal_json({"other": 1}),
    ],
)
def test_a_damaged_position_is_a_pass_from_the_beginning(disk: SimDisk, content: bytes) -> None:
    disk.replace_file(PATH, content)
    assert load_position(disk, PATH) == scrubber.ScrubPosition()


def test_on_a_full_disk_passes_go_on_and_only_the_position_is_not_kept(
    disk: SimDisk, scrub_of: Callable[..., Scrubber], caplog: pytest.LogCaptureFixture
) -> None:
    disk.bytes_max = disk.used_bytes
    made = scrub_of()
    eventually(lambda: samples(made)["passes_total"] >= 2)
    assert "scrub.position_not_saved" in caplog.text
    assert not disk.exists(PATH)
    disk.heal()
    passes = samples(made)["passes_total"]
    eventually(lambda: samples(made)["passes_total"] > passes + 1)
    assert load_position(disk, PATH).finished_us


def test_interval_zero_is_never(disk: SimDisk, partitions: list[Partition], scrub_of: Callable[..., Scrubber]) -> None:
    made = scrub_of(**{"scrub.interval_ms": 0})
    made.stop()
    assert samples(made)["passes_total"] == 0


@pytest.mark.parametrize("how", ["the stream is deleted", "the replica is taken away"])
def test_what_ends_amid_a_pass_is_no_fault(
    how: str,
    disk: SimDisk,
    partitions: list[Partition],
    scrub_of: Callable[..., Scrubber],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    original = Replica.scrub

    def scrub(self: Replica, offset: int, **how_: Any) -> Any:
        if self.stream == "b" and not self.is_over:
            self.note_removed() if how == "the stream is deleted" else self.note_closed()
            self.log.close()
            for name in disk.listdir("/b"):
                disk.unlink(f"/b/{name}")
        return original(self, offset, **how_)

    monkeypatch.setattr(scrubber, "RETRY_S", 0.001)
    monkeypatch.setattr(Replica, "scrub", scrub)
    made = scrub_of()
    with caplog.at_level(logging.WARNING):
        eventually(lambda: samples(made)["passes_total"] >= 2)
    assert samples(made)["failed_partitions_total"] == 0
    assert caplog.text == ""
