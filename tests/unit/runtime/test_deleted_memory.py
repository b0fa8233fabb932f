"""Goal: a broker that is alone keeps nothing of a deleted stream in memory.

Method: partitions and their logs are watched by weak references, and no search for cycles is made.
"""

from __future__ import annotations

import gc
import weakref
from functools import partial
from pathlib import Path
from typing import Any

from broker.storage.remembered import Remembered
from tests.support.waiting import until
from tests.unit.runtime.test_control import _no_jetstream, append, running

__all__ = ["_no_jetstream"]  # a fixture
STREAMS = 200
AT_ONCE = 20


def _is_given_back(remembered: Remembered) -> bool:
    return remembered.memory is None


async def test_nothing_stays_of_streams_that_are_made_and_deleted(tmp_path: Path) -> None:
    refs: list[weakref.ref[Any]] = []
    async with running(tmp_path) as broker:
        gc.collect()
        gc.disable()
        try:
            for first in range(0, STREAMS, AT_ONCE):
                names = [f"s{number}" for number in range(first, first + AT_ONCE)]
                for name in names:
                    await broker.create_stream(name, {})
                    await append(broker, name)
                    partition = broker.partition(name, 0)
                    partition.log.remembered.known()
                    held = partition, partition.replica, partition._core, partition.log.state
                    refs += [*map(weakref.ref, held), weakref.ref(partition.log.remembered)]
                for name in names:
                    await broker.delete_stream(name)
                await until(partial(_is_given_back, partition.log.remembered), "the tables to be given back")
                del partition, held
            await until(lambda: not any(ref() for ref in refs), "their memory to be given back")  # the cleaner's round
        finally:
            gc.enable()
