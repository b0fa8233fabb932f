"""The pages that are written from the code are what it says now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pages import PAGES


@pytest.mark.parametrize(("path", "page"), PAGES.items(), ids=[path.stem for path in PAGES])
def test_a_page_is_what_the_code_says(path: Path, page: Callable[[], str]) -> None:
    assert path.read_text() == page(), "write it anew: python -m tests.pages"
