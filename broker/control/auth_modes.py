"""The brokers' `auth.mode`: this one's is told to the cluster, and those of others are looked at.

The mode is a setting of each broker. One with a weaker mode changes the whole cluster for callers that others would
refuse, and they cannot see that in what it sends. So each says its mode once it is registered, and everybody who
enforces says which others do not: in the log, a metric, /readyz.

K1  A process says its mode until the catalog has it. A registration begins without one: nothing of a former process is
    taken for true.
K2  Who is weaker is logged when that changes, and again every `REMIND_S` while it is so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from broker.metadata.access import weaker_brokers
from broker.metadata.catalog import MODES_SINCE
from broker.node.asks import Asks
from broker.node.wiring import CatalogService

log = logging.getLogger(__name__)

REMIND_S: Final = 600.0


class AuthModes:
    """See the module. Thread-safe.

    Args:
        process: The name that this process has registered under.
        mode: Of this broker, by its configuration.
        executor: Waits for the controller.
        clock_s: Never goes back.
    """

    def __init__(
        self,
        me: str,
        process: str,
        mode: str,
        service: CatalogService,
        *,
        executor: Executor,
        clock_s: Callable[[], float],
    ) -> None:
        self._me, self._process, self._mode = me, process, mode
        self._service, self._clock_s = service, clock_s
        self._asks = Asks(service, executor)
        self._lock = threading.Lock()
        self._logged: dict[str, str] = {}
        self._logged_s = 0.0
        self._is_overruled = False

    def begin(self) -> None:
        """Look after each command that is applied here. Once this broker is registered."""
        self._service.subscribe(self.look)

    def weaker(self) -> dict[str, str]:
        """The brokers that let callers do what this one refuses: id -> mode."""
        catalog = self._service.catalog
        return weaker_brokers(catalog.access, list(catalog.brokers.values()), self._mode)

    def look(self) -> None:
        """Say what is to be said. Called now and then besides, as a try may have failed. Does not wait."""
        with self._lock:
            self._tell()
            self._log()

    def _log(self) -> None:
        """K2."""
        weaker, now_s = self.weaker(), self._clock_s()
        if weaker and (weaker != self._logged or now_s - self._logged_s >= REMIND_S):
            self._logged_s = now_s
            told = ",".join(f"{broker}:{mode}" for broker, mode in sorted(weaker.items()))
            log.warning("auth.weaker_brokers mine=%s brokers=%s", self._mode, told)
        if self._logged and not weaker:
            log.info("auth.no_weaker_broker mine=%s", self._mode)
        self._logged = weaker
        was_overruled = self._is_overruled
        self._is_overruled = self._service.catalog.access.is_required and self._mode != "enforce"
        if self._is_overruled and not was_overruled:
            log.warning("auth.mode_overruled mode=%s", self._mode)

    def _tell(self) -> None:
        """K1."""
        catalog = self._service.catalog
        info = catalog.brokers.get(self._me)
        is_mine = info is not None and info.incarnation == self._process and info.is_live
        if info is None or not is_mine or info.auth_mode == self._mode:
            return
        if catalog.cluster.feature_level >= MODES_SINCE:
            values = {"broker_id": self._me, "registration": info.registration, "mode": self._mode}
            self._asks.ask(
                "mode",
                "tell_auth_mode",
                lambda: values,
                failed=lambda error: log.info("auth.mode_not_told error=%s", error),
            )
