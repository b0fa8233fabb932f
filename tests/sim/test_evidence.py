"""Goal: all that the page of evidence names is there, and each deliberate mistake is named on it.

A name that no longer resolves is a rule that nothing notices any more, and a page that says otherwise.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from tests.sim.driven.captured import CAPTURED
from tests.sim.driven.changed import CHANGED, QUICK
from tests.sim.driven.decided import DECIDED
from tests.sim.driven.mutants import DRIVEN
from tests.sim.mutants import GOLDEN, MUTANTS, PLAYED, STAGED, Mutant
from tests.sim.raft import mutants as of_raft
from tests.sim.raft.scenarios import SCENARIOS as RAFT_SCENARIOS
from tests.sim.scenarios import SCENARIOS

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/explain/replication-evidence.md").read_text()
ROWS: Final = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
SOURCES: Final = {
    path: path.read_text() for folder in ("broker", "tests") for path in sorted((ROOT / folder).rglob("*.py"))
}
TESTS: Final = {name for text in SOURCES.values() for name in re.findall(r"def (test_\w+)", text)}
DEFINED: Final = {
    name
    for path, text in SOURCES.items()
    for name in (path.stem, path.parent.name, *re.findall(r"^ *(?:def|class) (\w+)", text, re.M))
}
LABELS: Final = {
    f"{path.stem}.{label}" for path, text in SOURCES.items() for label in re.findall(r"^([A-Z]\d+)  ", text, re.M)
}
FIELDS: Final = {
    name for text in SOURCES.values() for name in re.findall(r"^ *(?:self\.)?(\w+)(?:: [^=]+)? =", text, re.M)
}
KINDS: Final = {
    "seed": {mutant.name for mutant in MUTANTS},
    "driver": {mutant.name for mutant in (*DRIVEN, *QUICK, *CHANGED, *CAPTURED, *DECIDED)},
    "scenario": {mutant.name for mutant in STAGED},
    "script": {mutant.name for mutant in PLAYED},
    "mutant": {*of_raft.MUTANTS},
}


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 120
    assert {len(row) for row in ROWS} <= {2, 3}


@pytest.mark.parametrize("name", sorted({*re.findall(r"`(test_\w+)`", PAGE)}))
def test_a_test_that_is_named_exists(name: str) -> None:
    assert name in TESTS or f"{name}.py" in {path.name for path in SOURCES}


@pytest.mark.parametrize("name", sorted({*re.findall(r"`((?:catalog|replication)/[\w/]+)`", PAGE)}))
def test_a_script_that_is_named_exists(name: str) -> None:
    assert (GOLDEN / f"{name}.txt").is_file()


@pytest.mark.parametrize("name", sorted({*re.findall(r"scenarios? `([a-z_]+)`", PAGE)}))
def test_a_scenario_that_is_named_exists(name: str) -> None:
    assert name in SCENARIOS or name in RAFT_SCENARIOS


@pytest.mark.parametrize("path", sorted({*re.findall(r"`((?:tests|broker)/[\w/.]+)`", PAGE)}))
def test_a_file_that_is_named_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_each_mistake_that_is_named_exists() -> None:
    known = set().union(*KINDS.values())
    named = [name for row in ROWS for cell in row for name in re.findall(r"\*([^*]+)\*", cell)]
    assert [name for name in named if name not in known] == []


@pytest.mark.parametrize("kind", KINDS)
def test_each_mistake_is_named_where_its_rule_stands(kind: str) -> None:
    cells = "\n".join(cell for row in ROWS for cell in row)
    assert [name for name in sorted(KINDS[kind]) if f"*{name}*" not in cells] == []


@pytest.mark.parametrize(
    "mutant",
    [*MUTANTS, *STAGED, *PLAYED, *DRIVEN, *QUICK, *CHANGED, *CAPTURED, *DECIDED],
    ids=lambda mutant: mutant.name,
)
def test_a_mistake_fits_the_code_as_it_is(mutant: Mutant) -> None:
    """The rule: the line that a mistake changes is in the code. A change of that line fails here, in a moment."""
    text = Path(import_module(mutant.file).__file__ or "").read_text()
    for before, after in mutant.changes:
        assert text.count(before) == 1, f"{before!r} stands {text.count(before)} times in {mutant.file}"
        text = text.replace(before, after)


def test_what_a_rule_stands_in_exists() -> None:
    cells = [row[1] for row in ROWS if len(row) == 3]
    named = [name.removesuffix(".py") for cell in cells for name in re.findall(r"`([\w./]+)`", cell) if "/" not in name]
    known = DEFINED | FIELDS
    assert [name for name in named if name not in LABELS and name.rpartition(".")[2] not in known] == []
