"""In which order a worker of the first lane collects: each begins somewhere else.

pytest writes the asserts of each file anew, and keeps what it has written. In a fresh clone that is 30 of the 40 s that
a collection takes, and workers that go side by side do it once each. Where each begins at a part of its own, it finds
what the others have written when it comes to theirs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lanes import FIRST, has_some


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is one of several that run tests."""
    return hasattr(config, "workerinput")


def take(config: pytest.Config) -> None:
    """Set what is collected, if it is the whole first lane: the same, from where this worker begins."""
    if not is_worker(config) or config.option.lane != FIRST or config.args_source.name != "TESTPATHS":
        return
    given = config.workerinput  # type: ignore[attr-defined]
    part, parts = int(given["workerid"].removeprefix("gw")), int(given["workercount"])
    sizes = {name: _size(config.rootpath / name) for name in _paths(config.rootpath)}
    config.args = begun_at(part, parts, sizes)


def begun_at(part: int, parts: int, sizes: dict[str, int]) -> list[str]:
    """The paths in a circle, from the one where `part` of `parts`, by size, begins."""
    paths, begins, before = list(sizes), sum(sizes.values()) * part / parts, 0
    for at, size in enumerate(sizes.values()):
        before += size
        if before > begins:
            return paths[at:] + paths[:at]
    return paths


def _paths(root: Path) -> list[str]:
    """What `tests` consists of: its folders, those of `tests/unit` one by one, and files, in order."""
    paths = [*(root / "tests").iterdir(), *(root / "tests" / "unit").iterdir()]
    named = {path.relative_to(root).as_posix(): path for path in paths if path.name != "unit"}
    return sorted(name for name, path in named.items() if _size(path) and has_some(FIRST, name))


def _size(path: Path) -> int:
    """Bytes of tests in a folder or file."""
    files = path.rglob("test_*.py") if path.is_dir() else [path] if path.match("test_*.py") else []
    return sum(file.stat().st_size for file in files)
