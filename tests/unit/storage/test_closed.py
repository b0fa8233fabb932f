"""Goal: a log that is closed leaves its folder alone, whoever is still at work on it: another log may be there by now.

Method: the folder is moved aside and made anew, as a replica does that begins anew, while something goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from broker.api.errors import StorageFailed
from broker.storage.disk import OsDisk
from broker.storage.log import PartitionLog
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.rewriting import BatchShape
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.writing.let_go import let_go
from tests.support.compacting import keyed_batch
from tests.support.logs import create_log

SETTINGS = LogSettings(segment_bytes=1_500, is_sole_replica=False)
COMPACTED = CompactionSettings(min_cleanable_dirty_percent=0)


class Folder:
    """A log of some segments, and how another one comes to its place."""

    def __init__(self, path: Path, *, is_sole: bool = False) -> None:
        self.disk, self.path = OsDisk(), path / "0"
        settings = replace(SETTINGS, is_sole_replica=is_sole)
        self.log = create_log(self.disk, settings=settings, folder=str(self.path))
        for number in range(8):
            batch = keyed_batch([(b"k%d" % number, b"v")])
            self.log.append([batch], leader_epoch=1, now_us=0)
        self.log.roll_if_due(1 << 60)
        self.log.state.advance_high_watermark(self.log.syncer.sync())
        self.new: PartitionLog | None = None

    def begin_anew(self) -> None:
        self.log.close(clean=False)
        self.disk.rename(str(self.path), f"{self.path}.aside")
        self.new = create_log(self.disk, settings=SETTINGS, folder=str(self.path))
        self.before = self.content()

    def content(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in sorted(self.path.iterdir())}

    def check(self) -> None:
        assert self.new is not None
        assert self.content() == self.before


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def coalescing(log: PartitionLog) -> None:
    joined = CoalescingSettings(shape=BatchShape(), min_batch_bytes=1 << 20, segment_bytes=1 << 20)
    coalesce(log, joined, {}, now_us=1 << 50)


@pytest.mark.parametrize(
    "late",
    [
        lambda log: log.checkpoint(),
        lambda log: log.checkpoint(withdraw=True),
        lambda log: log.trim(5),
        coalescing,
        lambda log: log.append([keyed_batch([(b"k", b"v")])], leader_epoch=1, now_us=0),
        lambda log: log.truncate(3),
        lambda log: log.reset(3),
        lambda log: log.roll_if_due(1 << 61),
        lambda log: log.recover(1 << 61),
        lambda log: log.close(),
    ],
    ids=["checkpoint", "mark", "trim", "join", "append", "truncate", "reset", "roll", "recover", "close"],
)
def test_whoever_comes_late_writes_nothing(folder: Folder, late: Callable[[PartitionLog], object]) -> None:
    folder.begin_anew()
    with suppress(StorageFailed):
        late(folder.log)
    folder.check()


def test_a_pass_of_compaction_that_ends_late_marks_nothing(tmp_path: Path) -> None:
    """The new log was taken for compacted up to where the old one was: a tombstone went from it, and the older value
    that was behind it came back."""

    def run(folder: Folder, at: int) -> int:
        calls: list[int] = []

        def throttle(size: int) -> None:
            calls.append(size)
            if len(calls) == at:
                folder.begin_anew()

        with suppress(StorageFailed):
            compact(folder.log, COMPACTED, map_bytes=1 << 12, now_us=1 << 50, throttle=throttle)
        return len(calls)

    last = run(Folder(tmp_path / "a", is_sole=True), 0)
    assert last > 2
    for at in range(1, last + 1):
        folder = Folder(tmp_path / str(at), is_sole=True)
        run(folder, at)
        folder.check()


def test_what_was_cut_meanwhile_is_not_let_go(tmp_path: Path) -> None:
    """Retention has looked, and the records that it was to keep were taken back before it went on."""
    log = Folder(tmp_path).log
    start = 6
    log.follow(2)
    log.truncate(3)
    assert let_go(log.state, log.checkpoints, start) == 0
    assert (log.state.log_start_offset, log.state.log_end_offset) == (0, 3)
