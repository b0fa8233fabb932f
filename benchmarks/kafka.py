"""Kafka as a peer, where BENCH_KAFKA_HOME names an installation (its `bin/` scripts are what runs); skipped if not.

One broker in KRaft mode on free ports, one topic of one partition, filled and read by Kafka's own performance tools.
"""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Measures, Skipped
from tests.support.processes import Process, eventually, free_port

HOME = "BENCH_KAFKA_HOME"
TOPIC = "bench"
TIMEOUT_S = 600


class Topic:
    """A filled topic of a running broker."""

    def __init__(self, home: Path, address: str, count: int) -> None:
        self._home = home
        self._address = address
        self._count = count

    def consume(self) -> Measures:
        """Read everything once with kafka-consumer-perf-test; `rate` leaves the joining of the group out."""
        output = _tool(
            self._home,
            "kafka-consumer-perf-test.sh",
            "--bootstrap-server",
            self._address,
            "--topic",
            TOPIC,
            "--messages",
            str(self._count),
            "--group",
            f"bench-{uuid.uuid4()}",
        )
        header, values = [
            [field.strip() for field in line.split(",")] for line in output.splitlines() if line.count(",") >= 9
        ]
        found = dict(zip(header, values, strict=True))
        if (read := int(found["data.consumed.in.nMsg"])) < self._count:
            raise RuntimeError(f"Kafka's consumer read {read} of {self._count} messages:\n{output}")
        return {
            "rate": float(found["fetch.nMsg.sec"]),
            "rate_with_joining": float(found["nMsg.sec"]),
            "seconds": float(found["fetch.time.ms"]) / 1000,
        }


@contextmanager
def topic(folder: Path, *, size: int, count: int) -> Iterator[Topic | Skipped]:
    """A topic with `count` messages of `size` bytes; or why there is none."""
    named = os.environ.get(HOME)
    if not named:
        yield Skipped(f"{HOME} names no Kafka installation")
        return
    home = Path(named)
    port, controller_port = free_port(), free_port()
    address = f"127.0.0.1:{port}"
    config = folder / "kafka.properties"
    config.write_text(
        "\n".join(
            (
                "process.roles=broker,controller",
                "node.id=1",
                f"listeners=PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller_port}",
                f"advertised.listeners=PLAINTEXT://{address}",
                "controller.listener.names=CONTROLLER",
                f"controller.quorum.voters=1@127.0.0.1:{controller_port}",
                f"log.dirs={folder / 'kafka'}",
                "offsets.topic.replication.factor=1",
                "group.initial.rebalance.delay.ms=0",
                "num.partitions=1",
            )
        )
    )
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    _tool(home, "kafka-storage.sh", "format", "--cluster-id", cluster, "--config", str(config))
    server = Process(
        [str(home / "bin" / "kafka-server-start.sh"), str(config)],
        folder / "kafka.log",
        {**os.environ, "LOG_DIR": str(folder / "kafka-logs")},
    )
    try:
        eventually(lambda: _listens(server, port), timeout_s=60, what="Kafka listens")
        bootstrap = ("--bootstrap-server", address)
        _tool(home, "kafka-topics.sh", *bootstrap, "--create", "--topic", TOPIC, "--partitions", "1")
        _tool(
            home,
            "kafka-producer-perf-test.sh",
            *("--topic", TOPIC, "--num-records", str(count), "--record-size", str(size), "--throughput", "-1"),
            *("--producer-props", f"bootstrap.servers={address}", "linger.ms=5", "batch.size=262144"),
        )
        yield Topic(home, address, count)
    finally:
        server.terminate()


def _listens(server: Process, port: int) -> bool:
    assert server.popen.poll() is None, server.output()[-4000:]
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _tool(home: Path, name: str, *arguments: str) -> str:
    done = subprocess.run([str(home / "bin" / name), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{name}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout
