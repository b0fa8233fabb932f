"""The rules of every test: its input does not depend on luck or haste, and a failure says what and why, shortly.

Hypothesis   tries the same examples in each run; `make prop` sets LIFTLOG_PROP_SEED, and then other ones. Nothing
             is timed: the machine may stand still for seconds.
output       A long comparison is cut and a long log ends with its end; the last lines name each failure once more.
processes    A test that starts one is marked `process`; the audit hook here ends any other one that tries.
lanes        `--lane NAME` runs the tests of a lane (lanes.py), those with processes first, so that no worker ends with
             a long one. Files without any are not even imported. Workers get whole files (support/by_file.py).
slow tests   `make check` leaves out what is marked `slow`: tests that take about a second of a core, or wait for some,
             and all seeds but the first of a heavy test. What is marked `long` is not in `make test`.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from broker.storage.rewrite import keymap
from tests.lanes import FIRST, PROCESS_FOLDERS, SHARDS, has_some, lane_of
from tests.support import spark_classes, spark_home, turns
from tests.support.by_file import ByFile

os.environ.setdefault("JDK_JAVA_OPTIONS", spark_classes.USES)  # of each JVM below, whoever starts it
os.environ.setdefault("SPARK_HOME", str(spark_home.unpacked()))

for name in ("CI", "BUILD_NUMBER"):  # with them pytest prints differences of lists in full, however long
    if value := os.environ.pop(name, None):
        os.environ.setdefault("TESTS_RUN_IN_CI", value)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell ignores it for what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "liftlog",
    deadline=None,
    derandomize="LIFTLOG_PROP_SEED" not in os.environ,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("liftlog")

STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")
"""Audit events of a process that is started."""
SECTION_CHARS_MAX = 3_000
REASON_CHARS_MAX = 600


@pytest.fixture(scope="session", autouse=True)
def known_hashes() -> None:
    """Hashes of keys are random in each process, and once in some hundred times a Bloom filter takes one entry for
    another (`blooms.F1`). Here they are the same in each run."""
    rng = random.Random(3)
    keymap._LONG_KEY = rng.randbytes(32)
    drawn = np.frombuffer(rng.randbytes(keymap._MULTIPLIERS.nbytes), np.uint64)
    keymap._MULTIPLIERS = drawn.reshape(keymap._MULTIPLIERS.shape)


def _folder(nodeid: str) -> str:
    return nodeid.removeprefix("tests/").partition("/")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", choices=[FIRST, *SHARDS], help="only the tests of this lane (tests/lanes.py)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    lane = config.option.lane
    if not lane or not collection_path.is_relative_to(config.rootpath):
        return None
    return None if has_some(lane, collection_path.relative_to(config.rootpath).as_posix()) else True


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Without searches for cycles: next to nothing is dropped, and each goes through all modules and tests so far."""
    gc.disable()
    turns.take(session.config)
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Each later search for cycles leaves the modules and tests alone: with them it takes seconds. A test that calls
    `gc.unfreeze` freezes again in its end."""
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _folder(item.nodeid) in PROCESS_FOLDERS:
            item.add_marker(pytest.mark.process)
    if lane := config.option.lane:
        of_lane, others = [], []
        for item in items:
            marks = frozenset(mark.name for mark in item.iter_markers())
            (of_lane if lane_of(item.nodeid, marks) == lane else others).append(item)
        items[:] = of_lane
        config.hook.pytest_deselected(items=others)
    first = ("process", "slow")
    if turns.is_worker(config):  # each has begun somewhere else
        items.sort(key=lambda item: item.path)
    items.sort(key=lambda item: next((at for at, mark in enumerate(first) if item.get_closest_marker(mark)), 2))


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


def pytest_sessionstart(session: pytest.Session) -> None:
    """Make Spark's classes ahead, in the process that starts several workers, where many sessions start."""
    if getattr(session.config.option, "numprocesses", None) and session.config.option.lane in ("spark", "pages"):
        made = spark_classes.make()
        if made is not None:
            session.config.add_cleanup(made.terminate)  # it has ended long ago, or hangs


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False
    return ByFile(config, log)


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
