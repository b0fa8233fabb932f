"""Goal: programs with stock clients of Liftbridge run on a broker of this project, unchanged.

Method: a broker process with NATS, and the client's own program as a process. A client that is not there is skipped by
its name: `INTEROP_PYTHON` names an interpreter that has gufo_liftbridge; pip fetches python-liftbridge, and `go`
go-liftbridge.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from tests.support.processes import free_port, running

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

HERE = Path(__file__).parent
TIMEOUT_S = 240


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    with running(tmp_path_factory.mktemp("interop"), LIFTLOG_LIFTBRIDGE_LISTEN=address):
        yield address


def run(command: list[str], address: str, name: str) -> None:
    done = subprocess.run([*command, address, name], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout[:3]) == (0, "OK "), done.stdout + done.stderr


def test_a_program_with_gufo_liftbridge_runs(address: str) -> None:
    python = os.environ.get("INTEROP_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import gufo.liftbridge.client"], capture_output=True, check=False).returncode:
        pytest.skip("gufo_liftbridge is not installed (INTEROP_PYTHON)")
    run([python, str(HERE / "gufo_client.py")], address, "gufo")


def old_python_liftbridge(folder: Path) -> str:
    """An interpreter that has python-liftbridge, whose stubs are older than today's protobuf. Skips the test where pip
    cannot install it."""
    if (given := os.environ.get("INTEROP_PYTHON_LIFTBRIDGE")) is not None:
        return given
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    wanted = ("python-liftbridge==0.0.7", "protobuf<3.21", "grpcio")
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *wanted]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        pytest.skip(f"python-liftbridge cannot be installed (INTEROP_PYTHON_LIFTBRIDGE): {done.stderr[-300:]}")
    return str(folder / "bin" / "python")


def test_a_program_with_python_liftbridge_runs(address: str, tmp_path: Path) -> None:
    run([old_python_liftbridge(tmp_path / "venv"), str(HERE / "python_liftbridge_client.py")], address, "old")


def built(tmp_path: Path, package: str) -> str:
    """A program of tests/interop/go. Skips the test where it cannot be made."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
    shutil.copytree(HERE / "go", tmp_path / "go")
    made = subprocess.run(
        [go, "build", "-o", "program", package], cwd=tmp_path / "go", capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"go-liftbridge cannot be built: {made.stderr[-300:]}")
    return str(tmp_path / "go" / "program")


def test_a_program_with_go_liftbridge_runs(address: str, tmp_path: Path) -> None:
    run([built(tmp_path, ".")], address, "go")


def test_consumers_of_go_liftbridge_share_a_stream_and_skip_nothing(address: str, tmp_path: Path) -> None:
    run([built(tmp_path, "./consumers")], address, "shared")
