"""Goal: the process of a broker never loads pandas, whatever it does with Arrow."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

WORK = """
import sys
from broker.runtime.without_pandas import do_without_pandas

do_without_pandas()
import pyarrow as pa
import pyarrow.compute as pc

pa.table({"a": [1, 2]}).to_pylist()
pc.add(pa.array([1], pa.timestamp("us")), pa.scalar(1, pa.duration("us")))
assert "pandas" not in sys.modules
import pandas  # what asks for it by name gets it

assert len(pandas.DataFrame({"a": [1]})) == 1
"""


def test_arrow_finds_no_pandas_once_it_was_told() -> None:
    subprocess.run([sys.executable, "-c", WORK], check=True, timeout=120)
