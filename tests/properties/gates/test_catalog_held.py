"""Goal: a change whose line in the catalog is held, or refused by the disk, holds up nobody else and is wholly done or
not at all.

Method: as `test_gates.py`; the gate is at the catalog's write or fsync, and what comes beside it are appends.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from broker.api.errors import StorageFailed
from tests.properties.gates.changes import CHANGES
from tests.properties.gates.rig import BEFORE, soon
from tests.properties.gates.table import running
from tests.support.waiting import until

WRITING = [name for name in CHANGES if name not in ("stop", "trim", "delete and create", "pause and resume")]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("change", WRITING),
    pytest.mark.parametrize("point", ["write", "sync"]),
]


def is_catalog(path: str) -> bool:
    return path.endswith("catalog.log")


async def test_appends_go_on_while_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, point: str
) -> None:
    async with running(tmp_path / "data", monkeypatch) as rig:
        await rig.create("s")
        await rig.create("other")
        gate = rig.gates.hold(point, is_catalog)
        changing = asyncio.ensure_future(CHANGES[change].act(rig, "s"))
        await until(gate.reached.is_set, "the catalog is not written")
        beside = [await soon(asyncio.ensure_future(rig.post("s", b"beside")))]
        assert (await soon(asyncio.ensure_future(rig.post("other", b"a")))).fate == "acked"
        assert (await soon(asyncio.ensure_future(rig.publish("other", b"b")))).fate == "acked"
        assert not changing.done(), "told before it is recorded"
        gate.open()
        await soon(changing)
        after = await rig.post("s", b"after")
        assert after.reason == CHANGES[change].after
        await rig.stop()
        expected = [BEFORE, *(value for told in (*beside, after) if told.fate == "acked" for value in told.values)]
        assert change == "delete" or rig.stored("s")[0] == expected
        assert rig.stored("other") == [[BEFORE, b"a", b"b"]]


async def test_one_that_the_disk_refuses_changes_nothing_and_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, point: str
) -> None:
    async with running(tmp_path / "data", monkeypatch) as rig:
        rig.expects_faults()
        await rig.create("s")
        before = rig.broker.stream("s")
        rig.gates.fail(point, is_catalog, errno.EIO)
        with pytest.raises(StorageFailed):
            await soon(asyncio.ensure_future(CHANGES[change].act(rig, "s")))
        assert rig.broker.stream("s") == before
        told = [await rig.post("s", b"a"), await rig.publish("s", b"b"), await rig.publish("s", b"c")]
        assert [one.fate for one in told] == ["acked"] * 3
        await soon(asyncio.ensure_future(CHANGES[change].act(rig, "s")))
        assert (await rig.post("s", b"after")).reason == CHANGES[change].after
        await rig.stop()
        assert change == "delete" or rig.stored("s")[0][:4] == [BEFORE, b"a", b"b", b"c"]
