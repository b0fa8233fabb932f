"""Each deliberate mistake of the soak brings its defect back: a test that shows the defect without luck fails with it.

Method: in a process of its own the test runs twice, without the mistake and with it. The page docs/explain/soak.md
tells which mistakes the soak itself finds, and how often.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
SHOWN_BY = {
    "half-message": (
        "tests/unit/runtime/test_changes_amid_a_message.py",
        "test_a_hundred_changes_in_the_midst_of_a_hundred_messages",
        "KeyError",
    ),
    "ids-kept": (
        "tests/unit/storage/test_taking_back.py",
        "test_a_refused_batch_whose_ids_made_the_table_grow_is_stored_when_it_comes_again",
        "assert [True,",
    ),
    "ids-by-wall": (
        "tests/unit/storage/test_clocks.py",
        "test_a_new_leader_with_another_clock_knows_the_ids_of_the_window",
        "assert",
    ),
    "durable-end": (
        "tests/unit/storage/test_durable.py",
        "test_a_roll_beside_a_sync_that_was_told_the_error_does_not_say_that_all_is_well",
        "isinstance(None, StorageFailed)",
    ),
    "commits-alone": (
        "tests/unit/replication/test_scripts.py",
        "test_script[three_replicas_commit]",
        "AssertionError",
    ),
}
"""By mutant: a file, a test in it, and what is told of its failure."""
BOTH = """
import sys
import pytest
from tests.soak.mutants import MUTANTS

asked = [sys.argv[2], "-x", "-q", "-p", "no:cacheprovider", "-n", "0"]
without = pytest.main(asked)
print("=== with the mistake", flush=True)
MUTANTS[sys.argv[1]]()
sys.exit(100 * without + pytest.main(asked))
"""


def test_each_has_a_test_that_shows_it() -> None:
    assert SHOWN_BY.keys() == MUTANTS.keys()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_a_mistake_breaks_is_noticed_each_time(tmp_path: Path, mutant: str) -> None:
    file, test, told = SHOWN_BY[mutant]
    command = [sys.executable, "-c", BOTH, mutant, f"{file}::{test}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    without, _, with_it = found.stdout.partition("=== with the mistake")
    assert found.returncode == 1, f"not 0 and then 1: {found.stdout}{found.stderr}"
    assert "failed" not in without
    assert told in with_it, with_it
