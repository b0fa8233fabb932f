"""Goal: whatever is done to a stream while an append of it is half-way, both end as if one had come after the other.

    held       an append from NATS, over HTTP, of an idempotent producer; a sink's stage, pin, decision, commit group
    at         its write, its fsync, what comes after the fsync, what its core wants done
    beside     stop, delete, delete and create, alter, add partitions, pause, resume, read-only, trim

Nothing acked is lost and nothing refused is stored, after a restart too; everybody is answered; a change that has to
wait waits. Method: a whole broker, on a disk whose write or fsync waits for the test (disk.py),
with a NATS server of the test; one stream for each point, one after the other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.properties.gates.appends import KINDS
from tests.properties.gates.changes import CHANGES
from tests.properties.gates.table import check, play, running
from tests.support.effort import first_short

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("change", [change for change in CHANGES if change != "stop"])
@pytest.mark.parametrize("kind", first_short(KINDS, count=len(KINDS) // 3))
async def test_both_end_as_if_one_had_come_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, change: str
) -> None:
    async with running(tmp_path / "data", monkeypatch) as rig:
        played = [await play(rig, kind, change, point) for point in KINDS[kind].points]
    for cell in played:
        check(rig, change, cell)


@pytest.mark.parametrize(("kind", "point"), [(kind, point) for kind in KINDS for point in KINDS[kind].points])
async def test_a_stop_waits_for_what_is_held_and_whoever_waits_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, point: str
) -> None:
    async with running(tmp_path / "data", monkeypatch) as rig:
        played = await play(rig, kind, "stop", point)
    check(rig, "stop", played)
