"""One source for one consumer name: two would overwrite each other's progress, and `committed` skip records.

A source does not know its query. But Spark runs each in a child process of the driver's JVM, so two of one driver have
the same parent. The name is claimed as a socket in Linux's abstract name space, which goes with its process however
that ends. Two drivers are not told apart: a query that is started elsewhere may have to take the name over.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import sys
import time
from typing import Final

from broker.api.errors import InvalidSetting

PATIENCE_S: Final = 15.0
"""A query that was stopped just now may still be ending."""


def claim(consumer: str, progress: str) -> socket.socket | None:
    """Take the name for as long as the returned socket is open; None: this system has no such name space.

    Args:
        progress: The incarnation of the log that progress is published to. It tells clusters apart, where addresses do
            not: they can be spelled in many ways, and each names some brokers only.
    Raises:
        InvalidSetting: another source of this driver has it.
    """
    if sys.platform != "linux":
        return None
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    named = hashlib.sha256(f"{progress}\0{consumer}".encode()).hexdigest()[:32]
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            held.bind(f"\0liftlog-consumer-{os.getppid()}-{named}")
            return held
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                held.close()
                raise
        if time.monotonic() > deadline:
            held.close()
            raise InvalidSetting(
                f"option consumer={consumer!r}: another source of this driver publishes its progress under this name,"
                " and each would overwrite the other's: give each source of each query a name of its own",
                key="consumer",
                value=consumer,
            )
        time.sleep(0.1)
