"""Which members of consumer groups live, as the controller counts it. Time is an argument, of a monotonic clock.

    member ─► any broker ─► every half second: who was heard ─► the controller ─► a whole timeout of silence: it ends

J1  A member ends after a whole timeout in which whoever counts here ran, knew of the member, and heard nothing of it.
    Time in which it hung counts for nobody. A new controller has counted before it was that (`member_watch.py`).
J2  What is heard is of a session. One of an earlier session keeps nobody alive.
J3  A group is looked at when it has changed, and when its first member may be silent. Between that its members cost
    nothing: thousands of them are looked after on the thread that keeps the sessions of brokers.
"""

from __future__ import annotations

from math import inf

from broker.metadata.groups import ConsumerGroup, Groups


class MemberLives:
    """See the module."""

    def __init__(self) -> None:
        self._heard: dict[str, dict[str, tuple[int, int]]] = {}  # group -> member -> session, when
        self._looks: dict[str, tuple[int, float]] = {}  # group -> its version, and until when it needs no look (J3)

    def heard(self, group: str, member: str, session: int, now_ms: int) -> None:
        """There is a sign of a member."""
        lives = self._heard.setdefault(group, {})
        known = lives.get(member)
        if known is None or known[0] <= session:  # J2
            lives[member] = session, now_ms

    def hung(self, ms: int, now_ms: int) -> None:
        """So long nothing could be heard here (J1)."""
        for lives in self._heard.values():
            for member, (session, at_ms) in lives.items():
                lives[member] = session, min(now_ms, at_ms + ms)

    def lapsed(self, groups: Groups, now_ms: int) -> dict[str, dict[str, int]]:
        """By group the members that are to end, with their sessions."""
        found = dict[str, dict[str, int]]()
        for name in (self._heard.keys() | self._looks.keys()) - groups.named.keys():
            self._heard.pop(name, None)
            self._looks.pop(name, None)
        for name, group in groups.named.items():
            version, until_ms = self._looks.get(name, (-1, 0))
            if (version != group.version or now_ms > until_ms) and (silent := self._look(name, group, now_ms)):
                found[name] = silent
        return found

    def _look(self, name: str, group: ConsumerGroup, now_ms: int) -> dict[str, int]:
        before, heard, silent = self._heard.get(name, {}), {}, {}
        first_ms = inf
        for member, kept in group.members.items():
            session, at_ms = before.get(member, (0, 0))
            heard[member] = kept.session, at_ms if session == kept.session else now_ms
            end_ms = heard[member][1] + kept.timeout_ms
            first_ms = min(first_ms, end_ms)
            if now_ms > end_ms:
                silent[member] = kept.session
        self._heard[name], self._looks[name] = heard, (group.version, first_ms)
        return silent
