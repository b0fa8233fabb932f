"""A broker whose stop can be looked at closely: `python -m tests.support.stopping_broker --gate FILE`.

Configured by the environment, as `liftlog broker`. As a leader it drops no follower for being slow, so whoever waits
for one waits for good.

When it stops it closes the logs of all replicas, and is not done before the file is there: one more log,
of a disk that is busy.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from broker.cli.main import main as liftlog
from broker.replication.leader import Leader
from broker.runtime.cluster.replicas import Replicas


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.stopping_broker")
    parser.add_argument("--gate", type=Path, required=True)
    given = parser.parse_args()
    assert Leader.__init__.__kwdefaults__ is not None
    Leader.__init__.__kwdefaults__["replica_lag_ms_max"] = 3_600_000
    hold_closing(given.gate)
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


if __name__ == "__main__":
    main()
