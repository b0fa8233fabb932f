"""Goal: the quickstart proves its result and leaves nothing behind, however it ends.

Method: the command itself on ten days of flights: real NATS, broker and Spark; secured, also on three brokers.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import psutil
import pytest
from rich.console import Console

from examples import delays
from examples.local import CommandFailed, Liftlog
from examples.quickstart import Wrong, check_windows
from tests.support.processes import eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "quickstart-data"


def command(folder: Path) -> list[str]:
    days = ["--start", "2013-02-05", "--end", "2013-02-15"]
    return [sys.executable, "-m", "examples.quickstart", "--data", str(folder), *days]


@pytest.mark.parametrize("brokers_count", [1, 3])
def test_secured_it_does_the_same_and_leaves_nothing_in_the_home_of_its_user(
    folder: Path, tmp_path: Path, brokers_count: int
) -> None:
    """Whatever the user's shell says of other brokers. What is refused was asked for, too; no secret is printed."""
    home = tmp_path / "home"
    home.mkdir()
    of_shell = {"LIFTLOG_PROFILE": "other", "LIFTLOG_TLS_CA": "/other.pem", "LIFTLOG_TOKEN_FILE": "/other.token"}
    done = subprocess.run(
        [*command(folder), "--secure", "--brokers-count", str(brokers_count)],
        env={**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), **of_shell},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    flights_count = len(delays.flights.load("2013-02-05", "2013-02-15"))
    assert done.stdout.count(f"windows over {flights_count:,} flights read by") == 2
    assert done.stdout.count("refused, as it should be") == 2
    assert "llg_" not in done.stdout + done.stderr
    assert "LIFTLOG_AUTH_MODE=enforce" in done.stdout, "each command is shown as one would type it"
    assert f'.option("profile", "{folder}/profiles.toml#job").option("stream", "flights")' in done.stdout
    assert f'spark_liftlog.connect(profile="{folder}/profiles.toml#reader").read("flight-delays")' in done.stdout
    assert not folder.exists()
    assert not [path for path in home.rglob("*") if "liftlog" in str(path.relative_to(home))]
    eventually(lambda: not processes_of(folder), what="the JVM ends")


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder, or a file in it."""
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(folder) in line]


def test_spark_and_pandas_agree_and_nothing_is_left(folder: Path) -> None:
    done = subprocess.run(command(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    flights_count = len(delays.flights.load("2013-02-05", "2013-02-15"))
    assert done.stdout.count(f"windows over {flights_count:,} flights read by") == 2
    assert "dropped as too late by the watermark: 1" in done.stdout
    lag = next(line.split() for line in done.stdout.splitlines() if line.strip().startswith("quickstart "))
    assert lag[:4] == ["quickstart", "flights", "2", "0"], "consumer, stream, partitions, lag"
    assert done.stderr == "", "Spark's log goes to a file"
    assert not folder.exists()
    eventually(lambda: not processes_of(folder), what="the JVM ends")


@contextmanager
def running(folder: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as file:
        process = subprocess.Popen(
            command(folder),
            stdout=file,
            stderr=subprocess.STDOUT,
            # A shell that runs the tests in the background switches Ctrl-C off, for children too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "number, once_there_is",
    [
        pytest.param(signal.SIGINT, "logs/broker-0.log", id="ctrl-c-at-start"),
        pytest.param(signal.SIGTERM, "checkpoint/offsets/0", id="term-in-query"),
    ],
)
def test_interrupted_it_cleans_up(folder: Path, tmp_path: Path, number: signal.Signals, once_there_is: str) -> None:
    output = tmp_path / "output"
    with running(folder, output) as process:
        eventually(
            lambda: (folder / once_there_is).exists() or process.poll() is not None, timeout_s=120, what=once_there_is
        )
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        assert process.wait(120) == 130, output.read_text()
    assert "interrupted" in output.read_text()
    assert "Traceback" not in output.read_text()
    assert not folder.exists()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    eventually(lambda: not processes_of(folder), what="nothing is left")


def test_what_a_killed_run_left_is_stopped_and_removed_by_the_next(folder: Path) -> None:
    killed = f"""
import os, signal
from pathlib import Path
from rich.console import Console
from examples.local import Liftlog
with Liftlog.up(Path({str(folder)!r}), Console()):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", killed], stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    old = [int(path.read_text()) for path in folder.glob("run/*.pid")]
    assert len(old) == 2
    assert all(map(is_running, old))
    with Liftlog.up(folder, quiet()):
        assert not any(map(is_running, old))
        new = [int(path.read_text()) for path in folder.glob("run/*.pid")]
    assert not any(map(is_running, new))
    assert not folder.exists()


def test_a_folder_that_it_did_not_make_is_refused_and_stays(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    done = subprocess.run(command(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not of this example" in done.stdout
    assert os.listdir(folder) == ["thesis.txt"]


def test_a_second_run_in_the_folder_is_refused(folder: Path) -> None:
    with Liftlog.up(folder, quiet()) as liftlog:
        with pytest.raises(FileExistsError, match="another run"), Liftlog.up(folder, quiet()):
            pass
        assert liftlog.run("stream", "list", "--json").strip() == "[]", "the first goes on undisturbed"


def test_a_command_that_fails_says_why(folder: Path) -> None:
    with Liftlog.up(folder, quiet()) as liftlog, pytest.raises(CommandFailed, match="nonesuch"):
        liftlog.run("stream", "describe", "nonesuch")


def test_a_wrong_window_fails_and_is_printed(a_week: pd.DataFrame) -> None:
    windows = delays.windows_by_pandas(a_week)
    wrong = windows.copy()
    wrong.loc[17, "flights"] += 1
    console = Console(file=io.StringIO(), width=250)
    with pytest.raises(Wrong, match=f"1 of {len(windows)} windows read by Spark"):
        check_windows("read by Spark", windows, wrong, console)
    assert isinstance(console.file, io.StringIO)
    assert f"{windows.loc[17, 'origin']}" in console.file.getvalue()
    assert "flights differ" in console.file.getvalue()


def is_running(pid: int) -> bool:
    """A zombie does not run: its parent was killed, and whoever inherited it may not care."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def quiet() -> Console:
    return Console(file=io.StringIO())
