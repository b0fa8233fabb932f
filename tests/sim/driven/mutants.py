# ruff: noqa: E501  (one line for each mistake reads better than six)
"""Deliberate mistakes in the drivers of replicas. Each is found by a seed.

As those of `tests.sim.mutants`, whose cores they leave alone.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from tests.sim.cluster import play
from tests.sim.mutants import Mutant, applied


def of(name: str, file: str, *texts: str, seed: int = 0, seeds: int = 30) -> Mutant:
    return Mutant(name, f"broker.{file}", tuple(zip(texts[::2], texts[1::2], strict=True)), seed, seeds, "")


ACKS: Final = "node.partitions.acks"
FOLLOWING: Final = "link.following"
PLACED: Final = "node.placed"
FOLDERS: Final = "node.folders"
REPLICAS: Final = "node.replicas"
MENDING: Final = "node.mending"
MENDED: Final = "storage.rewrite.mending"

DRIVEN: Final = (
    # mends that are taken out again: message ids went by the time of day, and a leader's clock that was ahead forgot them
    of("counts the age of ids by the time of day", "node.partitions.partition", "        now_us = replica.elapsed_us()\n", "        now_us = replica.wall_us()\n", seed=1),
    of("opens a log by a clock that began before it", "node.folders", "boot_id=boot_id, now_us=self.elapsed_us(), expected", "boot_id=boot_id, now_us=0, expected", seed=3),
    # rules of the drivers
    of("tells a publisher without a session", ACKS, "if isinstance(outcome, int) and ticket.acks is not OWN and not self.may_answer():", "if False:", seed=1),
    of("answers clients without a session", ACKS, ">= self.least_epoch and self.has_session()", ">= self.least_epoch"),
    of("says that what it has appended is durable", FOLLOWING, "durable_end=min(opened.state.durable_end, end)", "durable_end=end"),
    of("syncs a follower once", FOLLOWING, "            self._is_queued = self._sync_of >= 0\n            return self._is_queued", "            self._is_queued = self._sync_of >= 0\n            return False"),
    of("follows with the epoch of before", PLACED, "            partition.log.follow(state.leader_epoch)", "            pass"),
    of("does not say that its folder is there", PLACED, "            self._report_opened(self.at, self._incarnation)", "            pass"),
    of("believes a registration of before", REPLICAS, "if own is None or own.incarnation != self._process:", "if own is None:"),
    of("holds a question that was answered for one under way", "node.asks", "            self._under_way.discard(key)", "            pass", seed=2),
    of("sends one command for many, and no other", "node.asks", "            self._under_way = {}\n        self._go()", "            pass", seed=2),
    # closes, which the seeds of `faults.CLOSING` have many of
    of("closes a log beside its fsync", FOLLOWING, "            self._waits.until(self._lock, lambda: not self._is_syncing)\n", "            pass\n", seed=3),
    of("closes a log while somebody answers from it", "link.answering", "            self._waits.until(self._lock, lambda: not self._reading)\n", "            pass\n", seed=3),
    of("ends beside a turn", "node.serial_work", "            self._waits.until(self._not_running, lambda: not self._is_running)\n", "            pass\n", seed=55, seeds=60),
    of("steps out for what was seen before the log recovered", PLACED, "recover(partition.replica.elapsed_us())\n                self._begin_life()\n", "recover(partition.replica.elapsed_us())\n", seed=31, seeds=60),
    of("says that a folder is gone before it is", PLACED, "        self._host.folders.remove(self._name, *self.at)\n        self.is_gone = True\n", "        self.is_gone = True\n        self._host.folders.remove(self._name, *self.at)\n", seed=3),
    of("says that a folder is gone before it is durable", FOLDERS, "                self.disk.sync_dir(str(path))\n                with suppress(OSError):", "                with suppress(OSError):", seed=3),
    # damage, which the seeds of `faults.ROTTING` have much of
    of("gives up a log for one record", PLACED, "            elif self.is_damaged and may_go and self._is_beyond_mending(partition):", "            elif self.is_damaged and may_go:", seed=10),
    of("gives up after a round in vain", MENDING, "if self._vain.get(pair, 0) >= VAIN_ROUNDS and _is_of_no_use", "if _is_of_no_use", seed=10),
    of("copies a range of another epoch", MENDED, "            if not log.epochs.epoch_of(first) == header.leader_epoch == log.epochs.epoch_of(last):", "            if False:", seed=2),
    of("copies a range that is not whole", MENDED, "    found = [Found(header, message) for header, message in messages_of(memoryview(data))]\n", "    from broker.api.batch import message_bytes, read_header\n    found, view = [], memoryview(data)\n    while view:\n        found.append(Found(read_header(view), view[: message_bytes(view)]))\n        view = view[message_bytes(view) :]\n", seed=10),
    of("asks before its mark is lowered", MENDING, "                lower_mark(opened, start)  # H4\n", "", seed=38, seeds=60),
    of("asks on for what was let go", MENDING, "        if asked.lost[0] < answer.log_start:", "        if False:", seed=38, seeds=60),
)  # fmt: skip


def driven_by(mutant: Mutant, *, in_order: bool = False, of: Container[int] = range(16)) -> str:
    """Which seed finds it, and how; empty: none of so many as are stated, of these of sixteen."""
    seeds = [seed for seed in range(mutant.seeds) if seed % 16 in of]
    with applied(mutant):
        for seed in sorted(seeds, key=lambda seed: not in_order and seed != mutant.seed):
            _, failure = play(seed)
            if failure:
                return f"seed {seed}: {failure[:110]}"
    return ""
