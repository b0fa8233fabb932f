"""Goal: only a process that is provably ours is ever signalled.

Method: real processes, and identities with one fact changed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.cli.local.processes import Process, ProcessIdentity, start

pytestmark = pytest.mark.process

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen(SLEEPER, stdout=subprocess.PIPE)
    assert made.stdout is not None
    assert made.stdout.readline() == b"up\n"
    yield made
    made.kill()
    made.wait()
    made.stdout.close()


def _identity(pid: int) -> ProcessIdentity:
    found = ProcessIdentity.of(pid)
    assert found is not None
    return found


def _started(command: list[str], log: Path) -> Process:
    """A process that has come so far as to say `up`."""
    process = start("test", command, env=os.environ, log=log)
    with open(log, "rb") as file:
        while file.readline() != b"up\n":
            assert not process.has_ended()
            file.seek(0)
    return process


def test_an_identity_says_pid_start_boot_and_command(child: subprocess.Popen[bytes]) -> None:
    found = _identity(child.pid)
    assert found.command == tuple(SLEEPER)
    assert found.started_ticks > 0
    assert found.is_alive()
    assert ProcessIdentity.from_dict(found.as_dict()) == found


@pytest.mark.parametrize(
    "change", [{"started_ticks": 1}, {"boot_id": "another"}, {"command": ("nats-server",)}], ids=lambda c: next(iter(c))
)
def test_a_process_that_differs_in_one_fact_is_not_signalled(
    child: subprocess.Popen[bytes], change: dict[str, object]
) -> None:
    other = replace(_identity(child.pid), **change)  # type: ignore[arg-type]
    assert not other.is_alive()
    assert not other.send(signal.SIGKILL)
    assert other.wait(0)
    assert child.poll() is None


def test_a_process_that_ended_is_gone_also_while_nobody_reaped_it(child: subprocess.Popen[bytes]) -> None:
    found = _identity(child.pid)
    assert not found.wait(0)
    assert found.send(signal.SIGTERM)
    assert found.wait(60)
    assert not found.is_alive()  # a zombie still: poll() was not called
    assert not found.send(signal.SIGTERM)
    child.wait()
    assert not found.is_alive()
    assert found.wait(0)


def test_stop_ends_a_process_and_says_how(tmp_path: Path) -> None:
    process = _started(SLEEPER, tmp_path / "log")
    assert not process.has_ended()
    assert process.stop(timeout_s=60, force=False)
    assert process.has_ended()
    assert process.ending() == "was ended by SIGTERM"


def test_stop_without_force_leaves_a_stubborn_process_and_says_so(tmp_path: Path) -> None:
    process = _started(STUBBORN, tmp_path / "log")
    assert not process.stop(timeout_s=0.1, force=False)
    assert not process.has_ended()
    assert process.stop(timeout_s=0.5, force=True) or process.wait(60)
    assert process.ending() == "was ended by SIGKILL"


def test_a_started_process_has_its_own_session_and_appends_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    process = start("test", [sys.executable, "-c", "print('said'); raise SystemExit(3)"], env=os.environ, log=log)
    assert process.child is not None
    process.child.wait(60)
    assert log.read_text() == "before\nsaid\n"
    assert process.log_position == len("before\n")
    assert process.ending() == "ended with code 3"

    sleeper = _started(SLEEPER, tmp_path / "log2")
    try:
        assert os.getsid(sleeper.identity.pid) == sleeper.identity.pid != os.getsid(0)
    finally:
        sleeper.stop(timeout_s=60, force=True)
