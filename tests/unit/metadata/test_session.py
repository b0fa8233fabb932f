"""A broker's own count of its session: from the sending, by committed renewals of this registration only."""

from __future__ import annotations

from broker.metadata.session import HEARTBEAT_MS, SESSION_MS, Beat, Lapsed, Opened, Session


def test_it_runs_from_the_sending_of_the_heartbeat_that_was_renewed() -> None:
    """S1: not from the answer, however late that comes; a later answer to an earlier heartbeat takes nothing away."""
    session = Session(7, 1_000)
    assert session.applied(0, SESSION_MS, 1_000) == [Opened()]
    assert session.tick(1_000) == [Beat(registration=7, number=1)]
    assert session.tick(1_500) == [Beat(registration=7, number=2)]
    assert session.renewed(7, 2, 0, 2_900) == []
    assert session.renewed(7, 1, 0, 2_950) == []
    assert session.is_open(1_500 + SESSION_MS - 1)
    assert not session.is_open(1_500 + SESSION_MS)


def test_the_end_is_told_once_and_so_is_another_beginning() -> None:
    session = Session(7, 0)
    session.applied(0, SESSION_MS, 0)
    session.tick(0)
    assert session.tick(SESSION_MS) == [Lapsed(), Beat(registration=7, number=2)]
    assert session.tick(SESSION_MS + 1) == []
    assert session.renewed(7, 2, 0, SESSION_MS + 90) == [Opened()]
    assert session.is_open(2 * SESSION_MS - 1)
    assert session.tick(2 * SESSION_MS)[0] == Lapsed()


def test_what_is_too_old_or_of_another_registration_renews_nothing() -> None:
    """S2. A process that was stopped for long wakes up without a session, whatever waits in its sockets."""
    session = Session(7, 0)
    session.applied(0, SESSION_MS, 0)
    session.tick(0)
    session.tick(HEARTBEAT_MS)
    session.renewed(6, 2, 0, HEARTBEAT_MS + 10)
    assert not session.is_open(SESSION_MS)
    assert session.tick(90_000) == [Lapsed(), Beat(registration=7, number=3)]
    assert session.renewed(7, 1, 0, 90_001) == []
    assert session.renewed(7, 4, 0, 90_001) == [], "of a heartbeat that was never sent"
    assert not session.is_open(90_001)
    assert session.renewed(7, 3, 0, 90_050) == [Opened()]


def test_what_the_catalog_here_does_not_know_yet_renews_nothing() -> None:
    """S2. A chaos (seed 97001): who had stood still heard of renewals, and for 12 s not of the leaders after it."""
    session = Session(7, 0)
    session.tick(0)
    session.applied(3, SESSION_MS, 10)
    session.tick(HEARTBEAT_MS)
    assert session.renewed(7, 2, 4, HEARTBEAT_MS + 10) == []
    assert not session.is_open(SESSION_MS)
    assert session.tick(SESSION_MS) == [Lapsed(), Beat(registration=7, number=3)]
    assert session.applied(4, SESSION_MS, SESSION_MS + 10) == [Opened()], "it counts from the sending, as ever"
    assert not session.is_open(HEARTBEAT_MS + SESSION_MS)
    assert session.renewed(7, 3, 5, SESSION_MS + 20) == []
    session.tick(9 * SESSION_MS)
    assert session.applied(5, SESSION_MS, 9 * SESSION_MS + 10) == [], "and not for ever"
