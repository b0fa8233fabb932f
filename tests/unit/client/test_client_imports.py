"""Goal: importing the client loads nothing that only some uses need. Method: a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

ALWAYS_ABSENT = {"nats", "aiohttp", "grpc", "pandas", "polars", "pyspark", "pysyncobj"}


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import broker.client",
        "from broker.client import *",
        "from broker.client import Client, Producer, RecordReader, connect; connect('localhost').close()",
    ],
)
def test_importing_the_client_loads_nothing_heavy(code: str) -> None:
    assert not loaded_after(code) & ALWAYS_ABSENT


@pytest.mark.parametrize("module", ["reading.fetch", "writing.append"])
def test_what_executors_import_loads_no_loop(module: str) -> None:
    loaded = loaded_after(f"import broker.client.{module}")
    assert not loaded & (ALWAYS_ABSENT | {"asyncio", "concurrent"})
