"""What happens in the background of all partitions: one thread, one round after the other.

Every `checkpoint_interval_ms` the partitions that moved write their checkpoint; every `interval_ms` old
segments are sealed or removed; partitions with `fsync = interval` are handed to the fsync pool when due.
Nothing here is waited for by an append or a fetch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from broker.api.errors import LiftlogError
from broker.runtime.config import Config
from broker.runtime.partition import Partition

log = logging.getLogger(__name__)


class Cleaner:
    """Owns the cleaner thread."""

    def __init__(
        self,
        config: Config,
        partitions: Callable[[], Iterable[Partition]],
        *,
        also: Callable[[], object] = lambda: None,
    ) -> None:
        self._clean_s = config.cleaner.interval_ms / 1000
        self._checkpoint_s = config.cleaner.checkpoint_interval_ms / 1000
        self._partitions = partitions
        self._also = also
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cleaner", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the round and stop."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        clean_at = checkpoint_at = time.monotonic()
        pause_s = min(self._clean_s, self._checkpoint_s)
        while not self._stop.wait(pause_s):
            now = time.monotonic()
            partitions = list(self._partitions())
            interval_ms = [p.sync_if_due(now) for p in partitions if not p.fsync_each_batch]
            pause_s = min(self._clean_s, self._checkpoint_s, *(ms / 1000 for ms in interval_ms))
            if now - checkpoint_at >= self._checkpoint_s:
                checkpoint_at = now
                self._each(partitions, lambda p: p.log.checkpoint(), "checkpoint")
            if now - clean_at >= self._clean_s:
                clean_at = now
                now_us = time.time_ns() // 1000
                self._apart()
                self._each(partitions, lambda p, now_us=now_us: self._clean(p, now_us), "clean")  # type: ignore[misc]

    def _clean(self, partition: Partition, now_us: int) -> None:
        partition.log.roll_if_due(now_us)
        before = partition.log.log_start_offset
        after = partition.apply_retention(now_us)
        partition.rest_if_quiet()
        if after != before:
            log.info("retention.removed partition=%s log_start_offset=%d records=%d", partition, after, after - before)
            partition.note_change()

    def _apart(self) -> None:
        """What is to be done in each round apart from the partitions: unfinished decisions of sinks, old stages."""
        try:
            self._also()
        except (LiftlogError, OSError) as error:
            log.error("cleaner.failed what=sinks error=%s", error)
        except Exception:
            log.exception("cleaner.bug what=sinks")

    def _each(self, partitions: Iterable[Partition], act: Callable[[Partition], object], what: str) -> None:
        for partition in partitions:
            if self._stop.is_set():
                return
            if partition.removed:
                continue
            try:
                act(partition)
            except (LiftlogError, OSError) as error:
                if partition.removed:
                    continue
                log.error("cleaner.failed what=%s partition=%s error=%s", what, partition, error)
            except Exception:
                log.exception("cleaner.bug what=%s partition=%s", what, partition)
