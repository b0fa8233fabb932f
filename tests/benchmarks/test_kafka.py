"""The Kafka side, with scripts in the place of an installation: what it makes of their output, and of their failures.

The scripts answer as those of Kafka 4.3.1 did; the real ones run where BENCH_KAFKA_HOME names them.
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks import kafka
from benchmarks.harness import Skipped, versions
from benchmarks.kafka import produced, warmed_up
from tests.support.processes import eventually

HEADER = (
    "time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, "
    "fetch.MB.sec, fetch.nMsg.sec\n"
)
REPORTS = HEADER + "".join(
    f"2026-11-21 21:02:0{at}:576, 0, {read / 10_000}, 0.0, {read}, 0.0, {joining}, {spent}, 0.0, 0.0\n"
    for at, (read, joining, spent) in enumerate(
        [(1, 442, 60), (100_000, 0, 500), (500_000, 0, 640), (1_100_000, 0, 500), (1_900_000, 0, 500)]
    )
)
SERVER = """
import re, socket, sys, time
port = int(re.search("PLAINTEXT://127.0.0.1:([0-9]+),", open(sys.argv[1]).read())[1])
listening = socket.create_server(("127.0.0.1", port))
while True:
    listening.accept()[0].close()
"""


def installed(folder: Path, **scripts: str) -> Path:
    """A folder with the scripts of an installation: those that are not given do nothing and succeed."""
    (folder / "bin").mkdir()
    for name in kafka.SCRIPTS:
        file = folder / "bin" / f"{name}.sh"
        file.write_text("#!/bin/sh\n" + scripts.get(name.replace("-", "_"), "exit 0") + "\n")
        file.chmod(0o755)
    return folder


def with_server(folder: Path, **scripts: str) -> Path:
    """An installation whose server listens, as a child of its script."""
    (folder / "server.py").write_text(SERVER)
    return installed(folder, kafka_server_start=f'{sys.executable} {folder / "server.py"} "$1"; exit 1', **scripts)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folder of the installation, which the environment names, and that of the data."""
    home, data = tmp_path / "home", tmp_path / "data"
    home.mkdir()
    data.mkdir()
    monkeypatch.setenv(kafka.HOME, str(home))
    return home, data


def reason(data: Path) -> str:
    with kafka.topic(data, size=100, count=2_000_000) as found:
        assert isinstance(found, Skipped)
    assert str(data.parent) not in str(found), "it goes into a line, which names no path"
    return str(found)


def not_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_rate_begins_after_half_of_the_records() -> None:
    assert warmed_up(REPORTS, 2_000_000) == {"rate": 1.6e6, "rate_whole": 1.9e6 / 2.2, "seconds": 2.2}


def test_a_producer_is_taken_at_its_last_word(capsys: pytest.CaptureFixture[str]) -> None:
    """The output is that of Kafka 4.3.1, unchanged: a report every few seconds, then one of all records."""
    report = "{} records sent, {} records/sec (119.03 MB/sec), 1.7 ms avg latency, 250.0 ms max latency"
    output = f"{report.format(600, 120.0)}\n{report.format(1000, 200.5)}, 1 ms 50th, 3 ms 95th.\n"
    assert produced(output, 1000) == {"rate": 200.5, "seconds": 1000 / 200.5}
    with pytest.raises(Skipped, match="sent 1000 of 1001 messages"):
        produced(output, 1001)
    with pytest.raises(Skipped, match="sent 0 of 5 messages"):
        produced("nothing\n", 5)
    capsys.readouterr()


def test_few_records_have_but_one_report() -> None:
    """The output is that of Kafka 4.3.1, unchanged."""
    output = (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
        "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
        "2026-11-21 21:01:31:180, 2026-11-21 21:01:38:434, 1.9073, 0.2629, 20000, 2757.0995, 403, 250, 7.6, 80000.0\n"
    )
    assert warmed_up(output, 20_000) == {"rate": 80_000.0, "rate_whole": 80_000.0, "seconds": 0.25}


@pytest.mark.parametrize(
    "output,count",
    [
        (REPORTS, 4_000_000),
        ("WARNING: Exiting before consuming the expected number of messages\n" + REPORTS, 2_000_000),
        (HEADER, 2_000_000),
        ("", 2_000_000),
    ],
)
def test_a_consumer_that_did_not_read_everything_is_no_measurement(output: str, count: int) -> None:
    with pytest.raises(Skipped, match=f"of {count} messages"):
        warmed_up(output, count)


def test_reads_what_it_filled(folders: tuple[Path, Path]) -> None:
    home, data = folders
    with_server(home, kafka_consumer_perf_test=f"cat <<END\n{REPORTS}\nEND")
    with kafka.topic(data, size=100, count=2_000_000) as found:
        assert isinstance(found, kafka.Topic)
        assert found.consume()["rate"] == 1.6e6


def test_its_jvms_get_no_options_but_its_own(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests give cheap ones to all others (tests.support.spark_classes). Two collectors end a JVM at its start."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+UseSerialGC")
    check = 'test -z "$JDK_JAVA_OPTIONS" || exit 7'
    home, data = folders
    with_server(home, kafka_storage=check, kafka_consumer_perf_test=f"{check}; cat <<END\n{REPORTS}\nEND")
    server = home / "bin" / "kafka-server-start.sh"
    server.write_text(server.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{check}\n"))
    with kafka.topic(data, size=100, count=2_000_000) as found:
        assert isinstance(found, kafka.Topic), found
        assert found.consume()["rate"] == 1.6e6


def test_without_an_installation_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kafka.HOME, raising=False)
    assert reason(tmp_path) == "BENCH_KAFKA_HOME names no Kafka installation"
    with pytest.raises(Skipped, match="names no Kafka installation"):
        kafka.spark_jars()


def test_a_folder_that_is_no_installation_is_named_as_such(folders: tuple[Path, Path]) -> None:
    assert "without bin/kafka-storage.sh" in reason(folders[1])


@pytest.mark.parametrize("broken", ["kafka-storage", "kafka-server-start", "kafka-topics", "kafka-producer-perf-test"])
def test_a_kafka_that_does_not_work_is_skipped_by_what_failed(
    broken: str, folders: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    home, data = folders
    with_server(home)
    (home / "bin" / f"{broken}.sh").write_text("#!/bin/sh\necho no java here >&2\nexit 3\n")
    assert reason(data) == f"{broken}.sh ended with exit code 3"
    assert "no java here" in capfd.readouterr().err


def test_a_tool_that_hangs_is_ended_with_its_children(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "TIMEOUT_S", 2)
    child = folders[1] / "child"
    installed(folders[0], kafka_storage=f"sleep 1000 & echo $! > {child}; wait")
    assert reason(folders[1]) == "kafka-storage.sh did not end within 2 s"
    eventually(lambda: not child.exists() or not_running(child.read_text().strip()), what="the child ends")


def test_the_server_ends_with_the_block_however_it_ends(folders: tuple[Path, Path]) -> None:
    home, data = folders
    with_server(home)
    with suppress(ZeroDivisionError), kafka.topic(data, size=100, count=1) as found:
        assert isinstance(found, kafka.Topic)
        host, port = found.address.split(":")
        socket.create_connection((host, int(port))).close()
        raise ZeroDivisionError

    def gone() -> bool:
        try:
            socket.create_connection((host, int(port))).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    eventually(gone, what="nobody listens there")


def test_sparks_source_is_found_beside_kafka(folders: tuple[Path, Path]) -> None:
    home = installed(folders[0])
    with pytest.raises(Skipped, match="no Kafka source of Spark"):
        kafka.spark_jars()
    for folder, jar in (
        ("spark", "spark-sql-kafka-0-10_2.13-4.2.0"),
        ("spark", "x-1"),
        ("libs", "kafka-clients-4.3.1"),
    ):
        (home / folder).mkdir(exist_ok=True)
        (home / folder / f"{jar}.jar").touch()
    assert [jar.name for jar in kafka.spark_jars()] == ["spark-sql-kafka-0-10_2.13-4.2.0.jar", "x-1.jar"]
    found = versions()
    assert (found["kafka"], found["spark-sql-kafka"]) == ("4.3.1", "4.2.0")
