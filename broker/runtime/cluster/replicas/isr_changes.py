"""Asks the catalog for changes of in-sync replicas, those of many partitions by one command.

    partition ─ ask ─► gathered ─► alter_isrs ─► an answer for each ─► the partition's `told`

X1  Each change is answered for itself: the state that it was judged by, or why there is none. A command in doubt
    answers none of its changes, and each partition hears that.
X2  Each answer is told on a thread of its own: a partition whose append hangs at its disk holds up no other one.
X3  Below the feature level that has `alter_isrs` each change is a command, as the releases before send it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from broker.api.errors import LiftlogError
from broker.metadata.catalog import COMMAND_VERSION, SINCE
from broker.metadata.partition import Place
from broker.metadata.partition_commands import ISR_CHANGES_MAX
from broker.replication.events import AskIsr
from broker.runtime.cluster.replicas.gathering import Gathering
from broker.runtime.cluster.wiring import CatalogService

log = logging.getLogger(__name__)

Told = Callable[[AskIsr, Mapping[str, Any]], None]
"""Takes the question and its answer: {"state": ...}, or {"error": problem}, where the problem may have a state."""


class IsrChanges:
    """See the module. Thread-safe.

    Args:
        commands: For what is asked of the catalog.
    """

    def __init__(self, me: str, service: CatalogService, commands: Executor) -> None:
        self._me = me
        self._service = service
        self._commands = commands
        self._gathering: Gathering[tuple[AskIsr, Told]] = Gathering(
            self._ask_many, commands, at_once=ISR_CHANGES_MAX, ended=self._tell
        )

    def ask(self, at: Place, ask: AskIsr, told: Told) -> None:
        """Have `told` called once with the answer, unless the broker stops, or the partition asks for something else
        before this has gone. Does not wait."""
        if self._service.catalog.cluster.feature_level >= SINCE["alter_isrs"]:
            self._gathering.add(at, (ask, told))
        else:
            self._submit(self._ask_one, at, ask, told)  # X3

    def _ask_many(self, asked: Mapping[Place, tuple[AskIsr, Told]]) -> Mapping[str, Any]:
        rows = [(at, ask, [*at, ask.epoch, ask.partition_epoch]) for at, (ask, _) in asked.items()]
        added = [[*row, ask.add, *ask.incarnation] for _, ask, row in rows if ask.add is not None]
        removed = [[*row, ask.remove] for _, ask, row in rows if ask.add is None]
        return self._execute("alter_isrs", add=added, remove=removed)

    def _tell(self, asked: Mapping[Place, tuple[AskIsr, Told]], said: Mapping[str, Any] | None) -> None:
        said = said or {}
        answers = _by_place(said.get("error", said).get("answers"))
        of_all = said if "error" in said else {}
        for at, (ask, told) in asked.items():
            self._submit(told, ask, answers.get(at, of_all))  # X1, X2

    def _ask_one(self, at: Place, ask: AskIsr, told: Told) -> None:
        change = {"add": [ask.add, *ask.incarnation]} if ask.add is not None else {"remove": ask.remove}
        epochs = {"leader_epoch": ask.epoch, "partition_epoch": ask.partition_epoch}
        answer: Mapping[str, Any] = {}
        try:
            answer = self._execute("alter_isr", stream=at[0], partition=at[1], **epochs, **change)
        finally:
            told(ask, answer)

    def _execute(self, kind: str, **values: Any) -> Mapping[str, Any]:
        """The result, or {"error": problem}."""
        command = {"v": COMMAND_VERSION, "kind": kind, "broker_id": self._me, **values}
        try:
            said = self._service.execute(command)
        except LiftlogError as error:
            return {"error": error.to_problem()}
        return said if isinstance(said, Mapping) else {}

    def _submit(self, act: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the broker stops
            self._commands.submit(self._guarded, act, *args)

    def _guarded(self, act: Callable[..., None], *args: Any) -> None:
        try:
            act(*args)
        except Exception:
            log.exception("replica.want_bug broker=%s", self._me)


def _by_place(answers: Any) -> dict[Place, Mapping[str, Any]]:
    """Answers of `alter_isrs` by partition, without what is none."""
    found = [each for each in answers if isinstance(each, list) and len(each) == 3] if isinstance(answers, list) else []
    return {(stream, number): said for stream, number, said in found if isinstance(said, Mapping)}
