"""The house itself: who may import whom, that nothing heavy is imported by accident, that every page is found."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from broker.ingest.rules import COUNTERS

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "spark_liftlog", "pyspark_liftlog")
ROOMS = ("background", "common", "config", "control", "intake", "link", "node", "runtime")
"""The drivers: whatever makes or uses threads, loops and clocks."""


@pytest.mark.process
@pytest.mark.parametrize(
    "module,unwanted",
    [
        ("broker", "pyarrow numpy aiohttp nats click"),
        ("broker.runtime.broker", "grpc google.protobuf pysyncobj"),
        ("broker.cli.main", "grpc google.protobuf pysyncobj"),
        ("broker.client", "nats aiohttp grpc pysyncobj pyspark pandas prometheus_client click"),
        ("broker.client.reading.fetch", "nats aiohttp grpc pysyncobj pyspark pandas"),
        ("spark_liftlog", "nats aiohttp grpc pysyncobj"),
        ("pyspark_liftlog", "nats aiohttp grpc pysyncobj"),
    ],
)
def test_import_loads_nothing_heavy(module: str, unwanted: str) -> None:
    code = f"import sys, {module}; print([m for m in {unwanted.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_extensions_are_there_wherever_they_could_have_been_built() -> None:
    if not os.environ.get("TESTS_RUN_IN_CI") or shutil.which("cc") is None:
        pytest.skip("only CI insists")
    from broker.client.reading.gathering import IMPLEMENTATION as GATHERING
    from broker.ingest import IMPLEMENTATION as INTAKE

    assert (INTAKE, GATHERING) == ("compiled", "compiled")


@pytest.mark.process
@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_without_a_goal_shows_its_goals_and_nothing_else() -> None:
    done = subprocess.run(["make", "--silent"], capture_output=True, text=True, check=True, cwd=ROOT)
    lines = done.stdout.splitlines()
    assert len(lines) > 8
    assert [line for line in lines if not line.startswith("make ")] == []


def test_every_page_is_linked_and_every_link_leads_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    linked = set()
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                path = (page.parent / target).resolve()
                assert path.exists(), f"{page.relative_to(ROOT)} links to {target}, which is not there"
                linked.add(path)
    text = "\n".join(page.read_text() for page in pages)
    for page in pages[1:]:
        name = str(page.relative_to(ROOT))
        assert page in linked or name in text, f"nothing leads to {name}"


def test_the_list_of_decision_records_is_whole_and_in_order() -> None:
    folder = ROOT / "docs" / "adr"
    listed = re.findall(r"^- \*\*(\d+)\*\* \[.+\]\((.+\.md)\)", (folder / "README.md").read_text(), re.MULTILINE)
    assert [name for _, name in listed] == sorted(path.name for path in folder.glob("[0-9]*.md"))
    for number, name in listed:
        assert int(name[:4]) == int(number)
        assert (folder / name).read_text().startswith(f"# {number}. "), name


def test_every_source_that_a_page_names_is_there() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    texts = {page: page.read_text() for page in pages if page.parent.name != "adr"}
    tops = ("broker", "spark_liftlog", "pyspark_liftlog", "tests", "examples", "setup.py")
    there = [f"/{path.relative_to(ROOT)}" for top in tops for path in [ROOT / top, *(ROOT / top).rglob("*.p*")]]
    for page, text in texts.items():
        blocks = re.findall(r"^# ([\w/]+\.py)$", text, re.MULTILINE)  # a reader makes these files
        named = set(re.findall(r"`([\w/]+\.(?:pyx?|pxi))`", text)) - set(blocks)
        missing = [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in there)]
        assert not missing, page.name
    tour = texts[ROOT / "docs" / "explain" / "architecture.md"]
    assert len(set(re.findall(r"`([\w/]+\.(?:pyx?|pxi))`", tour))) > 50


def test_the_guided_tour_tells_who_imports_whom() -> None:
    page = (ROOT / "docs" / "explain" / "architecture.md").read_text()
    rows = re.findall(r"^\| `([\w/]+)` \| .* \| (.*)\|$", page.partition("## Packages")[2], re.MULTILINE)
    told = {package: set(re.findall(r"`(\w+)`", names)) for package, names in rows}
    found = {}
    for folder in [*(ROOT / "broker").glob("*/"), *(ROOT / top for top in PACKAGES[1:])]:
        if (folder / "__init__.py").exists():
            names = {
                name
                for path in folder.rglob("*.py")
                for name in re.findall(r"^ *(?:from|import) (?:broker\.)?(\w+)", path.read_text(), re.MULTILINE)
            }
            ours = {path.parent.name for path in (ROOT / "broker").glob("*/__init__.py")} | {*PACKAGES[1:]}
            found[str(folder.relative_to(ROOT))] = names & ours - {folder.name}
    assert told == found


def test_the_guided_tour_has_every_thread_by_its_name() -> None:
    page = (ROOT / "docs" / "explain" / "architecture.md").read_text()
    told = set(re.findall(r"`([a-z-]+)…?`", page.partition("## Threads")[2].partition("\n## ")[0]))
    found = set()
    for package in (*ROOMS, "serving", "raft"):
        for path in (ROOT / "broker" / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Thread", "Threads")):
                    for word in node.keywords:
                        if word.arg == "name" and not isinstance(word.value, ast.Name):
                            found.add(ast.unparse(word.value).removeprefix("f").strip("'\"").partition("{")[0])
                elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("make_loop", "ThreadLoop")):
                    found.add(ast.unparse(node.args[1]).strip("'\""))
    assert len(found) > 20
    assert found <= told


MAKERS = ("Thread", "Threads", "PoolExecutor", "Timer")
MAKES_THREADS = {"node/partitions/sync.py", "node/sinks/service.py"}
"""The pool of fsyncs, which is handed to the drivers of roles; and `Runners`, which are handed to the sinks."""


def test_the_drivers_of_roles_are_handed_what_runs_them() -> None:
    """They make no thread, no pool and no timer, so that a simulator can step them (record 154)."""
    broker, found = ROOT / "broker", set()
    driver = [broker / "link" / f"{name}.py" for name in ("answering", "following", "outbox", "pace")]
    for path in (*driver, *(broker / "node").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("Thread", "PoolExecutor", "Threads", "Timer")
            ):
                found.add(str(path.relative_to(broker)))
    assert found == MAKES_THREADS


def test_the_drivers_of_roles_are_handed_how_they_wait() -> None:
    """Whoever waits lets others go on in an order that a simulator chooses (records 172, 211)."""
    drivers = [ROOT / "broker" / "link" / f"{name}.py" for name in ("answering", "following")]
    node = ROOT / "broker" / "node"
    for path in (*drivers, *node.glob("*.py"), *(node / "sinks").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                assert not ast.unparse(node.func).endswith((".wait", ".wait_for", ".sleep")), path


def test_every_source_that_a_source_names_is_there() -> None:
    """A file that was moved is named by its new name in the comments and docstrings of all others."""
    files = [path for top in (*PACKAGES, "examples", "tests") for path in (ROOT / top).rglob("*.p*")]
    sources = [path for path in files if path.suffix in {".py", ".pyx", ".pxi"}]
    there = {path.name for path in sources} | {"setup.py", "_pb2.py"}
    assert len(there) > 300
    for path in sources:
        for line in path.read_text().splitlines():
            if ".p" not in line or (path.is_relative_to(ROOT / "tests") and "`" not in line):
                continue  # tests make files of their own
            named = set(re.findall(r"\w+\.(?:pyx?|pxi)\b", line))
            assert named <= there, f"{path.relative_to(ROOT)} names {sorted(named - there)}, which is not there"


def test_every_module_stands_in_the_list_of_its_package() -> None:
    """A reader who looks for something reads the package's docstring first."""
    for start in [*(ROOT / "broker").glob("*/**/__init__.py"), *(ROOT / "spark_liftlog").rglob("__init__.py")]:
        docstring = ast.get_docstring(ast.parse(start.read_text())) or ""
        here = start.parent
        there = {path.name for path in here.glob("*.py")} - {"__init__.py"}
        there |= {f"{path.parent.name}/" for path in here.glob("*/__init__.py")}
        missing = there - set(re.findall(r"[a-z_0-9]+(?:\.py\b|/)", docstring))
        assert not missing, f"{start.relative_to(ROOT)} does not name {sorted(missing)}"


def documented_metrics(page: str) -> set[str]:
    """The names on the page; one that begins with `_` continues some beginning of the first name of its row."""
    names = set()
    for cell in re.findall(r"^\|(.*?)\|", page, re.MULTILINE):
        first, *others = re.findall(r"`([a-z_]+)", cell) or [""]
        words = first.split("_")
        names |= {first, *others}
        names |= {"_".join(words[:count]) + other for other in others for count in range(1, len(words) + 1)}
    return names


def test_every_metric_and_log_line_is_documented() -> None:
    """docs/reference/metrics.md and log-lines.md list what an operator will meet."""
    metrics, lines = ((ROOT / "docs" / "reference" / name).read_text() for name in ("metrics.md", "log-lines.md"))
    sources = "".join(path.read_text() for path in (ROOT / "broker").rglob("*.py"))
    found = set(re.findall(r'"(liftlog_[a-z_]+)"', sources))
    assert len(found) > 50
    told = documented_metrics(metrics)
    assert not {
        name for name in found if not {name, f"{name}_total"} & told
    }  # counters get `_total` when they are told
    for counter in COUNTERS:
        reason = counter.removeprefix("refused_")
        short = f"`{reason}`" if reason != counter else f"_{counter}_total`"
        assert short in metrics, counter
    for package in (*(f"broker/{room}" for room in (*ROOMS, "serving", "client")), "spark_liftlog"):
        for path in sorted(set((ROOT / package).rglob("*.py")) - {ROOT / "broker/runtime/logs.py"}):
            for event in re.findall(r'log\.(?:info|warning|error|exception)\(\s*"([a-z_]+\.[a-z_]+)', path.read_text()):
                assert f"`{event}`" in lines, f"{path.name}: {event}"


WIRE = {
    "broker/api/answers.py",
    "broker/api/sink_answers.py",
    "broker/serving/contract/schemas.py",
    "broker/node/sinks/questions.py",
}
"""Their classes are bodies and questions of the wire. Such a class may be called as what it carries."""

CALLED_ALIKE = {"Cluster": "as its catalog knows it, and as those whom a query asks"}
"""Names that two classes may have for one thing, seen from two sides."""


def test_no_class_is_called_as_another_one() -> None:
    """A reader who meets a name in a message or a signature finds one class of that name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    twice = {name: [path for path in paths if path not in WIRE] for name, paths in found.items()}
    assert len(found) > 500
    assert {name for name, paths in twice.items() if len(paths) > 1} == CALLED_ALIKE.keys()
    wire = [path for paths in found.values() for path in paths if path in WIRE]
    assert len(wire) > 50
    assert set(wire) == WIRE
