"""The lane of each test: `first`, which `make test` runs, or a shard of `make test-long` (record 144).

A test that starts no process belongs to the first lane, unless it is marked `long` or searches by seeds
(`SEARCHED_IN_SHARDS`). Any other belongs to its folder's shard, unless `END_TO_END` names it: the main paths, each
once.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

FIRST: Final = "first"

END_TO_END: Final = (
    # one broker
    "tests/cluster/test_cli.py::test_from_nothing_to_records_through_kill_9_and_back",
    "tests/cluster/test_intake.py::test_stock_js_publish_returns_a_puback",
    "tests/cluster/test_faults.py::test_every_acked_record_survives_kill_9_of_the_broker[0]",
    # three brokers
    "tests/cluster/test_three.py::test_a_killed_broker_loses_nothing_and_catches_up[leader]",
    # damage, which the others of its file walk through
    "tests/unit/link/test_mending.py::test_all_three_are_damaged_at_different_places",
    "tests/unit/link/test_mending.py::test_all_are_damaged_in_the_same_place_and_each_stays",
    "tests/unit/storage/test_following.py::test_a_replica_without_its_checkpoint_says_so_at_each_open",
    # what a person meets first: Spark reads and writes streams, and reads them whole
    "tests/examples/test_quickstart.py::test_spark_and_pandas_agree_and_nothing_is_left",
    # the house
    "tests/unit/test_house.py::test_import_loads_nothing_heavy",
    "tests/unit/ingest/test_extension_is_built.py",
    "tests/unit/ingest/test_real_server.py",
)
"""Tests of the shards that the first lane runs, too: names of tests, or of files."""

SEARCHED_IN_SHARDS: Final = (
    "tests/properties/",
    "tests/sim/",
    "tests/fuzz/",
    *(
        f"tests/unit/{each}.py"
        for each in (
            "client/test_client_doubt",
            "client/test_client_gathering",
            "client/test_client_hostile",
            "client/test_client_json",
            "cluster/test_rescue_folders",
            "link/test_faults",
            "link/test_mending",
            "runtime/test_called_certificates",
            "runtime/test_encrypted_killed",
            "runtime/test_log_ends",
            "serving/test_fuzz",
            "storage/test_following",
            "storage/test_giving_up",
            "storage/test_mending",
            "storage/test_picking",
            "storage/test_repair",
            "storage/test_write_again",
        )
    ),
)
"""How paths begin of tests that search by seeds, compare many random cases, or walk through every place where an
answer, a disk or a connection may fail. They run in their shards: with them the first lane took ten minutes on a slow
machine, and its limit is that with the install."""
FITS: Final = ("tests/sim/test_evidence.py", "tests/sim/test_mutants.py")
"""Files among them that say whether mistakes and evidence fit the code: whoever changes the code has to know."""

SHARDS: Final = {
    "cluster": ("cluster", "unit", "interop"),
    "spark": ("spark",),
    "sim": ("sim",),
    "properties": ("properties", "fuzz"),
    "soak": ("soak", "history"),
    "pages": ("examples", "notebooks", "benchmarks"),
}
"""The folders of each shard. From `unit` come the tests that start processes, and those marked `long`."""

PROCESS_FOLDERS: Final = ("cluster", "interop", "soak", "benchmarks", "spark", "examples", "notebooks")
"""Each of their tests counts as one that starts a process."""

WORKERS: Final = {FIRST: 3, "cluster": 3, "soak": 2}
"""How many tests of a lane run at once, if not `WORKERS_DEFAULT`: brokers are mostly waited for."""
WORKERS_DEFAULT: Final = 2

MOSTLY_WAITS: Final = (
    *(f"tests/{folder}" for folder in PROCESS_FOLDERS),
    "tests/properties/gates/",
    *(
        f"tests/unit/{part}"
        for part in ("client/", "link/", "serving/", "raft/test_wire", "raft/test_messages", "runtime/test_placed")
    ),
)
"""How paths begin of tests that wait for sockets, threads and processes longer than they compute. One worker of the
first lane takes nothing else, so that computing has one worker for each core (record 150)."""


def lane_of(nodeid: str, marks: frozenset[str]) -> str:
    """The lane of a test.

    Args:
        nodeid: As pytest names it: `tests/folder/...::name[case]`.
        marks: The names of its marks.
    Raises:
        KeyError: its folder belongs to no shard.
    """
    path, name, plain = nodeid.partition("::")[0], nodeid, nodeid.partition("[")[0]
    shard = shard_of(path)
    is_long = bool(marks & {"process", "long"}) or (path.startswith(SEARCHED_IN_SHARDS) and path not in FITS)
    if not is_long or any(each in END_TO_END for each in (path, name, plain)):
        return FIRST
    return shard


def has_some(lane: str, path: str) -> bool:
    """Whether the lane may have tests of a file or folder. `path`: from the root, `tests/folder/...`.

    The first lane has few files of the folders with processes, and each worker would import all of them.
    """
    folder = path.removeprefix("tests/").partition("/")[0]
    if lane != FIRST:
        return folder in SHARDS[lane] or folder not in chain(*SHARDS.values())  # without a shard: `lane_of` says so
    if folder not in PROCESS_FOLDERS and not f"{path}/".startswith(SEARCHED_IN_SHARDS):
        return True
    return any(f"{each.partition('::')[0]}/".startswith(f"{path}/") for each in (*END_TO_END, *FITS))


def shard_of(path: str) -> str:
    """The shard of a test's folder; KeyError: none has it."""
    folder = path.removeprefix("tests/").partition("/")[0]
    for shard, folders in SHARDS.items():
        if folder in folders:
            return shard
    raise KeyError(f"{path}: tests/lanes.py gives tests/{folder} no shard")
