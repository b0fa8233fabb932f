"""Goal: to a broker that is alone a partition to which nothing comes costs next to nothing: it may have ten thousand.

Method: as `test_placed_alone.py`; what is counted is calls and bytes, not time.
"""

from __future__ import annotations

import gc
import tracemalloc
from concurrent.futures import Future
from pathlib import Path

import pytest

from broker.metadata.catalog import StreamInfo
from broker.metadata.cluster import Cluster
from broker.node.partitions.partition import Partition
from tests.support.placed import ScriptedCatalog, node
from tests.unit.runtime.test_placed_alone import create

pytestmark = pytest.mark.slow
MANY = 50
BYTES_EACH = 16_500
"""14,800 are taken, some by what stands in for others here. Without `__slots__` in what each replica is made of, and
with a condition for each, it was 20,300."""


class NoCapture:
    """There is no NATS server."""

    def __init__(self) -> None:
        self._done: Future[None] = Future()
        self._done.set_result(None)

    def begin(self, info: StreamInfo, partition: Partition) -> Future[None]:
        return self._done

    def end(self, partition: Partition, *, with_sent: bool = False) -> Future[None]:
        return self._done


def test_a_replica_that_is_led_takes_little_memory(tmp_path: Path) -> None:
    catalog = ScriptedCatalog()
    with node(tmp_path, catalog, "p1", NoCapture(), has_others=False) as one:
        one.start()
        for at in create(catalog, "first", MANY):  # what all share is made
            one.leading(at)
        gc.collect()
        tracemalloc.start()
        try:
            for at in create(catalog, "s", MANY):
                one.leading(at)
            one.hub.take_moved()
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert taken / MANY < BYTES_EACH


def test_a_start_goes_through_all_partitions_once_not_once_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = ScriptedCatalog()
    with node(tmp_path, catalog, "p1", NoCapture(), has_others=False) as one:
        one.start()
        for at in create(catalog, "s", MANY):
            one.leading(at)
    with node(tmp_path, catalog, "p2", NoCapture(), has_others=False) as two, monkeypatch.context() as patched:
        patched.setattr(Cluster, "places_of", None)
        found = two.replicas.open_found()
    assert found.sound == {"i-s": list(range(MANY))}
