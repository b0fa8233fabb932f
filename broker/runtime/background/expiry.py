"""Consumers that were given up: which ones are forgotten.

One that leaves records unread and has committed nothing for `cleaner.offsets_retention_ms` is forgotten. One that has
read all there is has nothing to commit, however long nothing happens: it is kept. Of a stream that the catalog names
and that is offline nobody can say that, so who reads it is kept for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from broker.runtime.partitions.consumers import Consumers
from broker.runtime.partitions.streams import Streams

log = logging.getLogger(__name__)

EXPIRE_TIMEOUT_S: Final = 30.0


def expire_offsets(offsets: Consumers, streams: Streams, loop: asyncio.AbstractEventLoop, *, before_us: int) -> None:
    """Forget consumers that leave records unread, and have committed nothing since a time. Blocks.

    Args:
        loop: Where `offsets` is used.
        before_us: Microseconds since 1970 UTC.
    """
    left = [name for name in offsets.silent(before_us) if _leaves_unread(offsets, streams, name, before_us)]
    if left:
        expired = asyncio.run_coroutine_threadsafe(offsets.expire(left, before_us), loop)
        for name in expired.result(EXPIRE_TIMEOUT_S):
            log.info("offsets.expired consumer=%s", name)


def _leaves_unread(offsets: Consumers, streams: Streams, consumer: str, before_us: int) -> bool:
    """Whether it left a record unread that was there before a time, or all that it read is deleted."""
    live = 0
    for row in offsets.get(consumer):
        partitions = streams.by_name.get(row.stream, [])
        if not partitions and (found := streams.incarnation_of(row.stream)) and row.incarnation in ("", found):
            live += 1  # offline
            continue
        if row.partition >= len(partitions) or row.incarnation not in ("", partitions[row.partition].incarnation):
            continue
        live += 1
        log_ = partitions[row.partition].log
        later = log_.offset_for_time(before_us)
        if row.offset < (log_.high_watermark if later is None else later):
            return True
    return live == 0
