"""Goal: what a broker counts is what there is, after each change and each failure half-way through one.

    files      the logs that are counted as open are those that have a file; below the folder nothing else is open
    room       a file that nobody has open is as long as what it holds; one that is open runs ahead by its room
    under way  no bytes between NATS and the disk, no append in a queue, no request body, no waiter
    records    as many were counted as the log has taken
    stages     as many bytes are staged as live stages have
    reserve    what counts as free is what the system said when it was last asked, less all that was written since
    spares     the spare files that there are, are those that count as there, each alone and as large as it should be

Method: random appends and changes of a few streams, random calls to the disk that fail, a file system that others fill,
no room for spare files for a while; what is counted is compared after each step. At the end all streams are deleted,
and only what is the broker's own is left.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.errors import LiftlogError
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.sinks.rounds import SinkRounds
from broker.node.sinks.stage_log import StageLog
from broker.serving.http.app import SERVING
from broker.serving.http.body import BodyBudget
from broker.storage.disk.spare_files import Spares
from broker.storage.log import AppendResult, PartitionLog, StoredGroup
from broker.storage.segments.chain import AHEAD_BYTES
from tests.properties.gates import appends
from tests.properties.gates.rig import Rig
from tests.properties.gates.table import running
from tests.support.effort import EFFORT, first_short, seeded
from tests.support.waiting import until

pytestmark = pytest.mark.slow

STEPS = 60 * EFFORT
NAMES = ("a", "b", "c")
FAULTS = ("write", "sync", "open", "unlink", "replace", "sync_dir", "remove_tree")


class Place:
    """The file system: what the broker has of it, what others have, and what was written when it was last asked.

    Attributes:
        others_bytes: Bytes that other programs have written.
        free_bytes: As it was told; -1: nobody has asked.
        written_bytes: By the broker until then, of what the reserve is kept from.
        is_full: There is no room for spare files.
    """

    total_bytes = 1 << 30

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, written: Callable[[], int]) -> None:
        self.others_bytes = 0
        self.free_bytes = -1
        self.written_bytes = 0
        self.is_full = False
        self._folder = folder
        self._written = written
        patch.setattr(os, "statvfs", self._statvfs)
        make = Spares._make

        def make_if_there_is_room(spares: Spares, path: str, size: int) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            make(spares, path, size)

        patch.setattr(Spares, "_make", make_if_there_is_room)

    def _statvfs(self, _: str) -> Any:
        used = 0
        for path in self._folder.rglob("*"):
            with suppress(FileNotFoundError):
                used += path.stat().st_blocks * 512
        self.free_bytes = max(0, self.total_bytes - used - self.others_bytes)
        self.written_bytes = self._written()
        return SimpleNamespace(f_bavail=self.free_bytes, f_frsize=1, f_blocks=self.total_bytes)


class Life:
    """The life of a broker's disk, step by step."""

    def __init__(self, rig: Rig, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.rig = rig
        self.staged_bytes = 0
        self.place = Place(rig.folder, patch, self.written_bytes)
        append_group = StageLog._append_group

        def counted(log: StageLog, group: StoredGroup) -> AppendResult:
            result = append_group(log, group)
            self.staged_bytes += result.bytes
            return result

        patch.setattr(StageLog, "_append_group", counted)
        self.rng = random.Random(seeded(seed))
        self.began: dict[Partition, int] = {}
        self.epochs: dict[str, int] = {}
        self.number = 0

    async def step(self) -> str:
        name, rng, broker = self.rng.choice(NAMES), self.rng, self.rig.broker
        faulty = ""
        if rng.random() < 0.4:
            faulty = rng.choice(FAULTS)
            kind = rng.choice([errno.EIO, errno.ENOSPC])
            self.rig.gates.fail(faulty, lambda path: f"/streams/{name}/" in path, kind)
        if self.place.others_bytes or rng.random() < 0.05:
            self.place.others_bytes = rng.choice([0, self.place.total_bytes])
        self.place.is_full = rng.random() < 0.2
        act = rng.choice([self.create, self.append, self.append, self.append, self.sink, self.change, self.background])
        try:
            done = await act(name)
        except LiftlogError as error:
            done = f"{act.__name__}: {error}"
        self.rig.gates.open_all()
        for partition in broker._streams.all_partitions():
            self.began.setdefault(partition, partition.log.state.log_end_offset - partition.replica.record_count)
        return f"{name} {faulty} {done}"

    async def create(self, name: str) -> str:
        await self.rig.broker.create_stream(
            name, {"subject": f"{name}.>", "partition_by": "key", "segment_bytes": 1 << 16}
        )
        return "create"

    async def append(self, name: str) -> str:
        self.number += 1
        values = [b"%d-%d" % (self.number, i) for i in range(self.rng.choice([1, 2, 40]))]
        if self.rng.random() < 0.5 and name in self.rig.intake._streams:
            outcome = await self.rig.publish(name, *values, replies=(self.rng.randrange(len(values)),))
        else:
            outcome = await self.rig.post(name, *values)
        return f"append: {outcome.fate} {outcome.reason}"

    async def sink(self, name: str) -> str:
        if name not in self.epochs:
            self.epochs[name] = await appends.opened(self.rig, name)
        staged = await appends.stage(self.rig, name, self.epochs[name])
        committed = await appends.commit(self.rig, name, self.epochs[name])
        return f"sink: {staged} {committed}"

    async def change(self, name: str) -> str:
        broker, rng = self.rig.broker, self.rng
        match rng.randrange(7):
            case 0:
                await broker.delete_stream(name)
                return "delete"
            case 1:
                await broker.alter_stream(name, {"batch_records": rng.randint(5, 50)})
                return "alter"
            case 2:
                await broker.set_stream_state(name, paused=rng.random() < 0.3)
                return "paused"
            case 3:
                await broker.set_stream_state(name, read_only=rng.random() < 0.3)
                return "read only"
            case 4:
                await broker.add_partitions(name, broker.stream(name).settings.partitions + 1)
                return "add partitions"
            case number:
                if number == 6:
                    self.rig.gates.fail("space", lambda path: f"/streams/{name}/" in path, errno.ENOSPC)
                incarnation = broker.stream(name).incarnation
                end = broker.partition(name, 0).log.state.log_end_offset
                await broker.trim_stream(name, incarnation, {0: rng.randint(0, end + 1)})
                return "trim" if number == 5 else "trim with no room for a checkpoint"

    async def background(self, name: str) -> str:
        """A round of the cleaner over one stream."""
        each = self.rig.broker._cleaner._each
        for partition in self.rig.broker.partitions(name):
            match self.rng.randrange(4):
                case 0:
                    each([partition.replica], lambda replica: replica.checkpoint(0.0), "checkpoint")
                case 1:
                    partition.sync_if_due(time.monotonic())
                case 2:
                    each([partition.replica], lambda replica: replica.log.roll_if_due(1 << 60), "clean")
                case _:
                    each([partition.replica], Replica.rest_if_quiet, "clean")
        SinkRounds(self.rig.broker.sinks.coordinator()).sweep()
        return "background"

    def fits(self, partition: Partition, logs: list[PartitionLog]) -> bool:
        """Whether each file is as long as what it holds, and what is allocated ahead of the end; or goes right now."""
        if partition.removed:
            return True
        disk, is_open = self.rig.broker._disk, files_of(logs)
        for segment in partition.log.state.view().segments:
            ahead = AHEAD_BYTES if segment.path in is_open else 0
            try:
                length = os.stat(segment.path).st_size
            except FileNotFoundError:
                return False
            if not segment.size(disk) <= length <= segment.size(disk) + ahead:
                return False
        return True

    def written_bytes(self) -> int:
        """Bytes that the logs of streams have taken, also of those that are gone, and bytes that were staged."""
        replicas = [partition.replica for partition in self.began if partition.replica.room is not None]
        return self.staged_bytes + sum(replica.byte_count for replica in replicas)

    def room_fits(self) -> bool:
        room, place = self.rig.broker._room, self.place
        left = place.free_bytes - (self.written_bytes() - place.written_bytes)
        return place.free_bytes < 0 or (room._left, room.is_short) == (left, place.free_bytes <= room.reserve_bytes)

    def spares_fit(self) -> bool:
        spares = self.rig.broker._disk._spares
        assert spares is not None
        with spares._lock:
            found = {int(path.name): path.stat() for path in (self.rig.folder / "spare").iterdir()}
            return (
                not spares._in_use
                and found.keys() == spares._there
                and spares.is_short == (len(found) < len(spares._sizes))
                and all(
                    (one.st_nlink, one.st_size) == (1, spares._sizes[number]) and one.st_blocks * 512 >= one.st_size
                    for number, one in found.items()
                )
            )

    async def check(self) -> None:
        rig, streams = self.rig, self.rig.broker._streams
        partitions = streams.all_partitions()
        await rig.rests(partitions)
        hidden = [store._hidden._log for store in rig.stores() if store._hidden._log is not None]
        logs = [*(partition.log for partition in partitions), *hidden]
        await until(lambda: sorted(files_open(rig.folder, ".arrows")) == files_of(logs), "other files are open")
        for partition in partitions:
            # The thread of `fsync = interval` may recover a log, with other segments then, or wake it, at any moment.
            await until(partial(self.fits, partition, logs), f"{partition}: a file has another length than it should")
            assert partition.log.state.log_end_offset == self.began[partition] + partition.replica.record_count
        for store in rig.stores():
            table = store._hidden._table
            if table is not None:
                parts = [part for stage in table.stages.values() for part in stage.parts.values()]
                assert bool(store.byte_count()) == bool(parts)
        assert budget(rig).bytes_now == 0
        await until(self.spares_fit, "the spare files are others than those that count as there")
        await until(self.room_fits, "what counts as free is not what there was less what was written since")


def files_of(logs: Sequence[PartitionLog]) -> list[str]:
    """The files that logs say they have open: their tails, and those sealed since their last fsync."""
    chains = [log.state.chain for log in logs]
    tails = [chain.tail.path for chain in chains if chain.tail is not None and chain.file is not None]
    return sorted(tails + [file._path for chain in chains for file in chain._retired])  # type: ignore[attr-defined]


def files_open(folder: Path, ending: str = "") -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if target.startswith(str(folder)) and target.removesuffix(" (deleted)").endswith(ending):
            found.append(target)
    return found


def budget(rig: Rig) -> BodyBudget:
    runner = rig.broker._dataplane._runner
    assert runner is not None
    return runner.app[SERVING].budget


@pytest.mark.parametrize("seed", first_short(range(12), count=4))
async def test_what_is_counted_is_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    async with running(tmp_path / "data", monkeypatch) as rig:
        rig.expects_faults()
        life = Life(rig, seed, monkeypatch)
        done = []
        for _ in range(STEPS):
            done.append(await life.step())
            try:
                await life.check()
            except AssertionError as error:
                raise AssertionError("\n".join([*done, str(error)])) from error
        for name in NAMES:
            if any(info.name == name for info in rig.broker.streams()):
                await rig.broker.delete_stream(name)
        await life.check()
        left = rig.broker._streams.all_partitions()
        assert {partition.stream for partition in left} == {"__audit", "__commits", "__offsets"}
        assert rig.stores() == []
        assert not rig.intake._streams
        own = ["__audit", "__commits", "__offsets"]
        await until(lambda: sorted(path.name for path in (rig.folder / "streams").iterdir()) == own, "a folder is left")
    assert files_open(tmp_path) == []
