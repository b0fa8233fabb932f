"""Asks the catalog for changes of in-sync replicas, those of many partitions by one command (`asks.A4`).

    partition ─ ask ─► alter_isrs ─► an answer for each ─► the partition's `answered`

X1  Each change is answered for itself: the state that it was judged by, or why there is none. A command in doubt
    answers none of its changes, and leaves a line.
X2  Each answer is given on a thread of its own: a partition whose append hangs at its disk holds up no other one.
X3  Below the feature level that has `alter_isrs` each change is a command, as the releases before send it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from broker.api.errors import LiftlogError
from broker.metadata.catalog import SINCE
from broker.metadata.partition import Place
from broker.metadata.partition_commands import ISR_CHANGES_MAX
from broker.node.asks import Asks, BatchedAsks
from broker.node.wiring import CatalogService
from broker.replication.events import AskIsr

log = logging.getLogger(__name__)

Answered = Callable[[AskIsr, Mapping[str, Any]], None]
"""Takes the question and its answer: {"state": ...}, or {"error": problem}, where the problem may have a state."""
Changes = Mapping[Place, tuple[AskIsr, Answered]]


class IsrChanges:
    """See the module. Thread-safe.

    Args:
        commands: For what is asked of the catalog.
    """

    def __init__(self, me: str, service: CatalogService, commands: Executor) -> None:
        self._me = me
        self._service = service
        self._commands = commands
        self._asks = Asks(service, commands)
        self._many: BatchedAsks[tuple[AskIsr, Answered]] = BatchedAsks(
            self._asks,
            "alter_isrs",
            self._of_many,
            at_once=ISR_CHANGES_MAX,
            failed=self._failed,
            answered=lambda asked, said: self._answer(asked, said.get("answers")),
        )

    def ask(self, at: Place, ask: AskIsr, answered: Answered) -> None:
        """Ask for this change, unless it is under way. Does not wait.

        Args:
            answered: Called with the answer, if there is one: not where the broker stops, the command is in doubt, or
                the partition asks for something else before this has gone.
        """
        if self._service.catalog.cluster.feature_level >= SINCE["alter_isrs"]:
            self._many.ask(at, (ask, answered))
            return
        self._asks.ask(  # X3
            (at, ask),
            "alter_isr",
            lambda: self._of_one(at, ask),
            failed=lambda error: answered(ask, {"error": error.to_problem()}),
            answered=lambda said: answered(ask, said),
        )

    def _of_many(self, asked: Changes) -> dict[str, Any]:
        rows = [(ask, [*at, ask.epoch, ask.partition_epoch]) for at, (ask, _) in asked.items()]
        added = [[*row, ask.add, *ask.incarnation] for ask, row in rows if ask.add is not None]
        removed = [[*row, ask.remove] for ask, row in rows if ask.add is None]
        return {"broker_id": self._me, "add": added, "remove": removed}

    def _of_one(self, at: Place, ask: AskIsr) -> dict[str, Any]:
        change = {"add": [ask.add, *ask.incarnation]} if ask.add is not None else {"remove": ask.remove}
        epochs = {"leader_epoch": ask.epoch, "partition_epoch": ask.partition_epoch}
        return {"broker_id": self._me, "stream": at[0], "partition": at[1], **epochs, **change}

    def _failed(self, asked: Changes, error: LiftlogError) -> None:
        """X1. One that would change nothing is refused, with an answer for each."""
        answers = error.to_problem().get("answers")
        if answers is None:
            log.info("replica.isr_not_altered partitions=%d error=%s", len(asked), error)
        self._answer(asked, answers)

    def _answer(self, asked: Changes, answers: Any) -> None:
        """X2."""
        for at, said in _by_place(answers).items():
            if at in asked:
                ask, answered = asked[at]
                with contextlib.suppress(RuntimeError):  # the broker stops
                    self._commands.submit(_guarded, at, answered, ask, said)


def _guarded(at: Place, answered: Answered, ask: AskIsr, said: Mapping[str, Any]) -> None:
    try:
        answered(ask, said)
    except Exception:  # nobody looks at what becomes of it in the executor
        log.exception("replica.isr_bug partition=%s", at)


def _by_place(answers: Any) -> dict[Place, Mapping[str, Any]]:
    """Answers of `alter_isrs` by partition, without what is none."""
    found = [each for each in answers if isinstance(each, list) and len(each) == 3] if isinstance(answers, list) else []
    return {(stream, number): said for stream, number, said in found if isinstance(said, Mapping)}
