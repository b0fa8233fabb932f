"""The list of decision records, in the order of their numbers: authors who work at once each add a line at its end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "adr" / "README.md"
_ENTRY: Final = re.compile(r"^- \*\*(\d+)\*\*", re.MULTILINE)


def page() -> str:
    """The page as it is, its entries sorted. Raises ValueError: a number stands twice."""
    text = PAGE.read_text()
    starts = [found.start() for found in _ENTRY.finditer(text)]
    entries = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    numbered = {int(_ENTRY.match(entry)[1]): entry.rstrip("\n") + "\n" for entry in entries}  # type: ignore[index]
    if len(numbered) != len(entries):
        raise ValueError(f"{PAGE}: a decision record stands twice")
    return text[: starts[0]] + "".join(numbered[number] for number in sorted(numbered))
