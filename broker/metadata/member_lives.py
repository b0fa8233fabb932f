"""Which members of consumer groups live, as the controller counts it. Time is an argument, of a monotonic clock.

    member ─► any broker ─► every half second: who was heard ─► the controller ─► a whole timeout of silence: it ends

J1  A member ends after a whole timeout in which whoever counts here ran, knew of the member, and heard nothing of it.
    So a new controller lets nobody expire before that, and time in which it hung counts for nobody.
J2  What is heard is of a session. One of an earlier session keeps nobody alive.
"""

from __future__ import annotations

from broker.metadata.groups import Groups


class MemberLives:
    """See the module."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, str], tuple[int, int]] = {}  # (group, member) -> session, when

    def heard(self, group: str, member: str, session: int, now_ms: int) -> None:
        """There is a sign of a member."""
        known = self._heard.get((group, member))
        if known is None or known[0] <= session:  # J2
            self._heard[group, member] = session, now_ms

    def hung(self, ms: int, now_ms: int) -> None:
        """So long nothing could be heard here (J1)."""
        self._heard = {each: (session, min(now_ms, at_ms + ms)) for each, (session, at_ms) in self._heard.items()}

    def lapsed(self, groups: Groups, now_ms: int) -> dict[str, dict[str, int]]:
        """By group the members that are to end, with their sessions."""
        heard, found = {}, dict[str, dict[str, int]]()
        for name, group in groups.named.items():
            for member, kept in group.members.items():
                session, at_ms = self._heard.get((name, member), (0, 0))
                heard[name, member] = kept.session, at_ms if session == kept.session else now_ms
                if now_ms - heard[name, member][1] > kept.timeout_ms:
                    found.setdefault(name, {})[member] = kept.session
        self._heard = heard
        return found
