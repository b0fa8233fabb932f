"""A SPARK_HOME whose Python workers start in a third of the time.

Spark puts `pyspark.zip` first on the path of its Python workers, and Python keeps no bytecode for a zip file: each
worker that starts compiles pyspark anew, for half a second of a core. Spark starts some for every query. Here the same
paths are folders, and the package in them is the installed one, which has its bytecode.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

HOME: Final = Path(sys.prefix) / f"spark-home-{version('pyspark')}"


def unpacked() -> Path:
    """Make it if it is not there; the process that starts Spark needs it as the variable SPARK_HOME."""
    if not HOME.exists():
        half = HOME.with_name(f"{HOME.name}.{os.getpid()}")
        _make(half)
        try:
            half.rename(HOME)
        except OSError:  # another process was faster
            shutil.rmtree(half)
    return HOME


def _make(home: Path) -> None:
    installed, py4j = _installed("pyspark"), _installed("py4j")
    library = home / "python" / "lib"
    library.mkdir(parents=True)
    for path in installed.iterdir():
        if path.name != "python":
            (home / path.name).symlink_to(path)
    for path in (installed / "python" / "lib").iterdir():
        package = installed if path.name.startswith("pyspark") else py4j
        (library / path.name).mkdir()
        (library / path.name / package.name).symlink_to(package)


def _installed(package: str) -> Path:
    """Its folder; it is not imported, which takes its time in every process that runs tests."""
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent
