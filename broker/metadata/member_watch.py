"""Who of the members of consumer groups lives, counted by each broker. Whoever becomes the controller goes on with it.

    a broker with a session ─► twice a second, to all: whom it has heard ─► counted by each ─► the controller: who ends

So a member that falls silent ends a timeout later, and not a timeout after the last of several controllers began.

L1  A sign that did not come this way is no silence. Time in which a broker that lives told nothing here counts for
    nobody: it was cut off, or had no session, so that it answered no poll; or it is of a release that tells the
    controller alone. The same goes for this broker, which tells itself.
L2  Who has just become the controller waits for a session more than that. Others have theirs from it, and answer polls
    from then on.
L3  As the controller a broker counts as `member_lives` says. What others leave untold then ends their own sessions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.metadata.catalog import Catalog
from broker.metadata.groups import Groups
from broker.metadata.member_lives import MemberLives

QUIET_MS: Final = 1_500
"""A broker that told nothing for longer was not heard (L1). It tells every half second."""


class MemberWatch:
    """See the module. All times are of one monotonic clock.

    Args:
        me: This broker. now_ms: It counts from now on.

    Attributes:
        lives: What the controller goes by, if it is this broker.
    """

    def __init__(self, me: str, now_ms: int) -> None:
        self.lives = MemberLives()
        self._me, self._began_ms = me, now_ms
        self._told_ms: dict[str, int] = {}  # when each broker told last

    def told(self, broker: str, members: Iterable[tuple[str, str, int]], now_ms: int, *, leads: bool) -> None:
        """A broker has told whom it heard: group, member, session. `leads`: this one is the controller (L3)."""
        gap_ms = self._gap_ms(broker, now_ms)
        if gap_ms > QUIET_MS and not leads:
            self.lives.hung(gap_ms, now_ms)
        self._told_ms[broker] = now_ms
        for group, member, session in members:
            self.lives.heard(group, member, session, now_ms)

    def lead(self, catalog: Catalog, now_ms: int) -> MemberLives:
        """This broker is the controller from now on."""
        live = {name for name, info in catalog.brokers.items() if info.is_live} | {self._me}
        gap_ms = max(self._gap_ms(broker, now_ms) for broker in live)
        self.lives.hung((gap_ms if gap_ms > QUIET_MS else 0) + catalog.cluster.session_ms(), now_ms)  # L1, L2
        self._told_ms = dict.fromkeys(live, now_ms)
        return self.lives

    def look(self, groups: Groups, now_ms: int) -> None:
        """Note who has come, and forget who is gone. Now and then, where another broker is the controller."""
        self.lives.lapsed(groups, now_ms)

    def _gap_ms(self, broker: str, now_ms: int) -> int:
        return now_ms - self._told_ms.get(broker, self._began_ms)
