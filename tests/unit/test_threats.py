"""docs/explain/security.md: each attacker at each surface has a limit, and each limit a test that is there."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.support.named_tests import ROOT, named_in

PAGE: Final = (ROOT / "docs" / "explain" / "security.md").read_text()
SECTIONS: Final = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
ATTACKERS: Final = ["L", "W", "N", "S", "P", "C"]
SURFACES: Final = (
    "HTTP",
    "The link between brokers",
    "Raft",
    "NATS intake",
    "The command line and files",
    "Spark",
)


@pytest.mark.parametrize("surface", SURFACES)
def test_each_attacker_has_a_row_that_names_a_test_or_says_why_there_is_none(surface: str) -> None:
    rows = re.findall(r"^\| (\w) \| (.+) \| (.+) \|$", SECTIONS[surface], re.MULTILINE)
    assert [who for who, _, _ in rows] == ATTACKERS
    for who, worst, shown in rows:
        assert worst.endswith("."), (surface, who)
        named = [name for name in named_in(shown) if "::" in name]
        assert bool(named) is not shown.startswith("not shown: "), (surface, who)


def test_every_attacker_is_introduced_and_every_named_test_is_there() -> None:
    assert re.findall(r"^\| (\w) \|", SECTIONS["Who attacks"], re.MULTILINE) == ATTACKERS
    assert len(set(named_in(PAGE))) >= 50
