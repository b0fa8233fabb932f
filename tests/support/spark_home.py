"""A SPARK_HOME whose Python workers start in a third of the time.

Spark puts `pyspark.zip` first on the path of its Python workers, and Python keeps no bytecode for a zip file: each
worker that starts compiles pyspark anew, for half a second of a core. Spark starts some for every query. Here the same
paths are folders, and the package in them is the installed one, which has its bytecode.
"""

from __future__ import annotations

from pathlib import Path

import py4j
import pyspark


def unpacked(folder: Path) -> Path:
    """Make one in `folder` and return it; the process that starts Spark needs it as the variable SPARK_HOME."""
    installed, home = Path(pyspark.__file__).parent, folder / "spark-home"
    library = home / "python" / "lib"
    library.mkdir(parents=True)
    for path in installed.iterdir():
        if path.name != "python":
            (home / path.name).symlink_to(path)
    for path in (installed / "python" / "lib").iterdir():
        package = installed if path.name.startswith("pyspark") else Path(py4j.__file__).parent
        (library / path.name).mkdir()
        (library / path.name / package.name).symlink_to(package)
    return home
