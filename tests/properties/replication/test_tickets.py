"""Each ticket is told once and not too early, whatever comes between (`ticket_lives`); mistakes in that are found."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import pytest

from broker.api.errors import LiftlogError
from broker.intake.flush import Flusher
from broker.intake.flushed import Flushed, Told
from broker.node.partitions import partition as leader
from broker.node.partitions.acks import OWN, Completions, Ticket
from broker.node.partitions.partition import Partition
from broker.node.partitions.sync import Outcome
from broker.replication.events import Acks
from tests.properties.replication.ticket_lives import TicketLife
from tests.support.effort import examples, seeded
from tests.unit.ingest.twins import TWIN_IDS
from tests.unit.runtime.test_acks_altered import PoolByHand
from tests.unit.runtime.test_acks_apart import ReplicatedIntake

Patch = pytest.MonkeyPatch
STEPS: Final = 150


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture, monkeypatch: Patch) -> None:
    """Faults of ours are made on purpose, and each has its traceback in the log. No disk is slow by the clock."""
    caplog.set_level(logging.CRITICAL + 1)
    monkeypatch.setattr(leader, "QUICK_S", 3600.0)


def play(seed: int, implementation: str, *, is_sole: bool) -> Counter[str]:
    """One life. AssertionError: what does not hold."""
    rng, pool = random.Random(seed), PoolByHand()
    with ThreadPoolExecutor(1) as appender:
        intake = ReplicatedIntake(pool, appender, implementation)  # type: ignore[arg-type]
        try:
            life = TicketLife(intake, pool, rng, is_sole=is_sole)
            for _ in range(STEPS):
                rng.choice(life.acts)()
                life.check()
            life.end()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        finally:
            intake.loop.close()
    return life.seen


@pytest.mark.parametrize("implementation", TWIN_IDS)
@pytest.mark.parametrize("is_sole", [False, True], ids=["three replicas", "one replica"])
def test_each_ticket_is_told_once_and_not_too_early(implementation: str, is_sole: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(examples(20)):
        seen += play(seeded(seed), implementation, is_sole=is_sole)
    assert {"stored", "stopped", "fault of ours", "[not_leader]", "[not_ready]", "[storage_failed]"} <= {*seen}


# -- mistakes ------------------------------------------------------------------------------------------------


def tells_who_was_held_without_asking_again(patch: Patch) -> None:
    def release(self: Completions) -> None:
        held, self._held = self._held, []
        for ticket, high_watermark in held:
            ticket.tell(ticket.result, self._why_not(ticket) or high_watermark)
            if ticket.is_sorted:
                self.stopping.ended()

    patch.setattr(Completions, "release", release)


def counts_who_is_held_as_told(patch: Patch) -> None:
    def tell(self: Completions, ticket: Ticket, outcome: Outcome) -> None:
        if isinstance(outcome, int) and ticket.acks is not OWN and not self.may_answer() and ticket.is_sorted:
            self.stopping.ended()
            ticket = replace(ticket, is_sorted=False)
        real(self, ticket, outcome)

    real = Completions.tell
    patch.setattr(Completions, "tell", tell)


def a_callable_that_fails_leaves_its_ticket_waiting(patch: Patch) -> None:
    def tell(self: Completions, ticket: Ticket, outcome: Outcome) -> None:
        if isinstance(outcome, LiftlogError) or ticket.acks is OWN or self.may_answer():
            ticket.tell(ticket.result, outcome)
            if ticket.is_sorted:
                self.stopping.ended()
        else:
            real(self, ticket, outcome)

    real = Completions.tell
    patch.setattr(Completions, "tell", tell)


def what_waits_for_followers_is_answered_when_it_is_durable_here(patch: Patch) -> None:
    def append_now(self: Partition, *given: Any, acks: Acks = Acks.ALL, **options: Any) -> Any:
        return real(self, *given, acks=Acks.LEADER if acks is Acks.ALL else acks, **options)

    real = Partition.append_now
    patch.setattr(Partition, "append_now", append_now)


def what_is_answered_before_it_is_durable_here_counts_as_uncommitted(patch: Patch) -> None:
    def _hear(self: Flusher, batch: Flushed, what: Told, blob: bytes, outcome: Outcome) -> None:
        was_answered = batch.is_answered
        if what is Told.HERE:
            batch.is_answered = False
        real(self, batch, what, blob, outcome)
        batch.is_answered |= was_answered

    real = Flusher._hear
    patch.setattr(Flusher, "_hear", _hear)


def a_batch_whose_answers_fail_stays_under_way(patch: Patch) -> None:
    def _hear(self: Flusher, batch: Flushed, what: Told, blob: bytes, outcome: Outcome) -> None:
        if what is Told.DONE and not batch.is_apart:
            self.answers.give(batch.pending, blob, outcome)
            give, self.answers.give = self.answers.give, lambda *_: None  # type: ignore[method-assign]
            try:
                real(self, batch, what, blob, outcome)
            finally:
                self.answers.give = give  # type: ignore[method-assign]
        else:
            real(self, batch, what, blob, outcome)

    real = Flusher._hear
    patch.setattr(Flusher, "_hear", _hear)


def who_waits_for_the_leader_is_answered_once_more_with_all_others(patch: Patch) -> None:
    def _told(self: Flusher, batch: Flushed, what: Told, *told: Any) -> None:
        if what is Told.DONE:
            batch.leader = None
        real(self, batch, what, *told)

    real = Flusher._told
    patch.setattr(Flusher, "_told", _told)


MISTAKES: Final[dict[Callable[[Patch], None], tuple[int, bool]]] = {
    tells_who_was_held_without_asking_again: (12, False),
    counts_who_is_held_as_told: (17, True),
    a_callable_that_fails_leaves_its_ticket_waiting: (0, True),
    what_waits_for_followers_is_answered_when_it_is_durable_here: (0, False),
    what_is_answered_before_it_is_durable_here_counts_as_uncommitted: (4, False),
    a_batch_whose_answers_fail_stays_under_way: (0, True),
    who_waits_for_the_leader_is_answered_once_more_with_all_others: (0, False),
}
"""Each with a seed that finds it, and whether no other broker keeps the partitions."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_in_the_way_of_a_ticket_is_found(monkeypatch: Patch, mistake: Callable[[Patch], None]) -> None:
    mistake(monkeypatch)
    seed, is_sole = MISTAKES[mistake]
    with pytest.raises(AssertionError, match=r"K\d"):
        play(seed, TWIN_IDS[0], is_sole=is_sole)
