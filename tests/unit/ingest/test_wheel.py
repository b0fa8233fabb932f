"""Goal: the wheel is what it says: compiled and tagged for a platform, or pure, tagged so and with a warning.

Method: build both from a copy of the tree that is littered with what earlier builds leave.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("broker", "spark_liftlog", "pyspark_liftlog", "pyproject.toml", "setup.py", "LICENSE")
COMPILERS = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, with a stale extension, its C file and a stale build folder."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / part, tree / part)
    (tree / "README.md").write_text("its text does not matter here")
    (tree / "broker/ingest/_intake.cpython-30-stale.so").write_bytes(b"stale")
    (tree / "broker/ingest/_intake.c").write_bytes(b"stale")
    (tree / "build/lib/broker/ingest").mkdir(parents=True)
    (tree / "build/lib/broker/ingest/stale.py").write_bytes(b"stale")
    return tree


def wheel_of(tree: Path, **environment: str) -> tuple[Path, str]:
    """Build; return the wheel and what the build printed."""
    command = [sys.executable, "-m", "pip", "wheel", ".", "--verbose", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(tree.parent / "wheels")],
        cwd=tree,
        env={
            **{name: value for name, value in os.environ.items() if name != "LIFTLOG_PURE"},
            "LIFTLOG_COMPILE_ARGS": "-O0 -g0",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    [wheel] = (tree.parent / "wheels").iterdir()
    return wheel, done.stdout


COMPILED = ("broker/api/_checked", "broker/api/gathered/", "broker/ingest/", "broker/client/", "broker/serving/")


def contents(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if name.startswith(COMPILED)]


def test_a_wheel_without_a_compiler_is_pure_and_warns(tree: Path) -> None:
    wheel, printed = wheel_of(tree, CC="/nonexistent/cc")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "liftlog: the compiled intake and gathering were not built" in printed
    assert all(name.endswith(".py") for name in contents(wheel))
    assert not any("stale" in name for name in contents(wheel))


def test_asking_for_a_pure_wheel_gives_one(tree: Path) -> None:
    wheel, printed = wheel_of(tree, LIFTLOG_PURE="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "(LIFTLOG_PURE is set)" in printed


@pytest.mark.skipif(not COMPILERS, reason="no compiler")
def test_a_wheel_with_a_compiler_has_the_extensions_and_nothing_stale(tree: Path) -> None:
    wheel, _ = wheel_of(tree, LIFTLOG_REQUIRE_EXTENSION="1")
    assert "-none-any" not in wheel.name
    checks, gathering, decoder, intake, records = sorted(name for name in contents(wheel) if not name.endswith(".py"))
    assert checks.startswith("broker/api/_checked.")
    assert decoder.startswith("broker/client/payload/_json.")
    assert gathering.startswith("broker/api/gathered/_gathering.")
    assert intake.startswith("broker/ingest/_intake.")
    assert records.startswith("broker/serving/liftbridge/_records.")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(intake) != b"stale"
    assert not any("stale" in name for name in contents(wheel))
    assert {path.name for path in (tree / "broker/ingest").glob("_intake*")} == {
        "_intake.pyx",
        "_intake.c",  # the stale one: the build writes none
        "_intake.cpython-30-stale.so",
    }
    assert (tree / "broker/ingest/_intake.c").read_bytes() == b"stale"
