"""What holds for every test: what is tried does not depend on luck or haste, and a failure says what and why, shortly.

Hypothesis   tries the same examples in each run; `make prop` sets LIFTLOG_PROP_SEED, and then other ones. Nothing
             is timed: the machine may stand still for seconds.
output       A long comparison is cut and a long log ends with its end; the last lines name each failure once more.
processes    With several workers (`pytest -n 2`) the tests that start processes are two groups, each of which one
             worker runs, one after the other. Beside them goes what needs a core and little else.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

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
    "cluster": "brokers",
    "soak": "brokers",
    "benchmarks": "brokers",
    "spark": "spark",
    "examples": "spark",
    "notebooks": "spark",
}
"""Of the folders of tests with processes: no two Sparks at once, and each group takes about as long as the other."""
SECTION_CHARS_MAX = 3_000
REASON_CHARS_MAX = 600


class ByResource(LoadScopeScheduling):
    """Gives a worker all tests of a group with processes, or all of one file."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return GROUPS.get(path.removeprefix("tests/").partition("/")[0], path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByResource:
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
