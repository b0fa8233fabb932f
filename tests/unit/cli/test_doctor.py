"""Goal: `liftlog doctor` finds what would keep a broker from working, and says what to do about it.

Method: each check against a folder, a socket or a limit that is as it should be, and against one that is not. The
network ones talk to small servers of the test's own, and to a real broker and a real NATS server.
"""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import socket
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker.cli.doctor import machine as checks_machine
from broker.cli.doctor import network as checks_network
from broker.cli.doctor.checks import OK, SKIPPED, WARNING, WRONG, Check
from broker.cli.doctor.folder import check_catalog, check_file_times, check_folder, check_master_keys
from broker.cli.doctor.machine import check_disk, check_fsync, check_limits, check_versions
from broker.cli.doctor.network import check_broker, check_nats
from broker.cli.local import nats_server, readiness
from broker.cli.main import app
from broker.config.settings import EncryptionConfig
from broker.node.partitions.open_logs import connections_within
from broker.storage.disk import OsDisk
from broker.storage.encrypted.keys import Keyring, MasterKey
from broker.storage.folder import DataFolder
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.logs import IDENTITY
from tests.support.processes import BrokerProcess, NatsServer, free_port, running

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of the tests may stand still for longer than a doctor waits."""
    monkeypatch.setattr(readiness, "PROBE_TIMEOUT_S", 60.0)
    monkeypatch.setattr(nats_server, "GREETING_TIMEOUT_S", 60.0)


def _by_name(found: Iterator[Check] | list[Check]) -> dict[str, Check]:
    answers = {check.name: check for check in found}
    for check in answers.values():
        assert bool(check.advice) == (check.status in (WARNING, WRONG)), check
    return answers


# --- this machine ---------------------------------------------------------------------------------------------


def _key_file(folder: Path, name: str) -> tuple[str, MasterKey]:
    path, key = folder / name, os.urandom(32)
    path.write_bytes(base64.b64encode(key))
    path.chmod(0o600)
    return str(path), MasterKey(key)


def test_master_keys_are_told_and_one_that_no_log_needs(tmp_path: Path) -> None:
    (file, key), (former_file, former) = _key_file(tmp_path, "key"), _key_file(tmp_path, "former")
    assert list(check_master_keys(str(tmp_path), EncryptionConfig())) == [], "nothing is encrypted"
    folder = tmp_path / "streams" / "orders" / "i1" / "0"
    settings = LogSettings(is_encrypted=True, keyring=Keyring([former]))
    PartitionLog.create(OsDisk(), str(folder), IDENTITY, settings, now_us=0).close()

    def told(**named: Any) -> Check:
        (found,) = check_master_keys(str(tmp_path), EncryptionConfig(**named))
        return found

    assert told().status == WRONG
    assert told(key_file=file).status == WRONG
    assert former.id in told(key_file=file).advice
    assert told(key_file=file, former_key_files=(former_file,)).status == OK
    assert told(key_file=file, former_key_files=(former_file,)).values == {"logs": {former.id: 1}}
    assert told(key_command=("false",)).status == OK
    settings = replace(settings, keyring=Keyring([key, former]))
    PartitionLog.open(OsDisk(), str(folder), settings, boot_id="", now_us=0).close()
    assert told(key_file=file).status == OK
    idle = told(key_file=file, former_key_files=(former_file,))
    assert (idle.status, former.id in idle.advice) == (WARNING, True)
    assert told(key_file=str(tmp_path / "none")).status == WRONG


def test_versions_are_those_that_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {}
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["broker"]]:
        name, bounds = re.match(r"([a-zA-Z0-9-]+)(.*)", requirement).groups()  # type: ignore[union-attr]
        asked[name] = bounds
    for name, least in checks_machine.LEAST.items():
        assert f">={'.'.join(map(str, least))}" in asked[name]
        below = checks_machine.BELOW.get(name)
        assert ("<" in asked[name]) == (below is not None)
        assert below is None or f"<{'.'.join(map(str, below))}" in asked[name]
    assert project["requires-python"] == f">={'.'.join(map(str, checks_machine.PYTHON_LEAST))}"
    assert {check.status for check in check_versions()} == {OK}


def test_an_old_or_missing_library_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checks_machine.LEAST, "pyarrow", (999,))
    monkeypatch.setitem(checks_machine.LEAST, "no-such-thing", (1,))
    monkeypatch.setitem(checks_machine.BELOW, "numpy", (1, 0))
    found = _by_name(check_versions())
    assert [found[name].status for name in ("pyarrow", "no-such-thing", "numpy", "crc32c")] == [WRONG, WRONG, WRONG, OK]
    assert "pip install 'pyarrow>=999'" in found["pyarrow"].advice


def test_a_folder_that_is_not_there_yet_is_fine_where_it_can_be_made(tmp_path: Path) -> None:
    assert _by_name(check_folder(str(tmp_path / "a/b"), "b"))["data folder"].status == OK
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert _by_name(check_folder(str(tmp_path / "file"), "b"))["data folder"].status == WRONG
    assert check_catalog(str(tmp_path / "file")) == ([], 0), "said already"


def test_whose_the_folder_is_and_who_uses_it(tmp_path: Path) -> None:
    path = str(tmp_path)
    with DataFolder.open(path, broker_id="broker-0"):
        found = _by_name(check_folder(path, "broker-0"))
        assert found["owner"].status == OK
        assert found["lock"].values["pid"] == os.getpid()
    assert "no broker" in _by_name(check_folder(path, "broker-0"))["lock"].found
    assert _by_name(check_folder(path, "broker-1"))["owner"].status == WRONG
    broker_file = tmp_path / "broker.json"
    values = json.loads(broker_file.read_text())
    broker_file.write_text(json.dumps({**values, "format_version": 9}))
    assert "format version 9" in _by_name(check_folder(path, "broker-0"))["owner"].found
    broker_file.write_text("{")
    assert _by_name(check_folder(path, "broker-0"))["owner"].status == WRONG
    broker_file.unlink()
    (tmp_path / "streams").mkdir()
    assert _by_name(check_folder(path, "broker-0"))["owner"].status == WRONG
    DataFolder.open(tmp_path / "above" / "b1", broker_id="b1").close()
    assert "holds those of b1" in _by_name(check_folder(f"{path}/above", "broker-0"))["owner"].found


def test_a_folder_that_may_not_be_written_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who may do anything
    assert _by_name(check_folder(str(tmp_path), "b"))["data folder"].status == WRONG
    assert _by_name(check_folder(str(tmp_path / "new"), "b"))["data folder"].status == WRONG


def test_a_catalog_that_cannot_be_read_is_wrong(tmp_path: Path) -> None:
    (found,), count = check_catalog(str(tmp_path))
    assert (found.status, count) == ("ok", 0)
    (tmp_path / "streams" / "orders" / "i1" / "0").mkdir(parents=True)
    (found,), _ = check_catalog(str(tmp_path))
    assert (found.status, found.found) == ("wrong", f"{tmp_path}/catalog.log is missing")
    (tmp_path / "catalog.log").write_bytes(b"00000000 {}\n00000000 {}\n")
    (found,), _ = check_catalog(str(tmp_path))
    assert found.status == WRONG
    assert found.advice


def test_one_of_several_brokers_has_its_catalog_in_the_journal(tmp_path: Path) -> None:
    """There is no `catalog.log`, and nothing is wrong with that."""
    folder = tmp_path / "streams" / "orders" / "i1" / "0"
    folder.mkdir(parents=True)
    (folder / "partition.json").write_bytes(b"{}")
    (tmp_path / "raft.json").write_bytes(b"{}")
    (tmp_path / "raft.log").write_bytes(b"")
    (found,), count = check_catalog(str(tmp_path))
    assert (found.status, found.found, count) == ("ok", "the cluster's, in raft.log; kept here: 1 partition", 1)
    (tmp_path / "raft.log").unlink()
    (found,), count = check_catalog(str(tmp_path))
    assert (found.status, count) == ("warning", 1)
    assert f"{tmp_path}/raft.log is missing" in found.found
    assert "catalog from the others" in found.advice


@pytest.mark.parametrize(
    "free, total, status",
    [(500 << 30, 1 << 40, OK), (50 << 30, 1 << 40, WARNING), (5 << 30, 1 << 40, WRONG), (100 << 20, 200 << 20, WRONG)],
)
def test_free_space_and_inodes_are_held_against_the_size(
    free: int, total: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    numbers = [4096, 4096, total // 4096, free // 4096, free // 4096, total // 4096, free // 4096, free // 4096, 0, 255]
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(numbers))
    found = _by_name(check_disk(str(tmp_path / "not/there/yet")))
    assert found["disk"].status == status
    assert real.f_blocks > 0


def test_open_files_are_held_against_partitions_and_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def status(partitions: int, pid: int | None, connections_max: int = 256, open_files_max: int = 8_192) -> str:
        found = check_limits(partitions, pid, open_files_max=open_files_max, connections_max=connections_max)
        return _by_name(found)["open files"].status

    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1_024), hard))
        me = os.getpid()
        assert status(10, me) == OK
        assert status(10_000, me) == WARNING
        assert status(10_000, me, open_files_max=512) == OK, "no more are kept open"
        assert status(10, me, connections_max=257) == WARNING
        (found,) = check_limits(10, me, open_files_max=8_192, connections_max=4_096)
        assert f"of process {me}" in found.found
        assert "it allows 256 HTTP connections at once" in found.found, "not: so many are in use"
        assert (found.values["connections"], found.values["wanted"]) == (connections_within(4_096, 1_024), 16_384)
        if hard >= 1_024:
            assert status(10, None) == OK, "a broker raises it"
        resource.setrlimit(resource.RLIMIT_NOFILE, (520, hard))
        assert status(10, me) == WRONG
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_fsync_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    (found,) = check_fsync(str(tmp_path))
    assert found.values["median_ms"] >= 0
    assert found.values["max_ms"] >= found.values["median_ms"]
    assert list(tmp_path.iterdir()) == []
    (found,) = check_fsync(str(tmp_path / "none"))
    assert found.status == SKIPPED


def test_files_from_the_future_say_that_the_clock_went_back(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text("{}")
    assert list(check_file_times(str(tmp_path), time.time())) == []
    (found,) = check_file_times(str(tmp_path), time.time() - 3_600)
    assert found.status == WRONG


# --- others ---------------------------------------------------------------------------------------------------


@contextmanager
def _server(answer: Callable[[bytes], bytes], *, greets: bool = False) -> Iterator[int]:
    """A server on a free port that answers each connection once, with `answer(what came)`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(60)
                    connection.sendall(answer(b"" if greets else connection.recv(65_536)))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield port
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _http(body: object, *, status: int = 200, ahead_s: float = 0.0) -> Callable[[bytes], bytes]:
    def answer(_: bytes) -> bytes:
        data = json.dumps(body).encode()
        date = formatdate(time.time() + ahead_s, usegmt=True)
        head = f"HTTP/1.1 {status} X\r\nDate: {date}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        return head.encode() + data

    return answer


def test_a_free_port_is_fine_and_one_of_another_program_is_not() -> None:
    port = free_port()
    assert _by_name(check_broker(f"127.0.0.1:{port}", in_use=False))["port"].status == OK
    assert _by_name(check_broker(f"127.0.0.1:{port}", in_use=True))["broker"].status == WARNING
    assert _by_name(check_broker(f"192.0.2.1:{port}", in_use=False)).popitem()[1].status == WRONG
    with _server(_http({"hello": 1})) as taken:
        found = _by_name(check_broker(f"127.0.0.1:{taken}", in_use=False))
    assert found["broker"].status == WRONG
    assert "not as a broker" in found["broker"].found
    with _server(lambda _: b"SSH-2.0\r\n") as taken:
        assert _by_name(check_broker(f"127.0.0.1:{taken}", in_use=False))["broker"].status == WRONG


def test_a_broker_that_is_not_ready_says_what_is_missing() -> None:
    with _server(_http({"ready": False, "missing": {"nats": "not connected"}}, status=503)) as port:
        found = _by_name(check_broker(f"127.0.0.1:{port}", in_use=True))
    assert found["broker"].status == WRONG
    assert "nats: not connected" in found["broker"].found


def test_a_broker_that_does_not_know_who_asks_is_one() -> None:
    for status, reason in ((401, "unauthenticated"), (403, "unauthorized")):
        with _server(_http({"reason": reason, "status": status}, status=status)) as port:
            found = _by_name(check_broker(f"127.0.0.1:{port}", in_use=True))
        assert found["broker"].status == WARNING
        assert "--token-file" in (found["broker"].advice or "")


@pytest.mark.parametrize("missing", ["missing", ["nats"], 7, {"a": ["b"]}, None])
def test_reasons_of_another_shape_are_no_fault_of_the_doctor(missing: object) -> None:
    with _server(_http({"ready": False, "missing": missing}, status=503)) as port:
        found = _by_name(check_broker(f"127.0.0.1:{port}", in_use=True))
    assert found["broker"].status == WRONG
    assert "is not ready" in found["broker"].found


@pytest.mark.parametrize("payload", ["1MB", [1], None, {}])
def test_a_nats_server_whose_limit_is_no_number_is_wrong(payload: object) -> None:
    info = {"version": "2.11.0", "headers": True, "max_payload": payload}
    with _server(lambda _: b"INFO " + json.dumps(info).encode() + b"\r\n", greets=True) as port:
        found = _by_name(check_nats([f"nats://127.0.0.1:{port}"], record_bytes_max=1))
    assert found["nats"].status == WRONG
    assert "max_payload" in found["nats"].found


@pytest.mark.parametrize("ahead_s, status", [(0.0, OK), (30.0, WRONG), (-30.0, WRONG)])
def test_the_clocks_are_compared(ahead_s: float, status: str) -> None:
    with _server(_http({"ready": True, "missing": {}}, ahead_s=ahead_s)) as port:
        found = _by_name(check_broker(f"127.0.0.1:{port}", in_use=True))
    assert found["clock"].status == status


def test_a_slow_answer_is_not_a_wrong_clock() -> None:
    told = formatdate(1_000.0, usegmt=True)
    for begun, ended, status in ((990.0, 1_010.0, OK), (1_004.0, 1_010.0, WRONG), (990.0, 996.0, WRONG)):
        (found,) = checks_network._clock(told, begun, ended)
        assert found.status == status


@pytest.mark.parametrize(
    "info, status",
    [
        ({"version": "2.11.0", "headers": True, "max_payload": 8 << 20}, OK),
        ({"version": "2.11.0", "headers": True, "max_payload": 1 << 20}, WARNING),
        ({"version": "2.1.0", "max_payload": 8 << 20}, WRONG),
    ],
)
def test_a_nats_server_is_asked_for_its_limits(info: dict[str, Any], status: str) -> None:
    with _server(lambda _: b"INFO " + json.dumps(info).encode() + b"\r\n", greets=True) as port:
        found = _by_name(check_nats([f"nats://127.0.0.1:{port}"], record_bytes_max=8 << 20))
    assert found["nats"].status == status
    assert found["nats"].values["max_payload"] == info["max_payload"]


def test_a_server_that_does_not_offer_the_tls_of_its_url_is_wrong() -> None:
    """Broker and `liftlog publish` do not log in there."""
    offers: list[tuple[str, dict[str, bool], list[str]]] = [
        ("tls", {"tls_required": False}, [WRONG, OK]),
        ("tls", {"tls_available": True}, [OK]),
        ("tls", {"tls_required": True}, [OK]),
        ("nats", {}, [OK]),
    ]
    for scheme, offer, statuses in offers:
        info = {"version": "2.11.0", "headers": True, "max_payload": 8 << 20, **offer}
        greeting = b"INFO " + json.dumps(info).encode() + b"\r\n"
        with _server(lambda _, greeting=greeting: greeting, greets=True) as port:  # type: ignore[misc]
            found = list(check_nats([f"{scheme}://127.0.0.1:{port}"], record_bytes_max=8 << 20))
        assert [check.status for check in found] == statuses
    assert "TLS" not in found[0].found


def test_what_is_no_nats_server_is_wrong() -> None:
    assert _by_name(check_nats([f"nats://127.0.0.1:{free_port()}"], record_bytes_max=1))["nats"].status == WRONG
    for greeting in (b"+OK\r\n", b"INFO nonsense\r\n", b"INFO", b""):
        with _server(lambda _, greeting=greeting: greeting, greets=True) as port:  # type: ignore[misc]
            found = _by_name(check_nats([f"127.0.0.1:{port}"], record_bytes_max=1))
        assert found["nats"].status == WRONG, greeting


# --- the command ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, BrokerProcess]]:
    with running(tmp_path_factory.mktemp("doctor")) as both:
        yield both


def _doctor(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    clean: dict[str, str | None] = {name: None for name in os.environ if name.startswith("LIFTLOG_")}
    result = CliRunner().invoke(app, ["doctor", *arguments, "--json"], env={**clean, **(env or {})})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.process
def test_a_running_broker_is_found_well(pair: tuple[NatsServer, BrokerProcess]) -> None:
    nats, broker = pair
    data = str(broker.folder / "data")
    broker.request(
        "POST", "/v1/streams", {"name": "orders", "subject": "orders.>", "partitions": 3, "partition_by": "key"}
    )
    code, answer = _doctor("--data", data, "--brokers", broker.address, "--nats", nats.url)
    found = {check["name"]: check for check in answer["checks"]}
    assert [check for check in answer["checks"] if check["status"] == WRONG] == []
    assert code == 0
    assert found["lock"]["values"]["pid"] == broker.pid
    streams = broker.get("/v1/streams?internal=true")["streams"]
    assert found["catalog"]["values"]["partitions"] == sum(len(stream["partitions"]) for stream in streams)
    assert found["broker"]["status"] == found["clock"]["status"] == found["nats"]["status"] == OK
    assert found["fsync"]["values"]["max_ms"] > 0  # the median of memory for a disk is 0.000


@pytest.mark.process
def test_the_environment_that_other_commands_use_is_looked_at_too(
    pair: tuple[NatsServer, BrokerProcess], tmp_path: Path
) -> None:
    """Beside the folder's own broker and server; what an option names is asked instead of both."""
    nats, broker = pair
    port, nats_port = free_port(), free_port()
    own = ("--data", str(tmp_path / "d"), "--set", f"http.port={port}", "--set", f"nats.urls={nats.url}")

    def found(code: int, *arguments: str, **env: str) -> dict[str, list[tuple[str, str]]]:
        ended, answer = _doctor(*own, *arguments, env=env)
        assert ended == code, answer
        names = ("broker", "port", "nats")
        return {
            name: [(check["status"], check["found"]) for check in answer["checks"] if check["name"] == name]
            for name in names
        }

    well = found(0, LIFTLOG_BROKERS=broker.address, LIFTLOG_NATS_URL=nats.url)
    assert well["broker"] == [(OK, f"{broker.address} (LIFTLOG_BROKERS) is ready")]
    assert well["port"] == [(OK, f"127.0.0.1:{port} is free")]
    assert len(well["nats"]) == 1, "the same server is asked once"
    wrong = found(1, LIFTLOG_BROKERS=f"127.0.0.1:{nats_port}", LIFTLOG_NATS_URL=f"nats://ann:hunter2@[::1]:{nats_port}")
    assert wrong["broker"] == [(WRONG, f"127.0.0.1:{nats_port} (LIFTLOG_BROKERS): Connection refused")]
    assert [status for status, _ in wrong["nats"]] == [OK, WRONG]
    assert "(LIFTLOG_NATS_URL)" in wrong["nats"][1][1]
    assert "hunter2" not in wrong["nats"][1][1]
    malformed = found(1, LIFTLOG_BROKERS="u:p@h", LIFTLOG_NATS_URL="nats://h:99999")
    assert malformed["broker"][0][1].startswith("LIFTLOG_BROKERS: ")
    assert malformed["nats"][1][1].startswith("LIFTLOG_NATS_URL is no address of a NATS server")
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(f'[here]\nbrokers = "{broker.address}"\n[wrong]\nx = 1\n')
    profiles.chmod(0o600)
    named = found(0, LIFTLOG_PROFILE=f"{profiles}#here", LIFTLOG_NATS_URL=nats.url)
    assert named["broker"] == [(OK, f"{broker.address} (LIFTLOG_PROFILE) is ready")]
    wrong = found(1, LIFTLOG_PROFILE=f"{profiles}#wrong", LIFTLOG_NATS_URL=nats.url)
    assert wrong["broker"][0][1].startswith(f"LIFTLOG_PROFILE: {profiles}: profile 'wrong': unknown key 'x'")
    given = found(0, "--brokers", broker.address, "--nats", nats.url, LIFTLOG_BROKERS="x", LIFTLOG_NATS_URL="y")
    assert given["broker"] == [(OK, f"{broker.address} is ready")]
    assert len(given["nats"]) == 1


@pytest.mark.process
def test_a_default_server_that_nobody_named_is_no_fault_where_another_one_is(
    pair: tuple[NatsServer, BrokerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole list of servers is looked at: the default, and what the variable names."""
    nats, _ = pair
    asked: list[tuple[str, int]] = []

    def greeting(host: str, port: int) -> dict[str, Any] | None:
        asked.append((host, port))
        if port == 4222:
            raise ConnectionRefusedError(111, "Connection refused")
        return nats_server.greeting(host, port)

    monkeypatch.setattr(checks_network, "greeting", greeting)
    own = ("--data", str(tmp_path / "d"), "--set", f"http.port={free_port()}")

    def found(code: int, *arguments: str, **env: str) -> list[str]:
        ended, answer = _doctor(*own, *arguments, env=env)
        assert ended == code, answer
        return [check["status"] for check in answer["checks"] if check["name"] == "nats"]

    assert found(0, LIFTLOG_NATS_URL=nats.url) == [WARNING, OK]
    assert asked == [("127.0.0.1", 4222), ("127.0.0.1", nats.port)]
    assert found(1) == [WRONG], "nobody named another one"
    assert found(1, LIFTLOG_NATS_URL="nats://127.0.0.1:1") == [WARNING, WRONG]
    configured = found(1, "--set", "nats.urls=nats://127.0.0.1:1", LIFTLOG_NATS_URL=nats.url)
    assert configured == [WRONG, OK], "it is configured, and does not answer"
    assert found(1, LIFTLOG_NATS_URLS="nats://127.0.0.1:1", LIFTLOG_NATS_URL=nats.url) == [WRONG, OK]
    assert found(1, "--nats", "nats://127.0.0.1:4222", LIFTLOG_NATS_URL=nats.url) == [WRONG]


@pytest.mark.process
def test_a_partition_whose_folder_is_gone_is_named(pair: tuple[NatsServer, BrokerProcess], tmp_path: Path) -> None:
    _, broker = pair
    copy = tmp_path / "data"
    copy.mkdir()
    for name in ("catalog.log", "broker.json"):
        (copy / name).write_bytes((broker.folder / "data" / name).read_bytes())
    (found,), _ = check_catalog(str(copy))
    assert found.status == WRONG
    assert "stays offline" in found.advice


def test_what_is_wrong_ends_with_code_1_and_a_word_of_advice(tmp_path: Path) -> None:
    port, nats = free_port(), free_port()
    where = ("--data", str(tmp_path / "d"), "--brokers", f"127.0.0.1:{port}", "--nats", f"nats://127.0.0.1:{nats}")
    code, answer = _doctor(*where)
    assert (code, answer["status"]) == (1, WRONG)
    wrong = [check for check in answer["checks"] if check["status"] == WRONG]
    assert [check["name"] for check in wrong] == ["nats"]
    assert _doctor(*where, "--set", "intake.enabled=false")[0] == 0
    code, answer = _doctor(*where, "--set", "http.port=99999")
    assert (code, answer["checks"][0]["name"], answer["checks"][0]["status"]) == (1, "configuration", WRONG)
    result = CliRunner().invoke(app, ["doctor", *where])
    assert result.exit_code == 1
    assert "-> start the server" in result.stderr
