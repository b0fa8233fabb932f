"""The pages of docs that are written from the code: `python -m tests.pages` writes them anew.

`tests/unit/test_pages.py` holds each against what this command would write.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support import decisions, errors, limits, mistakes, permissions

PAGES: Final[dict[Path, Callable[[], str]]] = {
    decisions.PAGE: decisions.page,
    errors.PAGE: errors.page,
    limits.PAGE: limits.page,
    mistakes.PAGE: mistakes.page,
    permissions.PAGE: permissions.page,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page())
