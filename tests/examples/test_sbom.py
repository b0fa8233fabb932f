"""`make sbom`: each package that liftlog needs when it runs is listed, at the version that is locked.

Method: run it as a user does, but for `make install`, which would exchange what these tests run in. What is needed is
asked of the packages themselves, from this project on, and held against the lock file and the list.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("spark", "broker", "liftbridge")
TOOL = ROOT / "build/tools/bin/cyclonedx-py"


def needed(name: str, extras: tuple[str, ...] = ("",)) -> set[str]:
    """What a package needs on this machine, and what that needs."""
    found: set[str] = set()
    waiting = [(name, extras)]
    while waiting:
        name, extras = waiting.pop()
        for text in metadata.requires(name) or ():
            wanted = Requirement(text)
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                key = str(canonicalize_name(wanted.name))
                if key not in found or wanted.extras:
                    waiting.append((wanted.name, tuple(wanted.extras) or ("",)))
                found.add(key)
    return found


def locked() -> dict[str, str]:
    """The version of each package that is locked for this machine."""
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]
    entries = [Requirement(line.rstrip("\\ ")) for line in lines if not line.startswith((" ", "#"))]
    return {
        str(canonicalize_name(each.name)): next(iter(each.specifier)).version
        for each in entries
        if each.marker is None or each.marker.evaluate()
    }


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
@pytest.mark.timeout(900)  # 20 s of CPU time
def test_each_package_that_runs_is_listed_as_it_is_locked() -> None:
    command = ["make", "--old-file=install", f"PYTHON={sys.executable}", "sbom"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    if done.returncode and not TOOL.exists():
        pytest.skip(f"the tool cannot be installed: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    listed = {
        str(canonicalize_name(each["name"])): each["version"]
        for each in json.loads((ROOT / "build/sbom.json").read_text())["components"]
    }
    versions, names = locked(), needed("spark-liftlog", EXTRAS)
    assert {"aiohttp", "cryptography", "h2", "hpack", "pyarrow", "pyjwt", "pynacl", "pyspark"} <= names
    assert {name: listed.get(name) for name in names} == {name: versions.get(name) for name in names}
