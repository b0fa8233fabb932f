"""A broker that says it knows feature levels up to LEVEL: `python -m tests.support.earlier_broker LEVEL`.

It holds up the cluster as one of an earlier release does. Configured by the environment, as `liftlog broker`.
"""

from __future__ import annotations

import sys

from broker.api.stream import SINCE, StreamSettings
from broker.cli.main import main as liftlog
from broker.control import plane
from broker.metadata import broker_commands, controller


def main() -> None:
    for module in (broker_commands, controller, plane):
        module.FEATURE_LEVEL = int(sys.argv[1])  # type: ignore[attr-defined]
    if int(sys.argv[1]) < SINCE["envelopes"]:
        StreamSettings.opens_envelopes = property(lambda _: False)  # type: ignore[assignment,method-assign]
    sys.argv = ["liftlog", "broker"]
    liftlog()


if __name__ == "__main__":
    main()
