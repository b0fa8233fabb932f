"""The page docs/explain/mistakes.md: each deliberate mistake, and the test of each lane that finds it.

The mistakes are those of the lists in tests; a lane is what `tests/lanes.py` says of the test.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from inspect import getmembers, getsource, isfunction
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from tests.lanes import FIRST, PROCESS_FOLDERS, lane_of
from tests.properties.gates import test_mutants as of_gates
from tests.properties.replication import mutants as of_cores
from tests.properties.replication import test_tickets as of_tickets
from tests.properties.sinks import test_mutants as of_sinks
from tests.sim import mutants as of_protocol
from tests.sim import test_joined
from tests.sim.driven import captured, changed, decided, test_driven
from tests.sim.driven import mutants as of_drivers
from tests.sim.groups import mutants as of_groups
from tests.sim.groups import test_groups
from tests.sim.raft import mutants as of_raft
from tests.sim.raft import test_raft
from tests.soak import test_mutants as shown
from tests.soak import test_soak
from tests.support.limits import table
from tests.support.mends import MENDS
from tests.unit.raft import test_group, test_journal

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "explain" / "mistakes.md"


class Found(NamedTuple):
    """That a test finds a mistake: `test` as pytest names it, without its case; `how`: a seed, a script, a cell;
    `case`: the one of its cases, by its name, where they are in several lanes."""

    mistake: str
    test: str
    how: str = ""
    case: str = ""


def lane(test: str, case: str = "") -> str:
    """The lane of a test, by its marks, those of its case, of its module, and of its folder.

    `case`: its name, or empty: one that is in the first lane, if any is.
    """
    path, _, name = test.partition("::")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    function = getattr(module, name.partition("[")[0])
    given = [getattr(module, "pytestmark", []), getattr(function, "pytestmark", [])]
    marks = {mark.name for each in given for mark in (each if isinstance(each, list) else [each])}
    for parameters in _parameters(function):
        cases = [each for each in parameters.args[1] if not case or _name_of(each) == case]
        marks |= min(({mark.name for mark in getattr(each, "marks", ())} for each in cases), key=len, default=set())
    if path.split("/")[1] in PROCESS_FOLDERS:
        marks.add("process")
    return lane_of(test, frozenset(marks))


def of_the_protocol() -> Iterator[Found]:
    test = "tests/sim/test_mutants.py::test_a_mistake_is_"
    yield from (Found(each.name, f"{test}found", f"seed {each.seed}", each.name) for each in of_protocol.MUTANTS)
    scenario = f"{test}noticed_in_its_scenario"
    yield from (Found(each.name, scenario, f"`{each.script}`", each.name) for each in of_protocol.STAGED)
    yield from (Found(each.name, f"{test}shown", f"`{each.script}`") for each in of_protocol.PLAYED)


def of_the_drivers() -> Iterator[Found]:
    test = _name(test_driven.test_a_mistake_in_a_driver_is_found)
    cases = (*of_drivers.DRIVEN, *changed.QUICK)
    yield from (Found(each.name, test, f"seed {each.seed}", each.name) for each in cases)
    test = _name(test_driven.test_a_mistake_in_a_change_is_found)
    yield from (Found(each.name, test, f"seed {each.seed}") for each in (*changed.CHANGED, *captured.CAPTURED))
    test = _name(test_driven.test_a_mistake_in_a_sink_is_found)
    yield from (Found(each.name, test, f"seed {each.seed}") for each in decided.DECIDED)


def of_groups_of_consumers() -> Iterator[Found]:
    """In the rules of consumer groups."""
    for name, mutant in of_groups.MUTANTS.items():
        words = f"`{name}`, without the rule: {mutant.what}"
        yield Found(words, _name(test_groups.test_mutant_is_found), f"seed {mutant.known}", name)


def of_the_adapter() -> Iterator[Found]:
    for name in of_raft.MUTANTS:
        words = f"`{name}`, without the rule: {of_raft.MUTANTS[name].what}"
        if name in of_raft.BY_LUCK:
            yield Found(words, _name(test_raft.test_mutant_is_found), f"seed {of_raft.MUTANTS[name].known}", name)
        for module in (test_raft, test_joined):
            yield from (
                Found(words, _name(function), f"`{case}`" if isinstance(case, str) else f"seed {case}", name)
                for function in _tests(module)
                for given, case in _cases(function, "mutant")
                if given == name
            )
        for module in (test_group, test_journal):
            yield from (Found(words, _name(test)) for test in _tests(module) if f'mutated("{name}")' in getsource(test))


def of_the_cores() -> Iterator[Found]:
    test = "tests/properties/replication/test_mutants.py::test_a_mistake_is_found"
    yield from (Found(each.name, test) for each in of_cores.MUTANTS)


def of_the_tickets() -> Iterator[Found]:
    test = _name(of_tickets.test_a_mistake_in_the_way_of_a_ticket_is_found)
    for mistake, (seed, _) in of_tickets.MISTAKES.items():
        yield Found(_words(mistake.__name__), test, f"seed {seed}")


def of_the_sinks() -> Iterator[Found]:
    for test in _tests(of_sinks):
        if (name := re.fullmatch(r"test_(.+)_(?:is|are)_found", test.__name__)) and not _parameters(test):
            yield Found(_words(name[1]), _name(test))
    for mutant, scenario in of_sinks.MUTANTS:
        yield Found(
            _words(mutant.__name__), _name(of_sinks.test_a_rule_that_is_broken_is_found), f"`{scenario.__name__}`"
        )


def of_the_gates() -> Iterator[Found]:
    for mutant, kind, change, point in of_gates.MUTANTS:
        how = f"{kind}, {change}, {point}"
        yield Found(_words(mutant.__name__), _name(of_gates.test_a_rule_that_is_taken_out_is_found), how)


def of_single_rules() -> Iterator[Found]:
    forming = "tests/unit/cluster/test_forming.py::test_a_mistake_is_noticed"
    yield Found("an id is the same after a loss of the folder", forming, "`F1`")
    yield Found("nothing says that a journal was made", forming, "`F2`")
    clocks = "tests/properties/storage/test_clocks_model.py::test_mistakes_are_found"
    yield Found("an id counts by the time of day", clocks)
    yield Found("ages stay when their records go", clocks)
    yield Found("an age is taken for that of later records", clocks)
    yield Found("a vote is never given back", _name(test_joined.test_a_vote_that_is_never_given_back_is_noticed))


def of_the_soak() -> Iterator[Found]:
    for name, (file, test, _) in shown.SHOWN_BY.items():
        plain, _, case = test.partition("[")
        yield Found(name, f"{file}::{plain}", f"`{case.rstrip(']')}`" if case else "")
        yield Found(name, _name(shown.test_what_a_mistake_breaks_is_noticed_each_time))
    yield Found("half-message", _name(test_soak.test_the_soak_finds_that_half_a_message_ends_intake))


def of_the_mends() -> Iterator[Found]:
    for defect, tests in MENDS.items():
        for path, _, name in (test.partition("::") for test in tests):
            yield Found(defect, f"tests/{path}.py::test_{name}")


TABLES: Final = {
    "In the protocol": ("tests/sim/mutants.py", of_the_protocol),
    "In the drivers of replicas": ("tests/sim/driven/mutants.py", of_the_drivers),
    "In the adapter of Raft": ("tests/sim/raft/mutants.py", of_the_adapter),
    "In consumer groups": ("tests/sim/groups/mutants.py", of_groups_of_consumers),
    "In the cores of leader and follower": ("tests/properties/replication/mutants.py", of_the_cores),
    "In the way of a ticket": ("tests/properties/replication/test_tickets.py", of_the_tickets),
    "In sinks": ("tests/properties/sinks/test_mutants.py", of_the_sinks),
    "At the gates of an append": ("tests/properties/gates/test_mutants.py", of_the_gates),
    "In rules that have no list": ("tests/support/mistakes.py", of_single_rules),
    "Mends that are taken out again": ("tests/soak/mutants.py", of_the_soak),
    "Mends that are not": ("tests/support/mends.py", of_the_mends),
}
"""By heading: where the list is, and who finds each mistake of it."""


def by_mistake(found: Iterator[Found]) -> dict[str, tuple[list[str], list[str]]]:
    """What finds each mistake in the first lane, and in the shards."""
    rows: dict[str, tuple[list[str], list[str]]] = {}
    for each in found:
        of = lane(each.test, each.case)
        cell = f"`{each.test.partition('::')[2]}`{each.how and f': {each.how}'}{'' if of == FIRST else f' ({of})'}"
        rows.setdefault(each.mistake, ([], []))[of != FIRST].append(cell)
    return rows


def page() -> str:
    """All of docs/explain/mistakes.md."""
    sections, missed = [], []
    for heading, (path, finders) in TABLES.items():
        rows = by_mistake(finders())
        missed += [f"- {name} ({path})" for name, (first, _) in rows.items() if not first]
        cells = [(name, *("<br>".join(lane) or "-" for lane in lanes)) for name, lanes in rows.items()]
        heads = ("mistake", "found in `make test` by", "in `make test-long` by")
        sections.append(f"## {heading}\n\nThe list: `{path}`.\n\n{table(heads, cells)}")
    lost = "\n".join(missed) or "None of these."
    return HEAD.format(missed=lost, tables="\n".join(sections))


def _name(test: Any) -> str:
    return f"{test.__module__.replace('.', '/')}.py::{test.__name__}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _tests(module: ModuleType) -> list[Any]:
    """In the order of the file."""
    own = [
        f for name, f in getmembers(module, isfunction) if name.startswith("test_") and f.__module__ == module.__name__
    ]
    return sorted(own, key=lambda function: function.__code__.co_firstlineno)


def _parameters(test: Any) -> list[Any]:
    return [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]


def _name_of(case: Any) -> str:
    """Of a case of `parametrize`, with marks or without: that of its first value."""
    values = getattr(case, "values", case)
    value = values[0] if isinstance(values, tuple) and not hasattr(values, "name") else values
    return str(getattr(value, "name", value))


def _cases(test: Any, first: str) -> Iterator[tuple[Any, Any]]:
    """Of a test with two parameters of which the first is called so."""
    for mark in _parameters(test):
        names, values = mark.args
        if tuple(names)[:1] == (first,):
            yield from (getattr(each, "values", each) for each in values)


HEAD: Final = """# Deliberate mistakes

A test that has never failed shows little. These mistakes are made in the code on purpose, one at a
time, and this page says which test finds each. `make test` runs the tests of the second column,
`make test-long` those of the third; there the shard stands in brackets. `python -m tests.pages`
writes this page from the lists in the tests and from `tests/lanes.py`. The last table has defects that
were real: their tests were red before the mend, and nobody takes the mend out again.

## What `make test` misses

{missed}

No list has mistakes for what real processes do to each other. Kills, freezes, cut cables and full
disks are played by `tests/cluster`, `tests/spark` and `tests/soak`, in the shards of these names.
`make test` has two kills, of a lone broker and of a leader of three, and a batch of Spark that comes
again as after a kill of its driver.

{tables}"""
