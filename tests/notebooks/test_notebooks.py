"""Goal: every notebook runs from top to bottom, and leaves nothing behind. Method: in a kernel of its own, against a
real `liftlog up`; then the broker, the folders that it had and the processes of this machine are looked at.

01 computes windows as a table and as a stream; 02 kills its job, goes on, and counts; 03 reads JSON by the schema that
its streams keep, and a table of now and of noon. All compare with pandas.

UPDATE_NOTEBOOKS=1 writes the outputs of the run into the notebooks; look at them before you commit.
"""

from __future__ import annotations

import io
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from rich.console import Console

from broker.client import connect
from examples.local import Liftlog
from tests.support.processes import eventually

pytestmark = pytest.mark.timeout(600)
NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
PLOTS = {"01-explore": 2, "02-exactly-once": 1, "03-sensors": 1}
MARK = "LIFTLOG_TEST_OF_NOTEBOOKS"


@pytest.fixture(scope="module")
def liftlog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Liftlog]:
    with Liftlog.up(tmp_path_factory.mktemp("notebooks") / "data", Console(file=io.StringIO())) as liftlog:
        yield liftlog


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs_and_plots(
    path: Path, liftlog: Liftlog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIFTLOG_BROKERS", liftlog.brokers)
    monkeypatch.setenv("LIFTLOG_NATS_URL", liftlog.nats)
    monkeypatch.setenv(MARK, mark := uuid.uuid4().hex)
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    for folder in (work, temporary):
        folder.mkdir()
    for name in ("TMPDIR", "SPARK_LOCAL_DIRS"):
        monkeypatch.setenv(name, str(temporary))
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    NotebookClient(
        notebook, timeout=400, kernel_name="python3", record_timing=False, resources={"metadata": {"path": work}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= PLOTS[path.stem]
    assert "all as pandas computes them" in "".join(output.get("text", "") for output in outputs)
    if path.stem == "02-exactly-once":
        check_kill_and_progress(notebook)
    if path.stem == "03-sensors":
        shown = "".join(str(output.get("text", output.get("data", {}).get("text/plain", ""))) for output in outputs)
        assert "294 windows at noon, 576 now" in shown, shown
        assert "battery low" in shown
    with connect(liftlog.brokers) as client:
        assert [client.streams(), client.consumers(), client.sinks()] == [[], [], []]
    assert [each for folder in (work, temporary) for each in folder.iterdir() if each.name != "__pycache__"] == []
    eventually(lambda: not processes_with(mark), timeout_s=60, what="the processes of the notebook gone")
    if os.environ.get("UPDATE_NOTEBOOKS"):
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(notebook, path)


def processes_with(mark: str) -> list[str]:
    """The processes that have the mark in their environment, but this one."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if environment.parent.name != str(os.getpid()) and wanted in environment.read_bytes():
                found.append(environment.parent.name)
    return found


def check_kill_and_progress(notebook: nbformat.NotebookNode) -> None:
    """The job was killed, and the progress of the one that went on was shown in one place, up to its end."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any("ended by SIGKILL" in output.get("text", "") for cell in cells for output in cell.outputs)
    shown = next(cell.outputs for cell in cells if cell.source.startswith("spark_liftlog.show_progress("))
    assert [output.output_type for output in shown] == ["display_data"], "one line that changes"
    last = shown[0]["data"]["text/html"]
    assert re.search(r"windows: batch \d+, [\d,]+ records/s, 0 behind", last), last
    assert len(re.findall(r"<td>once-flights</td><td>[01]</td><td>0</td>", last)) == 2, last


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_stored_outputs_are_of_no_particular_machine(path: Path) -> None:
    """People read them on a web page; what they need not read is whose disk they came from, and warnings."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text
            assert "site-packages" not in str(output)
