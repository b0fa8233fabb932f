"""Tells the catalog that folders of replicas are there, many by one command. One whose command has failed says so again
when its replica has its next turn."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, Final

from broker.api.errors import LiftlogError
from broker.metadata.catalog import COMMAND_VERSION
from broker.metadata.partition import Place
from broker.replication.messages import Incarnation
from broker.runtime.cluster.replicas.gathering import Gathering
from broker.runtime.cluster.wiring import CatalogService

log = logging.getLogger(__name__)

AT_ONCE: Final = 1_000
"""So many are in one command: some 50 KiB."""


class OpenedReports:
    """See the module. Thread-safe.

    Args:
        commands: For what is asked of the catalog.
    """

    def __init__(self, me: str, service: CatalogService, commands: Executor) -> None:
        self._me = me
        self._service = service
        self._gathering: Gathering[Incarnation] = Gathering(self._say_now, commands, at_once=AT_ONCE)

    def say(self, at: Place, incarnation: Incarnation) -> None:
        """The folder of this replica is there. Does not wait."""
        self._gathering.add(at, incarnation)

    def _say_now(self, opened: Mapping[Place, Incarnation]) -> None:
        """A command is of one registration. What was said under an earlier one does not count any more."""
        newest = max(registration for registration, _ in opened.values())
        replicas = [[*at, step_outs] for at, (registration, step_outs) in opened.items() if registration == newest]
        command: dict[str, Any] = {
            "v": COMMAND_VERSION,
            "kind": "report_opened",
            "broker_id": self._me,
            "registration": newest,
            "replicas": replicas,
        }
        try:
            self._service.execute(command)
        except LiftlogError as error:
            log.info("replica.not_reported partitions=%d error=%s", len(replicas), error)
