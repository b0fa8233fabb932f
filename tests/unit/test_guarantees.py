"""docs/explain/guarantees.md: every promise names the test that shows it, and that test is there."""

from __future__ import annotations

import re

from tests.support.named_tests import ROOT, named_in

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
        assert any("::" in name for name in named_in(shown_by)), f"names no test: {row[:80]}"
