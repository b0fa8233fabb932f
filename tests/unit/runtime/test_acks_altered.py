"""Goal: while `acks` of a stream is altered, nobody is acked before what his message asked for, and everybody once.
After batches that were refused, failed, lost in a recovery or acked, nothing counts as on its way any more.

Method: random orders of pieces of messages, changes of the stream, fsyncs of the pool, fetches of followers, and
failures of writes and fsyncs, all in one thread; the real parser (either twin), flusher, core and log. A message
without `Liftlog-Ack` that is cut by a change may be judged by either setting. Each answer is held against the log at
the moment at which it is sent.
"""

from __future__ import annotations

import errno
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from broker.api.batch import decode_batch
from broker.api.stream import settings_from
from tests.support.acks import offset_of
from tests.support.effort import examples, first_short, seeded
from tests.unit.ingest.twins import TWIN_IDS
from tests.unit.ingest.wire import answers_in, hmsg
from tests.unit.runtime.test_acks_apart import Replicated, ReplicatedIntake
from tests.unit.runtime.test_flush import Intake

pytestmark = pytest.mark.slow
STEPS = 150


class PoolByHand:
    """The fsync pool: what is submitted is synced when the test says so."""

    thread_count = 2

    def __init__(self) -> None:
        self.queue: list[Any] = []

    def submit(self, partition: Any) -> None:
        self.queue.append(partition)

    def run_one(self) -> None:
        if self.queue:
            partition = self.queue.pop(0)
            if partition.run_sync():
                self.queue.append(partition)


@dataclass
class Message:
    """One that was published. `asks`: what it may wait for: its header, or the settings while it was read."""

    value: bytes
    id: str
    asks: set[str] = field(default_factory=set)
    answers: list[dict[str, Any]] = field(default_factory=list)


class Life:
    """One stream, published to and altered in a random order."""

    def __init__(self, intake: Intake, pool: PoolByHand, rng: random.Random) -> None:
        self.intake, self.pool, self.rng = intake, pool, rng
        self.replicated = Replicated(intake) if isinstance(intake, ReplicatedIntake) else None
        self.partition = intake.partitions[0]
        self.log = self.partition.log
        self.slot = intake.builders[0].tag
        self.messages: list[Message] = []
        self.current: Message | None = None
        self.has_header = False
        self.rest = b""
        self.settings: dict[str, Any] = {"linger_ms": 0, "acks": "all", "partition_by": "subject_suffix"}
        self.with_interval = self.replicated is None and rng.random() < 0.5
        self.failures = 0
        self.wrong: list[Exception] = []
        intake.flusher.answers.send = self.hear

    # -- what may happen

    def begin(self) -> None:
        number = len(self.messages)
        level = self.rng.choice(("", "", "all", "leader"))
        known = [message.id for message in self.messages if message.id]
        id = f"i{number}" if self.rng.random() < 0.5 else ""
        if known and self.rng.random() < 0.2:
            id = self.rng.choice(known)
        message = Message(b"v%d" % number, id, {level} if level else set())
        headers = [("Nats-Msg-Id", id)] if id else []
        headers += [("Liftlog-Ack", level)] if level else []
        self.messages.append(message)
        self.current, self.has_header = message, bool(level)
        self.rest = hmsg("s", message.value, *headers, ("X", "y"), reply=f"r{number}")

    def feed(self) -> None:
        """Some more of the message that is half read, or the begin of another."""
        if self.current is None:
            self.begin()
        assert self.current is not None
        self.note_settings()
        size = len(self.rest) if self.rng.random() < 0.4 else self.rng.randrange(1, len(self.rest) + 1)
        piece, self.rest = self.rest[:size], self.rest[size:]
        if not self.rest:
            self.current = None
        self.intake.parser.feed(piece, time.time_ns() // 1000)
        self.intake.flusher.after_feed()

    def note_settings(self) -> None:
        if self.current is not None and not self.has_header:
            self.current.asks.add(self.settings["acks"])

    def alter(self) -> None:
        self.settings["acks"] = self.rng.choice(("all", "leader"))
        if self.with_interval:
            self.settings["fsync"] = self.rng.choice(("batch", "interval"))
        info = replace(self.partition.info, settings=settings_from(self.settings))
        self.partition.alter(info)
        self.intake.flusher.alter(self.slot, info)
        self.intake.parser.route(1, [self.slot.builder], partition_by="subject_suffix")

    def flush(self) -> None:
        self.intake.flusher._flush(self.slot, force=True)

    def sync(self) -> None:
        self.pool.run_one()
        if self.rng.random() < 0.7:
            self.hand_over()

    def hand_over(self) -> None:
        self.intake.flusher._take_heard()

    def follow(self) -> None:
        if self.replicated is not None:
            self.replicated.follow(self.rng.randint(self.log.state.high_watermark, self.log.state.log_end_offset))

    def fail_sync(self) -> None:
        if self.replicated is None and self.rng.random() < 0.3:
            self.failures += 1
            self.intake.disk.fail("sync", errno.EIO, path=".arrows")

    def fail_write(self) -> None:
        """A batch is refused; with an I/O error the log has failed until it is recovered."""
        if self.replicated is None and self.rng.random() < 0.3:
            self.failures += 1
            error = self.rng.choice((errno.EIO, errno.ENOSPC))
            self.intake.disk.fail("write", error, path=".arrows", short=self.rng.choice((0, 300)))

    def close_or_open(self) -> None:
        """Read-only, or open again: what comes while it is closed is refused."""
        if self.replicated is None:
            self.failures += 1
            self.partition.alter(replace(self.partition.info, read_only=self.rng.random() < 0.3))

    def turn_session(self) -> None:
        """Without one nothing is appended and nobody acked; who waits is told when there is one again."""
        if self.replicated is not None:
            self.failures += 1
            self.replicated.led.has_session = self.rng.random() < 0.7
            self.replicated.partition._tickets.release()

    # -- what must hold

    def hear(self, blob: bytes) -> None:
        try:
            self.check(blob)
        except Exception as error:  # the flusher goes on
            self.wrong.append(error)

    def check(self, blob: bytes) -> None:
        for reply, body in answers_in(blob):
            message, answer = self.messages[int(reply[1:])], json.loads(body)
            assert not message.answers, f"{reply!r} is answered twice"
            message.answers.append(answer)
            if "error" in answer:
                assert self.failures, answer
                continue
            is_repeat = answer.get("duplicate", False)
            end = self.log.state.high_watermark
            if message.asks != {"all"} and not is_repeat and self.replicated is not None:
                end = self.log.state.durable_end
            first = self.offset_of_first(message) if is_repeat else offset_of(answer)
            assert first < end, f"{reply!r} asked for {message.asks}, is at {first} and was told at {end}"
            assert self.with_interval or first < self.log.state.durable_end

    def offset_of_first(self, repeat: Message) -> int:
        """The offset of the record that a repeat repeats, known or not."""
        values = {message.value for message in self.messages if message.id == repeat.id}
        [offset] = [offset for offset, value in self.stored().items() if value in values]
        return offset

    def stored(self) -> dict[int, bytes]:
        start, end = self.log.state.log_start_offset, self.log.state.log_end_offset
        found = (decode_batch(m) for m in self.log.reader.messages(start, end, whole=True)) if end > start else ()
        return {row["offset"]: row["value"] for rows in found for row in rows.to_pylist()}

    def end(self) -> None:
        self.intake.disk.heal()
        self.partition.alter(replace(self.partition.info, read_only=False))
        if self.replicated is not None:
            self.replicated.led.has_session = True
            self.replicated.partition._tickets.release()
        while self.current is not None:
            self.feed()
        for _ in range(100):
            self.flush()
            self.pool.run_one()
            self.hand_over()
            if self.replicated is not None:
                self.replicated.follow(self.log.state.log_end_offset)
        if self.failures and self.log.state.failure is not None:
            self.partition.commit_all()
        self.hand_over()
        assert not self.wrong
        stored = self.stored()
        for message in self.messages:
            [answer] = message.answers
            if "error" not in answer and not answer.get("duplicate"):
                assert stored[offset_of(answer)] == message.value
        flusher = self.intake.flusher
        assert (flusher._pending_bytes, flusher._ticked_bytes, self.slot.in_flight, self.slot.ticked) == (0, 0, 0, 0)
        assert self.slot.idle.is_set()
        assert (flusher.uncommitted.byte_count, self.slot.uncommitted_bytes) == (0, 0)
        assert flusher.uncommitted.none.is_set()
        assert self.partition._core.waiting_count == 0


@pytest.fixture(params=TWIN_IDS)
def implementation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("is_replicated", [True, False], ids=["three replicas", "one replica"])
@pytest.mark.parametrize("part", first_short(range(3)))
def test_each_is_acked_once_and_not_before_what_it_asked_for(
    implementation: str, is_replicated: bool, part: int
) -> None:
    told: set[str] = set()
    for seed in range(part, examples(30), 3):
        rng = random.Random(seeded(seed))
        pool = PoolByHand()
        with ThreadPoolExecutor(1) as appender:
            made = ReplicatedIntake if is_replicated else Intake
            intake = made(pool, appender, implementation)  # type: ignore[arg-type]
            life = Life(intake, pool, rng)
            actions = [life.feed] * 6 + [life.alter] * 2 + [life.flush, life.sync, life.sync, life.hand_over]
            actions += [life.follow, life.fail_sync, life.fail_write, life.close_or_open, life.turn_session]
            try:
                for _ in range(STEPS):
                    rng.choice(actions)()
                    assert not life.wrong
                life.end()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}") from error
            finally:
                intake.loop.close()
        for message in life.messages:
            told |= {"error" if "error" in answer else "|".join(sorted(message.asks)) for answer in message.answers}
    assert {"all", "leader", "all|leader"} <= told
    assert "error" in told
