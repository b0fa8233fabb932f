"""A broker with a disk and a clock that can be made to fail: `python -m tests.soak.broker --faults SOCKET`.

Configured by the environment, as `liftlog broker`. It is the broker as it is shipped; only the name `os` in its modules
stands for a `FaultyOs`, and `time.time` for a clock that can be moved. A mutant takes one mend out (`mutants.py`).
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
import time
from pathlib import Path

import broker
from tests.soak.faults import Clock, FaultyOs, serve
from tests.soak.mutants import MUTANTS

PACKAGES = ("api", "storage", "metadata", "groups", "sinks", "ingest", "replication", "serving", "runtime")


def install(folder: str, socket_path: str) -> None:
    """Put the clock in place, before a module keeps the machine's; and the faulty disk, in all that touch files."""
    disk, clock = FaultyOs(folder), Clock(Path(socket_path + ".clock"))
    time.time_ns, time.time = clock.time_ns, clock.time
    for found in pkgutil.walk_packages(broker.__path__, "broker."):
        if found.name.split(".")[1] in PACKAGES:
            importlib.import_module(found.name)
    for name, module in list(sys.modules.items()):
        if name.startswith("broker.") and getattr(module, "os", None) is os:
            module.os = disk  # type: ignore[attr-defined]
    serve(socket_path, disk, clock)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.broker")
    parser.add_argument("--faults", required=True, metavar="SOCKET")
    parser.add_argument("--mutant", choices=sorted(MUTANTS))
    given = parser.parse_args()
    install(os.environ["LIFTLOG_DATA_DIR"], given.faults)
    if given.mutant:
        MUTANTS[given.mutant]()
    from broker.cli.main import main as liftlog

    sys.argv = ["liftlog", "broker"]
    liftlog()


if __name__ == "__main__":
    main()
