"""A broker that stands still in commits of two sinks, for `kill -9`; run as a program in place of `liftlog broker`.

The commit of `pinned` stands still when its stages are pinned everywhere and nothing is decided. That of `decided`
stands still when it is decided, before it is finished in partition 1. The broker keeps its sessions meanwhile, so that
no other broker takes over what it does. A file in the folder STANDS_IN says that the step is reached.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from broker.node.sinks.coordinator import Sinks

PINNED, DECIDED = "pinned", "decided"


def stand(sink: str) -> None:
    (Path(os.environ["STANDS_IN"]) / sink).touch()
    threading.Event().wait()


def arm() -> None:
    decide, finish = Sinks.decide, Sinks._finish

    def stepping_decide(self: Sinks, sink: str, *args: Any, **options: Any) -> Any:
        if sink == PINNED:
            stand(sink)
        return decide(self, sink, *args, **options)

    def stepping_finish(self: Sinks, sink: str, decision: str, refs: Any, *args: Any, **options: Any) -> Any:
        if sink == DECIDED and refs[0].partition == 1:
            stand(sink)
        return finish(self, sink, decision, refs, *args, **options)

    Sinks.decide = stepping_decide  # type: ignore[method-assign]
    Sinks._finish = stepping_finish  # type: ignore[method-assign]


if __name__ == "__main__":
    from broker.cli.main import main

    arm()
    sys.exit(main())
