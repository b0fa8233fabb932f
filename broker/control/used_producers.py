"""Which producers are used: their names are not forgotten (`metadata/producers.D3`).

The catalog is told at most `NOTED_IN` times in `producers.name_expiry_ms`: an append asks a table, and seldom more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from broker.api.errors import LiftlogError
from broker.common.elapsed import elapsed_us
from broker.config.settings import ProducersConfig
from broker.metadata.catalog import Catalog
from broker.metadata.producers import tag_of

log = logging.getLogger(__name__)

NOTED_IN: Final = 8


def now_ms() -> int:
    """Milliseconds since 1970 UTC, by what the clock said when this process began: one that is set since makes no name
    old.
    """
    return elapsed_us() // 1_000


def registration_times(config: ProducersConfig) -> dict[str, int]:
    """The times of a registration now, as its command has them."""
    at_ms = now_ms()
    return {"at_ms": at_ms, "forget_before_ms": max(0, at_ms - config.name_expiry_ms)}


def registration(config: ProducersConfig, name: str | None, owner: str | None, *, can_tag: bool) -> dict[str, Any]:
    """The fields of a registration now.

    Args:
        owner: The principal that registers; None: callers are not judged.
        can_tag: All brokers know of `metadata/producers.D5`.
    """
    tag = {"tag": tag_of(owner)} if name is None and owner is not None and can_tag else {}
    return {"name": name, **registration_times(config), **tag}


class UsedProducers:
    """On the loop that serves.

    Args:
        note: Tells the catalog: names, and when they were used.
    """

    def __init__(self, config: ProducersConfig, note: Callable[[Sequence[str], int], Awaitable[None]]) -> None:
        self._renewed_ms = config.name_expiry_ms // NOTED_IN
        self._note = note
        self._noting: dict[str, asyncio.Future[None]] = {}

    def used(self, catalog: Catalog, producer_id: int) -> None:
        """An append came under this id. Does not wait."""
        at_ms = now_ms()
        name = catalog.producer_names.unnoted(producer_id, at_ms - self._renewed_ms)
        if name is not None and name not in self._noting:
            self._noting[name] = asyncio.ensure_future(self._tell(name, at_ms))

    async def _tell(self, name: str, at_ms: int) -> None:
        try:
            await self._note([name], at_ms)
        except LiftlogError as error:  # the next append tries again
            log.debug("producer.not_noted name=%s error=%s", name, error)
        finally:
            self._noting.pop(name, None)
