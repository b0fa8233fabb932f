"""Goal: a program with go-liftbridge hears that retention has taken what its group has not read, and has nothing of
what is behind it before somebody has moved the group.

Method: a broker process, the client's own program as a process, and a trim in the midst. Skipped by name without `go`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.client import connect
from tests.interop.test_clients import TIMEOUT_S, built
from tests.support.processes import free_port, running

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]


def test_a_program_hears_that_the_place_of_its_group_is_gone(tmp_path: Path) -> None:
    address, program = f"127.0.0.1:{free_port()}", built(tmp_path, "./overtaken")

    def told(count: int) -> list[str]:
        command = [program, address, "s", str(count)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        ).stdout.splitlines()

    with (
        running(tmp_path / "broker", LIFTLOG_LIFTBRIDGE_LISTEN=address) as (_, broker),
        connect(broker.address) as client,
    ):
        client.create_stream("s", subject="s")
        client.append("s", 0, [{"value": b"v"}] * 10)
        assert told(10) == [f"record {offset}" for offset in range(10)]
        client.append("s", 0, [{"value": b"v"}] * 10)
        client.trim("s", before=15)
        where = "group 'group-s' is at offset 10 of s/0, and the first that is there is 15"
        for line in told(2):
            assert line.startswith("error "), line
            assert where in line, "each time that it is assigned"
        client.reset_group("group-s", "s", "earliest")
        assert told(5) == [f"record {offset}" for offset in range(15, 20)]
