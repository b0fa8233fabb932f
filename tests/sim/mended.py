"""Records that a disk has lost and that other replicas have: what the checker knows of them, and what must hold.

MEND  what a replica copies from others is what was committed there, of the leader epoch that its log has for it, and
      nothing else changes; its mark of compaction is lowered before it asks; nobody gives up a log for records that
      another replica could have given
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.storage.rewrite.clean_state import load_clean_state

if TYPE_CHECKING:
    from broker.metadata.partition import PartitionState
    from broker.storage.recovery import Ranges
    from tests.sim.checker import Known
    from tests.sim.driven.seen import Seen
    from tests.sim.stored import Stored
    from tests.sim.world import World


class OfMending:
    """A part of the checker."""

    world: World
    known: dict[str, Known]
    partitions: dict[str, PartitionState]
    fail: Callable[[str], None]

    def asks_range(self, replica: Seen, start: int) -> None:
        """A replica asks another one for what it cannot read from `start` on."""
        log = replica.log
        assert log is not None
        mark = max(log.state.compacted_to, load_clean_state(log.state.disk, log.state.folder).cleaned_to)
        if mark > start:
            who = f"{replica.name}: {replica.broker.name}"
            self.fail(f"MEND: {who} asks for what is at {start}, and its mark of compaction is {mark}")

    def mended(self, replica: Seen, ranges: Ranges) -> None:
        """A replica can read again what it could not."""
        name, who, log, known = replica.name, replica.broker.name, replica.log, self.known[replica.name]
        assert log is not None
        self.world.saw("mended")
        self.world.note(who, f"{name}: can read {ranges} again")
        for start, end in ranges:
            at = start
            for batch in replica.shadow:
                if batch.next <= start or batch.first >= end:
                    continue
                if batch.epoch != (epoch := log.epochs.epoch_of(batch.first)):
                    self.fail(f"MEND: {name}: {who} has copied {batch}, and its log is of epoch {epoch} there")
                there = known.at.get(batch.first)
                if batch.first < known.end and there != batch and not known.is_lost:
                    self.fail(f"MEND: {name}: {who} has copied {batch}, and committed there is {there}")
                if batch.first > at:
                    break
                at = batch.next
            if at < end:
                self.fail(f"MEND: {name}: {who} has nothing at {at}, and can read [{start}, {end}), as it says")

    def stays(self, replica: Seen, before: list[Stored], gone: Ranges) -> None:
        """A replica has changed its log to mend it. `before`: what it had; `gone`: what it cannot read."""
        log = replica.log
        assert log is not None
        start, end, has = log.state.log_start_offset, log.state.log_end_offset, set(replica.shadow)
        for batch in before:
            is_within = start < batch.next and batch.next <= end
            if is_within and batch not in has and not any(a < batch.next and batch.first < b for a, b in gone):
                self.fail(f"MEND: {replica.name}: {replica.broker.name} had {batch}, and has mended another part")

    def gives_up(self, replica: Seen, lost: tuple[int, int], giver: str) -> None:
        """A replica wants to begin anew, for records that another one could have given."""
        who = f"{replica.name}: {replica.broker.name}"
        self.fail(f"MEND: {who} gives up its log for [{lost[0]}, {lost[1]}), which {giver} has, within reach")

    def lose_one(self, broker: str, name: str) -> None:
        """A disk does not have a record that it had, which another one has."""
        known = self.known[name]
        known.bad.add(broker)
        known.mendable.add(broker)
        known.holed.add(broker)

    def whole_again(self, replica: Seen) -> None:
        """All of a log can be read. If its records alone were damaged, it is expected to have what it had."""
        known, who = self.known[replica.name], replica.broker.name
        if who in known.bad & known.mendable:
            self.world.saw("whole again")
            self.world.note(who, f"{replica.name}: is whole again")
            for names in (known.bad, known.cut, known.mendable, known.holed):
                names.discard(who)
