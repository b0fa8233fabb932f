"""Fuzzing by coverage finds what is planted, by so few inputs that blind ones find nothing; and counts them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from tests.fuzz.guided import CPU_MIN_S, INPUTS_MAX, INPUTS_MIN, ROOT, Edges, Progress, edges_of, progress_of
from tests.fuzz.planted import PLANTED

INPUTS = 100_000
TOLD = """INFO: Instrumenting broker.api
#2\tINITED cov: 5 ft: 9 corp: 1/1b exec/s: 0 rss: 30Mb
#40\tNEW    cov: 7 ft: 12 corp: 2/9b lim: 4 exec/s: 0 rss: 30Mb L: 8/8 MS: 1 CMP-
#100\tDONE   cov: 7 ft: 15 corp: 3/9b lim: 4 exec/s: 0 rss: 30Mb
Done 100 runs in 1 second(s)
"""


@pytest.mark.process
def test_a_fault_behind_three_comparisons_is_found_by_guidance_and_not_without(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="there is none for this machine, or make install")
    options = ["--guided", "--decoder", "planted", "--cases", str(INPUTS), "--work", str(tmp_path)]
    command = [sys.executable, "-m", "tests.fuzz", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the planted fault" in done.stdout
    [kept] = (tmp_path / "planted" / "failures").iterdir()
    assert str(kept) in done.stdout
    with pytest.raises(ZeroDivisionError):
        PLANTED.meet(kept.read_bytes())
    found = progress_of("planted", tmp_path)
    assert found.inputs < INPUTS
    assert found.edges == len(edges_of(tmp_path / "planted")) > 3
    assert 0 < found.last_new <= found.inputs
    for seed in range(INPUTS):
        PLANTED.meet(PLANTED.case(seed))  # raises nothing


def test_what_was_done_is_counted_over_several_rounds() -> None:
    """V1."""
    progress = Progress()
    progress.take(TOLD, ["1 a.py:7:f:20", "40 a.py:7:f:44"])
    assert progress == Progress(inputs=100, edges=2, last_new=40)
    progress.take(TOLD, ["1 a.py:7:f:20", "40 a.py:7:f:44"])
    assert progress == Progress(inputs=200, edges=2, last_new=40)
    progress.take(TOLD, ["1 a.py:7:f:20", "40 a.py:7:f:44", "240 a.py:9:g:20"])
    assert progress == Progress(inputs=300, edges=3, last_new=240)


def test_an_edge_is_new_once_over_all_rounds(tmp_path: Path) -> None:
    """V4. Also where another process has another number for it; and whoever takes it."""
    counted: list[int] = []

    def both(follow: Callable[[int], None], first: int, second: int) -> None:
        follow(first)
        follow(first)
        if second:
            follow(second)

    edges = Edges(tmp_path / "edges", 0)
    edges.begin_input()
    both(edges.followed(counted.append), 8, 0)
    again = Edges(tmp_path / "edges", 100)
    again.begin_input()
    both(again.followed(counted.append), 3, 0)
    again.begin_input()
    timer = Thread(target=both, args=(again.followed(counted.append), 3, 5))
    timer.start()
    timer.join()
    found = edges_of(tmp_path)
    assert [each.split()[0] for each in found] == ["1", "102"]
    assert all("test_guided.py" in each for each in found)
    assert counted == [8, 8, 3, 3, 3, 3, 5]


def test_when_a_decoder_is_done() -> None:
    """V1."""
    assert Progress(inputs=10).left == INPUTS_MIN - 10
    assert Progress(inputs=INPUTS_MIN, last_new=70_000).left == 40_000
    assert Progress(inputs=900, last_new=400, seconds=CPU_MIN_S - 1).left == INPUTS_MIN - 900
    assert Progress(inputs=900, last_new=400, seconds=CPU_MIN_S).left <= 0
    assert Progress(inputs=900, last_new=500, seconds=CPU_MIN_S).left == 100
    assert Progress(inputs=INPUTS_MAX, last_new=INPUTS_MAX - 1).left == 0
