"""Each invariant that is cited is defined: `L3` in the module that says it, `log.L3` anywhere else."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "spark_liftlog", "pyspark_liftlog")
DEFINITION = re.compile(r"^(?:# )? *([A-Z]\d{1,2})  +\S")
CITATION = re.compile(r"(?:\b([a-z_]+)\.)?(?<![\w-])([A-Z]\d{1,2})\b(?!\()")

FOREIGN = {"V5"}
"""Arrow's version of metadata."""


def module_of(path: Path) -> str:
    return path.parent.name if path.stem == "__init__" else path.stem


SOURCES = {
    path: path.read_text().splitlines()
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*"))
    if path.suffix in {".py", ".pyx", ".pxi"}
}


def definitions() -> dict[str, set[str]]:
    """Labels by module; two modules of one name share theirs."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, lines in SOURCES.items():
        found[module_of(path)] |= {match[1] for line in lines if (match := DEFINITION.match(line))}
    return found


def unresolved(lines: list[str], module: str, defined: dict[str, set[str]]) -> list[str]:
    """Citations of a module that nobody defines. Letters that no module uses for labels are no citation."""
    letters = {label[0] for labels in defined.values() for label in labels}
    found = []
    for number, line in enumerate(lines, 1):
        if DEFINITION.match(line):
            continue
        for cited, label in CITATION.findall(line):
            if label[0] in letters and label not in FOREIGN and label not in defined.get(cited or module, ()):
                found.append(f"{number}: {f'{cited}.' if cited else ''}{label}")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_each_citation_leads_to_a_definition(package: str) -> None:
    defined = definitions()
    wrong = [
        f"{path.relative_to(ROOT)}:{found}"
        for path, lines in SOURCES.items()
        if path.is_relative_to(ROOT / package)
        for found in unresolved(lines, module_of(path), defined)
    ]
    assert wrong == []


def test_a_citation_without_a_definition_is_found() -> None:
    defined = {"log": {"L3"}, "chain": {"C4"}}
    assert unresolved(["L3  Appends nothing.", "(L3, `chain.C4`)"], "log", defined) == []
    assert unresolved(["see C4", "`chain.L3`", "`nowhere.C4`"], "log", defined) == [
        "1: C4",
        "2: chain.L3",
        "3: nowhere.C4",
    ]
    assert unresolved(["call A1(), name_L3, UTF-L3"], "log", defined) == []
