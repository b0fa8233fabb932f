"""A broker that freezes amid a command: `python -m tests.support.freezing_broker FILE`.

FILE says at which point, and of which stream. As the controller it stops itself (SIGSTOP) at the first command of this
stream:

    judged   it is in no log yet
    logged   it is in this broker's log, and nobody was told
    sent     the others were told, and have not answered

Configured by the environment, as `liftlog broker`.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.cli.main import main as liftlog
from broker.raft.core import Callback, Core
from broker.raft.node import RaftNode


class Freezer:
    """Looks at what is asked for in a file, and at each point of each command whether it is that."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._name = ""

    def begins(self, command: Mapping[str, Any]) -> None:
        self._name = command.get("name", self._name)

    def ends(self) -> None:
        self._name = ""

    def passes(self, point: str) -> None:
        if self._name and self._file.exists() and self._file.read_text() == f"{point} {self._name}":
            self._file.unlink()
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # all threads; and this one before it goes on


def main() -> None:
    freezer = Freezer(Path(sys.argv[1]))
    judge, propose, send = RaftNode._judge, Core.propose, Core._SyncObj__sendAppendEntries

    def judged(self: RaftNode, command: Mapping[str, Any]) -> None:
        judge(self, command)
        freezer.begins(command)
        freezer.passes("judged")

    def proposed(self: Core, command: Mapping[str, Any], callback: Callback) -> None:
        propose(self, command, callback)
        freezer.passes("logged")

    def sent(self: Core) -> None:
        send(self)
        if not self._is_due:  # it was put off until the next tick
            freezer.passes("sent")
            freezer.ends()

    RaftNode._judge = judged  # type: ignore[method-assign]
    Core.propose = proposed  # type: ignore[method-assign]
    Core._SyncObj__sendAppendEntries = sent
    sys.argv = ["liftlog", "broker"]
    liftlog()


if __name__ == "__main__":
    main()
