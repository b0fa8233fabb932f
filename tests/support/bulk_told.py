"""A broker that tells its followers another port for bulk: `python -m tests.support.bulk_told PORT`.

Configured by the environment, as `liftlog broker`. A test has a relay at that port, and so knows how far a transfer is.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

from broker.cli.main import main as liftlog
from broker.link.bulk import BulkServer

if __name__ == "__main__":
    told = int(sys.argv[1])
    sys.argv = ["liftlog", "broker"]
    make = BulkServer.__init__

    def make_and_tell(server: BulkServer, *given: Any) -> None:
        make(server, *given)
        server.told_port = told

    with patch.object(BulkServer, "__init__", make_and_tell):
        liftlog()
