"""In the first lane one worker takes what waits, so that no core waits with it; every test runs once."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lanes import FIRST
from tests.support.by_file import ByFile

WAITS = [f"tests/{each}::test" for each in ("cluster/test_a.py", "spark/test_b.py", "unit/link/test_c.py")]
COMPUTES = [f"tests/unit/storage/test_{n}.py::test" for n in range(5)] + ["tests/sim/test_d.py::test[1]"]


class Node:
    """A worker that runs what it is told to when the test says so."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.told: list[int] = []
        self.count = 0
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.told += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def played(lane: str, collection: list[str], turns: list[int]) -> list[list[str]]:
    """The tests of each worker; `turns`: which of them comes to the end of its next test."""
    options = SimpleNamespace(lane=lane, loadscopereorder=False)
    config: Any = SimpleNamespace(option=options, getvalue=lambda _: ["popen"] * 3)
    nodes: list[Any] = [Node(number) for number in range(3)]
    scheduler = ByFile(config)
    for node in nodes:
        scheduler.add_node(node)
    for node in nodes:
        scheduler.add_node_collection(node, collection)
    scheduler.schedule()
    for turn in turns * len(collection):
        node = nodes[turn]
        if node.count < len(node.told):
            node.count += 1
            scheduler.mark_test_complete(node, node.told[node.count - 1])
    assert all(node.shutting_down and node.count == len(node.told) for node in nodes)
    return [[collection[index] for index in node.told] for node in nodes]


@pytest.mark.parametrize("turns", [[0, 1, 2], [1, 2, 1, 2, 0], [0, 0, 0, 0, 1, 2]], ids=str)
def test_one_worker_takes_only_what_waits_and_the_others_what_computes_first(turns: list[int]) -> None:
    waiting, *computing = played(FIRST, [*WAITS, *COMPUTES], turns)
    assert set(waiting) <= set(WAITS)
    assert waiting[:2] == WAITS[:2]
    for tests in computing:
        assert tests == sorted(tests, key=lambda test: test in WAITS)
    assert sorted([*waiting, *computing[0], *computing[1]]) == sorted([*WAITS, *COMPUTES])


def test_in_other_lanes_all_take_what_comes_next() -> None:
    tests = played("cluster", [*COMPUTES, *WAITS], [0, 1, 2])
    assert any(test in COMPUTES for test in tests[0])
    assert sorted(chain(*tests)) == sorted([*WAITS, *COMPUTES])


def test_without_anything_that_waits_nobody_waits_for_it() -> None:
    waiting, *computing = played(FIRST, COMPUTES, [0, 1, 2])
    assert sorted(chain(waiting, *computing)) == sorted(COMPUTES)
