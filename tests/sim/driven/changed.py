# ruff: noqa: E501  (one line for each mistake reads better than six)
"""Deliberate mistakes in what carries changes of streams: seeds of `changing.CHANGING` find them. As `mutants.py`."""

from __future__ import annotations

from typing import Final

from tests.sim.mutants import Mutant

SEEDS: Final = 46
"""A dozen of these are of that kind."""


def of(name: str, file: str, *texts: str, seed: int = 4, seeds: int = SEEDS) -> Mutant:
    return Mutant(name, f"broker.{file}", tuple(zip(texts[::2], texts[1::2], strict=True)), seed, seeds, "")


ACCEPTANCE: Final = "node.partitions.acceptance"
PARTITION: Final = "node.partitions.partition"
CONTROL: Final = "control.operating.changes"
PLACED: Final = "node.placed"
CAPTURES: Final = "intake.captures"
FLUSH: Final = "intake.flush"
STREAMS: Final = "serving.endpoints.streams"
SETTINGS: Final = "storage.segments.checkpoint"
COMPACTION: Final = "storage.rewrite.compaction"

QUICK: Final = (
    of("answers a change before it has it", CONTROL, "        await self._until(lambda: self._streams_info(info) == info or self._is_gone(info), APPLIED_S)\n", "        pass\n", seed=5),
    of("goes on by the former settings", PLACED, "            partition.alter(assigned.info)\n            self._info = assigned.info", "            self._info = assigned.info"),
    of("takes records into a stream that takes none", PARTITION, "        if acceptance.is_closed or replica.removed:\n            acceptance.check_open(decided=decided)\n", "        pass\n", "                if acceptance.is_closed:  # P7\n                    acceptance.check_open(decided=decided)\n", "                pass\n", seed=5),
    of("answers over NATS what it alone has", FLUSH, "        acks = ALL\n", "        acks = Acks.LEADER\n", seed=5),
)  # fmt: skip
CHANGED: Final = (
    # answers that come too early
    of("describes what it leads by its catalog", STREAMS, "        gathered = _as_led(gathered)\n", "        pass\n", seed=5),
    of("takes itself for one that goes by a change", STREAMS, "            return not handle.is_changing and _terms(handle.goes_by or info) == _terms(info)\n", "            return True\n", seed=12),
    of("answers a deletion before it has it", CONTROL, "        await self._until(lambda: self._incarnation(name) != info.incarnation, APPLIED_S)\n", "        pass\n"),
    # leaders
    of("answers as a leader until its turn", PLACED, "            partition.retire(epoch if is_ours else epoch + 1)\n", "            pass\n", seed=36),
    of("tells nobody who waits that its log is closed", PLACED, "            partition.depose()\n            partition.replica.note_closed()", "            partition.replica.note_closed()"),
    # more partitions
    of("takes what was sorted by another number", ACCEPTANCE, "        if self._has_others and sorted_by and sorted_by != self.info.settings.partitions:", "        if False:", seed=5),
    of("takes records into a partition that is being added", ACCEPTANCE, "        if replica.partition >= (count := self.info.settings.partitions):", "        count = 0\n        if False:", seed=13),
    of("does not go on when a stop is taken back", PLACED, "            partition.go_on_taking()", "            pass", seed=5),
    # compaction
    of("lets retention take from what is compacted alone", SETTINGS, '        by_retention = settings.cleanup != "compact"\n', "        by_retention = True\n", seed=188, seeds=190),
    of("takes a pass that was stopped for a whole one", COMPACTION, "            self.end, now_us=self.now_us, tombstones_to", "            limit, now_us=self.now_us, tombstones_to", seed=28),
    of("takes records away, and never says by how much", COMPACTION, "if staged.records_gone and not self._note_superseded(staged.path, cuts):", "if False:", seed=12),
    # intake
    of("gives a stream that is altered another builder", FLUSH, "        slot.builder.alter(\n            **_builder_settings(info),\n        )\n        self._configure(slot, info)\n", "        self._flush(slot, force=True)\n        slot.builder.tag = None\n        slot.builder = self.add(info, slot.partition).builder\n        slot.builder.tag = slot\n        self._configure(slot, info)\n", seed=53, seeds=64),
    of("sorts by the former number", CAPTURES, "                if each not in stays or stays[each].sorted_by != count:", "                if each not in stays:", "            gone += [slot for slot in stays.values() if slot.sorted_by != count]  # E5\n", "", seed=53, seeds=64),
    of("begins no capture when its session is back", PLACED, "            if self._capturing.is_due(partition, assigned.info):", "            if False:", seed=61, seeds=64),
)  # fmt: skip
