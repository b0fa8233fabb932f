"""The rules of every test: its input does not depend on luck or haste, and a failure says what and why, shortly.

Hypothesis   tries the same examples in each run; `make prop` sets LIFTLOG_PROP_SEED, and then other ones. Nothing
             is timed: the machine may stand still for seconds.
output       A long comparison is cut and a long log ends with its end; the last lines name each failure once more.
processes    A test that starts one is marked `process`; the audit hook here ends any other one that tries.
             `make check` leaves them out. With several workers they are five groups, each of which one worker runs,
             one after the other; the other files follow, the long ones first. Clusters from seeds are spread over
             all workers, test by test. Processes are mostly waited for: `make test` has five workers.
slow tests   `make check` leaves out what is marked `slow`: tests that take about a second of a core, or wait for some,
             and all seeds but the first of a heavy test.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.support import spark_classes, spark_home

os.environ.setdefault("JDK_JAVA_OPTIONS", spark_classes.USES)  # of each JVM below, whoever starts it
os.environ.setdefault("SPARK_HOME", str(spark_home.unpacked()))

for name in ("CI", "BUILD_NUMBER"):  # with them pytest prints differences of lists in full, however long
    if value := os.environ.pop(name, None):
        os.environ.setdefault("TESTS_RUN_IN_CI", value)

settings.register_profile(
    "liftlog",
    deadline=None,
    derandomize="LIFTLOG_PROP_SEED" not in os.environ,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("liftlog")

GROUPS = {
    "spark": "spark",
    "examples": "examples",
    "notebooks": "examples",
    "cluster": "brokers",
    "benchmarks": "jobs",
    "soak": "three",
}
"""The folders of tests with processes. Three groups have a Spark. Each takes about as long as the others."""
THREE = ("three", "plane", "chaos")
"""In the names of the files with clusters of three brokers, which are a group of their own."""
JOBS = ("bare", "discovery", "kills", "standalone")
"""In the names of the files of tests/spark that start sessions of their own, and took half of the time of all of them:
they are not of the group with the common session."""
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")
"""Audit events of a process that is started."""
SECTION_CHARS_MAX = 3_000
REASON_CHARS_MAX = 600


def _folder(nodeid: str) -> str:
    return nodeid.removeprefix("tests/").partition("/")[0]


def _group(nodeid: str) -> str | None:
    group, test = GROUPS.get(_folder(nodeid)), nodeid.partition("/")[2]
    file = test.partition("::")[0]
    if group == "spark" and any(name in file for name in JOBS):
        return "jobs"
    return "three" if group == "brokers" and any(name in file for name in THREE) else group


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without searches for cycles: next to nothing is dropped, and each goes through all modules and tests so far."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # each later collection leaves the modules and tests alone: they are most of what there is


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _folder(item.nodeid) in GROUPS:
            item.add_marker(pytest.mark.process)
    if hasattr(config, "workerinput"):  # groups first, then properties, so that no worker ends with a long file
        order = [*GROUPS.values(), "properties"]
        places = {item.nodeid: _group(item.nodeid) or _folder(item.nodeid) for item in items}
        items.sort(key=lambda item: order.index(place) if (place := places[item.nodeid]) in order else len(order))


class NoProcess:
    """While a test runs that is not marked `process`, nothing may be started. An audit hook cannot be removed."""

    def __init__(self) -> None:
        self.running = ""
        sys.addaudithook(self.hear)

    def hear(self, event: str, _: tuple[object, ...]) -> None:
        if self.running and event in STARTS:
            raise RuntimeError(f"{self.running} starts a process ({event}): mark it with pytest.mark.process")


_no_process = NoProcess()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _no_process.running = "" if item.get_closest_marker("process") else item.nodeid
    try:
        return (yield)
    finally:
        _no_process.running = ""


class ByResource(LoadScopeScheduling):
    """Gives a worker all tests of a group with processes, or all of one file, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path.startswith("tests/sim/"):
            return nodeid
        return _group(nodeid) or path


def pytest_sessionstart(session: pytest.Session) -> None:
    """Make Spark's classes ahead, in the process that starts several workers, if tests with processes run."""
    if getattr(session.config.option, "numprocesses", None) and "not process" not in session.config.option.markexpr:
        made = spark_classes.make()
        if made is not None:
            session.config.add_cleanup(made.terminate)  # it has ended long ago, or hangs


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByResource:
    config.option.loadscopereorder = False
    return ByResource(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Formats the failure.

    CPython before 3.11.8 and 3.12.2 (gh-106905) mixes up two `ast.parse` when a garbage collection within one lets
    another thread run that logs a traceback: "AST constructor recursion depth mismatch", and the failure is not told.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        report = yield
    finally:
        if was_enabled:
            gc.enable()
    report.sections = [(name, _end_of(text)) for name, text in report.sections]
    return report


def _end_of(text: str) -> str:
    if len(text) <= SECTION_CHARS_MAX:
        return text
    return f"[{len(text) - SECTION_CHARS_MAX} characters before]\n{text[-SECTION_CHARS_MAX:]}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Behind everything else: each failure with its reason."""
    yield
    failed = [*terminalreporter.stats.get("error", ()), *terminalreporter.stats.get("failed", ())]
    if failed:
        terminalreporter.section("what failed")
    for report in failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        where = f"{crash.path}:{crash.lineno}: " if crash else ""
        terminalreporter.line(f"{report.nodeid} ({report.when}, {getattr(report, 'duration', 0.0):.1f} s)")
        terminalreporter.line(f"    {where}{(crash.message if crash else str(report.longrepr))[:REASON_CHARS_MAX]}")
