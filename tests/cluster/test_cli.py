"""Goal: what docs/reference/cli.md promises, with real processes.

Method: the installed command line in child processes, `up` on free ports and folders of its own; processes are
killed where a crash is meant.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.cli.local.processes import ProcessIdentity
from broker.client import connect
from tests.support.processes import NatsServer, eventually, free_port, frozen

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("LIFTLOG_")}
COMMAND = [sys.executable, "-P", "-m", "broker.cli.main"]


@dataclass
class Folder:
    """One DATA, its ports, and `liftlog` pointed at them."""

    path: Path
    base: int
    more: dict[str, str] = field(default_factory=dict, init=False)

    @property
    def env(self) -> dict[str, str]:
        return {
            **CLEAN,
            "LIFTLOG_BROKERS": f"127.0.0.1:{self.base + 1}",
            "LIFTLOG_NATS_URL": f"nats://127.0.0.1:{self.base + 3}",
            **self.more,
        }

    def liftlog(self, *arguments: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *arguments], capture_output=True, text=True, check=False, env=self.env, timeout=150, **options
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str, code: int = 0, **options: Any) -> Any:
        return json.loads(self.liftlog(*arguments, "--json", code=code, **options).stdout)

    def up_arguments(self, *more: str) -> list[str]:
        return ["up", "--data", str(self.path), "--port-base", str(self.base), *more]

    def up(self, *more: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.liftlog(*self.up_arguments("--detach", *more), code=code)

    def down(self, *more: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.json("down", "--data", str(self.path), *more)
        return answer

    def pid(self, name: str) -> int:
        return int((self.path / "run" / f"{name}.pid").read_text())

    def kill9(self, name: str) -> None:
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: ProcessIdentity.of(pid) is None, what=f"{name} is dead")

    def listening(self) -> list[int]:
        """Which of the four ports somebody listens on."""
        found = []
        for port in range(self.base, self.base + 4):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    found.append(port - self.base)
        return found


def is_connected_to(port: int) -> bool:
    """Whether anybody here has a connection to a port of this machine."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(fields[2].endswith(f":{port:04X}") and fields[3] == "01" for fields in map(str.split, lines))


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[list[Folder]]:
    made = [Folder(tmp_path / name, free_port(4)) for name in ("one", "two")]
    yield made
    for folder in made:
        if folder.path.exists():
            folder.liftlog("down", "--data", str(folder.path), "--force", "--timeout-s", "10")


@pytest.fixture
def one(folders: list[Folder]) -> Folder:
    return folders[0]


def test_from_nothing_to_records_through_kill_9_and_back(one: Folder) -> None:
    answer = json.loads(one.up("--json").stdout)
    assert answer["brokers"] == [
        {"id": "broker-0", "http": f"127.0.0.1:{one.base + 1}", "grpc": f"127.0.0.1:{one.base}"}
    ]
    assert answer["nats"] == {"url": f"nats://127.0.0.1:{one.base + 3}", "embedded": True}
    assert not answer["already_up"]
    assert one.listening() == [1, 3]

    one.liftlog("stream", "create", "orders", "--subject", "orders.>")
    report = one.json("publish", "orders.1", "--count", "3000", "--size", "64")
    assert (report["sent"], report["acked"], report["failed"]) == (3000, 3000, 0)
    with connect(one.env["LIFTLOG_BROKERS"]) as client:
        client.commit("job", {"orders": {0: 1000}})

    one.kill9("broker-0")
    one.kill9("nats")
    again = one.up("--json")
    assert not json.loads(again.stdout)["already_up"]

    lines = [json.loads(line) for line in one.liftlog("tail", "orders", "--json").stdout.splitlines()]
    assert [line["offset"] for line in lines] == list(range(3000))
    assert all(line["value"].startswith(f"{n} ") and len(line["value"]) == 64 for n, line in enumerate(lines))
    assert [consumer["lag"] for consumer in one.json("consumer", "list")] == [2000]

    stopped = one.down()["stopped"]
    assert set(stopped) == {"broker-0", "nats"}
    assert one.listening() == []
    assert all(ProcessIdentity.of(pid) is None for pid in stopped.values())
    assert [path.name for path in (one.path / "run").glob("*.pid")] == []
    assert one.down()["stopped"] == {}


def test_two_live_side_by_side(folders: list[Folder]) -> None:
    for folder in folders:
        folder.up()
        folder.liftlog("stream", "create", "orders", "--subject", "orders.>")
        folder.liftlog("publish", "orders.1", folder.path.name)
    for folder in folders:
        (line,) = folder.liftlog("tail", "orders", "--json").stdout.splitlines()
        assert json.loads(line)["value"] == folder.path.name
    folders[0].down()
    assert folders[0].listening() == []
    assert folders[1].listening() == [1, 3]
    folders[1].liftlog("publish", "orders.1", "still here")


def test_a_copy_of_a_running_folder_is_a_folder_of_its_own(folders: list[Folder]) -> None:
    """`down` and `up` with the copy once stopped, or kept, the processes of the original."""
    one, copy = folders
    one.up()
    one.liftlog("stream", "create", "orders", "--subject", "orders.>")
    one.liftlog("publish", "orders.1", "of both")
    pids = one.pid("broker-0"), one.pid("nats")
    shutil.copytree(one.path, copy.path)
    said = copy.liftlog("down", "--data", str(copy.path), "--force").stderr
    assert (
        f"is a copy of {one.path}: broker-0 (pid {pids[0]}), nats (pid {pids[1]}) run there and are left alone" in said
    )
    assert "stopping" not in said
    assert f"is a copy of {one.path}" in copy.up().stderr
    assert {copy.pid("broker-0"), copy.pid("nats")}.isdisjoint(pids)
    copy.liftlog("publish", "orders.1", "of the copy")
    assert len(copy.liftlog("tail", "orders", "--json").stdout.splitlines()) == 2
    assert set(copy.down()["stopped"]) == {"broker-0", "nats"}
    assert (one.pid("broker-0"), one.pid("nats")) == pids
    assert len(one.liftlog("tail", "orders", "--json").stdout.splitlines()) == 1
    assert one.down()["stopped"] == {"broker-0": pids[0], "nats": pids[1]}


def test_up_again_says_already_up_and_other_ports_are_refused(one: Folder) -> None:
    one.up()
    pids = one.pid("broker-0"), one.pid("nats")
    assert "already up" in one.up().stdout
    assert json.loads(one.up("--json").stdout)["already_up"]
    refused = one.liftlog("up", "--detach", "--data", str(one.path), "--port-base", str(one.base + 4), code=1).stderr
    assert refused.startswith("error[invalid_request]")
    assert str(one.base + 1) in refused
    assert (one.pid("broker-0"), one.pid("nats")) == pids
    with frozen(pids[0]):
        said = one.up("--timeout-s", "1", code=3).stderr
    assert "the broker is not ready after 1 s" in said
    assert "broker-0.log" in said, "the log of who does not answer"
    assert "nats.log" not in said


@pytest.mark.parametrize("killed, kept", [("broker-0", "nats"), ("nats", "broker-0")])
def test_up_starts_what_was_killed_and_keeps_what_lives(one: Folder, killed: str, kept: str) -> None:
    one.up()
    one.liftlog("stream", "create", "orders", "--subject", "orders.>")
    kept_pid, killed_pid = one.pid(kept), one.pid(killed)
    one.kill9(killed)
    one.up()
    assert one.pid(kept) == kept_pid
    assert one.pid(killed) != killed_pid
    one.liftlog("publish", "orders.1", "hello")
    assert set(one.down()["stopped"]) == {"broker-0", "nats"}


def test_up_starts_a_broker_anew_that_was_still_stopping(one: Folder) -> None:
    """It was taken for one that runs, and its end for an internal error."""
    one.up()
    pid = one.pid("broker-0")
    with frozen(pid):
        again = subprocess.Popen(
            [*COMMAND, *one.up_arguments("--detach")], env=one.env, stderr=subprocess.PIPE, text=True
        )
        eventually(lambda: is_connected_to(one.base + 1), what="up waits for the broker that stands still")
        one.kill9("broker-0")
        assert again.communicate(timeout=120)[1].count("starting broker-0") == 1
    assert again.returncode == 0
    assert one.pid("broker-0") != pid
    one.liftlog("stream", "create", "orders", "--subject", "orders.>")


@pytest.mark.parametrize("offset, purpose", [(1, "HTTP"), (3, "NATS")])
def test_a_port_in_use_is_named_before_anything_starts(one: Folder, offset: int, purpose: str) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", one.base + offset))
        taken.listen()
        error = one.up(code=1).stderr
    assert error.startswith(f"error[port_in_use]: port {one.base + offset}")
    assert purpose in error
    assert list((one.path / "logs").iterdir()) == []


def test_a_broker_that_cannot_start_is_reported_by_its_own_error_and_nats_is_stopped(one: Folder) -> None:
    (one.path / "broker-0").mkdir(parents=True)
    (one.path / "broker-0" / "broker.json").write_text("{")
    error = one.up(code=1).stderr
    assert "error[corrupt_log]: broker-0:" in error.splitlines()[-1]
    assert one.listening() == []
    assert one.down()["stopped"] == {}


def test_up_without_a_nats_server_where_it_was_told_to_find_one_says_so(one: Folder) -> None:
    error = one.up("--nats", "nats://ann:hunter2@127.0.0.1:1", code=3).stderr
    assert error.startswith("error[unavailable]")
    assert "hunter2" not in error


def test_up_with_a_given_nats_server_starts_none_and_leaves_it_alone(one: Folder, tmp_path: Path) -> None:
    nats = NatsServer(tmp_path / "nats", config='authorization { user: "ann", password: "hunter2" }').start()
    try:
        url = f"nats://ann:hunter2@127.0.0.1:{nats.port}"
        shown = one.up("--nats", url, "--json").stdout
        assert json.loads(shown)["nats"] == {"url": nats.url, "embedded": False}
        assert one.listening() == [1]
        one.liftlog("stream", "create", "orders", "--subject", "orders.>")
        one.liftlog("publish", "orders.1", "hello", "--nats", url)
        command = Path(f"/proc/{one.pid('broker-0')}/cmdline").read_text()
        written = [path.read_text() for path in one.path.rglob("*") if path.suffix in (".json", ".log", ".pid")]
        assert all("hunter2" not in text for text in (shown, command, *written))
        assert set(one.down()["stopped"]) == {"broker-0"}
        assert nats.process is not None
        assert nats.process.popen.poll() is None
    finally:
        nats.stop()


def _foreground(folder: Folder, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        child = subprocess.Popen(
            [*COMMAND, *folder.up_arguments()], stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=folder.env
        )
    eventually(lambda: child.poll() is not None or b"liftlog is up" in log.read_bytes(), timeout_s=120)
    assert child.poll() is None, log.read_text()
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_foreground_shows_logs_and_stops_the_broker_before_nats(
    one: Folder, tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "up.log"
    child = _foreground(one, log)
    eventually(lambda: b"intake.connected" in log.read_bytes())
    child.send_signal(number)
    assert child.wait(60) == 0
    text = log.read_text()
    assert "broker-0 | " in text
    assert text.index("broker.stopped") < text.index("Server Exiting")
    assert one.listening() == []
    assert list((one.path / "run").glob("*.pid")) == []


def test_the_foreground_stops_all_when_nobody_reads_its_output_any_more(one: Folder) -> None:
    env = {**one.env, "LIFTLOG_LOG_FORMAT": "console"}
    up = subprocess.Popen([*COMMAND, *one.up_arguments()], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert up.stdout is not None
    while b"is up" not in up.stdout.readline():
        pass
    eventually(lambda: (one.path / "run" / "up.pid").exists(), what="it supervises")
    up.stdout.close()  # as `| head` does
    create = [*COMMAND, "stream", "create", "s", "--subject", "s"]  # makes a log line, if there was none before
    subprocess.run(create, env={**one.env, "LIFTLOG_RETRY_S": "1"}, capture_output=True, check=False, timeout=150)
    up.wait(60)
    assert one.listening() == []
    assert one.down()["stopped"] == {}


def test_down_stops_a_foreground_up_from_outside(one: Folder, tmp_path: Path) -> None:
    child = _foreground(one, tmp_path / "up.log")
    assert "already up" in one.up().stdout
    assert set(one.down()["stopped"]) == {"up", "broker-0", "nats"}
    assert child.wait(60) == 0
    assert one.listening() == []


def test_the_foreground_fails_when_a_process_ends_by_itself_and_stops_the_others(one: Folder, tmp_path: Path) -> None:
    log = tmp_path / "up.log"
    child = _foreground(one, log)
    os.kill(one.pid("broker-0"), signal.SIGKILL)
    assert child.wait(60) == 1
    assert "broker-0 was ended by SIGKILL" in log.read_text()
    assert one.listening() == []


def test_what_a_killed_foreground_leaves_behind_is_found_and_stopped(one: Folder, tmp_path: Path) -> None:
    child = _foreground(one, tmp_path / "up.log")
    child.kill()
    child.wait()
    assert one.listening() == [1, 3]
    assert "already up" in one.up().stdout
    assert set(one.down()["stopped"]) == {"broker-0", "nats"}


def test_down_leaves_a_process_alone_that_only_has_the_same_pid(one: Folder) -> None:
    one.up()
    one.down()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        me = ProcessIdentity.of(stranger.pid)
        assert me is not None
        record = {
            "brokers": [{"id": "broker-0", "http": "127.0.0.1:1", "grpc": "127.0.0.1:2"}],
            "nats": {"url": "nats://127.0.0.1:3", "embedded": True},
            "mode": "detached",
            "processes": {"broker-0": {**me.as_dict(), "started_ticks": me.started_ticks - 1}},
        }
        (one.path / "run" / "up.json").write_text(json.dumps(record))
        assert one.down("--force")["stopped"] == {}
        assert stranger.poll() is None
        stranger.communicate(b"\n")


def _typed() -> list[str]:
    """Every command of docs/reference/cli.md that ends by itself and needs no other configuration, in order."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    lines = [
        line.strip().split(" | ")[-1 if "--file -" in line else 0] for line in page.splitlines() if line[:4] == "    "
    ]
    never = ("liftlog up", "liftlog down", "liftlog broker", "liftlog doctor --config", "liftlog tail orders --follow")
    others = (
        "cluster reassign",
        "cluster drain",
        "cluster remove-broker",
        "cluster rescue",
        "cluster accept-loss",
        "--unclean",
    )  # test_three_operator.py
    return [
        line
        for line in lines
        if line.startswith("liftlog ") and not line.startswith(never) and not any(word in line for word in others)
    ]


def test_the_examples_of_the_page_work_in_their_order(one: Folder, tmp_path: Path) -> None:
    """In a fresh folder, as somebody would who goes down the page. The test first makes again all that the page
    deletes."""
    one.path = tmp_path / "liftlog-data"
    token = str(tmp_path / "mine.token")
    one.liftlog("auth", "init", token)
    one.more = {"LIFTLOG_AUTH_ADMIN_TOKEN_FILE": token, "LIFTLOG_TOKEN_FILE": token}
    one.up()
    (tmp_path / "orders.ndjson").write_text('{"id": 1}\n{"id": 2}\n')
    (tmp_path / "orders.ddl").write_text("id BIGINT, item STRING, price INT\n")
    examples = _typed()
    assert len(examples) >= 45
    records = pa.record_batch({"value": pa.array([b"x"] * 1_000, pa.binary())})
    with connect(one.env["LIFTLOG_BROKERS"]) as client:
        for example in examples:
            if " orders" in example and "create" not in example and "orders" not in {s.name for s in client.streams()}:
                client.create_stream("orders", subject="orders.>")
            if "trim" in example:
                client.append("orders", 0, records)
            if "consumer describe" in example:
                client.commit("my-job", {"orders": {0: 0}})
            if "group describe" in example:
                client.append("orders", 0, records)
                with client.group("billing").read("orders") as reader:
                    next(iter(reader))
            if "producer list" in example:
                client.register_producer("job-1")
            if "sink describe" in example:
                client.sink("my-query").open()
            if "log repair" in example:
                one.down()
            segments = [*one.path.glob("broker-0/streams/orders/*/0/*.arrows"), ""]
            typed = example.replace("orders-copy/00000000000000004711.arrows", str(segments[0]))
            typed = typed.replace("/var/lib/liftlog", str(one.path))
            typed = typed.replace(":9293", f":{one.base + 1}").replace(":4222", f":{one.base + 3}")
            if "auth token revoke" in example:
                typed = typed.replace("abcdefgh2345", one.json("auth", "token", "list")[0]["id"])
            code = 1 if "logs.app" in typed else 0  # only a stream without acks captures it
            code = 1 if "auth test" in typed else code  # it was taken back
            code = 1 if "auth require" in typed else code  # this one does not enforce
            one.liftlog(*shlex.split(typed)[1:], code=code, cwd=tmp_path, input="one line\n")
            if "log repair" in example:
                one.up()
    assert (tmp_path / "orders.parquet").exists()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """One `up` for the tests that only add streams."""
    folder = Folder(tmp_path_factory.mktemp("house") / "data", free_port(4))
    folder.up()
    yield folder
    folder.down("--force")


def test_a_stream_is_created_described_altered_and_deleted(house: Folder) -> None:
    create = ("stream", "create", "a", "--subject", "a.>", "--partitions", "2", "--partition-by", "subject")
    said = "stream a created", "warning: partition_by=subject: every partition leader receives the whole subject"
    assert tuple(house.liftlog(*create).stderr.splitlines()) == said
    assert house.liftlog(*create).stderr.splitlines()[0] == "stream a exists already, with these settings"
    assert house.json(*create)["created"] is False
    assert "created" not in house.json("stream", "describe", "a")
    error = house.liftlog("stream", "create", "a", "--subject", "b.>", code=1).stderr
    assert error.startswith("error[stream_exists]")
    assert "subject" in error
    house.liftlog("stream", "alter", "a", "--retention-ms", "1d", "--retention-bytes", "1GiB")
    house.liftlog("stream", "alter", "a", "--retention-ms", "none")
    settings = house.json("stream", "describe", "a")["settings"]
    assert (settings["retention_ms"], settings["retention_bytes"]) == (None, 1 << 30)
    assert "a.>" in house.liftlog("stream", "describe", "a").stdout
    assert [stream["name"] for stream in house.json("stream", "list")] == ["a"]
    assert "__offsets" in house.liftlog("stream", "list", "--internal").stdout
    assert house.json("stream", "delete", "a", "--yes") == {"stream": "a", "deleted": True}
    assert house.json("stream", "delete", "a", "--yes", "--missing-ok") == {"stream": "a", "deleted": False}
    assert "there is no stream a" in house.liftlog("stream", "delete", "a", "--yes", "--missing-ok").stderr
    assert house.json("stream", "create", "a", "--subject", "a.>")["created"] is True
    assert house.liftlog("stream", "delete", "a", "--yes").stderr == "stream a deleted\n"
    assert house.liftlog("stream", "delete", "a", "--yes", code=1).stderr.startswith("error[unknown_stream]")
    assert "no streams yet" in house.liftlog("stream", "list").stderr


def test_a_schema_is_kept_from_a_file_and_removed(house: Folder, tmp_path: Path) -> None:
    file = tmp_path / "orders.ddl"
    file.write_text("-- what an order has\nitem long,\n`unit price` struct<amount decimal(10,2)>\n")
    house.liftlog("stream", "create", "s", "--schema", str(file))
    kept = "item BIGINT, `unit price` STRUCT<amount: DECIMAL(10,2)>"
    assert house.json("stream", "describe", "s")["settings"]["payload_schema"] == kept
    assert kept in house.liftlog("stream", "describe", "s").stdout
    said = house.liftlog("stream", "alter", "s", "--no-schema").stderr
    assert said == "stream s changed: payload_schema\n"
    assert house.json("stream", "describe", "s")["settings"]["payload_schema"] is None
    house.liftlog("stream", "alter", "s", "--schema", "-", input="item INT")
    refused = house.liftlog("stream", "alter", "s", "--schema", "-", code=1, input="item INT, price MONEY").stderr
    assert refused.startswith("error[invalid_setting]: payload_schema: column 'price', at 'MONEY' in line 1: a type")
    assert (
        "keep a schema or none"
        in house.liftlog("stream", "alter", "s", "--schema", str(file), "--no-schema", code=2).stderr
    )
    missing = house.liftlog("stream", "alter", "s", "--schema", str(tmp_path / "none.ddl"), code=2).stderr
    assert "No such file" in missing
    assert house.json("stream", "describe", "s")["settings"]["payload_schema"] == "item INT"
    house.liftlog("stream", "delete", "s", "--yes")


@pytest.mark.parametrize("kind", ["stream", "sink", "consumer"])
def test_a_deletion_asks_about_what_is_there_and_about_nothing_else(house: Folder, kind: str) -> None:
    """Somebody who has to say whether records may go is not told afterwards that there were none."""
    missing = house.liftlog(kind, "delete", "d", code=1, input="y\n")
    assert missing.stderr.startswith(f"error[unknown_{kind}]: ")
    assert missing.stdout == ""
    if kind != "consumer":
        nothing = house.json(kind, "delete", "d", "--missing-ok", input="n\n")
        assert nothing == {kind: "d", "deleted": False}
    house.json("stream", "create", "d")
    with connect(house.env["LIFTLOG_BROKERS"]) as client:
        client.sink("d").open()
        client.commit("d", {"d": {0: 0}})
    more = () if kind == "consumer" else ("--missing-ok",)
    refused = house.liftlog(kind, "delete", "d", *more, code=1, input="n\n")
    assert "? [y/N]: " in refused.stderr
    house.liftlog(kind, "describe", "d")
    assert house.json(kind, "delete", "d", *more, input="y\n") == {kind: "d", "deleted": True}
    for left in {"stream", "sink", "consumer"} - {kind}:
        house.liftlog(left, "delete", "d", "--yes")


def test_publish_takes_a_file_stdin_key_and_headers(house: Folder, tmp_path: Path) -> None:
    house.liftlog("stream", "create", "files", "--subject", "files.>")
    (tmp_path / "lines").write_bytes(b"one\ntwo\r\n\nfour")
    house.liftlog("publish", "files.a", "--file", str(tmp_path / "lines"), "--key", "k", "--header", "H: 1")
    house.liftlog("publish", "files.a", "--file", "-", input="five\n")
    lines = [json.loads(line) for line in house.liftlog("tail", "files", "--json").stdout.splitlines()]
    assert [line["value"] for line in lines] == ["one", "two", "", "four", "five"]
    assert [line["key"] for line in lines] == ["k"] * 4 + [None]
    assert ["H", "1"] in lines[0]["headers"]


def test_publish_sends_the_bytes_of_an_argument_as_they_are(house: Folder) -> None:
    house.liftlog("stream", "create", "bytes", "--subject", "bytes")
    binary = [os.fsencode(word) for word in (*COMMAND, "publish", "bytes")] + [b"caf\xe9"]
    subprocess.run(binary, env=house.env, check=True, capture_output=True, timeout=150)
    assert '"base64"' in house.liftlog("tail", "bytes", "--json").stdout
    tail = [os.fsencode(word) for word in (*COMMAND, "tail", "bytes", "--key")] + [b"\xff"]
    subprocess.run(tail, env=house.env, check=True, capture_output=True, timeout=150)
    for option in ("--key", "--header"):
        done = subprocess.run(
            [*binary, option.encode(), b"a:\xff"], env=house.env, capture_output=True, timeout=150, check=False
        )
        assert done.returncode == 2
        assert b"must be UTF-8" in done.stderr


def test_publish_fails_when_nobody_stores_the_messages(house: Folder) -> None:
    report = house.json("publish", "nobody.listens", "--count", "3", "--timeout-s", "0.5", code=1)
    assert (report["sent"], report["acked"], report["failed"]) == (3, 0, 3)
    house.liftlog("publish", "nobody.listens", "hi", "--no-acks")


@pytest.mark.parametrize("source", ["--count=100000000", "--file=-"])
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_ctrl_c_in_publish_prints_what_became_of_the_messages(house: Folder, source: str, as_json: bool) -> None:
    """Each message that was acknowledged by then is told, and is in the stream."""
    name = f"interrupted{source[2]}{'j' * as_json}"
    house.liftlog("stream", "create", name, "--subject", name)
    with subprocess.Popen(
        [*COMMAND, "publish", name, source, *["--json"] * as_json],
        env=house.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background switches Ctrl-C off, for children too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as child:
        assert child.stdin is not None
        child.stdin.write("a\nb\nc\n")
        child.stdin.flush()
        eventually(lambda: house.json("stream", "describe", name)["partitions"][0]["high_watermark"] >= 3)
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
        assert child.stdout is not None
        assert child.stderr is not None
        out, err = child.stdout.read(), child.stderr.read()
    if as_json:
        report = json.loads(out)
        assert report["interrupted"]
        assert report["sent"] == report["acked"] + report["failed"] + report["unanswered"]
        assert report["acked"] >= 1
        assert err == ""
    else:
        assert err.startswith("interrupted: sent ")
        assert f"\nstream {name}, partition 0: offsets 0 to " in err
        assert out == ""


def test_tail_begins_ends_and_follows_where_it_is_told(house: Folder) -> None:
    house.liftlog("stream", "create", "t", "--subject", "t")
    house.liftlog("publish", "t", "--count", "10", "--size", "1")

    def values(*arguments: str) -> list[str]:
        return [
            json.loads(line)["value"] for line in house.liftlog("tail", "t", "--json", *arguments).stdout.splitlines()
        ]

    assert values("--limit", "2") == ["0", "1"]
    assert values("--from", "7") == ["7", "8", "9"]
    assert values("--from", "latest") == []
    assert values("--from", "2001-01-01", "--limit", "1") == ["0"]
    assert values("--from", "2999-01-01") == []
    assert values("--limit", "0") == []
    assert values("--follow", "--from", "8", "--limit", "2") == ["8", "9"]
    people = house.liftlog("tail", "t").stdout.splitlines()
    assert people[0].split() == ["offset", "timestamp", "subject", "key", "value"]
    assert len(people) == 11
    error = house.liftlog("tail", "t", "--from", "11", code=1).stderr
    assert error.startswith("error[offset_out_of_range]")

    with subprocess.Popen(
        [*COMMAND, "tail", "t", "--follow", "--json"], stdout=subprocess.PIPE, env=house.env
    ) as follower:
        assert follower.stdout is not None
        # It begins at the latest record, so publish until one comes through.
        os.set_blocking(follower.stdout.fileno(), False)

        def came_through() -> bytes | None:
            house.liftlog("publish", "t", "new")
            return follower.stdout.read()  # type: ignore[union-attr]

        line = eventually(came_through, timeout_s=120)
        assert json.loads(line.splitlines()[0])["value"] == "new"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(60) == 130


def test_tail_ends_quietly_when_its_reader_has_seen_enough(house: Folder) -> None:
    house.liftlog("stream", "create", "pipe", "--subject", "pipe")
    house.liftlog("publish", "pipe", "--count", "5000")
    with subprocess.Popen(
        [*COMMAND, "tail", "pipe"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=house.env
    ) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.readline()
        tail.stdout.close()
        assert tail.wait(60) == 0
        assert tail.stderr.read() == b""


def test_a_sink_is_shown_reset_adopted_and_deleted(house: Folder) -> None:
    house.liftlog("stream", "create", "s", "--partitions", "2")
    assert house.json("sink", "list") == []
    with connect(f"127.0.0.1:{house.base + 1}") as client:
        sink = client.sink("job")
        sink.open()
        rows = pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary())})
        stages = [sink.stage(rows, "s", partition) for partition in (0, 1, 1)]
        sink.commit(7, stages, attributes={"checkpoint": "/c"})
    assert house.json("sink", "list")[0]["last"]["batch_id"] == 7
    assert "job" in house.liftlog("sink", "list").stdout
    shown = house.liftlog("sink", "describe", "job").stdout.split()
    assert "/c" in shown
    assert shown[-8:] == ["s", "0", "1", "2", "s", "1", "2", "4"]
    assert house.json("sink", "reset", "job", "--next-batch", "3", "--yes")["least_batch_id"] == 3
    assert house.json("sink", "describe", "job")["last"] is None
    assert house.json("sink", "adopt", "job", "--checkpoint", "/moved")["checkpoint"] == "/moved"
    assert "/moved" in house.liftlog("sink", "describe", "job").stdout
    assert house.liftlog("sink", "describe", "nobody", code=1).stderr.startswith("error[unknown_sink]")
    assert house.json("sink", "delete", "job", "--yes") == {"sink": "job", "deleted": True}
    assert house.json("sink", "delete", "job", "--yes", "--missing-ok") == {"sink": "job", "deleted": False}
    assert house.liftlog("sink", "delete", "job", "--yes", code=1).stderr.startswith("error[unknown_sink]")
    assert house.json("sink", "list") == []


def test_a_producer_is_listed_and_deleted(house: Folder) -> None:
    assert "no producer has a name" in house.liftlog("producer", "list").stderr
    with connect(house.env["LIFTLOG_BROKERS"]) as client:
        producer_id, _ = client.register_producer("job-7")
        assert [(each["name"], each["producer_id"]) for each in house.json("producer", "list")] == [
            ("job-7", producer_id)
        ]
        assert "job-7" in house.liftlog("producer", "list").stdout
        assert house.json("producer", "delete", "job-7", "--yes") == {"producer": "job-7", "deleted": True}
        assert house.liftlog("producer", "delete", "job-7", "--yes", code=1).stderr.startswith(
            "error[unknown_producer]"
        )
        assert client.register_producer("job-7") == (producer_id + 1, 0)
    house.liftlog("producer", "delete", "job-7", "--yes")


def test_a_consumer_is_shown_moved_and_forgotten(house: Folder) -> None:
    house.liftlog("stream", "create", "c", "--subject", "c")
    house.liftlog("publish", "c", "--count", "10")
    with connect(house.env["LIFTLOG_BROKERS"]) as client:
        client.commit("job", {"c": {0: 4}}, metadata="me")
    assert house.json("consumer", "describe", "job")["lag"] == 6
    assert "me" in house.liftlog("consumer", "describe", "job").stdout
    for to, offset in (("latest", 10), ("earliest", 0), ("7", 7), ("2001-01-01", 0)):
        moved = house.json("consumer", "reset", "job", "--stream", "c", "--to", to)
        assert [p["offset"] for p in moved["partitions"]] == [offset]
    assert "job" in house.liftlog("consumer", "list").stdout
    to_start = ("--stream", "c", "--to", "earliest")
    asked = house.liftlog("consumer", "reset", "jobs", *to_start, code=1, stdin=subprocess.DEVNULL).stderr
    assert "there is no consumer jobs (did you mean job?): begin it, in stream c at earliest?" in asked
    assert [each["consumer"] for each in house.json("consumer", "list")] == ["job"]
    assert house.json("consumer", "reset", "new", *to_start, "--yes")["lag"] == 10
    house.liftlog("consumer", "delete", "new", "--yes")
    house.liftlog("consumer", "delete", "job", "--yes")
    assert house.liftlog("consumer", "describe", "job", code=1).stderr.startswith("error[unknown_consumer]")


def test_a_group_is_shown_moved_and_removed(house: Folder) -> None:
    assert house.json("group", "list") == []
    house.json("stream", "create", "shared", "--subject", "shared")
    house.liftlog("publish", "shared", "--count", "10")
    to = ("--stream", "shared", "--to")
    with connect(house.env["LIFTLOG_BROKERS"]) as client, client.group("billing").read("shared") as reader:
        next(reader)
        reader.commit()
        assert reader._life.member in house.liftlog("group", "describe", "billing").stdout
        refused = house.liftlog("group", "reset", "billing", *to, "earliest", code=1).stderr
        assert refused.startswith("error[group_in_use]")
    assert house.json("group", "describe", "billing")["lag"] == 0
    for where, offset in (("earliest", 0), ("7", 7), ("latest", 10)):
        moved = house.json("group", "reset", "billing", *to, where)
        assert [p["offset"] for p in moved["partitions"]] == [offset]
    assert house.json("group", "list") == [{"group": "billing", "members": 0, "partitions": 0}]
    house.liftlog("group", "delete", "billing", "--yes")
    assert house.liftlog("group", "describe", "billing", code=1).stderr.startswith("error[unknown_group]")
    house.liftlog("stream", "delete", "shared", "--yes")
