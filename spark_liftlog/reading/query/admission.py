"""How much of what there is goes into the next batch: the limits of the options, together.

    backlog per partition ── minOffsetsPerTrigger: enough? ── maxOffsetsPerTrigger, maxBytesPerTrigger ──► records
                                    no: nothing, until maxTriggerDelay has passed since the last batch, or the start

N5  Each limit holds by itself; shares are in proportion to the backlogs, and no partition starves (N4 of plan.py).
N6  A batch that is not worth it is put off, never lost: `latest` of a new query is written down all the same.
N7  What is there at the first trigger of a start is not put off: nobody knows how long it has waited, and a query that
    is started again more often than the delay lasts would never have a batch (decision record 255).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from spark_liftlog.options import SourceOptions
from spark_liftlog.reading.advance import Heads
from spark_liftlog.reading.cluster import At, Cluster
from spark_liftlog.reading.offsets import Key
from spark_liftlog.reading.plan import prorate


class Admission:
    """The limits of one query.

    Args:
        cluster: Is asked how many bytes a backlog has, if bytes are limited.
    """

    def __init__(self, options: SourceOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._last_batch_s = -math.inf  # N7
        self._heads: Heads | None = None
        self._rows_max: int | None = None
        self._is_bounded = True
        self._is_final = False
        self.is_waiting = False

    def begin(self, heads: Heads, *, rows_max: int | None, is_bounded: bool, is_final: bool) -> None:
        """A trigger; `heads` are what its backlogs reach to.

        Args:
            rows_max: Records of the batch, as Spark says.
            is_bounded: The limits count.
            is_final: Nothing comes after what there is: no batch is put off.
        """
        self._heads, self._is_final, self.is_waiting = heads, is_final, False
        self._rows_max, self._is_bounded = rows_max, is_bounded

    def renewed(self, heads: Heads) -> None:
        """The same trigger has newer heads."""
        self._heads = heads

    def due_in_s(self, now_s: float) -> float:
        """When a batch that was put off is worth it anyhow."""
        if not self.is_waiting:
            return math.inf
        return max(0.0, self._last_batch_s + self._options.max_trigger_delay_s - now_s)

    def share(self, backlogs: Mapping[Key, int]) -> dict[Key, int]:
        """Records to take per partition; none if the batch is put off."""
        options, total = self._options, sum(backlogs.values())
        if not self._is_bounded:
            return self._taken(prorate(backlogs, None))
        least = options.min_offsets_per_trigger
        waited_s = time.monotonic() - self._last_batch_s
        if least is not None and not self._is_final and 0 < total < least and waited_s < options.max_trigger_delay_s:
            self.is_waiting = True
            return {}
        limits = [limit for limit in (options.max_offsets_per_trigger, self._rows_max) if limit is not None]
        taken = prorate(backlogs, min(limits, default=None))
        if options.max_bytes_per_trigger is not None and taken:
            taken = within_bytes(backlogs, taken, self._bytes_of(taken, backlogs), options.max_bytes_per_trigger)
        return self._taken(taken)

    def _taken(self, taken: dict[Key, int]) -> dict[Key, int]:
        if taken or self._last_batch_s == -math.inf:
            self._last_batch_s = time.monotonic()
        return taken

    def _bytes_of(self, keys: Mapping[Key, int], backlogs: Mapping[Key, int]) -> dict[Key, int]:
        """About how many bytes the backlogs have."""
        assert self._heads is not None, "begin comes first"
        asked: list[tuple[Key, At]] = [
            (key, {"offset": self._heads.partitions[key].high_watermark - backlogs[key]}) for key in sorted(keys)
        ]
        answers = self._cluster.resolve(asked)
        return {key: answer.bytes_ahead for (key, _), answer in zip(asked, answers, strict=True)}


def within_bytes(
    backlogs: Mapping[Key, int], taken: Mapping[Key, int], sizes: Mapping[Key, int], bytes_max: int
) -> dict[Key, int]:
    """Say how much may be taken so that all has about `bytes_max` bytes, by the mean size of each backlog's records.

    At least one record of each partition that has any.
    """
    weights = {key: taken[key] * sizes[key] // max(1, backlogs[key]) for key in taken}
    total = sum(weights.values())
    if total <= bytes_max:
        return dict(taken)
    return {key: max(1, count * bytes_max // total) for key, count in taken.items()}
