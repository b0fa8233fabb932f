"""The brokers that could give a damaged replica what it lacks, as nobody inside knows: who lives, is within reach, and
has it. If one of them could all the time since the damage was found, or long enough, the replica is mended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tests.sim.driven.node import Broker
    from tests.sim.driven.seen import Seen

LONG_MS = 12_000
"""Longer than a question without an answer and a pause of a `Mending` take, with two others."""
AT_ONCE_MS = 300
"""So soon after damage was found it is seen who could give what lacks."""
PAUSED_MS = 1_000
Lost = tuple[int, int]


class Givers:
    """See the module. `watch` is to be called again and again while the process runs."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._found_ms: dict[Lost, float] = {}
        self._since_ms: dict[tuple[Lost, str, int], float] = {}
        self._watched_ms = 0.0

    def watch(self) -> None:
        """Look who could give something now."""
        now_ms, log = self._seen.world.now_ms, self._seen.log
        lost = () if log is None else log.state.lost_ranges
        if now_ms - self._watched_ms > PAUSED_MS:  # who is paused hears no answer
            self._since_ms = {}
        self._watched_ms = now_ms
        self._found_ms = {each: self._found_ms.get(each, now_ms) for each in lost}
        before, self._since_ms = self._since_ms, {}
        for each in lost:
            for key in self._able(each):
                self._since_ms[key] = before.get(key, now_ms)

    def of(self, lost: Lost) -> str:
        """Who could have given it; empty: nobody for certain."""
        found_ms, now_ms = self._found_ms.get(lost), self._seen.world.now_ms
        if found_ms is None:
            return ""
        at_latest_ms = max(found_ms + AT_ONCE_MS, now_ms - LONG_MS)
        able = self._able(lost)
        return next((key[1] for key in able if self._since_ms.get(key, now_ms + 1) <= at_latest_ms), "")

    def _able(self, lost: Lost) -> list[tuple[Lost, str, int]]:
        seen = self._seen
        state = seen.broker.catalog.cluster.partitions.get(seen.at)
        cluster = seen.broker.cluster
        names = () if state is None else state.replicas
        others = [cast("Broker", cluster.brokers[who]) for who in names if who != seen.broker.name]
        able = [other for other in others if self._reaches(other) and self._has(other, lost)]
        return [(lost, other.name, other.process) for other in able]

    def _reaches(self, other: Broker) -> bool:
        me = self._seen.broker
        info, network = me.catalog.brokers.get(other.name), me.cluster.network
        return (
            info is not None
            and info.is_live
            and info.registration == other.incarnation
            and other.is_running
            and other.wire is not None
            and other.wire.directory.registration_of(me.name) == me.incarnation
            and network.connects(me.name, other.name)
            and not {me.name, other.name} & network.slow
        )

    def _has(self, other: Broker, lost: Lost) -> bool:
        """Whether all of a range can be read there, for certain."""
        partition = other.driver.partition(self._seen.at)
        theirs = cast("Seen | None", other.replicas.get(self._seen.name))
        if partition is None or theirs is None or theirs.log is not partition.log or theirs.has_rot:
            return False
        known, log = theirs.checker.known[theirs.name], partition.log
        if other.name in known.bad and not log.state.lost_ranges:
            return False  # nobody has found there what it is
        is_whole = not any(start < lost[1] and lost[0] < end for start, end in log.state.lost_ranges)
        return (
            is_whole and log.state.log_start_offset <= lost[0] and lost[1] <= min(log.state.log_end_offset, known.end)
        )
