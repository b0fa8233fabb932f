# ruff: noqa: E501  (one line for each mistake reads better than six)
"""Deliberate mistakes in the drivers of sinks: seeds of `published.PUBLISHING` find them. As `mutants.py`."""

from __future__ import annotations

from typing import Final

from tests.sim.driven.changed import of

SEEDS: Final = 60
"""A dozen of these are of that kind."""
STAGES: Final = "node.sinks.stages"
COORDINATOR: Final = "node.sinks.coordinator"
HIDDEN: Final = "node.sinks.hidden"
SERVICE: Final = "node.sinks.service"
OFFSETS: Final = "node.offsets"
CONSUMERS: Final = "node.partitions.consumers"

DECIDED: Final = (
    # a group is appended once
    of("appends a group without a look", STAGES, "place = None if is_untried else self._find(int(decision, 16), min(ref.search_from for ref in refs))", "place = None", seed=11, seeds=SEEDS),
    of("holds a group for untried that it has tried", STAGES, "                self._untried.difference_update(ref.stage for ref in refs)\n            if found", "            if found", seed=41, seeds=SEEDS),
    # decisions
    of("answers a commit before it is complete", COORDINATOR, "            state = self.complete(sink)\n            self.counts", "            state = self.describe(sink)\n            self.counts", seed=8, seeds=SEEDS),
    of("answers a repeated commit before it is complete", COORDINATOR, "            state = self.complete(sink)\n            self._check", "            state = self.describe(sink)\n            self._check", seed=9, seeds=SEEDS),
    of("decides before the stages are pinned on other disks", HIDDEN, "        if last is not None:\n            last.outcome(self.companion)\n", "", seed=8, seeds=SEEDS),
    # stages
    of("aborts what is pinned", STAGES, "        return self._drop(lambda stage: stage.pin is None, stages, sink=sink, why=\"aborted\")", "        return self._drop(lambda stage: True, stages, sink=sink, why=\"aborted\")", seed=8, seeds=SEEDS),
    # a broker that stops
    of("cancels a question of a loop that has ended", SERVICE, "                raise CancelledError\n", "                answer.cancel()\n", seed=11, seeds=SEEDS),
    # consumers' offsets
    of("reads offsets before all is committed", OFFSETS, "            if partition.end is not None:\n", "            if True:\n", seed=11, seeds=SEEDS),
    of("shows offsets before they are committed", CONSUMERS, "                await asyncio.wrap_future(self._partition.append([RowBatch(rows)], leader_epoch=self._leader_epoch))\n                self._apply(rows)\n", "                self._apply(rows)\n                await asyncio.wrap_future(self._partition.append([RowBatch(rows)], leader_epoch=self._leader_epoch))\n", seed=11, seeds=SEEDS),
    of("answers a commit of offsets that it alone has", CONSUMERS, "self._partition.append([RowBatch(rows)], leader_epoch", "self._partition.append([RowBatch(rows)], acks=\"leader\", leader_epoch", seed=24, seeds=SEEDS),
)  # fmt: skip
