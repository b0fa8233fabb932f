"""Goal: where there is a compiler the compiled intake is there, and CI says so when it is not."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

import broker.ingest
from broker.ingest import load

BUILT = importlib.util.find_spec("broker.ingest._intake") is not None
COMPILERS = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]


@pytest.mark.skipif(not os.environ.get("TESTS_RUN_IN_CI") or not COMPILERS, reason="only where CI has a compiler")
def test_ci_with_a_compiler_has_the_compiled_intake() -> None:
    assert BUILT, f"{COMPILERS[0]} is there, broker.ingest._intake is not: python setup.py build_ext --inplace"


def test_the_best_implementation_is_chosen() -> None:
    assert ("compiled" if BUILT else "pure") == broker.ingest.IMPLEMENTATION
    assert load() is load("compiled" if BUILT else "pure")
    assert load("pure").IMPLEMENTATION == "pure"
    with pytest.raises(ValueError, match="auto, compiled, pure"):
        load("fast")


@pytest.mark.process
def test_without_the_extension_asking_for_it_says_what_to_do() -> None:
    code = (
        "import sys; sys.modules['broker.ingest._intake'] = None\n"
        "import broker.ingest as i; print(i.IMPLEMENTATION)\n"
        "try:\n    i.load('compiled')\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["pure", "the compiled intake was not built here: install with a C compiler"]
