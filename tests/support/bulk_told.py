"""A broker that tells its followers another port for bulk: `python -m tests.support.bulk_told PORT`.

Configured by the environment, as `liftlog broker`. A test has a relay at that port, and so knows how far a transfer is.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

from broker.cli.main import main as liftlog
from broker.runtime.cluster.link.bulk import BulkServer

if __name__ == "__main__":
    told = int(sys.argv[1])
    sys.argv = ["liftlog", "broker"]
    start = BulkServer.start

    def start_and_tell(server: BulkServer, host: str, port: int) -> int:
        found = start(server, host, port)
        server.told_port = told
        return found

    with patch.object(BulkServer, "start", start_and_tell):
        liftlog()
