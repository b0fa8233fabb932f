"""Workers of the first lane collect the same, each from a place of its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lanes import FIRST, has_some
from tests.support import turns

ROOT = Path(__file__).parents[2]


def taken(worker: str, lane: str = FIRST, source: str = "TESTPATHS") -> list[str]:
    config: Any = SimpleNamespace(
        workerinput={"workerid": worker, "workercount": 3},
        option=SimpleNamespace(lane=lane),
        args_source=SimpleNamespace(name=source),
        args=["given"],
        rootpath=ROOT,
    )
    turns.take(config)
    return list(config.args)


def test_all_workers_take_every_file_of_the_lane() -> None:
    found = [taken(f"gw{worker}") for worker in range(3)]
    assert found[0] == sorted(found[0]) == sorted(found[1]) == sorted(found[2])
    assert len({paths[0] for paths in found}) == 3
    files = (path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    below = [*(f"{path}/" for path in found[0]), *found[0]]
    left = [file for file in files if not file.startswith(tuple(below))]
    assert not [file for file in left if has_some(FIRST, file)]


def test_who_names_files_or_a_shard_gets_those() -> None:
    assert taken("gw1", source="ARGS") == taken("gw1", lane="cluster") == ["given"]


@pytest.mark.parametrize(("part", "first"), [(0, "a"), (1, "b"), (2, "c"), (3, "d")])
def test_each_begins_at_its_part_by_size(part: int, first: str) -> None:
    sizes = {"a": 10, "b": 8, "c": 12, "d": 10, "e": 0}
    begun = turns.begun_at(part, 4, sizes)
    assert begun[0] == first
    assert sorted(begun) == list(sizes)
