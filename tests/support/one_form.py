"""A broker that is alone as a cluster of one (`broker.runtime.cluster.plane.local`), which it is to become.

python -m tests.support.one_form broker …   as `liftlog broker …`; ONE_FORM=1 has each lone broker of a test run so
"""

from __future__ import annotations

import sys

from broker.cli.main import main as liftlog
from broker.runtime import broker
from broker.runtime.cluster.alone import Alone
from broker.runtime.cluster.broker import ClusterBroker
from broker.runtime.config.configuration import Config


def one_form(config: Config) -> ClusterBroker:
    """Such a broker, in this process."""
    return ClusterBroker(config, Alone)


def main() -> None:
    """See the module."""
    made = broker._made
    broker._made = lambda config: made(config) if config.cluster.voters else one_form(config)
    liftlog()


if __name__ == "__main__":
    sys.exit(main())
