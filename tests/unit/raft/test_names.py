"""Addresses of hosts while the name server hangs, fails, and says something else."""

from __future__ import annotations

import threading
import time

from broker.raft.names import Names


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
