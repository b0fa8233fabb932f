"""Kafka as a peer, where BENCH_KAFKA_HOME names an unpacked distribution (3.9 or 4.x); skipped with a reason if not.

    bin/*.sh      what runs: the server, and Kafka's own performance tools
    libs/*.jar    what they run
    spark/*.jar   if it is there: Spark's Kafka source (spark-sql-kafka-0-10 and what it depends on), for spark_read.py

One broker in KRaft mode on free loopback ports, one topic of one partition, all settings and JVM options those that the
distribution comes with. It is filled by kafka-producer-perf-test with batches of 256 KiB, which are cheap to read.

K1  A fault of a Kafka (not there, does not start, loses records) is a reason to skip its side, with details on stderr:
    a peer does not end the run. A reason names no path, as it goes into the line.
K2  Everything runs in a process group of its own that is killed at the end, however the run ends.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.harness import Measures, Skipped
from tests.support.processes import eventually, free_port

HOME = "BENCH_KAFKA_HOME"
TOPIC = "bench"
TIMEOUT_S = 180
"""Time for one tool; the longest fills a topic, in half a minute."""
START_TIMEOUT_S = 60
REPORT_MS = 200
REPORTED_MIN = 1_000_000
"""Fewer records are read before there is a second report: their rate has the warming up of the JVM in it."""
SCRIPTS = (
    "kafka-storage",
    "kafka-server-start",
    "kafka-topics",
    "kafka-producer-perf-test",
    "kafka-consumer-perf-test",
)


class Topic:
    """A filled topic of a running broker.

    Attributes:
        address: host:port of the broker.
    """

    def __init__(self, home: Path, address: str, count: int) -> None:
        self.address = address
        self._home = home
        self._count = count

    def consume(self) -> Measures:
        """Read everything once with kafka-consumer-perf-test as it comes; `rate` as in `warmed_up`. Raises Skipped."""
        reports = ("--show-detailed-stats", "--reporting-interval", str(REPORT_MS))
        output = _tool(
            self._home,
            "kafka-consumer-perf-test",
            *("--bootstrap-server", self.address, "--topic", TOPIC, "--group", f"bench-{uuid.uuid4()}"),
            *("--messages", str(self._count), *(reports if self._count >= REPORTED_MIN else ())),
        )
        return warmed_up(output, self._count)

    def produce(self, *, size: int, count: int) -> Measures:
        """Add records with kafka-producer-perf-test, acks=all; `rate` as it reports it. Raises Skipped."""
        return produced(_tool(self._home, *_producing(self.address, size, count), "acks=all"), count)


def produced(output: str, count: int) -> Measures:
    """Read the last line of kafka-producer-perf-test. Raises Skipped if it sent less, or says nothing."""
    found = re.findall(r"^(\d+) records sent, ([\d.]+) records/sec", output, re.MULTILINE)
    if not found or int(found[-1][0]) != count:
        print(f"Kafka's producer:\n{output[-2000:]}", file=sys.stderr)
        raise Skipped(f"Kafka's producer sent {found[-1][0] if found else 0} of {count} messages")
    rate = float(found[-1][1])
    return {"rate": rate, "seconds": count / rate}


def _producing(address: str, size: int, count: int) -> Sequence[str]:
    return (
        *("kafka-producer-perf-test", "--topic", TOPIC),
        *("--num-records", str(count), "--record-size", str(size), "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={address}", "linger.ms=5", "batch.size=262144"),
    )


def warmed_up(output: str, count: int) -> Measures:
    """Read kafka-consumer-perf-test with --show-detailed-stats, and without for the few records of a tiny run.

    Each run is a JVM of its own, which first interprets and compiles what it runs: seconds in which it reads a tenth of
    what it reads later. `rate` begins after half of the records, where that is over; `rate_whole` has all of them. Both
    leave out the joining of the group.

    Args:
        output: Lines of comma-separated fields, the first with their names.
        count: Records that it was to read.
    Raises:
        Skipped: it read less, or said nothing.
    """
    rows = [[field.strip() for field in line.split(",")] for line in output.splitlines() if line.count(",") >= 9]
    reports = [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]
    read_of = [int(report["data.consumed.in.nMsg"]) for report in reports]
    if not reports or read_of[-1] < 0.75 * count or "Exiting before consuming" in output:
        print(f"Kafka's consumer:\n{output[-2000:]}", file=sys.stderr)
        raise Skipped(f"Kafka's consumer read {read_of[-1] if read_of else 0} of {count} messages")
    spent_s = [float(report["fetch.time.ms"]) / 1000 for report in reports]
    whole = {"rate_whole": read_of[-1] / sum(spent_s), "seconds": sum(spent_s)}
    half = next(at for at, read in enumerate(read_of) if 2 * read >= count)
    if not sum(spent_s[half + 1 :]):
        return {"rate": whole["rate_whole"], **whole}
    return {"rate": (read_of[-1] - read_of[half]) / sum(spent_s[half + 1 :]), **whole}


@contextmanager
def topic(folder: Path, *, size: int, count: int) -> Iterator[Topic | Skipped]:
    """A topic with `count` messages of `size` bytes, all written to disk and in memory; or why there is none."""
    with ExitStack() as stack:
        found: Topic | Skipped
        try:
            found = _filled(stack, installation(), folder, size, count)
        except Skipped as reason:
            stack.close()
            found = reason
        yield found


def installation() -> Path:
    """The folder of the Kafka that is named. Raises Skipped where there is none."""
    named = os.environ.get(HOME)
    if not named:
        raise Skipped(f"{HOME} names no Kafka installation")
    home = Path(named).absolute()
    for script in SCRIPTS:
        if not os.access(home / "bin" / f"{script}.sh", os.X_OK):
            raise Skipped(f"{HOME} names a folder without bin/{script}.sh to run: no Kafka installation")
    return home


def spark_jars() -> Sequence[Path]:
    """Spark's Kafka source and what it needs. Raises Skipped where it, or Kafka, is missing."""
    jars = sorted((installation() / "spark").glob("*.jar"))
    if not any(jar.name.startswith("spark-sql-kafka-0-10_") for jar in jars):
        raise Skipped(f"{HOME} names a Kafka without spark/spark-sql-kafka-0-10_*.jar: no Kafka source of Spark")
    return jars


def _filled(stack: ExitStack, home: Path, folder: Path, size: int, count: int) -> Topic:
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
    _tool(home, "kafka-storage", "format", f"--cluster-id={cluster}", "--config", str(config))
    log = folder / "kafka.log"
    server = stack.enter_context(_running(home, "kafka-server-start", config, log, {"LOG_DIR": str(folder / "gc")}))
    try:
        eventually(lambda: server.poll() is not None or _listens(port), timeout_s=START_TIMEOUT_S)
    except AssertionError:
        raise _failed("kafka-server-start.sh", f"does not listen within {START_TIMEOUT_S} s", log) from None
    if server.poll() is not None:
        raise _failed("kafka-server-start.sh", f"ended with exit code {server.returncode}", log)
    bootstrap = ("--bootstrap-server", address)
    _tool(home, "kafka-topics", *bootstrap, "--create", "--topic", TOPIC, "--partitions", "1")
    _tool(home, *_producing(address, size, count))
    os.sync()  # what Kafka left to the kernel to write must not be written during anybody's turn
    return Topic(home, address, count)


@contextmanager
def _running(
    home: Path, script: str, config: Path, log: Path, env: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A server, killed at the end (K2): nobody needs its data any more."""
    with log.open("ab") as out:
        server = subprocess.Popen(
            [str(home / "bin" / f"{script}.sh"), str(config)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**_environment(), **env},
            start_new_session=True,
        )
    try:
        yield server
    finally:
        _kill_group(server)


def _tool(home: Path, script: str, *arguments: str) -> str:
    """Run a tool to its end; what it prints. Raises Skipped if it fails (K1)."""
    with subprocess.Popen(
        [str(home / "bin" / f"{script}.sh"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
        start_new_session=True,
    ) as running:
        try:
            output, errors = running.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Skipped(f"{script}.sh did not end within {TIMEOUT_S} s") from None
        finally:
            _kill_group(running)
    if running.returncode:
        print(f"{script}.sh:\n{(errors or output).strip()[-2000:]}", file=sys.stderr)
        raise Skipped(f"{script}.sh ended with exit code {running.returncode}")
    return output


def _environment() -> Mapping[str, str]:
    """Without options that every JVM is given: Kafka has its own, among them another collector."""
    return {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}


def _failed(script: str, what: str, log: Path) -> Skipped:
    print(f"{script} {what}:\n{log.read_text(errors='replace')[-4000:]}", file=sys.stderr)
    return Skipped(f"{script} {what}")


def _kill_group(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
