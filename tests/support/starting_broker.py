"""A broker that can be held at its start: `python -m tests.support.starting_broker FILE`.

While the file is there it takes part in the catalog and has a vote, but opens no log, and so does not register. The
others decide without it who may lead. Configured by the environment, as `liftlog broker`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from broker.cli.main import main as liftlog
from broker.node.replicas import FoundReplicas, Replicas


def main() -> None:
    held = Path(sys.argv[1])
    open_found = Replicas.open_found

    def late(self: Replicas) -> FoundReplicas:
        while held.exists():
            time.sleep(0.02)
        return open_found(self)

    Replicas.open_found = late  # type: ignore[method-assign]
    sys.argv = ["liftlog", "broker"]
    liftlog()


if __name__ == "__main__":
    main()
