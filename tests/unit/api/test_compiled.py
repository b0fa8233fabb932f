"""A compiled module is used where it belongs to the sources beside it, and nowhere else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker.api.compiled import sources_digest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
SHOW = (
    "import broker.client.reading.gathering as g, broker.api.checked as c, broker.ingest as i\n"
    "print(g.IMPLEMENTATION, i.IMPLEMENTATION, c.verified.__module__)"
)
PURE = "pure pure broker.api.batch"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package with its compiled modules, as an editable install has it."""
    if not list((ROOT / "broker/api/gathered").glob("_gathering*.so")):
        pytest.skip("nothing compiled here")
    shutil.copytree(ROOT / "broker", tmp_path / "broker", ignore=shutil.ignore_patterns("__pycache__", "_*.c"))
    return tmp_path


def show(tree: Path) -> tuple[str, str]:
    """The implementation that is used there, and the warnings."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def test_modules_built_from_these_sources_are_used(tree: Path) -> None:
    assert show(tree) == ("compiled compiled broker.api._checked", "")


def test_a_module_beside_other_sources_is_passed_over_with_a_warning_that_says_how_to_mend_it(tree: Path) -> None:
    for source in ("broker/api/_some.pxi", "broker/api/gathered/_loan.pxi", "broker/ingest/_intake.pyx"):
        with (tree / source).open("a") as file:
            file.write("# as after a git pull\n")
    used, said = show(tree)
    assert used == PURE
    for name in ("broker.api._checked", "broker.api.gathered._gathering", "broker.ingest._intake"):
        assert (
            f"RuntimeWarning: {name} is not used; its slower twin in Python is used instead: it was built from other"
            in said
        )
    assert "make install" in said


def test_a_module_that_cannot_be_imported_is_passed_over_too(tree: Path) -> None:
    """As one that imports a name which the Python modules have no longer, or one for another machine."""
    for library in (
        *tree.glob("broker/api/*.so"),
        *tree.glob("broker/api/gathered/*.so"),
        *tree.glob("broker/ingest/*.so"),
    ):
        library.write_bytes(b"no library")
    used, said = show(tree)
    assert used == PURE
    assert (
        "broker.ingest._intake is not used; its slower twin in Python is used instead: it cannot be imported (" in said
    )


def test_a_wheel_has_no_sources_to_compare(tree: Path) -> None:
    for source in (*tree.glob("broker/**/*.pyx"), *tree.glob("broker/**/*.pxi")):
        source.unlink()
    assert show(tree) == ("compiled compiled broker.api._checked", "")
    assert sources_digest(tree / "broker/api/gathered") == ""


def test_a_digest_tells_names_and_contents_apart(tmp_path: Path) -> None:
    digests = set()
    for name, content in (("a.pyx", "x"), ("a.pyx", "y"), ("b.pxi", ""), ("b.pxi", "x")):
        (tmp_path / name).write_text(content)
        digests.add(sources_digest(tmp_path))
    assert len(digests) == 4
    (tmp_path / "c.py").write_text("not compiled")
    assert sources_digest(tmp_path) in digests
