"""Goal: a process of Spark imports what it is asked for. A query waits for several, one after the other. Method: a
process of its own for each."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

CLIENT, COMPUTE, TASK, WRITING = (
    "broker.client.client",
    "pyarrow.compute",
    "spark_liftlog.reading.task",
    "spark_liftlog.writing",
)
"""Arrow's functions take as long to import as half of what is ours."""
HEADERS = """
import pyarrow as pa
from spark_liftlog.schema import ROW, Projection
projection = Projection(ROW)
schema = projection.shape("orders", 0).schema
rows = pa.RecordBatch.from_arrays([pa.nulls(2, field.type) for field in schema], schema=schema)
assert list(projection.without_empty_headers([rows])) == [rows]
"""


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        pytest.param("import spark_liftlog.datasource", {CLIENT, COMPUTE, TASK, WRITING}, id="source"),
        pytest.param("import spark_liftlog.reading.stream_reader", {COMPUTE, WRITING}, id="driver"),
        pytest.param("import spark_liftlog.reading.task", {CLIENT, COMPUTE, WRITING}, id="task"),
        pytest.param(HEADERS, {COMPUTE, "pandas"}, id="no-headers"),
    ],
)
def test_a_process_imports_what_it_needs(code: str, absent: set[str]) -> None:
    script = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    found = set(done.stdout.split()) & absent
    assert not found
