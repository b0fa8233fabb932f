"""All tests, as `make test` runs them: `python -m tests [arguments of pytest]`.

A test that waited in vain, or was told of an error, is run once more, alone, in a process of its own. Five workers on
two cores make brokers and threads stand still for seconds: sessions lapse, and what a test took for granted is not so.
An assertion that does not hold is final: a comparison never depends on luck. A unit test with processes is the
exception: it looks at one part and may have looked too early; what is stored is held against acks in other folders.
Final are also more failures than `AGAIN_MAX`, and without processes all errors but those that a broker documents. The
last lines name each test that passes only when it runs alone (record 99).
"""

from __future__ import annotations

import subprocess
import sys

import pytest

AGAIN_MAX = 3
IN_VAIN = "AssertionError: not within "
"""How `tests.support.processes.eventually` begins."""
UNIT = "tests/unit/"
TOLD = "broker.api.errors."
"""How an error begins that a broker documents."""


class Failed:
    """Which tests failed, and whether all of them may be run again."""

    def __init__(self) -> None:
        self.nodes: dict[str, None] = {}
        self.is_final = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.nodes[report.nodeid] = None
            self.is_final |= not may_be_luck(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.is_final |= report.failed


def may_be_luck(report: pytest.TestReport) -> bool:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return False
    if crash.message.startswith((IN_VAIN, TOLD)):
        return True
    compares = crash.message.startswith(("assert", "AssertionError"))
    return "process" in report.keywords and (not compares or report.nodeid.startswith(UNIT))


def main(arguments: list[str]) -> int:
    failed = Failed()
    code = int(pytest.main(arguments, plugins=[failed]))
    if code != pytest.ExitCode.TESTS_FAILED or failed.is_final or not 0 < len(failed.nodes) <= AGAIN_MAX:
        return code
    for node in failed.nodes:
        print(f"once more, alone: {node}", flush=True)
        if (code := subprocess.run([sys.executable, "-m", "pytest", "-n", "0", node]).returncode) != 0:
            return code
    print("PASSED ONLY WHEN THEY RAN ALONE:", *failed.nodes, sep="\n    ")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
