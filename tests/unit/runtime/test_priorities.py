"""No thread of the broker has less priority than another: docs/adr/0021-no-niceness.md."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from broker.background.compactor import Compactor
from broker.background.scrubber import Scrubber
from broker.config import configuration as config
from broker.node.chores import Chores
from broker.node.partitions.partition import Partition
from tests.support.processes import eventually
from tests.support.simdisk import SimDisk

QUICK = {"LIFTLOG_SCRUB_INTERVAL_MS": "1", "LIFTLOG_CLEANER_INTERVAL_MS": "10"}


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="only there a thread has a priority of its own")
def test_who_rewrites_and_who_scrubs_have_the_priority_of_the_others() -> None:
    seen: dict[str, int] = {}
    disk = SimDisk()
    disk.makedirs("/data")

    def partitions() -> list[Partition]:
        seen["scrub"] = priority()
        return []

    def chores() -> list[Chores]:
        seen["compactor"] = priority()
        return []

    given = config.load(None, QUICK, {"data_dir": "/data"})
    threads = [Scrubber(given, disk, partitions), Compactor(given, chores)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(seen) == len(threads), what="both are at work")
    for thread in threads:
        thread.stop()
    assert seen == dict.fromkeys(seen, priority())
