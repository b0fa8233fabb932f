"""Goal: the modules that protoc has made of broker/api/proto are those that it makes today.

`python -m tests.unit.api.test_proto` makes it anew.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROTOS = tuple(f"broker/api/proto/{name}" for name in ("replica", "liftbridge", "grpc_health", "grpc_reflection"))
MADE = [f"{proto}_pb2.{kind}" for proto in PROTOS for kind in ("py", "pyi")]


def make(into: Path) -> None:
    options = [f"-I{ROOT}", f"--python_out={into}", f"--pyi_out={into}", *(f"{proto}.proto" for proto in PROTOS)]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options], check=True, cwd=ROOT)


@pytest.mark.process
def test_the_generated_modules_are_those_of_the_proto(tmp_path: Path) -> None:
    make(tmp_path)
    for name in MADE:
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), f"{name}: {__doc__}"


if __name__ == "__main__":
    make(ROOT)
