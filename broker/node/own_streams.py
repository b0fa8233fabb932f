"""The streams that a cluster makes for itself: when, and with how many replicas.

    first voters   a registers   b registers   c registers ─► create_stream, on three brokers
                   ├── clients hear "not ready": for whom it waits ──┤

A stream that was made while only one broker was there would have one replica until the controller gives it more, after
`controller.CALM_MS`. If that broker's disk were lost meanwhile nobody could ever lead it again.

W1  It is made as soon as as many brokers live as it is to have replicas: `REPLICAS_DEFAULT`, or as many as there are
    first voters. Each broker tries it; the catalog takes the first.
W2  If some of them do not come, it is made after `PATIENCE_S` with as many as live, if these are a majority of the
    first voters. So of three it has two replicas at least; the controller adds the others as they come. Nothing need
    change in the catalog for that: each broker looks at each change, and now and then besides.
W3  Until then who asks for it is told what it waits for, and may try again.
W4  One that came with a feature level is made when the cluster has it: before, a broker could lead it that does not
    know what it is for.
W5  Settings that follow a broker's configuration (`kept`) are brought up to date once in the life of each broker. Where
    brokers differ, the one that was started last is followed. So it is with what this release wants otherwise than the
    one that made the stream.
W6  What the disk or the controller refuses keeps no broker from starting. It is tried again at each look, and what was
    refused last is told: of a broker (`refusal`), and to who asks for the stream.

Design: docs/explain/metadata.md.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

from broker.api.errors import LiftlogError
from broker.api.stream import StreamSettings
from broker.common.elapsed import wall_us
from broker.node.asks import Asks
from broker.node.wiring import CatalogService

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
        since: The feature level that it came with (W4).
        kept: Settings that follow the configuration (W5).
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
        since: int = 0,
        kept: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._service, self._settings = service, settings
        self._asks = Asks(service, executor)
        self._voters, self._clock_s = voters, clock_s
        self._now_us = now_us
        self._since = since
        self._to_keep = {key: settings[key] for key in kept}
        self._incarnation = uuid.uuid4().hex
        self._began_s = self._not_before_s = clock_s()
        self._has_begun = False
        self.refusal = ""  # W6; empty: the last try was not refused
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Look after each command that is applied here. Once this broker is registered."""
        self._began_s = self._clock_s()
        self._has_begun = True
        self._service.subscribe(self.look)

    def _factor(self) -> int | None:
        """W1, W2. None: not yet."""
        live, wanted = self._live(), replicas_default(self._voters, 0)
        if live >= wanted:
            return wanted
        is_patient = self._clock_s() - self._began_s < PATIENCE_S
        return None if is_patient or live <= self._voters // 2 else live

    def _live(self) -> int:
        return sum(broker.is_live for broker in list(self._service.catalog.brokers.values()))

    def look(self) -> None:
        """Ask for what is missing. Called now and then besides (W2), as a try may have failed, too. Does not wait."""
        if self._has_begun:
            with self._lock:
                self._look()

    def _look(self) -> None:
        if self.name in self._asks or self._clock_s() < self._not_before_s:
            return
        info = self._service.catalog.streams.get(self.name)
        if info is not None:
            self._look_at(info.settings)
            return
        factor = self._factor() if self._service.catalog.cluster.feature_level >= self._since else None
        if factor is not None:
            self._make(factor)

    def _look_at(self, settings: StreamSettings) -> None:
        """W5. Another broker may have made it."""
        if self._is_kept(settings):
            self._to_keep, self.refusal = {}, ""
        else:
            self._ask("alter_stream", {"name": self.name, "settings": self._to_keep}, self._kept)

    def _is_kept(self, settings: StreamSettings) -> bool:
        return all(getattr(settings, key) == value for key, value in self._to_keep.items())

    def _make(self, factor: int) -> None:
        values = {
            "name": self.name,
            "incarnation": self._incarnation,
            "created_us": self._now_us(),
            "settings": self._settings,
            "internal": True,
            "replication_factor": factor,
        }
        self._ask("create_stream", values, partial(self._made, factor))

    def _ask(self, kind: str, values: Mapping[str, Any], answered: Callable[[Any], None]) -> None:
        self._not_before_s = self._clock_s() + PAUSE_S  # also where a fault of ours ends it
        self._asks.ask(self.name, kind, lambda: values, failed=self._failed, answered=answered)

    def _failed(self, error: LiftlogError) -> None:
        log.warning("stream.own_not_made stream=%s error=%s", self.name, error)
        self.refusal = f"stream {self.name} is not made, or not as configured: {error}"
        self._not_before_s = self._clock_s() + PAUSE_S

    def _kept(self, _: Any) -> None:
        self._to_keep, self.refusal = {}, ""

    def _made(self, factor: int, said: Mapping[str, Any]) -> None:
        if said["created"]:
            log.info("stream.own_made stream=%s replicas=%d", self.name, factor)
        self._not_before_s, self.refusal = self._clock_s() + PAUSE_S, ""

    @property
    def is_settled(self) -> bool:
        """Whether it is there as it is to be, or it is known why not."""
        info = self._service.catalog.streams.get(self.name)
        return self.refusal != "" or (info is not None and self._is_kept(info.settings))

    def why_missing(self) -> str:
        """W3."""
        if self.refusal:
            return self.refusal
        level = self._service.catalog.cluster.feature_level
        if level < self._since:
            return f"stream {self.name} is not made yet: it needs feature level {self._since}, the cluster has {level}"
        wanted = replicas_default(self._voters, 0)
        return (
            f"stream {self.name} is not made yet: it waits for {wanted} brokers, as many as it will have replicas;"
            f" {self._live()} are there"
        )
