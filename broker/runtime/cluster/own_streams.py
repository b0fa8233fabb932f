"""The streams that a cluster makes for itself: when, and with how many replicas.

    first voters   a registers   b registers   c registers ─► create_stream, on three brokers
                   ├── clients hear "not ready": for whom it waits ──┤

A stream that was made while only one broker was there would have one replica until the controller gives it more, after
`controller.CALM_MS`. If that broker's disk were lost meanwhile nobody could ever lead it again.

W1  It is made as soon as as many brokers live as it is to have replicas: `REPLICAS_DEFAULT`, or as many as there are
    first voters. Each broker tries it; the catalog takes the first.
W2  If some of them do not come, it is made after `PATIENCE_S` with as many as live, if these are a majority of the
    first voters. So of three it has two replicas at least; the controller adds the others as they come.
W3  Until then who asks for it is told what it waits for, and may try again.

Design: docs/explain/metadata.md.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, Final

from broker.api.errors import LiftlogError
from broker.metadata.catalog import COMMAND_VERSION
from broker.runtime.cluster.wiring import CatalogService
from broker.runtime.elapsed import wall_us

log = logging.getLogger(__name__)

REPLICAS_DEFAULT: Final = 3
PATIENCE_S: Final = 60.0
PAUSE_S: Final = 1.0
"""Between two tries of which one failed."""


def replicas_default(voters: int, known: int) -> int:
    """Replicas of a stream for which nobody asked for another number; `known`: brokers that were ever registered."""
    return max(1, min(REPLICAS_DEFAULT, max(voters, known)))


class OwnStream:
    """See the module. Thread-safe.

    Args:
        voters: How many first voters the configuration names.
        executor: Waits for the controller.
        clock_s: Never goes back.
        now_us: The time of day.
    """

    def __init__(
        self,
        service: CatalogService,
        name: str,
        settings: Mapping[str, Any],
        *,
        voters: int,
        executor: Executor,
        clock_s: Callable[[], float],
        now_us: Callable[[], int] = wall_us,
    ) -> None:
        self.name = name
        self._service, self._settings, self._executor = service, settings, executor
        self._voters, self._clock_s = voters, clock_s
        self._now_us = now_us
        self._incarnation = uuid.uuid4().hex
        self._began_s = self._not_before_s = clock_s()
        self._is_asked = False

    def begin(self) -> None:
        """Look after each command that is applied here. Once this broker is registered."""
        self._began_s = self._clock_s()
        self._service.subscribe(self._look)

    def _factor(self) -> int | None:
        """W1, W2. None: not yet."""
        live, wanted = self._live(), replicas_default(self._voters, 0)
        if live >= wanted:
            return wanted
        is_patient = self._clock_s() - self._began_s < PATIENCE_S
        return None if is_patient or live <= self._voters // 2 else live

    def _live(self) -> int:
        return len(self._service.catalog.cluster.who().registrations)

    def _look(self) -> None:
        """On the catalog's thread, one call at a time."""
        if self.name in self._service.catalog.streams or self._is_asked or self._clock_s() < self._not_before_s:
            return
        factor = self._factor()
        if factor is None:
            return
        self._is_asked = True
        try:
            self._executor.submit(self._make, factor)
        except RuntimeError:  # the broker stops
            return

    def _make(self, factor: int) -> None:
        try:
            said = self._service.execute(
                {
                    "v": COMMAND_VERSION,
                    "kind": "create_stream",
                    "name": self.name,
                    "incarnation": self._incarnation,
                    "created_us": self._now_us(),
                    "settings": self._settings,
                    "internal": True,
                    "replication_factor": factor,
                }
            )
            if said["created"]:
                log.info("stream.own_made stream=%s replicas=%d", self.name, factor)
        except LiftlogError as error:
            log.warning("stream.own_not_made stream=%s error=%s", self.name, error)
        finally:
            self._not_before_s = self._clock_s() + PAUSE_S
            self._is_asked = False

    def why_missing(self) -> str:
        """W3."""
        wanted = replicas_default(self._voters, 0)
        return (
            f"stream {self.name} is not made yet: it waits for {wanted} brokers, as many as it will have replicas;"
            f" {self._live()} are there"
        )
