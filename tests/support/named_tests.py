"""Tests that a page of docs names by file and function: each has to be there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
NAMED: Final = re.compile(r"`(tests/[\w/.]+)(?:::(\w+))?`")


def named_in(text: str) -> list[str]:
    """The names of tests in a text; of a whole file: its path.

    Raises:
        AssertionError: one is not there.
    """
    named = NAMED.findall(text)
    for path, name in named:
        assert (ROOT / path).exists(), f"{path} is not there: {text[:80]}"
        found = (ROOT / path).read_text() if name else ""
        assert not name or re.search(rf"^(?:async )?(?:def|class) {name}\b", found, re.MULTILINE), f"{path}::{name}"
    return [f"{path}::{name}" if name else path for path, name in named]
