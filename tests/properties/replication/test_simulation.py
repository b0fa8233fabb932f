"""The core in seeded lives: alone over a real log, and as the leader of three. The id of a test names its seed.

More, and others: LIFTLOG_PROP_EFFORT and LIFTLOG_PROP_SEED (tests/support/effort.py). One again:
`pytest tests/properties/replication -k "alone and 17]"`; what it did is printed when it fails.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from broker.replication import leader
from tests.properties.replication.alone import Life
from tests.properties.replication.cluster import Cluster
from tests.support.effort import examples, first_short, seeded

LIVES = 60
CLUSTERS = 600
IN_ONE = 20
"""So many seeds are one test: the first names it."""


def played(life: Life | Cluster) -> None:
    try:
        life.run()
    except BaseException:
        print(f"seed {life.seed}")
        print("\n".join(life.trace[-120:]))
        raise


@pytest.mark.parametrize("first", first_short(range(0, examples(LIVES), IN_ONE)))
def test_alone_every_acknowledged_record_is_there(first: int) -> None:
    for seed in range(first, first + IN_ONE):
        played(Life(leader, seeded(seed)))


@pytest.mark.parametrize("first", first_short(range(0, examples(CLUSTERS), IN_ONE), count=10))
def test_of_three_only_what_every_possible_leader_has_is_committed(first: int) -> None:
    for seed in range(first, first + IN_ONE):
        played(Cluster(leader, seeded(seed)))


DIGEST = """
import hashlib
from broker.replication import leader
from tests.properties.replication.cluster import Cluster
cluster = Cluster(leader, 5)
cluster.run()
print(hashlib.sha256("\\n".join(cluster.trace).encode()).hexdigest())
"""


@pytest.mark.process
def test_a_seed_repeats_itself_whatever_the_hashes_of_this_process() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "12"
    }
    cluster = Cluster(leader, 5)
    cluster.run()
    here = hashlib.sha256("\n".join(cluster.trace).encode()).hexdigest()
    assert digests == {here.encode() + b"\n"}
