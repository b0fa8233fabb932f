"""Compiled modules beside the sources that they were built from: used only where the two belong together.

After a `git pull` an editable install has new sources beside a module that was built from the former ones. That one may
fail to be imported, for a name that is gone, or work and do what the sources do no longer. So the build puts a digest
of its sources into the module (`SOURCES`), and whoever loads it compares. A wheel has no sources: nothing to compare.

Standard library only: setup.py runs this file by its path, before anything is installed.
"""

from __future__ import annotations

import hashlib
import importlib
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType


def sources_digest(folder: Path) -> str:
    """A digest of the sources of a folder's compiled module (*.pyx, *.pxi, *.h); "" if there are none."""
    paths = sorted(path for path in folder.iterdir() if path.suffix in (".pyx", ".pxi", ".h"))
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16] if paths else ""


@cache
def load_compiled(name: str, *, otherwise: str = "its slower twin in Python is used instead") -> ModuleType | None:
    """Import a compiled module.

    Args:
        otherwise: What happens without it, for the warning.
    Returns:
        None: it was not built here; or, with a RuntimeWarning that says how to mend it, it does not belong to the
        sources beside it or cannot be imported.
    """
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return None
        why = f"it cannot be imported ({error})"
    else:
        expected = sources_digest(Path(str(module.__file__)).parent)
        if expected in ("", getattr(module, "SOURCES", None)):
            return module
        why = "it was built from other sources than those beside it"
    warnings.warn(
        f"{name} is not used; {otherwise}: {why}. Build it again: make install, or python setup.py build_ext --inplace",
        RuntimeWarning,
        stacklevel=2,
    )
    return None
