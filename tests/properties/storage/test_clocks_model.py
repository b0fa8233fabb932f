"""Goal: an acknowledged id that is repeated within its window is never stored again, whatever clocks say and do.

Method: a leader and a follower with real logs, each with a clock of the day that is off and is set by hours and years,
and one that counts from anywhere in each life. They take turns, are killed, closed, away for hours, lose their tables,
and give back what nobody else has. The model is the true time at which each id was stored. Messages wait before they
are appended, in order.
"""

from __future__ import annotations

import random

import pytest

from broker.api.batch import decode_batch
from broker.storage.log import PartitionLog
from broker.storage.segments.ages import Ages
from broker.storage.segments.checkpoint import LogSettings
from tests.soak.mutants import ids_by_the_time_of_day
from tests.support.effort import examples, first_short
from tests.support.logs import create_log, open_log
from tests.support.published import batch_from_nats, with_id
from tests.support.simdisk import SimDisk
from tests.unit.storage.test_following import stored

SECOND = 1_000_000
HOUR = 3_600 * SECOND
NOON = 1_800_000_000 * SECOND
WINDOW = 120 * SECOND
SETTINGS = LogSettings(
    is_sole_replica=False, dedup_window_ms=WINDOW // 1_000, segment_bytes=20_000, segment_age_ms=60_000
)
STEPS = [sign * by for by in (150 * SECOND, HOUR, 365 * 24 * HOUR) for sign in (1, -1)]


class Replica:
    """A log, its disk and its clocks."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.disk = SimDisk()
        self.began = pair.rng.randrange(1 << 45)
        self.off = pair.rng.choice([0, *STEPS])
        self.log = create_log(self.disk, settings=SETTINGS, now_us=self.elapsed)

    @property
    def elapsed(self) -> int:
        return self.began + self.pair.now

    @property
    def wall(self) -> int:
        return NOON + self.pair.now + self.off

    def restart(self) -> None:
        if self.pair.rng.random() < 0.5:
            self.log.close()
        else:
            self.disk = self.disk.after_kill()
        self.began = self.pair.rng.randrange(1 << 45)
        self.log = open_log(self.disk, settings=SETTINGS, now_us=self.elapsed)


class Pair:
    """See the module.

    Attributes:
        now: The true time.
        stored_at: When each acknowledged id was stored for the last time.
        read_at: When the latest message was read.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = self.read_at = 0
        self.epoch = 1
        self.leader, self.follower = Replica(self), Replica(self)
        self.stored_at: dict[str, int] = {}
        self.known = self.new = 0
        self._take_roles()

    def _take_roles(self) -> None:
        leader, follower = self.leader.log, self.follower.log
        leader.lead(self.epoch)
        follower.follow(self.epoch)
        if follower.state.log_end_offset > leader.state.log_end_offset:
            follower.truncate(leader.state.log_end_offset)

    def replicate(self) -> None:
        leader, follower = self.leader.log, self.follower.log
        if (end := follower.state.log_end_offset) < leader.state.log_end_offset:
            follower.append_stored(stored(leader, end), leader_epoch=self.epoch, now_us=self.follower.elapsed)
        for log in leader, follower:
            log.syncer.sync()
            log.state.advance_high_watermark(leader.state.log_end_offset)

    def fail_over(self) -> None:
        if self.rng.random() < 0.5:
            self.leader.restart()
        self.epoch += 1
        self.leader, self.follower = self.follower, self.leader
        self._take_roles()

    def publish(self) -> None:
        waited = min(self.rng.choice([0, 0, 0, SECOND, 30 * SECOND]), self.now - self.read_at)
        self.read_at = self.now - waited
        ids = [f"id-{self.rng.randrange(40)}" for _ in range(self.rng.randint(1, 4))]
        log, wall = self.leader.log, self.leader.wall
        before = log.state.log_end_offset
        batch = batch_from_nats([(text.encode(), with_id(text)) for text in ids], wall - waited)
        log.append([batch], leader_epoch=self.epoch, now_us=self.leader.elapsed, wall_us=wall)
        found = [decode_batch(message) for message in log.reader.messages(before, log.state.log_end_offset, whole=True)]
        new = {value.decode() for rows in found for value in rows.column("value").to_pylist()}
        for text in set(ids) & self.stored_at.keys():
            passed = self.read_at - self.stored_at[text]
            assert text not in new or passed >= WINDOW, f"{text} is stored again after {passed / SECOND} s"
            self.known += text not in new
        self.new += len(new)
        if self.rng.random() < 0.85:
            self.replicate()
            self.stored_at.update(dict.fromkeys(new, self.now))
        else:
            self.fail_over()  # without it

    def step(self) -> None:
        rng, either = self.rng, self.rng.choice([self.leader, self.follower])
        match rng.randrange(20):
            case 0 | 1 | 2:
                self.now += rng.choice([1_000, SECOND, 10 * SECOND, 40 * SECOND, 100 * SECOND])
            case 3 | 4:
                either.off += rng.choice(STEPS)
            case 5:
                self.fail_over()
            case 6:
                either.restart()
                self.now += rng.choice([0, 0, 2 * HOUR])
                self.epoch += 1
                self._take_roles()
            case 7:
                self.follower.log.remembered.keep_up()
            case 8:
                either.log.checkpoint()
            case 9:
                either.log.remembered.forget()
            case 10:
                either.log.roll_if_due(either.elapsed)
                either.log.tell_time(either.elapsed)
            case _:
                self.publish()


def play(seed: int, steps: int = 250) -> Pair:
    pair = Pair(seed)
    for _ in range(steps):
        pair.step()
    return pair


@pytest.mark.parametrize("seed", first_short(range(examples(20)), count=6))
def test_an_acknowledged_id_is_known_for_its_window(seed: int) -> None:
    pair = play(seed)
    assert pair.known > 10
    assert pair.new > 10


def test_mistakes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day; marks that stay when records go; a mark that is taken for one of later records, too."""
    since = Ages.since
    for mistake in (
        lambda: ids_by_the_time_of_day(),
        lambda: monkeypatch.setattr(Ages, "cut", lambda self, end: None),
        lambda: monkeypatch.setattr(Ages, "since", lambda self, offsets: since(self, (offsets - 3).clip(0))),
    ):
        monkeypatch.setattr(PartitionLog, "_settle", PartitionLog._settle)  # given back at the end
        mistake()
        with pytest.raises(AssertionError, match="stored again"):
            list(map(play, range(60)))
        monkeypatch.undo()
