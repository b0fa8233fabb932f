"""A replica that follows: does what the follower's core wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.api.errors import DiskFull, LiftlogError
from broker.replication import events as e
from broker.replication import following as f
from broker.replication.follower import Follower
from tests.sim.held import Held

if TYPE_CHECKING:
    from tests.sim.broker import Broker


class Following(Held):
    """See the module."""

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(broker, name)
        self.follower = Follower(broker.name)
        self._room_looked_ms = 0

    def _follow_step(self, event: f.Event) -> None:
        for effect in self.follower.step(event):
            self._follow_do(effect)

    def _follow_do(self, effect: f.Effect) -> None:
        log, world = self.log, self.world
        assert log is not None
        match effect:
            case f.Ask(to, message):
                self.broker.post(to, self.name, message, b"")
            case f.Append():
                self._on_disk(lambda: self._append_stored(effect))
            case f.TakeState(offset, at, size):
                self._take_state(offset, at, size)
            case f.Truncate(to, is_copied_again):
                world.saw("truncation")
                self.note(f"truncates from {log.state.log_end_offset} to {to}")
                self._on_disk(lambda: log.truncate(to, is_copied_again=is_copied_again))
            case f.Reset(to, last_epoch):
                world.saw("reset")
                self.note(f"begins anew at {to}")
                self._on_disk(lambda: log.reset(to, last_epoch=last_epoch))
            case f.StartAt(start):
                self._on_disk(lambda: log.trim(start))
                self.checker.starts(self)
            case f.Report():
                self._report(effect)
            case e.Commit(high_watermark):
                self.checker.commits(self, high_watermark)
                log.state.advance_high_watermark(high_watermark)
            case e.Sync(generation):
                self._begin_sync(generation, self._follow_step)
            case e.StepOut():
                self.step_out("fsync")

    def look_for_room(self) -> None:
        """As `Following._look_for_room`."""
        if self.lacks_room and self.world.now_ms - self._room_looked_ms >= 1_000:
            self.lacks_room = False
            self._follow_step(f.RoomFound())

    def _take_state(self, offset: int, at: int, size: int) -> None:
        log = self.log
        assert log is not None
        try:
            is_there = log.handover.take(offset, at, self._data, size)
        except LiftlogError as error:
            if not self._is_harmless(error):
                self._disk_failed(error)
                return
            is_there = False
        if is_there:
            self.world.saw("state file taken")
            self.note(f"has the leader's state file of {offset}")
        self._follow_step(f.StateTaken(not is_there))

    def _report(self, effect: f.Report) -> None:
        self.world.saw("leader reported")
        self.broker.tell_controller("report", self.incarnation[0], self.name, effect.epoch)

    def _on_disk(self, act: Callable[[], object]) -> None:
        """Do something to the log that is followed by what it holds."""
        try:
            act()
        except LiftlogError as error:
            self._cut_shadow()
            if isinstance(error, DiskFull) and not self.lacks_room:
                self.world.saw("follower without room")
                self.lacks_room = True
                self._room_looked_ms = self.world.now_ms
            if self._is_harmless(error):
                self._follow_step(self._holds(is_refused=True))
            else:
                self._disk_failed(error)
            return
        self._cut_shadow()
        self._follow_step(self._holds())
