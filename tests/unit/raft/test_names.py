"""Addresses of hosts while the name server hangs, fails, and says something else."""

from __future__ import annotations

import threading
import time

import pytest

from broker.raft.names import Names, look_up
from tests.support.processes import eventually


def test_a_name_server_that_hangs_holds_up_nobody() -> None:
    """The last address is kept while nobody answers, and another one is taken when there is one."""
    now_s, hang, answers = [1000.0], threading.Event(), ["10.0.0.1"]

    def look(host: str) -> str | None:
        hang.wait(30)
        if not answers:
            raise OSError("no name server")
        return answers.pop(0)

    def settled(known: Names) -> None:
        deadline = time.monotonic() + 30
        while known._asked:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    known = Names(look, clock=lambda: now_s[0])
    assert known.address("::1") == "::1"
    assert known.address("b.example") is None
    hang.set()
    settled(known)
    assert known.address("b.example") == "10.0.0.1"
    now_s[0] += 60
    assert known.address("b.example") == "10.0.0.1"
    settled(known)  # nobody answers
    now_s[0] += 60
    answers.append("10.0.0.2")
    assert known.address("b.example") == "10.0.0.1"
    settled(known)
    assert known.address("b.example") == "10.0.0.2"


def test_without_a_thread_it_is_looked_up_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the group asks: an error would end the process."""
    now_s = [1000.0]
    known = Names(lambda _: "10.0.0.1", clock=lambda: now_s[0])
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        assert known.address("b.example") is None
    assert not known._asked
    now_s[0] += 60
    eventually(lambda: known.address("b.example") == "10.0.0.1", what="it is looked up")


def test_a_name_that_is_none_is_looked_up_again() -> None:
    """getaddrinfo raises UnicodeError for it."""
    known = Names(look_up)
    assert known.address("b..example") is None
    eventually(lambda: not known._asked, what="it is told that there is none")


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")
