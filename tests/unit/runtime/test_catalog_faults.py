"""The catalog's file on a disk that refuses: what was answered stays, what was refused stays refused.

Goal: whichever calls of the disk fail, and whenever the process or the machine dies, the next start finds the commands
that were answered and none that was refused. Only an error that says `sent` leaves it open. Method: the same few
commands on the fake disk, with each fault, followed by each end; a second catalog in memory knows what was answered.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import DiskFull, InvalidRequest, LiftlogError, StorageFailed, UnknownStream
from broker.control import catalog_store
from broker.control.catalog_store import CatalogStore
from broker.metadata.catalog import Catalog
from broker.metadata.room import grows
from broker.storage.disk import OsDisk
from tests.support.effort import LONG
from tests.support.simdisk import MODES, Crashed, SimDisk
from tests.unit.metadata.test_catalog import REGISTER, create

PATH = "/catalog.log"


def commands() -> list[dict[str, Any]]:
    return [
        create("a"),
        create("b", linger_ms=7),
        {"v": 1, "kind": "alter_stream", "name": "a", "settings": {"retention_ms": 5000}},
        {"v": 1, "kind": "delete_stream", "name": "b"},
        {"v": 1, "kind": "register_producer", "name": "p"},
        create("c"),
    ]


class Life:
    """One store, and beside it the catalog that its answers promise.

    Attributes:
        unsure: A command of which it is not known whether the next start finds it; None: there is none.
    """

    def __init__(self, disk: SimDisk) -> None:
        self.store = CatalogStore(disk, PATH)
        self.promised = Catalog.restore(self.store.catalog.snapshot())
        self.unsure: Mapping[str, Any] | None = None

    def execute(self, command: Mapping[str, Any], *, in_time: bool = True) -> bool:
        """Whether it was answered. A power cut leaves it unsure and passes through."""
        try:
            self.store.execute(command, in_time=lambda: in_time)
        except Crashed:
            self.unsure = command
            raise
        except LiftlogError as error:
            if error.fields.get("sent"):
                assert self.unsure is None
                self.unsure = command
            assert self.store.catalog.snapshot() == self.promised.snapshot(), "nothing is applied"
            return False
        self.promised.apply(command)
        self.unsure = None  # the file was whole again
        assert self.store.catalog.snapshot() == self.promised.snapshot()
        return True

    def check(self, found: SimDisk) -> None:
        """Check the catalog that the next start finds on this disk."""
        allowed = [self.promised.snapshot()]
        if self.unsure is not None:
            other = Catalog.restore(self.promised.snapshot())
            other.apply(self.unsure)
            allowed.append(other.snapshot())
        again = CatalogStore(found, PATH)
        assert again.catalog.snapshot() in allowed
        again.close()

    def check_every_end(self, disk: SimDisk) -> None:
        self.check(disk.after_kill())
        for mode in MODES:
            self.check(disk.after_crash(mode, seed=disk.steps))


FIRST = [("write", 0), ("write", 20), ("write", 10_000), ("sync", 0)]
"""The calls that fail first: a write after so many bytes, or the fsync."""
THEN = ("truncate", "sync", "create", "write", "rename", "sync_dir")
"""The calls that fail after it, until the disk is well again."""


def faults(count_max: int) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    for (call, short), count in itertools.product(FIRST, range(count_max + 1)):
        for then in itertools.combinations(THEN, count):
            yield call, short, then
    for call, short in FIRST:
        yield call, short, THEN


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (5, errno.ENOSPC),
        *(pytest.param(*case, marks=LONG) for case in [(0, errno.EIO), (3, errno.EIO), (3, errno.ENOSPC)]),
    ],
)
def test_no_fault_makes_a_refused_command_come_back_or_an_answered_one_go(failing: int, error: int) -> None:
    """Command `failing` meets each fault and those that follow; then the disk is well and the others are answered."""
    for call, short, then in faults(2 if failing == 0 else 1):
        disk = SimDisk()
        life = Life(disk)
        for number, command in enumerate(commands()):
            if number == failing:
                disk.fail(call, error, path=PATH, short=short)
                for other in then:
                    # the write or the fsync that begins it has a fault of its own, which comes first
                    disk.fail(other, error, times=1_000, after=int(other == call))
                answered = life.execute(command)
                assert not answered or (error == errno.ENOSPC and command["kind"] == "delete_stream"), (call, then)
                life.check_every_end(disk)
                refused = life.execute({"v": 1, "kind": "register_producer"})
                assert refused or then, "only one call failed"
                life.check_every_end(disk)
                disk.heal()
            elif not life.execute(command):
                assert number > failing, (number, call, short, then)
                assert command["name"] == "a" or failing == 3, "it needs what was refused"
        life.check_every_end(disk)
        life.store.close()
        assert disk.open_files == 0


@pytest.mark.parametrize("call", [None, "write", "sync", "truncate"])
def test_power_may_go_at_every_step(call: str | None) -> None:
    """Also while a fault is being mended."""
    steps = 1
    while True:
        disk = SimDisk(crash_at=steps, seed=steps)
        life = None
        try:
            life = Life(disk)
            if call is not None:
                disk.fail("write", errno.EIO, path=PATH, short=30, after=2) if call == "truncate" else None
                disk.fail(call, errno.EIO, path=PATH, short=30, after=2 if call != "truncate" else 0)
            for command in commands():
                life.execute(command)
        except Crashed:
            for mode in MODES:
                found = disk.after_crash(mode, seed=steps)
                if life is not None:
                    life.check(found)
                else:
                    CatalogStore(found, PATH)
            steps += 1
            continue
        break
    assert steps > 15


@pytest.mark.parametrize("command", [create("late"), create("late", envelopes="open")], ids=["a line", "a new file"])
@pytest.mark.parametrize("after", range(3))
@pytest.mark.parametrize("then", [None, *THEN])
def test_a_command_that_comes_too_late_is_taken_back(command: dict[str, Any], then: str | None, after: int) -> None:
    """K7, with the power cut at every step of it, and where it cannot be taken back for a while. (`after` 0: it meets
    the fault itself.)"""
    for steps in itertools.count(1):
        disk = SimDisk(seed=steps)
        life = Life(disk)
        assert life.execute({"v": 1, **REGISTER})
        assert life.execute(create("a"))
        disk.crash_at = disk.steps + steps
        if then is not None:
            disk.fail(then, errno.EIO, after=after, times=1_000)
        try:
            assert not life.execute(command, in_time=False)
            break
        except Crashed:
            for mode in MODES:
                life.check(disk.after_crash(mode, seed=steps))
    disk.crash_at = None
    life.check_every_end(disk)
    disk.heal()
    assert life.execute(create("b"))
    life.check_every_end(disk)


def test_a_command_behind_a_torn_line_is_neither_lost_nor_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real disk: the write tears, and neither cutting off nor writing anew works for a while."""
    path = tmp_path / "catalog.log"
    store = CatalogStore(OsDisk(), str(path))
    store.execute(create("a"))
    real = os.write

    def torn(fd: int, data: Any) -> int:
        if len(data) > 40:
            return real(fd, bytes(data)[:40])
        raise OSError(errno.EIO, "torn")

    def refused(*args: object) -> None:
        raise OSError(errno.EIO, "refused")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", torn)
            patch.setattr(os, "ftruncate", refused)
            patch.setattr(os, "replace", refused)
            with pytest.raises(StorageFailed):
                store.execute(create("b"))
            with pytest.raises(StorageFailed):
                store.execute(create("c"))
    store.execute(create("d"))
    store.close()
    again = CatalogStore(OsDisk(), str(path))
    assert sorted(again.catalog.streams) == ["a", "d"]
    again.close()


def test_what_a_failed_fsync_left_in_the_page_cache_is_not_vouched_for_by_the_next_one() -> None:
    """Linux tells the error once. The line is in the cache, not on the disk; a good fsync says nothing of it."""
    disk = SimDisk()
    store = CatalogStore(disk, PATH)
    disk.fail("sync", errno.EIO, path=PATH)
    with pytest.raises(StorageFailed):
        store.execute(create("a"))
    store.execute(create("b"))
    for mode in MODES:
        again = CatalogStore(disk.after_crash(mode), PATH)
        assert sorted(again.catalog.streams) == ["b"]


def test_what_a_failed_fsync_did_to_the_lines_before_it_does_no_harm() -> None:
    """They share a sector with the line that could not be written: it may be torn now, on the disk and in the cache."""
    disk = SimDisk()
    store = CatalogStore(disk, PATH)
    store.execute(create("a"))
    torn = disk.names[PATH]
    disk.fail("sync", errno.EIO, path=PATH)
    with pytest.raises(StorageFailed):
        store.execute(create("b"))
    for content in (torn.content, torn.durable):
        content[-9:] = b"\0" * 9
    store.execute(create("c"))
    for found in (disk.after_kill(), *(disk.after_crash(mode) for mode in MODES)):
        again = CatalogStore(found, PATH)
        assert sorted(again.catalog.streams) == ["a", "c"]


def test_a_refused_command_is_not_written(tmp_path: Path) -> None:
    """A release with other limits would carry it out."""
    path = tmp_path / "catalog.log"
    store = CatalogStore(OsDisk(), str(path))
    store.execute(create("a"))
    before = path.read_bytes()
    for command in (
        create("a", partitions=9),
        create("b", partitions=1_000_000),
        create("c", linger_ms=-1),
        {"v": 1, "kind": "delete_stream", "name": "nobody"},
        {"v": 1, "kind": "register_broker"},
        {"v": 1, "kind": "later"},
        {"v": 2, "kind": "create_stream"},
    ):
        with pytest.raises(LiftlogError):
            store.execute(command)
    assert path.read_bytes() == before
    store.close()


def test_a_request_that_comes_again_is_answered_from_memory_also_after_a_restart() -> None:
    """M4. It is not written twice; one that was refused is judged again."""
    disk = SimDisk()
    store = CatalogStore(disk, PATH)
    delete = {"v": 1, "kind": "delete_stream", "name": "a", "request_id": "r"}
    with pytest.raises(UnknownStream):
        store.execute(delete)
    store.execute(create("a"))
    first = store.execute(delete)
    size = disk.size(PATH)
    assert store.execute(delete) == first
    assert disk.size(PATH) == size
    for _ in range(2):
        store = CatalogStore(disk.after_kill(), PATH)
        assert store.execute(delete) == first


@pytest.mark.parametrize("value", [float("nan"), {1: 2}, {1, 2}, b"x", (1, 2)])
def test_a_command_that_would_be_read_otherwise_is_refused(value: object) -> None:
    """A line that cannot be read would stop every later start."""
    disk = SimDisk()
    store = CatalogStore(disk, PATH)
    before = disk.read_file(PATH)
    with pytest.raises(InvalidRequest):
        store.execute({"v": 1, "kind": "register_producer", "name": None, "more": value})
    assert disk.read_file(PATH) == before


def test_the_file_is_rewritten_when_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every fault and a power cut at every step of it."""
    monkeypatch.setattr(catalog_store, "GROWTH_BYTES", 400)
    for fault in (None, *THEN):
        disk = SimDisk()
        life = Life(disk)
        for _ in range(40):
            if fault is not None:
                disk.fail(fault, errno.EIO, path=".tmp" if fault in ("write", "sync") else "")
            life.execute({"v": 1, "kind": "register_producer"})
            life.check_every_end(disk)
            disk.heal()
        if fault != "sync_dir":  # then the name may be that of another file after a power cut
            assert life.promised.producer_names.id_last == 40, f"no reason to refuse: {fault}"
        life.execute({"v": 1, "kind": "register_producer"})
        assert disk.size(PATH) < 2_000
    for crash_at in range(7, 60):  # beyond the start
        disk = SimDisk(crash_at=crash_at, seed=crash_at)
        life = Life(disk)
        with suppress(Crashed):
            for _ in range(60):
                life.execute({"v": 1, "kind": "register_producer"})
        assert disk.is_dead
        for mode in MODES:
            life.check(disk.after_crash(mode, seed=crash_at))


FREEING = [
    {"v": 1, "kind": "delete_stream", "name": "a"},
    {"v": 1, "kind": "alter_stream", "name": "a", "settings": {"retention_ms": 5000}},
    {"v": 1, "kind": "set_state", "name": "a", "read_only": True},
    {"v": 1, "kind": "register_broker", "broker_id": "b", "incarnation": "i", "http": "h", "grpc": "g"},
    {"v": 1, "kind": "forget_deleted", "incarnations": []},
]
GROWING = [
    create("b"),
    {"v": 1, "kind": "add_partitions", "name": "a", "partitions": 2},
    {"v": 1, "kind": "register_producer", "name": "p"},
]


@pytest.mark.parametrize("command", FREEING, ids=lambda command: str(command["kind"]))
def test_what_lets_nothing_grow_is_written_without_a_byte(command: dict[str, Any]) -> None:
    """K5, with the power cut at every step."""
    for steps in itertools.count(1):
        disk = SimDisk(seed=steps)
        life = Life(disk)
        assert life.execute(create("a"))
        disk.spares = [4096]
        disk.bytes_max = disk.used_bytes + 30
        disk.crash_at = disk.steps + steps
        try:
            assert not life.execute(create("b"))
            assert life.execute(command)
            assert disk.spares == []
            break
        except Crashed:
            for mode in MODES:
                life.check(disk.after_crash(mode, seed=steps))
    life.check_every_end(disk)
    assert steps > 5


@pytest.mark.parametrize("command", GROWING, ids=lambda command: str(command["kind"]))
def test_what_grows_gets_no_spare_file(command: dict[str, Any]) -> None:
    """K5: those are for what makes room again. A group of brokers refuses the same first (`core.A12`)."""
    assert grows(command)
    disk = SimDisk()
    store = CatalogStore(disk, PATH)
    store.execute(create("a"))
    disk.spares = [4096]
    disk.bytes_max = disk.used_bytes + 30
    with pytest.raises(DiskFull):
        store.execute(command)
    assert disk.spares == [4096]
    disk.bytes_max = None
    store.execute(command)


def test_a_disk_without_a_byte_is_named() -> None:
    disk = SimDisk()
    store = CatalogStore(disk, PATH)
    store.execute(create("a"))
    disk.bytes_max = disk.used_bytes + 30
    for command in (create("b"), *FREEING):
        with pytest.raises(DiskFull) as refused:
            store.execute(command)
        assert "sent" not in refused.value.fields
    disk = disk.after_kill()
    disk.bytes_max = disk.used_bytes
    with pytest.raises(DiskFull):
        CatalogStore(disk, PATH)
    disk.spares = [4096]
    assert sorted(CatalogStore(disk, PATH).catalog.streams) == ["a"]
