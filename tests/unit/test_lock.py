"""Goal: what `make install` fetches is known to the byte, and is what pyproject.toml asks for.

Method: read both lock files as pip does: a requirement a line, its hashes behind it.
"""

from __future__ import annotations

import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FILES = ("requirements.lock", "requirements-build.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked(file: str) -> list[tuple[Requirement, int]]:
    """Each entry, and how many hashes it has."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.lstrip().startswith("#")]
    entries = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(Requirement(entry.split(" --hash")[0]), entry.count("--hash=sha256:")) for entry in entries]


@pytest.mark.parametrize("file", FILES)
def test_each_entry_is_one_version_with_hashes(file: str) -> None:
    for entry, hashes in locked(file):
        assert [each.operator for each in entry.specifier] == ["=="], entry
        assert hashes > 0, entry
        assert entry.url is None, entry


@pytest.mark.parametrize("file", FILES)
def test_no_file_names_where_it_was_made(file: str) -> None:
    text = (ROOT / file).read_text()
    assert "://" not in text
    assert "index-url" not in text
    assert "/" not in "".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", "--hash")))


@pytest.mark.parametrize("wanted", [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())])
def test_a_dependency_is_locked_at_a_version_that_it_allows(wanted: str) -> None:
    """If it fails: `make lock`, and look at the difference."""
    requirement = Requirement(wanted)
    found = [
        entry for entry, _ in locked(FILES[0]) if canonicalize_name(entry.name) == canonicalize_name(requirement.name)
    ]
    assert found, "it is not locked"
    for entry in found:
        version = next(iter(entry.specifier)).version
        assert requirement.specifier.contains(version, prereleases=True), f"{version} is locked"


def test_what_builds_is_what_is_locked() -> None:
    """The one is installed before the other, which would exchange it in the midst of a build."""
    everything = {canonicalize_name(entry.name): str(entry.specifier) for entry, _ in locked(FILES[0])}
    for entry, _ in locked(FILES[1]):
        assert everything.get(canonicalize_name(entry.name), str(entry.specifier)) == str(entry.specifier)
