"""Goal: three brokers over TLS are a cluster: clients, the questions of brokers to each other, and what they replicate
and their catalog go on when one dies. A broker of another CA gets nothing.

Method: `liftlog up` with certificates of a CA, where every client needs one, and brokers one with their names; a
producer and a reader while the leader of their partition is killed. Nothing is asked in plain.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker.client import Client, connect
from tests.cluster.test_cli import COMMAND, Folder
from tests.support.certificates import Authority
from tests.support.processes import eventually, free_port

pytestmark = [pytest.mark.process, pytest.mark.slow]


@dataclass
class Three(Folder):
    authority: Authority

    def __post_init__(self) -> None:
        self.files, self.mine = self.authority.issue("broker"), self.authority.issue("me", "me.example")
        self.among = self.authority

    @property
    def brokers(self) -> str:
        return ",".join(f"https://127.0.0.1:{self.base + 1 + 10 * number}" for number in range(3))

    @property
    def env(self) -> dict[str, str]:
        files, mine, ca = self.files, self.mine, self.authority.ca
        names = [f"liftlog:broker/broker-{number}" for number in range(3)]
        among = self.among.cluster_settings(self.among.issue("among", uris=names))
        among["cluster.tls_names"] = "required"
        return {
            **super().env,
            "LIFTLOG_BROKERS": self.brokers,
            **{"LIFTLOG_HTTP_TLS_CERT": files.cert, "LIFTLOG_HTTP_TLS_KEY": files.key, "LIFTLOG_HTTP_TLS_CA": ca},
            **{"LIFTLOG_TLS_CERT": mine.cert, "LIFTLOG_TLS_KEY": mine.key, "LIFTLOG_TLS_CA": ca},
            "LIFTLOG_HTTP_TLS_CLIENT_CA": ca,
            **{f"LIFTLOG_{key.replace('.', '_').upper()}": path for key, path in among.items()},
        }

    def in_sync(self) -> int:
        return len(self.json("stream", "describe", "orders")["partitions"][0]["isr"])

    def client(self) -> Client:
        ca, mine = self.authority.ca, self.mine
        return connect(self.brokers, deadline_s=120.0, tls_ca=ca, tls_cert=mine.cert, tls_key=mine.key)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Three]:
    made = Three(tmp_path / "data", free_port(24), Authority(tmp_path / "ca"))
    yield made
    made.liftlog("down", "--data", str(made.path), "--force")


def test_clients_go_on_over_tls_when_a_broker_dies(folder: Three) -> None:
    arguments = folder.up_arguments("--brokers-count", "3", "--detach")
    up = folder.json(*arguments)
    assert [each["http"] for each in up["brokers"]] == folder.brokers.split(",")
    with folder.client() as client:
        client.create_stream("orders", subject="orders", replication_factor=3)
        with client.producer("orders", partition=0, deadline_s=120.0) as producer:
            for number in range(50):
                producer.send(b"%d" % number).result(120)
            leader = client.describe("orders").partitions[0].leader
            assert leader is not None
            os.kill(folder.pid(leader.id), signal.SIGKILL)
            for number in range(50, 100):
                producer.send(b"%d" % number).result(120)
        values = client.read("orders").to_table()["value"].to_pylist()
        assert values == [b"%d" % number for number in range(100)]
        client.commit("me", {"orders": {0: 100}})
        assert client.lag("me") == 0
    found = folder.json("cluster", "partitions")
    assert found, "brokers have asked each other"
    folder.liftlog(*arguments)
    eventually(lambda: folder.in_sync() == 3, what="all in sync")
    for number in range(3):
        log = (folder.path / "logs" / f"broker-{number}.log").read_text()
        assert "http.not_tls" not in log
        assert "http.handshake_failed" not in log
        assert "not_let_in" not in log
        assert "no TLS with it" not in log
        assert "setting=cluster.tls_cert" in log


def kept_out(client: Client) -> list[tuple[str, str, str]]:
    """Whose certificate was not believed, as the audit says it: port, fault, address."""
    found = [json.loads(value) for value in client.read("__audit").to_table()["value"].to_pylist()]
    return [
        (each["resource"]["port"], each["asked"]["certificate"], each["address"])
        for each in found
        if each["operation"] == "handshake"
    ]


@pytest.mark.long
def test_bad_certificates_at_each_port_are_in_the_audit(folder: Three, tmp_path: Path) -> None:
    """Each from an address of its own; and a flood from one, which hides none that comes from another."""
    folder.liftlog(*folder.up_arguments("--brokers-count", "3", "--detach"))
    ours, other, day, now = folder.authority, Authority(tmp_path / "other-ca"), timedelta(days=1), datetime.now(UTC)
    shown = {
        "expired": ours.issue("old", not_before=now - 2 * day, not_after=now - day),
        "not_yet_valid": ours.issue("new", not_before=now + day, not_after=now + 2 * day),
        "foreign": other.issue(),
        "missing": None,
    }
    ports = {"replica": folder.base, "http": folder.base + 1, "raft": folder.base + 2}

    def tried(port: str, fault: str, address: str) -> None:
        context = ours.client_context(shown[fault])
        plain = socket.create_connection(("127.0.0.1", ports[port]), 60, source_address=(address, 0))
        with suppress(ssl.SSLError, ConnectionError), context.wrap_socket(plain, server_hostname="127.0.0.1") as made:
            made.recv(1)

    with folder.client() as client:
        eventually(lambda: "__audit" in {each.name for each in client.streams(internal=True)}, what="the audit")
        for _ in range(30):
            for port in ports:
                tried(port, "foreign", "127.0.0.9")
        wanted = set[tuple[str, str, str]]()
        for number, port in enumerate(ports):
            socket.create_connection(("127.0.0.1", ports[port]), 60, source_address=("127.0.0.8", 0)).close()
            for at, fault in enumerate(shown):
                one = port, fault, f"127.0.{number}.{20 + at}"
                tried(*one)
                wanted.add(one)
        eventually(lambda: wanted <= set(kept_out(client)), what="all of them in the audit")
        told = [each for each in kept_out(client) if each not in wanted]
        assert {address for _, _, address in told} == {"127.0.0.9"}, "who said nothing is not there"
        assert len(told) <= 12


def test_a_broker_of_another_ca_takes_no_part(folder: Three, tmp_path: Path) -> None:
    """Its secret is the right one."""
    arguments = folder.up_arguments("--brokers-count", "3", "--detach")
    folder.liftlog(*arguments)
    with folder.client() as client:
        client.create_stream("orders", subject="orders", replication_factor=3)
        with client.producer("orders", partition=0, deadline_s=120.0) as producer:
            producer.send(b"0").result(120)
        eventually(lambda: folder.in_sync() == 3, what="all in sync")
        folder.kill9("broker-2")
        with client.producer("orders", partition=0, deadline_s=120.0) as producer:
            producer.send(b"1").result(120)
        folder.among = Authority(tmp_path / "other-ca")
        logs = {number: folder.path / "logs" / f"broker-{number}.log" for number in range(3)}
        before = {number: len(log.read_text()) for number, log in logs.items()}
        starting = subprocess.Popen([*COMMAND, *arguments], env=folder.env, stderr=subprocess.DEVNULL)
        says = "no TLS with it: "
        eventually(lambda: says in logs[2].read_text()[before[2] :], what="it to say why")
        eventually(lambda: any(says in logs[n].read_text()[before[n] :] for n in (0, 1)), what="another one to say it")
        with client.producer("orders", partition=0, deadline_s=120.0) as producer:
            producer.send(b"2").result(120)
        assert folder.in_sync() == 2
        assert "cluster.entered" not in logs[2].read_text()[before[2] :]
        folder.kill9("broker-2")
        assert starting.wait(120), "it has not become ready"
        folder.among = folder.authority
        folder.liftlog(*arguments)
        eventually(lambda: folder.in_sync() == 3, what="all in sync again")
        assert client.read("orders").to_table()["value"].to_pylist() == [b"0", b"1", b"2"]
