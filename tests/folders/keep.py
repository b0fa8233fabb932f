"""Packed data folders, and the Raft addresses that a cluster's folders hold.

A Raft address cannot be changed without giving up the journal. So those of the kept folders are fixed: three loopback
addresses that nothing else is known to use.
"""

from __future__ import annotations

import socket
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

KEPT: Final = Path(__file__).parents[1] / "golden" / "folders"
RAFT_PORT: Final = 7401
RAFT_HOSTS: Final = {"a": "127.77.32.1", "b": "127.77.32.2", "c": "127.77.32.3"}
VOTERS: Final = ",".join(f"{broker}@{host}:{RAFT_PORT}" for broker, host in RAFT_HOSTS.items())


def pack(folder: Path, to: Path) -> None:
    with (
        pa.CompressedOutputStream(pa.OSFile(str(to), "wb"), "zstd") as out,
        tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        tar.add(folder, arcname=".")


def unpack(packed: Path, to: Path) -> None:
    with pa.CompressedInputStream(pa.OSFile(str(packed)), "zstd") as data, tarfile.open(fileobj=data, mode="r|") as tar:
        tar.extractall(to, filter="data")


@contextmanager
def kept_addresses(cluster: Any) -> Iterator[None]:
    """Give the brokers of a `RealCluster` the Raft addresses of the kept folders. One cluster at a time has them on
    this machine; the next one waits."""
    with _taken():
        for broker, process in cluster.brokers.items():
            process.env |= {
                "LIFTLOG_RAFT_HOST": RAFT_HOSTS[broker],
                "LIFTLOG_RAFT_PORT": str(RAFT_PORT),
                "LIFTLOG_CLUSTER_VOTERS": VOTERS,
            }
        yield


def _taken() -> socket.socket:
    """A port beside them, which stands for all."""
    ends = time.monotonic() + 240
    while True:
        lock = socket.socket()
        try:
            lock.bind((RAFT_HOSTS["a"], RAFT_PORT + 1))
        except OSError:
            lock.close()
            assert time.monotonic() < ends, f"another test holds {RAFT_HOSTS['a']}:{RAFT_PORT + 1}"
            time.sleep(0.2)
        else:
            return lock
