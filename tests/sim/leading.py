"""A replica that leads, or is asked to: does what the leader's core wants, and answers clients.

An answer that would tell nothing is held back for a while (long poll).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broker.api.errors import BadBatch, DiskFull, LiftlogError, OffsetOutOfRange
from broker.metadata.partition import PartitionState, state_from
from broker.replication import events as e
from broker.replication.leader import Leader, Role
from broker.replication.messages import AskEnd, AskState, Fetch, Inside, Message, Records, State
from broker.storage.log import PartitionLog
from broker.storage.memory.state_files import state_name
from broker.storage.read import verified_messages
from broker.storage.segments.checkpoint import LogSettings
from tests.sim.batches import Batch
from tests.sim.held import Held, stored_of
from tests.support.published import batch_from_nats, with_id
from tests.unit.ingest.wire import answers_in

if TYPE_CHECKING:
    from tests.sim.broker import Broker

LAG_MS_MAX = 1_500
POLL_MS = 200
STATE_PIECE_BYTES = 100


class Leading(Held):
    """See the module."""

    stepping: object

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(broker, name)
        self.leader = Leader(broker.name, replica_lag_ms_max=LAG_MS_MAX)
        self.leader.step(e.Altered(min_insync_replicas=1, fsync_each_batch=True, fsync_interval_ms=0))
        self._parked: dict[str, tuple[Records, float]] = {}
        self._told: dict[str, tuple[int, int]] = {}
        self._trim_to = 0

    @property
    def leads(self) -> bool:
        return self.leader.role is Role.LEADING

    def _lead_step(self, event: e.Event) -> None:
        for effect in self.leader.step(event):
            self._lead_do(effect)

    def _lead_do(self, effect: e.Effect) -> None:
        log = self.log
        match effect:
            case e.Sync(generation):
                self._begin_sync(generation, self._lead_step)
            case e.Commit(high_watermark):
                assert log is not None
                text = f"{self.name}: commits up to {{end}} in epoch {self.leader.epoch}"
                self.world.detail(self.broker.name, text, high_watermark, high_watermark)
                self.checker.commits(self, high_watermark)
                log.state.advance_high_watermark(high_watermark)
                self._unpark()
            case e.Answer(ticket, outcome, _):
                ticket(outcome)
            case e.Send(to, message):
                self._send(to, message)
            case e.AskIsr():
                self._ask_isr(effect)
            case e.StepOut():
                self.step_out("fsync")
            case e.Trim(start):
                self._trim_to = max(self._trim_to, start)
                self._trim()
            case e.Wake():
                self._unpark()

    # -- the in-sync replicas

    def isr_of(self, state: PartitionState, request: int | None = None) -> e.IsrAnswered:
        """A state, as it is told to the leader's core."""
        return e.IsrAnswered(
            epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            isr=state.isr,
            min_insync_replicas=state.min_insync_replicas,
            request=request,
        )

    def _ask_isr(self, ask: e.AskIsr) -> None:
        self.world.saw("ISR asked to grow" if ask.add else "ISR asked to shrink")
        self.note(f"asks {ask.add} into the ISR" if ask.add else f"asks {ask.remove} out of the ISR")
        self.broker.isr_asks.ask(self.name, ask, self._isr_answered)

    def _isr_answered(self, ask: e.AskIsr, said: Mapping[str, Any]) -> None:
        """With the state that it was judged by: a second try is refused because the first was accepted."""
        state = said.get("error", said).get("state")
        if state is not None:  # else it is not known yet (`cluster.C4`), or in doubt: asked again at a tick
            self._lead_step(self.isr_of(state_from(state), ask.request))
        else:
            self.world.saw("ISR change not judged yet")

    def _send(self, to: str, message: Message) -> None:
        data, log = b"", self.log
        assert log is not None
        if isinstance(message, State) and message.length:
            data = log.state.disk.read_file(f"{log.state.folder}/{state_name(message.offset)}")
            data = data[message.at : message.at + message.length]
        if isinstance(message, Inside):
            self.world.saw("follower within a joined batch")
            self.note(f"{to} ends at {message.offset}, within a batch from {message.batch_start} on")
        if isinstance(message, Records):
            is_news = (message.high_watermark, message.log_start) != self._told.get(to)
            if message.offset >= log.state.log_end_offset and not is_news:
                self._parked[to] = (message, self.world.now_ms)
                return
            self._parked.pop(to, None)
            self._told[to] = (message.high_watermark, message.log_start)
            if message.offset < log.state.log_end_offset:
                size = self.world.rng.choice((900, 2_000, 6_000))
                found = self._read(message.offset, log.state.log_end_offset, size)
                if not found:  # it cannot be read
                    self._parked[to] = (message, self.world.now_ms)
                    return
                if stored_of(found[0]).first < message.offset:
                    return  # joined meanwhile: the next fetch is told so
                data = b"".join(found)
                end, of = log.epochs.superseded_there
                rewritten_to = max(message.rewritten_to, self._rewritten_to(log))
                message = replace(message, rewritten_to=rewritten_to, superseded_to=end, superseded_epoch=of)
        self.broker.post(to, self.name, message, data)

    def _unpark(self, *, timed_out: bool = False) -> None:
        """Answer who waits for news: there is some, or it has waited long enough."""
        for to, (message, since) in list(self._parked.items()):
            log = self.log
            if not self.leads or log is None or message.epoch != self.leader.epoch:
                del self._parked[to]
                continue
            news = self.leader.high_watermark, log.checkpoints.kept_start_offset
            if self.is_damaged and not timed_out:
                continue
            if timed_out and self.world.now_ms - since >= POLL_MS:
                self._told.pop(to, None)
            if message.offset < log.state.log_end_offset or news != self._told.get(to):
                del self._parked[to]
                self._send(to, replace(message, high_watermark=news[0], log_start=news[1]))

    def _trim(self) -> None:
        log = self.log
        if log is None or not self.leads or self._trim_to <= log.checkpoints.kept_start_offset:
            return
        try:
            log.trim(self._trim_to)
        except LiftlogError as error:
            if not self._is_harmless(error):
                self._disk_failed(error)
            return
        self.world.saw("trim")
        self.checker.starts(self)
        self._lead_step(e.StartMoved(log.checkpoints.kept_start_offset))
        self._unpark()

    def retain(self) -> None:
        """Let go of what the settings do not keep, as this broker's catalog has them now."""
        log = self.log
        if log is None or not self.leads or log.state.failure is not None:
            return
        of = LogSettings.of(self.broker.settings_of(self.name))
        log.remembered.update_settings(replace(log.state.settings, retention_records=of.retention_records))
        before = log.state.log_start_offset
        try:
            log.apply_retention(now_us=self.broker.elapsed_us, wall_us=self.broker.wall_us)
        except LiftlogError as error:
            if not self._is_harmless(error):
                self._disk_failed(error)
        finally:  # the start may have moved although a file could not be removed, or the power went (once seed 243)
            if log.state.log_start_offset > before:
                self.world.saw("retention lets go")
                self.note(f"retention lets go of all below {log.state.log_start_offset}")
                self.checker.retained(self, before)
        if log.state.log_start_offset > before and self.leads:
            self._lead_step(e.StartMoved(log.checkpoints.kept_start_offset))
            self._unpark()

    def _fetched(self, fetch: Fetch, log: PartitionLog) -> None:
        start, state_offset = self._first_stored(log), -1
        if fetch.lacks_state:
            try:
                state_offset = log.handover.offered(self.leader.state_from(fetch.log_start), fetch.durable_end)
            except LiftlogError as error:
                if not self._is_harmless(error):
                    self._disk_failed(error)
        within = self._batch_start(log, fetch.offset) if fetch.offset < log.state.high_watermark else -1
        self._lead_step(
            e.FetchArrived(
                fetch=fetch,
                epoch_before=log.epochs.epoch_of(fetch.offset - 1) if fetch.offset else -1,
                log_start=start,
                start_epoch=log.epochs.epoch_of(start - 1) if start else -1,
                rewritten_to=self._rewritten_to(log),
                state_offset=state_offset,
                batch_start=within,
                batch_epoch=log.epochs.epoch_of(within - 1) if within > 0 else -1,
                compacted_to=log.state.compacted_to,
                waits_to=log.state.waits_to,
            )
        )

    def _rewritten_to(self, log: PartitionLog) -> int:
        return log.handover.rewritten_to() if self.name in self.broker.cluster.compacted else 0

    def _asked_state(self, ask: AskState, log: PartitionLog) -> None:
        piece = log.handover.piece(ask.offset, ask.at, STATE_PIECE_BYTES) if self.leads else None
        self._lead_step(e.StateAsked(ask=ask, length=len(piece[0]) if piece else 0, size=piece[1] if piece else 0))

    def _asked_end(self, ask: AskEnd, log: PartitionLog) -> None:
        start, found = self._first_stored(log), log.epochs.end_of(ask.last_epoch)
        before = log.epochs.epoch_of(start - 1) if start else -1
        event = e.EndAsked(ask=ask, found_epoch=found.epoch, end=found.end_offset, log_start=start, start_epoch=before)
        self._lead_step(event)

    # -- clients

    def publish(self, answer: Callable[..., None], batches: Sequence[Batch], acks: e.Acks) -> None:
        """Append one commit group. Answers ("stored", first, next) or why not."""
        log, core = self.log, self.leader
        if log is None or not self.leads or not self.broker.has_session or self.stepping is not None:
            answer("not the leader")
            return
        if core.in_sync is not None and len(core.in_sync.members) < core.min_insync_replicas:
            answer("too few in sync")
            return
        if not self.broker.takes(self.name):
            answer("not counted, or about to be counted otherwise")
            return
        is_in_force = self.checker.sorts(self)
        try:
            result = log.append(batches, leader_epoch=core.epoch, now_us=self.broker.elapsed_us)
        except DiskFull:
            self.world.saw("disk full at an append")
            if log.state.failure is not None:
                self._disk_failed(log.state.failure)
            answer("full")
            return
        except LiftlogError as error:
            if log.state.failure is not None:
                self._disk_failed(error)
            answer(type(error).__name__)
            return
        first, end = result.first_offset, result.next_offset
        ends = () if result.duplicate else (end,)
        if result.duplicate:
            self.world.saw("repeat known by its sequence")
        else:
            self.shadow += [stored_of(batch.message) for batch in batches]
            self.world.detail(self.broker.name, f"{self.name}: appends {{span}} in epoch {core.epoch}", first, end)
            self.checker.wrote(self.name, [batch.message for batch in batches])

        def told(outcome: e.Outcome) -> None:
            if outcome is e.Outcome.STORED and not self.broker.has_session:
                self.world.saw("ack held back: no session")
            elif outcome is e.Outcome.STORED:
                self.checker.is_counted_so(self, is_in_force, acks)
                self.checker.acked(self, first, end, acks, batches)
                answer("stored", first, end)
            else:
                answer(outcome.name)

        self._lead_step(e.Appended(first, end, ends, ((told, acks),)))
        self._unpark()

    def publish_ids(self, answer: Callable[..., None], values: Sequence[bytes], key: str = "") -> None:
        """Append messages from NATS, each with its value for an id. Answers ("stored", those that are) or why not."""
        log, core = self.log, self.leader
        if log is None or not self.leads or not self.broker.has_session or self.stepping is not None:
            answer("not the leader")
            return
        if core.in_sync is not None and len(core.in_sync.members) < core.min_insync_replicas:
            answer("too few in sync")
            return
        if not self.broker.takes(self.name):
            answer("not counted, or about to be counted otherwise")
            return
        is_in_force = self.checker.sorts(self)
        keys = (("Liftlog-Key", key),) if key else ()
        batch = batch_from_nats([(value, with_id(value.decode()) + keys) for value in values], self.broker.wall_us)
        before = log.state.log_end_offset
        try:
            now_us, wall_us = self.broker.elapsed_us, self.broker.wall_us
            result = log.append([batch], leader_epoch=core.epoch, now_us=now_us, wall_us=wall_us)
        except LiftlogError as error:
            if log.state.failure is not None:
                self._disk_failed(error)
            answer(type(error).__name__)
            return
        if result.next_offset > before:
            written = self._read(before, result.next_offset, 1 << 20)
            self.shadow += [stored_of(message) for message in written]
            text = f"{self.name}: appends {{span}} in epoch {core.epoch}"
            self.world.detail(self.broker.name, text, before, result.next_offset)
            self.checker.wrote(self.name, written)
        told_by = {int(reply[1:]): json.loads(body) for reply, body in answers_in(batch.acks(result.first_offset))}
        offsets = {values[at]: body["seq"] - 1 for at, body in told_by.items() if "error" not in body}
        for body in told_by.values():
            self.world.saw("repeat known by its id" if body.get("duplicate") else "stored with an id")

        def told(outcome: e.Outcome) -> None:
            if outcome is e.Outcome.STORED and self.broker.has_session:
                self.checker.is_counted_so(self, is_in_force, e.Acks.ALL)
                self.checker.acked_each(self, offsets)
                answer("stored", list(offsets))
            else:
                answer(outcome.name)

        ends = (result.next_offset,) if result.next_offset > before else ()
        self._lead_step(e.Appended(result.first_offset, result.next_offset, ends, ((told, e.Acks.ALL),)))
        self._unpark()

    def read(self, answer: Callable[..., None], offset: int, epoch: int) -> None:
        """Committed records for a consumer who has seen `epoch`. Answers (epoch, start, end or -1, batches)."""
        log, core = self.log, self.leader
        if log is None or not self.leads or core.epoch < epoch or not self.broker.has_session:
            answer("not known")
            return
        end = log.state.high_watermark if core.may_tell_end(log.state.high_watermark) else -1
        self.checker.serves(self, "a read")
        try:
            with log.reader.read(max(offset, log.state.log_start_offset), max_bytes=3_000) as plan:
                found = []
                for place, (_, file) in zip(plan.ranges, plan.sources, strict=True):
                    found += self._unfolded([message for message, _ in verified_messages(file, place)])
        except OffsetOutOfRange:
            found = []
        except (BadBatch, LiftlogError) as error:
            self.damaged(f"a consumer's read: {type(error).__name__}")
            answer("damaged")
            return
        answer("records", core.epoch, log.state.log_start_offset, end, found)

    def trim(self, answer: Callable[..., None], start: int) -> None:
        """Let records go. Answers ("stored", epoch) once nobody can undo it."""
        log, core = self.log, self.leader
        if (
            log is None
            or not self.leads
            or not self.broker.has_session
            or not log.state.log_start_offset < start <= log.state.high_watermark
        ):
            answer("no")
            return
        epoch = core.epoch

        def told(outcome: e.Outcome) -> None:
            if outcome is e.Outcome.STORED and not self.broker.has_session:
                return
            if outcome is e.Outcome.STORED:
                self.world.saw("trim answered")
                self.checker.trimmed(self, start)
            answer(outcome.name.lower(), epoch)

        self.checker.trim_asked(self, start)
        self._lead_step(e.TrimAsked(start, told))
