"""A broker's session with the controller, as the broker itself counts it. Time is an argument.

    heartbeat 7 is sent at 1,000 ─► heard by the controller ─► its renewal is committed ─► told here: 7 is renewed
          │                                                            └─► applied here ─────────────┤
          └─ the session runs until 1,000 + its length: from the sending on, however long the rest took

Invariants
S1  The session ends here before the controller takes it for lapsed: that counts from the arrival of the last heartbeat
    (`controller.H1`), and this one from the sending of the last renewed one.
S2  Only what a committed renewal answered counts, and only a heartbeat of this registration. A controller that has been
    deposed cannot commit, so it prolongs nothing. And only once the catalog here has applied it: a broker that is cut
    off from the log, and hears of renewals all the same, would go on as the leader of long ago.
S3  Without a session a leader acks nothing, answers no end of a log, and reads nothing from NATS. It goes on when the
    session is renewed, if the catalog still says that it leads in that epoch. This is hygiene: what keeps records safe
    are epochs and in-sync replicas.
S4  A heartbeat that nobody can have got is sent again at the next tick, and another one at once when a controller
    begins (`hurry`): a session is to outlast an election.
S5  How long a session is, the catalog says (`BrokerInfo.session_ms`): with many partitions longer. Only a registration
    and its renewals set it, and no renewal makes it shorter, so it belongs to the number of the renewal. This broker
    counts by the renewal that it has applied last, the controller by the one that it names when it takes the broker for
    dead. Was that a later one or the same, it counted at least as long (S1). Was it an earlier one, the command is
    refused, or this broker has applied it before that renewal.
S6  A registration opens a session once the catalog here has it (S2): until then nobody knows how long it is. One that
    took half a session or longer opens none: it would lapse before the first heartbeat is renewed, which opens one.

The clock has to count while the machine sleeps (CLOCK_BOOTTIME). A caller that waits for a disk between `is_open` and
an ack asks again before the ack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEARTBEAT_MS: Final = 500
SESSION_MS: Final = 2_000
"""With few partitions (S5)."""
FEW_PARTITIONS: Final = 1_000
SLOWER_MAX: Final = 5.0
SESSION_MS_MAX: Final = 10_000


def slower(partitions: int) -> float:
    """How many times as long as with few partitions others are waited for: one command of the catalog may concern all
    of them, and nobody else has a turn meanwhile."""
    return min(SLOWER_MAX, 1.0 + max(0, partitions - FEW_PARTITIONS) / 2_000)


def session_ms(partitions: int) -> int:
    """How long a session is that is renewed where there are so many partitions (S5). All brokers have to agree on it:
    it is part of what a command does, and another one takes another feature level."""
    return min(SESSION_MS_MAX, SESSION_MS + max(0, partitions - FEW_PARTITIONS))


def lapse_ms(length_ms: int) -> int:
    """How long the controller counts a session of this length: a little more than the broker itself, whose clock may be
    slower by one in twenty."""
    return length_ms + length_ms // 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Send a heartbeat to the controller, whoever that is now."""

    registration: int
    number: int


@dataclass(frozen=True, slots=True)
class Opened:
    """There is a session, from now on: what S3 names may go on."""


@dataclass(frozen=True, slots=True)
class Lapsed:
    """There is none any more: stop what S3 names, now."""


Effect = Beat | Opened | Lapsed


class Session:
    """See the module. Another one is made for each registration.

    Args:
        registration: Which the catalog has given this process.
        sent_ms: When the registration was sent. The controller gives it a whole session from when it was applied.
    """

    def __init__(self, registration: int, sent_ms: int) -> None:
        self.registration = registration
        self._length_ms = SESSION_MS
        self._until_ms = sent_ms
        self._beat_at_ms = sent_ms
        self._number = 0
        self._sent = {0: sent_ms}  # heartbeats that may still be renewed: when each was sent; the registration is one
        self._told = {0: 0}  # of them, those of which that was told: by which renewal
        self._applied = -1  # S6
        self._is_open = False  # as the driver was told last

    def is_open(self, now_ms: int) -> bool:
        """Whether S3 lets a leader go on."""
        return now_ms < self._until_ms

    def tick(self, now_ms: int) -> list[Effect]:
        """Send what is due, and see whether the session has ended."""
        effects = self._turned(now_ms)
        if now_ms >= self._beat_at_ms:
            self._beat_at_ms = now_ms + HEARTBEAT_MS
            self._number += 1
            self._sent = {number: ms for number, ms in self._sent.items() if now_ms - ms < self._length_ms}
            self._told = {number: renewal for number, renewal in self._told.items() if number in self._sent}
            self._sent[self._number] = now_ms
            effects.append(Beat(registration=self.registration, number=self._number))
        return effects

    def hurry(self) -> None:
        """Send the next heartbeat at the next tick (S4)."""
        self._beat_at_ms = 0

    def renewed(self, registration: int, number: int, renewal: int, now_ms: int) -> list[Effect]:
        """The controller says that a heartbeat's renewal is committed (S2). `renewal`: it was the so many-th."""
        if registration == self.registration and number in self._sent:
            self._told[number] = renewal
        return self._counted(now_ms)

    def applied(self, renewal: int, length_ms: int, now_ms: int) -> list[Effect]:
        """The catalog here knows of so many renewals of this registration, and of this length (S5)."""
        self._applied = max(self._applied, renewal)
        self._length_ms = max(self._length_ms, length_ms)
        return self._counted(now_ms)

    def _counted(self, now_ms: int) -> list[Effect]:
        for number in [number for number, renewal in self._told.items() if renewal <= self._applied]:
            del self._told[number]
            if number or now_ms - self._sent[number] < self._length_ms // 2:  # S6
                self._until_ms = max(self._until_ms, self._sent[number] + self._length_ms)
        return self._turned(now_ms)

    def _turned(self, now_ms: int) -> list[Effect]:
        was_open, self._is_open = self._is_open, self.is_open(now_ms)
        if was_open == self._is_open:
            return []
        return [Opened() if self._is_open else Lapsed()]
