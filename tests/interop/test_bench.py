"""Goal: Liftbridge's own bench runs on a broker of this project, unchanged: each message is acked once and read once.

Method: its producer and its consumer, built from Liftbridge's source, as processes. BENCH_LIFTBRIDGE_HOME names the
folder that has them, as for `benchmarks/liftbridge.py`, which says how they are built and how fast they are.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from benchmarks.liftbridge import HOME
from tests.interop.test_clients import TIMEOUT_S
from tests.support.processes import free_port, running

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

COUNT = 2_000


@pytest.fixture(scope="module")
def programs() -> Path:
    home = Path(os.environ.get(HOME, "")).absolute()
    if HOME not in os.environ or not all((home / name).is_file() for name in ("producer", "consumer")):
        pytest.skip(f"{HOME} names no folder with Liftbridge's producer and consumer")
    return home


@pytest.fixture(scope="module")
def address(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    with running(tmp_path_factory.mktemp("bench"), LIFTLOG_LIFTBRIDGE_LISTEN=address):
        yield address


def run(program: Path, address: str, stream: str, *arguments: str) -> Any:
    """What it says at its end."""
    command = [str(program), "--servers", address, "--stream", stream, *arguments, "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout[done.stdout.rindex("\n{") :])


@pytest.mark.parametrize("window", [1, 100, COUNT])
def test_liftbridges_bench_runs(programs: Path, address: str, window: int) -> None:
    stream = f"s{window}"
    what = ("--subject", stream, "--create-stream", "--messages", str(COUNT), "--message-size", "256")
    sent = run(programs / "producer", address, stream, *what, "--pub-batch", str(window))
    read = run(programs / "consumer", address, stream, "--expected", str(COUNT), "--duration", "60s")
    for said in (sent, read):
        assert (said["total_messages"], said.get("errors") or 0) == (COUNT, 0), said
