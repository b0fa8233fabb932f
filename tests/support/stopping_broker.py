"""A broker whose stop can be looked at closely: `python -m tests.support.stopping_broker [--gate FILE] [--slow-s S]
[--fails refused|silent|bug]`.

Configured by the environment, as `liftlog broker`. As a leader it drops no follower for being slow, so whoever waits
for one waits for good.

- With a gate it closes the logs of all replicas when it stops, and is not done before the file is there: one more log,
  of a disk that is busy.
- If it is slow, it takes that long over each answer of a leader that has records. As a leader that hands over it has
  all the time for its followers that a test may need.
- If it fails, the catalog does so whenever this broker says that it stops or is gone: the command is refused, nobody
  answers it, or there is a fault of ours.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.api.errors import DeadlineExceeded, InvalidRequest
from broker.cli.main import main as liftlog
from broker.control.service import TIMEOUT_S, Catalogs
from broker.link.following import Following
from broker.node.replicas import Replicas
from broker.replication.leader import Leader
from broker.runtime import clustered as broker_module


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.stopping_broker")
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--slow-s", type=float, default=0.0)
    parser.add_argument("--fails", choices=["refused", "silent", "bug"])
    given = parser.parse_args()
    assert Leader.__init__.__kwdefaults__ is not None
    Leader.__init__.__kwdefaults__["replica_lag_ms_max"] = 3_600_000
    if given.gate is not None:
        hold_closing(given.gate)
    if given.slow_s:
        slow_down(given.slow_s)
    if given.fails is not None:
        fail_commands(given.fails)
    sys.argv = ["liftlog", "broker"]
    liftlog()


def hold_closing(gate: Path) -> None:
    stop = Replicas.stop

    def held(self: Replicas) -> None:
        for replica in self.replicas():
            replica.close()
        while not gate.exists():
            time.sleep(0.02)
        stop(self)

    Replicas.stop = held  # type: ignore[method-assign]


def slow_down(slow_s: float) -> None:
    arrived = Following.arrived

    def late(self: Following, answer: Any, data: bytes) -> None:
        if data:
            time.sleep(slow_s)
        arrived(self, answer, data)

    Following.arrived = late  # type: ignore[method-assign]
    broker_module.CATCH_UP_S = 60.0  # type: ignore[misc]


def fail_commands(how: str) -> None:
    execute = Catalogs.execute

    def failing(self: Catalogs, command: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S, **others: Any) -> Any:
        if command["kind"] not in ("stop_broker", "fail_broker"):
            return execute(self, command, timeout_s=timeout_s, **others)
        print("made to fail:", command["kind"], flush=True)
        if how == "refused":
            raise InvalidRequest("made to refuse", sent=False)
        if how == "silent":
            time.sleep(timeout_s)
            raise DeadlineExceeded("made to say nothing", sent=True)
        raise RuntimeError("made to fail")

    Catalogs.execute = failing  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
