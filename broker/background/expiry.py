"""Consumers that were given up: which ones are forgotten.

One that leaves records unread and has committed nothing for `cleaner.offsets_retention_ms` is forgotten. One that has
read all there is has nothing to commit, however long nothing happens: it is kept. Where a partition is there and cannot
be looked into, nobody can say that, so its consumers are kept: a stream that is offline, and among several brokers a
partition that has no replica on the broker that keeps the offsets. A replica that is behind its leader knows of fewer
records, so those that it shows as unread are unread.

A pin (`groups.pins`) is forgotten when it was not placed anew for that time. The offsets of a consumer group are kept
until they are removed; what a removal leaves behind (`fencing.H5`) is forgotten after that time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from broker.groups.offsets import ConsumerOffset
from broker.groups.progress import GroupOffset
from broker.node.partitions.consumers import Consumers
from broker.storage.log import PartitionLog

log = logging.getLogger(__name__)

EXPIRE_TIMEOUT_S: Final = 30.0
Look = Callable[[ConsumerOffset | GroupOffset], PartitionLog | bool]
"""The log of a partition that was read; True: it is there and cannot be looked into; False: it is gone."""


def expire_offsets(offsets: Consumers, look: Look, loop: asyncio.AbstractEventLoop, *, before_us: int) -> None:
    """Forget consumers that leave records unread, and have committed nothing since a time; and pins. Blocks.

    Args:
        loop: Where `offsets` is used.
        before_us: Microseconds since 1970 UTC.
    """
    left = [name for name in offsets.silent(before_us) if _leaves_unread(offsets, look, name, before_us)]
    if left:
        expired = asyncio.run_coroutine_threadsafe(offsets.expire(left, before_us), loop)
        for name in expired.result(EXPIRE_TIMEOUT_S):
            log.info("offsets.expired consumer=%s", name)
    asyncio.run_coroutine_threadsafe(offsets.expire_pins(before_us), loop).result(EXPIRE_TIMEOUT_S)
    asyncio.run_coroutine_threadsafe(offsets.expire_groups(before_us), loop).result(EXPIRE_TIMEOUT_S)


def _leaves_unread(offsets: Consumers, look: Look, consumer: str, before_us: int) -> bool:
    """Whether it left a record unread that was there before a time, or all that it read is deleted."""
    live = 0
    for row in offsets.get(consumer):
        found = look(row)
        live += found is not False
        if isinstance(found, bool):
            continue
        later = found.reader.offset_for_time(before_us)
        if row.offset < (found.state.high_watermark if later is None else later):
            return True
    return live == 0
