"""Which brokers have said something of late, as one broker sees it in its catalog. Time is an argument.

    renewals in the catalog    b 7   b 8   b 9   b 9   b 9   b 9         (it was killed; its session runs on)
    looked at                   │     │     │     │     │     │
    heard of last              ───► now ─► now ─► 0.2 s ago ... 1.1 s ago: not of late

A session says that nobody takes a broker for dead yet. That lasts for two seconds or more after its death, for as long
again if the controller died with it, and for another session if a renewal was committed late.

D1  A broker counts from the moment on that a renewal, or a registration, is looked at which was not there before, for
    `HEARD_MS`. What was there at the first look may be of former times: brokers that died together with this one's
    former process are live in the catalog until their sessions lapse.
D2  Who is damaged gives its part away only to somebody who could lead without a loss (`partition.P8`), lives, was heard
    of late, and is not about to stop. Else its log may be the best that there is, and an operator may choose it, also
    if it is out of sync. Each time that it asks is judged anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.metadata.info import BrokerInfo
from broker.metadata.partition import PartitionState
from broker.metadata.session import HEARTBEAT_MS

HEARD_MS: Final = 2 * HEARTBEAT_MS
"""A broker that lives is renewed somewhat more often."""


class _Said(NamedTuple):
    """The last sign of a broker: its number, and when it was seen first; None: at the first look."""

    sign: tuple[int, int]
    at_ms: int | None


class Heard:
    """See the module. One is made for each process, and looks first at the catalog that has its registration."""

    def __init__(self) -> None:
        self._said: dict[str, _Said] | None = None

    def look(self, brokers: Mapping[str, BrokerInfo], now_ms: int) -> None:
        """See what is new."""
        before, at_ms = self._said, None if self._said is None else now_ms
        said = {}
        for name, info in list(brokers.items()):
            sign, known = (info.registration, info.renewal), None if before is None else before.get(name)
            said[name] = known if known is not None and known.sign == sign else _Said(sign, at_ms)
        self._said = said

    def is_heard(self, broker: str, now_ms: int) -> bool:
        """Whether it has said something of late (D1)."""
        known = (self._said or {}).get(broker)
        return known is not None and known.at_ms is not None and now_ms - known.at_ms < HEARD_MS

    def may_go(self, me: str, state: PartitionState, brokers: Mapping[str, BrokerInfo], now_ms: int) -> bool:
        """Whether a damaged replica of this broker may step out (D2)."""
        return any(
            (info := brokers.get(broker)) is not None
            and info.is_live
            and not info.is_stopping
            and self.is_heard(broker, now_ms)
            for broker in state.left(me, lost=True).electable
        )
