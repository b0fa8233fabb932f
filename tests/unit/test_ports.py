"""Two runs of these tests on one machine hand out no port twice: a broker did not start where another one had its."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import free_port

ASKED = "from tests.support import processes; print(processes._are_locked(range({0}, {0} + {1})))"


@pytest.mark.process
def test_a_port_is_handed_out_to_one_process_while_it_lives() -> None:
    first = free_port(3)

    def others(port: int, count: int) -> str:
        command = [sys.executable, "-c", ASKED.format(port, count)]
        root = Path(__file__).parents[2]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    assert others(first + 2, 3) == "False"
    assert others(first, 1) == "False"
    own = free_port(3)
    assert set(range(first, first + 3)).isdisjoint(range(own, own + 3))
