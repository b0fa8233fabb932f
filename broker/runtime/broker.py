"""A broker is made, started, and run until a signal.

Design: docs/explain/architecture.md.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import broker
from broker.api.errors import InvalidRequest, NotReady
from broker.common.stopping import end_process
from broker.config.configuration import Config, describe, open_doors
from broker.runtime.assembled import Assembled
from broker.serving.threads import Threads

log = logging.getLogger(__name__)


@contextmanager
def _without_collector() -> Iterator[None]:
    """No search for reference cycles meanwhile: of what a start makes nearly all stays, and is gone through again and
    again. With 10,000 partitions that took a third of the start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _serve(config: Config) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(Threads(None, name="loop-worker"))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if (
            number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        ):  # nohup wants it to outlive a terminal
            loop.add_signal_handler(number, stopping.set)
    node = _made(config)
    try:
        stop = asyncio.ensure_future(stopping.wait())
        with _without_collector():
            starting = asyncio.ensure_future(node.start())
            await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                await asyncio.to_thread(node.interrupt)
            try:
                await starting
            except NotReady:
                if not stopping.is_set():
                    raise
        await stop
    finally:
        if not await node.stop():
            end_process()
    return 0


def _made(config: Config) -> Assembled:
    """The broker that is configured. Alone, it loads nothing that only several need."""
    from broker.runtime.clustered import ClusterBroker

    if not config.cluster.voters:
        from broker.runtime.alone import Alone

        return ClusterBroker(config, Alone)
    from broker.runtime.several import Several

    return ClusterBroker(config, Several)


def check_asserts(optimize: int) -> None:
    """Raise InvalidRequest where Python leaves out `assert`: what nobody may come through is checked by it
    (`wire.W1`), and a broker whose state is broken is to end."""
    if optimize:
        raise InvalidRequest(
            "this Python runs with -O (or PYTHONOPTIMIZE), which leaves out checks that a broker needs: start it"
            " without",
            value=optimize,
        )


def run(config: Config) -> int:
    """Run a broker until SIGTERM, SIGINT or SIGHUP. Returns the exit code.

    Raises:
        LiftlogError: it cannot start: port in use, folder in use, of another broker, damaged …
    """
    check_asserts(sys.flags.optimize)
    sys.setswitchinterval(0.0005)  # an ack waits for at most this long for a busy thread
    os.umask(0o077)
    log.info("broker.starting version=%s config=%s", broker.__version__, json.dumps(describe(config)))
    for key, missing in open_doors(config).items():
        log.warning("broker.insecure setting=%s missing=%s", key, missing)
    if config.auth.mode != "off" and not config.auth.admins and config.auth.admin_token_file is None:
        log.warning("auth.no_admin mode=%s", config.auth.mode)
    return asyncio.run(_serve(config))
