"""Goal: a second try is for tests that waited, or were told of an error, and for no others (record 99)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

FAILS_ONCE = """
import os, pathlib, pytest
from broker.api.errors import NotLeader
pytestmark = [{mark}]
@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    known = pathlib.Path(__file__).with_name(f"known-{{number}}")
    is_known = known.exists()
    known.touch()
    if not is_known:
        {failure}
    {always}
"""
TOLD = "raise NotLeader('s/0')"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        pytest.param({}, 0, id="told-of-an-error"),
        pytest.param({"failure": "raise AssertionError('not within 60 s: ready')"}, 0, id="waited-in-vain"),
        pytest.param({"failure": "assert [1] == [1, 1]"}, 1, id="compared"),
        pytest.param({"always": TOLD}, 1, id="again"),
        pytest.param({"mark": ""}, 0, id="without-processes"),
        pytest.param({"mark": "", "failure": "raise KeyError('s')"}, 1, id="without-processes-and-undocumented"),
        pytest.param({"count": 4}, 1, id="too-many"),
    ],
)
def test_who_is_tried_again(given: dict[str, object], code: int, tmp_path: Path) -> None:
    values = {"mark": "pytest.mark.process", "count": 1, "failure": TOLD, "always": "pass"} | given
    (tmp_path / "test_once.py").write_text(FAILS_ONCE.format(**values))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = process\n")
    root = Path(__file__).parents[2]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    ran = subprocess.run(
        [sys.executable, "-m", "tests"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code, ran.stdout[-3000:] + ran.stderr[-2000:]
    assert ("PASSED ONLY WHEN THEY RAN ALONE:" in ran.stdout) == (code == 0)
