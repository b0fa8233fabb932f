"""A broker loads no pandas, also where it is installed for Spark or the client.

pyarrow looks for it when it first makes an array of a list: a second of a core amid a request, with all other threads
held up, and 56 MB for good. With no descriptor to spare it even fails.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ImportError("a broker loads no pandas", name=name)


def do_without_pandas() -> None:
    """Have pyarrow look for pandas, once for this process, and find none."""
    import pyarrow as pa

    hidden = _NoPandas()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(hidden)
