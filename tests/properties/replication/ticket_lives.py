"""Two partitions that are captured from NATS, and everything that comes between an append and its answer, at random.

The real parser, flusher, partitions, cores and logs, all in one thread. What other threads do comes when luck says so:
an fsync of the pool, a fetch of a follower, the effects of a step (one by one, and late), what intake hears, a tick, a
change of leadership or of the session, a stop of what is sorted, a disk that fails, a deletion.

K1  Each publisher is answered once; with success not before what he asked for is so, and while clients may be told.
K2  Each of those who wait for a batch is told once (`Told`).
K3  A partition that says it has stopped has nobody who waits, in its core or held.
K4  What counts as under way or uncommitted is never less than nothing, and nothing in the end. Who waits for the end
    of a batch waits while there is one.
K5  In the end an acked record is where its ack says. What was refused before it was appended is not there.
"""

from __future__ import annotations

import errno
import json
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from broker.api.batch import decode_batch
from broker.api.errors import LiftlogError
from broker.api.stream import settings_from
from broker.ingest import PendingBatch
from broker.intake.flush import FlushSlot
from broker.intake.flushed import Flushed, Told
from broker.node.partitions.effects import Effects
from broker.node.partitions.partition import Partition
from broker.node.partitions.sync import Outcome
from broker.replication.events import Effect
from broker.storage.log import AppendResult
from tests.support.acks import offset_of
from tests.support.replicated import US, Led
from tests.unit.ingest.wire import answers_in, hmsg
from tests.unit.runtime.test_acks_altered import PoolByHand
from tests.unit.runtime.test_acks_apart import ReplicatedIntake

SURE: Final = ("[overloaded]", "[not_ready]", "[not_enough_replicas]", "[expectation_failed]")
"""How errors end that say for sure that nothing was stored."""
TURNS: Final = 30
"""In so many everything comes to its end."""


class FaultOfOurs(Exception):
    """What a defect raises amid the answers to a batch."""


class LateEffects:
    """As `Effects`: those of a step are done at once, or one by one when luck says so, as other threads do them."""

    def __init__(self, effects: Effects, life: TicketLife) -> None:
        self._effects, self._life = effects, life

    def do(self, effects: Sequence[Effect], *, syncs: bool = True) -> None:
        if self._life.is_prompt or self._life.rng.random() < 0.5:
            self._effects.do(effects, syncs=syncs)
        elif effects:
            self._life.late.append(deque((self, effect, syncs) for effect in effects))

    def do_late(self, effect: Effect, syncs: bool) -> None:
        self._effects.do((effect,), syncs=syncs)


class TicketLife:
    """See the module.

    Args:
        is_sole: No other broker keeps these partitions.

    Attributes:
        is_prompt: Effects are done at once: by the thread of intake, or because it all ends.
        seen: Answers by their kind, and what else has come to pass.
    """

    def __init__(self, intake: ReplicatedIntake, pool: PoolByHand, rng: random.Random, *, is_sole: bool) -> None:
        self.rng = rng
        self.is_prompt = False
        self.late: list[deque[tuple[LateEffects, Effect, bool]]] = []
        self.seen: Counter[str] = Counter()
        self._intake, self._pool = intake, pool
        self._flusher = intake.flusher
        self._is_ending = False
        self._now_s = 0.0
        intake.loop.time = lambda: self._now_s  # type: ignore[method-assign]
        self._epochs = [2, 2]
        self._stops: list[int | None] = [None, None]
        self._as_of = self._ms = 0
        self._wants: list[tuple[int, str]] = []  # by the number of each who is to be answered: where, and what for
        self._answers: dict[int, dict[str, Any]] = {}
        self._told: dict[tuple[Flushed, Told], Outcome] = {}
        self._wrong: list[str] = []
        for number, each in enumerate(self.partitions):
            self._take_settings(number, each, is_sole=is_sole)
            each._effects = LateEffects(each._effects, self)  # type: ignore[assignment]
        self._give, self._hand_on = self._flusher.answers.give, self._flusher._told
        self._flusher.answers.send = self._hear
        self._flusher.answers.give = self._give_or_fail  # type: ignore[method-assign]
        self._flusher._told = self._note_told  # type: ignore[method-assign]

    def _take_settings(self, number: int, partition: Partition, *, is_sole: bool) -> None:
        rng, led, slot = self.rng, self._intake.led[number], self._slots[number]
        given: dict[str, Any] = {"linger_ms": rng.choice((0, 5))}
        if rng.random() < 0.5:
            given["concurrency_control"] = "optimistic"
        if is_sole and rng.random() < 0.5:
            given["fsync"] = "interval"
        info = replace(partition.info, settings=settings_from(given))
        partition.alter(info)
        partition.hear(info)
        self._flusher.alter(slot, info)
        slot.sorted_by = 1
        if is_sole:
            led.state = replace(led.state, replicas=(US,), isr=(US,), min_insync_replicas=1)
            self._lead_anew(number)
            partition.serve(self._epochs[number])

    @property
    def partitions(self) -> list[Partition]:
        return [led.partition for led in self._intake.led]

    @property
    def _slots(self) -> list[FlushSlot]:
        return [builder.tag for builder in self._intake.builders]

    @property
    def acts(self) -> list[Callable[[], object]]:
        """Whatever may come next, the more often the likelier."""
        often = [self._do_a_late_effect] * 8 + [self._publish] * 6
        often += [self._pool.run_one, self._follow, self._lead] * 4 + [
            self._turn_session,
            self._blink,
            self._stop_taking,
        ] * 3
        return [
            *often,
            self._hear_all,
            self._hear_some,
            self._tick_flusher,
            self._flush_gathered,
            self._flush_one,
            self._tick,
            self._depose,
            self._retire,
            self._serve,
            self._fail_disk,
            self._remove,
        ]

    # -- the thread of intake --------------------------------------------------------------------------------

    def _promptly(self, act: Callable[[], object]) -> None:
        before, self.is_prompt = self.is_prompt, True
        try:
            act()
        finally:
            self.is_prompt = before

    def _publish(self) -> None:
        where, wires = self.rng.choice((0, 0, 0, 1)), []
        self._now_s += self.rng.choice((0.0, 0.1))
        for _ in range(self.rng.choice((1, 1, 2, 3, 20))):
            number, level = len(self._wants), self.rng.choice(("all", "all", "leader", "none"))
            self._wants.append((where, level))
            headers = [("Liftlog-Ack", level)]
            if self.rng.random() < 0.3:
                headers.append(("Nats-Msg-Id", f"{self.rng.randrange(20)}"))
            if self.rng.random() < 0.1:
                headers.append(("Nats-Expected-Last-Sequence", f"{self.rng.randrange(3)}"))
            reply = None if level == "none" else f"{number}"
            wires.append(hmsg("s", b"%d" % number, *headers, reply=reply, sid=where + 1))

        def receive() -> None:
            self._intake.parser.feed(b"".join(wires), time.time_ns() // 1000)
            self._flusher.after_feed()

        self._promptly(receive)

    def _tick_flusher(self) -> None:
        self._promptly(lambda: [self._flusher._tick(linger_s) for linger_s in list(self._flusher._ticks)])

    def _flush_one(self) -> None:
        self._promptly(lambda: self._flusher.flush(self.rng.choice(self._slots)))

    def _flush_gathered(self) -> None:
        for slot in self._slots:
            if slot.scheduled is not None:
                self._promptly(lambda slot=slot: self._flusher._flush(slot))  # type: ignore[misc]

    def _hear_all(self) -> None:
        self._promptly(self._flusher._take_heard)

    def _hear_some(self) -> None:
        heard = list(self._flusher._heard)
        count = self.rng.randrange(len(heard) + 1)
        if self.rng.random() < 0.2:
            self.rng.shuffle(heard)  # threads that were told in one order may put them in another
        self._flusher._heard.clear()
        self._flusher._heard.extend(heard[:count])
        self._hear_all()
        self._flusher._heard.extend(heard[count:])

    # -- other threads ---------------------------------------------------------------------------------------

    def _do_a_late_effect(self) -> None:
        if self.late:
            step = self.rng.choice(self.late)
            effects, effect, syncs = step.popleft()
            if not step:
                self.late.remove(step)
            effects.do_late(effect, syncs)

    def _any(self) -> tuple[int, Partition, Led]:
        number = self.rng.randrange(2)
        return number, self.partitions[number], self._intake.led[number]

    def _follow(self) -> None:
        _, partition, led = self._any()
        if partition.leads:
            log = partition.log.state
            led.follow(self.rng.randint(log.high_watermark, log.log_end_offset))

    def _turn_session(self) -> None:
        _, _, led = self._any()
        led.has_session = self.rng.random() < 0.8

    def _blink(self) -> None:
        """The session is over and there again between two ticks, and things go on meanwhile."""
        for led in self._intake.led:
            led.has_session = False
        for _ in range(self.rng.randrange(4)):
            self.rng.choice((self._pool.run_one, self._follow, self._do_a_late_effect))()
        for led in self._intake.led:
            led.has_session = True

    def _tick(self) -> None:
        self._ms += 1
        for partition in self.partitions:
            partition.tick(self._ms)

    def _depose(self) -> None:
        number, partition, _ = self._any()
        if self.rng.random() < 0.3:
            if self.rng.random() < 0.5:
                partition.retire(self._epochs[number] + 1)
            partition.depose()

    def _retire(self) -> None:
        number, partition, _ = self._any()
        if self.rng.random() < 0.1:
            partition.retire(self._epochs[number] + 1)

    def _lead(self) -> None:
        number, partition, _ = self._any()
        if partition.removed or (partition.leads and self.rng.random() < 0.95):
            return
        try:
            if partition.log.state.failure is not None:
                partition.depose()
                partition.log.recover(partition.replica.elapsed_us())
            self._lead_anew(number)
        except LiftlogError:
            self.seen["cannot lead"] += 1
            return
        if self.rng.random() < 0.9:
            partition.serve(self._epochs[number])

    def _lead_anew(self, number: int) -> None:
        led = self._intake.led[number]
        self._epochs[number] += 1
        led.state = replace(led.state, leader_epoch=self._epochs[number])
        led.partition.lead(self._epochs[number], led.state)

    def _serve(self) -> None:
        number, partition, _ = self._any()
        if partition.leads:
            partition.serve(self._epochs[number])

    def _fail_disk(self) -> None:
        if self.rng.random() < 0.2:
            self._intake.disk.fail(self.rng.choice(("sync", "write")), errno.EIO, path=".arrows")
        if self.rng.random() < 0.5:
            for partition in self.partitions:
                partition.look_at_failure()

    def _stop_taking(self) -> None:
        number, partition, _ = self._any()
        self._stops[number] = None
        if self.rng.random() < 0.7:
            partition.go_on_taking()
            return
        self._as_of += 1
        partition.stop_taking(self._as_of, lambda: None)
        self._stops[number] = self._as_of

    def _remove(self) -> None:
        if self.rng.random() < 0.01:
            self._any()[1].note_removed()

    # -- what must hold --------------------------------------------------------------------------------------

    def _give_or_fail(self, pending: PendingBatch, blob: bytes, outcome: Outcome) -> None:
        self._give(pending, blob, outcome)
        if self.rng.random() < 0.05 and not self._is_ending:
            self.seen["fault of ours"] += 1
            raise FaultOfOurs

    def _note_told(self, batch: Flushed, what: Told, result: AppendResult, outcome: Outcome) -> None:
        if (batch, what) in self._told:
            self._wrong.append(f"K2: {what} twice")
        self._told[batch, what] = outcome
        tells_client = what is not Told.HERE and batch.pending.awaited_count > 0
        partition = batch.slot.partition
        assert isinstance(partition, Partition)
        if isinstance(outcome, int) and tells_client and not partition._tickets.may_answer():
            self._wrong.append("K1: told while clients may not be")
        self._hand_on(batch, what, result, outcome)

    def _hear(self, blob: bytes) -> None:
        for reply, body in answers_in(blob):
            number, answer = int(reply), json.loads(body)
            where, level = self._wants[number]
            if number in self._answers:
                self._wrong.append(f"K1: {number} is answered twice: {self._answers[number]} and {answer}")
            self._answers[number] = answer
            self.seen[answer["error"]["description"].rpartition(" ")[2] if "error" in answer else "stored"] += 1
            if "error" in answer or answer.get("duplicate"):
                continue
            partition = self.partitions[where]
            log = partition.log.state
            end = log.high_watermark if level == "all" else log.durable_end
            if not partition.has_followers and not partition.fsync_each_batch:
                end = log.log_end_offset
            if offset_of(answer) >= end:
                self._wrong.append(f"K1: {number}, for {level}, is at {offset_of(answer)} and was told at {end}")

    def check(self) -> None:
        """K1 to K4, so far."""
        assert not self._wrong, self._wrong
        for as_of, partition in zip(self._stops, self.partitions, strict=True):
            assert partition._stopping._waiting_count >= 0, "K3"
            if as_of is not None and partition.has_stopped(as_of, partition.leader_epoch):
                self.seen["stopped"] += 1
                assert partition._core.waiting_count == 0, "K3: it has stopped, and somebody waits in its core"
                held = [ticket.tell for ticket, _ in partition._tickets._held]
                clients = [tell for tell in held if not _is_of_a_stop(tell)]
                assert not clients, f"K3: it has stopped, and held are {clients}"
        assert min(self._counts) >= 0, f"K4: {self._counts}"
        for slot in self._slots:
            assert slot.idle.is_set() == (slot.in_flight == slot.ticked == 0), "K4"

    @property
    def _counts(self) -> list[int]:
        flusher = self._flusher
        found = [flusher._pending_bytes, flusher._ticked_bytes]
        found += [flusher.uncommitted.byte_count, flusher.uncommitted._batch_count]
        for slot in self._slots:
            found += [slot.in_flight, slot.ticked, slot.uncommitted_bytes]
        return found

    def end(self) -> None:
        """Let all come to its end, one way or another; then K1 to K5."""
        self._is_ending = self.is_prompt = True
        how = self.rng.choice(("depose", "remove", "follow"))
        self._intake.disk.heal()
        for led in self._intake.led:
            led.has_session = True
        for _ in range(TURNS):
            while self.late:
                self._do_a_late_effect()
            for slot in self._slots:
                self._flusher.flush(slot)
            self._come_to_rest()
            for number, led in enumerate(self._intake.led):
                if how == "follow" and led.partition.leads:
                    led.partition.serve(self._epochs[number])
                    led.follow(led.partition.log.state.log_end_offset)
        for partition in self.partitions:
            if how == "remove":
                partition.note_removed()
            else:
                partition.depose()
        self._tick_flusher()
        for _ in range(TURNS):
            self._come_to_rest()
        self.check()
        self._check_all_answered()
        assert not any(self._counts), f"K4: {self._counts}"
        for partition in self.partitions:
            assert partition._stopping._waiting_count == 0 == partition._core.waiting_count, "K3"
            assert not partition._tickets._held, "K1"

    def _come_to_rest(self) -> None:
        self._pool.run_one()
        self._pool.run_one()
        self._hear_all()
        self._tick()

    def _check_all_answered(self) -> None:
        stored = [self._stored(partition) for partition in self.partitions]
        for number, (where, level) in enumerate(self._wants):
            if level == "none":
                continue
            assert number in self._answers, f"K1: {number} is not answered"
            answer = self._answers[number]
            if "error" not in answer and not answer.get("duplicate"):
                assert stored[where].get(offset_of(answer)) == b"%d" % number, f"K5: {number} is not at its offset"
            if "error" in answer and answer["error"]["description"].endswith(SURE):
                assert b"%d" % number not in stored[where].values(), f"K5: {number} is stored, it was told: {answer}"

    def _stored(self, partition: Partition) -> dict[int, bytes]:
        log = partition.log
        if log.state.failure is not None:
            log.recover(partition.replica.elapsed_us())
        start, end = log.state.log_start_offset, log.state.log_end_offset
        batches = (decode_batch(each) for each in log.reader.messages(start, end, whole=True)) if end > start else ()
        return {row["offset"]: row["value"] for batch in batches for row in batch.to_pylist()}


def _is_of_a_stop(tell: Callable[..., None]) -> bool:
    """Whether it tells a stop that what was appended before it is committed."""
    return isinstance(tell, partial) and getattr(tell.func, "__func__", None) is Partition._committed
