"""Who of the members of consumer groups lives, counted by each broker. Whoever becomes the controller goes on with it.

    a broker with a session ─► twice a second, to all: whom it has heard ─► counted by each ─► the controller: who ends

So a member that falls silent ends a timeout later, and not a timeout after the last of several controllers began.

L1  A sign that did not come this way is no silence. Time in which a broker that lives told nothing here counts for
    nobody: it was cut off, or had no session, so that it answered no poll; or it is of a release that tells the
    controller alone. The same goes for this broker, which tells itself. Who is taken for dead has nothing to tell.
L2  Who has just become the controller waits for a session more than that. Others have theirs from it, and answer polls
    from then on.
L3  As the controller a broker counts as `member_lives` says. What others leave untold then ends their own sessions.
L4  Time that several brokers left untold is passed over once: when a controller changes that is most of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.metadata.catalog import Catalog
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
        self._told_ms: dict[str, int] = {}  # up to when each broker has told, or had nothing to tell
        self._passed: list[tuple[int, int]] = []  # what was passed over: from, to; apart, and in order

    def told(self, broker: str, members: Iterable[tuple[str, str, int]], now_ms: int, *, leads: bool) -> None:
        """A broker has told whom it heard: group, member, session. `leads`: this one is the controller (L3)."""
        if not leads:
            self._pass_over(self._told_ms.get(broker, now_ms), now_ms)
        self._told_ms[broker] = now_ms
        for group, member, session in members:
            self.lives.heard(group, member, session, now_ms)

    def lead(self, catalog: Catalog, now_ms: int) -> MemberLives:
        """This broker is the controller from now on."""
        live = {name for name, info in catalog.brokers.items() if info.is_live} | {self._me}
        self._pass_over(min(self._told_ms.get(broker, self._began_ms) for broker in live), now_ms)  # L1
        self.lives.hung(catalog.cluster.session_ms(), now_ms)  # L2
        self._told_ms = dict.fromkeys(live, now_ms)
        return self.lives

    def look(self, catalog: Catalog, now_ms: int, *, leads: bool) -> None:
        """Now and then: note who has come, forget who is gone, and see which brokers live."""
        brokers, told_ms = catalog.brokers, self._told_ms
        self._told_ms = {name: told_ms.get(name, now_ms) if info.is_live else now_ms for name, info in brokers.items()}
        if not leads:  # who has just been taken for dead has lived until now, as far as anybody knew
            ended = [ms for name, ms in told_ms.items() if name in brokers and not brokers[name].is_live]
            self._pass_over(min(ended, default=now_ms), now_ms)
            self.lives.lapsed(catalog.groups, now_ms)
        first_ms = min(self._told_ms.values(), default=now_ms)
        self._passed = [each for each in self._passed if each[1] > first_ms]

    def _pass_over(self, since_ms: int, now_ms: int) -> None:
        """What has been since then counts for nobody, if it is long, but for what was passed over already (L4)."""
        if now_ms - since_ms <= QUIET_MS:
            return
        known_ms = sum(to - max(since_ms, begin) for begin, to in self._passed if to > since_ms)
        self.lives.hung(now_ms - since_ms - known_ms, now_ms)
        begin_ms = min([since_ms, *(begin for begin, to in self._passed if to > since_ms)])
        self._passed = [*(each for each in self._passed if each[1] <= since_ms), (begin_ms, now_ms)]
