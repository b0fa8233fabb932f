"""docs/explain/guarantees.md: every promise names the test that shows it, and that test is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explain" / "guarantees.md").read_text()
PROMISES = re.findall(r"^(\d+)\. \*\*(.+?)\*\*", PAGE.split("\n## ", 1)[0], re.MULTILINE | re.DOTALL)
ROWS = [line for line in PAGE.partition("\n## Shown by")[2].split("\n## ")[0].splitlines() if re.match(r"\| \d", line)]

CASES = [line for line in PAGE.partition("\n## Bad input")[2].split("\n## ")[0].splitlines() if "`tests/" in line]


def test_promises_are_numbered_once_and_in_order() -> None:
    """Each is one sentence, and has a row in the table of tests."""
    numbers = [int(re.match(r"\| (\d+)", row)[1]) for row in ROWS]  # type: ignore[index]
    assert numbers == list(range(1, len(ROWS) + 1)) == [int(number) for number, _ in PROMISES]
    assert all(text.endswith(".") and ". " not in text for _, text in PROMISES)
    assert len(ROWS) >= 14


def test_each_promise_and_each_bad_input_names_a_test_and_each_named_test_is_there() -> None:
    assert len(CASES) >= 16
    for row in [*ROWS, *CASES]:
        shown_by = row.rstrip("| ").rpartition(" | ")[2]
        named = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", shown_by)
        assert any(name for _, name in named), f"names no test: {row[:80]}"
        for path, name in named:
            assert (ROOT / path).exists(), f"{path} is not there: {row[:80]}"
            text = (ROOT / path).read_text() if name else ""
            assert not name or re.search(rf"^(?:async )?(?:def|class) {name}\b", text, re.MULTILINE), f"{path}::{name}"
