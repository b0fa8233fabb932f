"""Whoever writes to a data folder stands in the table of writers, with what it may use of the disk, and stops there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import DiskFull
from broker.background.compactor import Compactor
from broker.runtime.clustered import ClusterBroker
from tests.support.logs import row_batch
from tests.support.waiting import until
from tests.support.writers import WRITERS
from tests.unit.runtime.test_control import append, folders, running
from tests.unit.runtime.test_room import Place

ROOT = Path(__file__).parents[2]
WRITES = re.compile(
    r"replace_file\(|\bcreate=True|open_fixed\(|\.allocate\(|O_CREAT|write_text\(|write_bytes\("
    r"|\bopen\([^)\n]*\"[wax]b?\"|with open\([^)\n]*, \"[wax]b?\""
)
TO_NO_FOLDER = {"broker/cli/main.py", "broker/cli/doctor/machine.py"}
"""They open /dev/null, and try what a disk can do in a file that is removed at once."""


def sources() -> dict[str, str]:
    found = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "broker").rglob("*.py")}
    return {name: text for name, text in found.items() if not name.startswith("broker/storage/disk/")}


def test_who_makes_replaces_or_lengthens_a_file_stands_in_the_table() -> None:
    texts = sources()
    writing = {name for name, text in texts.items() if WRITES.search(text)} - TO_NO_FOLDER
    named = {f"broker/{module}" for writer in WRITERS for module in writer.modules}
    assert not writing - named, "say in tests/support/writers.py what it may use of the disk"
    assert named <= texts.keys(), "it is there no more"


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: str(writer.what)[:40])
def test_what_fills_the_disk_through_it_is_there(writer: Any) -> None:
    for test in writer.tests:
        path, _, name = test.partition("::")
        assert name, "a test, not a file of them"
        assert f"def {name}(" in (ROOT / path).read_text(), test


def small(broker: ClusterBroker, eighths: float) -> Place:
    """Let so many eighths of the reserve be free."""
    room = broker._room
    place = Place(free=int(room._wanted * eighths / 8), total=1 << 60)
    room._look, room._looked_s = place.look, float("-inf")
    return place


async def test_no_folder_is_made_at_the_reserve(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {})
        small(broker, 8)
        with pytest.raises(DiskFull):
            await broker.create_stream("t", {})
        with pytest.raises(DiskFull):
            await broker.add_partitions("s", 2)
        assert (await broker.create_stream("s", {}))[1] is False, "it is there already"
        assert (len(folders(tmp_path, "s")), folders(tmp_path, "t")) == (1, [])
        with pytest.raises(DiskFull):
            await append(broker, "s")
        await broker.delete_stream("s")
        await until(lambda: folders(tmp_path, "s") == [], "its folder is there")


async def test_consumers_commit_until_half_of_the_reserve(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        offsets = broker.partition("__offsets", 0)
        small(broker, 5)
        assert await committed(offsets)
        small(broker, 4)
        with pytest.raises(DiskFull):
            await committed(offsets)


async def committed(partition: Any) -> bool:
    return bool((await asyncio.wrap_future(partition.append([row_batch([b"v"])]))).next_offset)


async def test_rewriting_stops_at_the_reserve_and_later_for_the_brokers_own_streams(tmp_path: Path) -> None:
    """The pace of each pass asks, piece by piece."""
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {"cleanup": "compact"})
        compactor = Compactor(broker.config, lambda: ())
        users, own = (broker.partition(name, 0) for name in ("s", "__offsets"))
        small(broker, 8)
        with pytest.raises(DiskFull):
            compactor._pace(users)(1)
        compactor._pace(own)(1)
        small(broker, 4)
        with pytest.raises(DiskFull):
            compactor._pace(own)(1)
