"""Goal: three brokers over TLS are a cluster: clients, and the questions of brokers to each other, go on when one dies.

Method: `liftlog up` with certificates of `liftlog certs`, where every client needs one; a producer and a reader while
the leader of their partition is killed. Nothing is asked in plain.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.client import Client, connect
from tests.cluster.test_cli import Folder
from tests.support.certificates import Authority
from tests.support.processes import eventually, free_port

pytestmark = [pytest.mark.process, pytest.mark.slow]


@dataclass
class Three(Folder):
    authority: Authority

    def __post_init__(self) -> None:
        self.files, self.mine = self.authority.issue("broker"), self.authority.issue("me", "me.example")

    @property
    def brokers(self) -> str:
        return ",".join(f"https://127.0.0.1:{self.base + 1 + 10 * number}" for number in range(3))

    @property
    def env(self) -> dict[str, str]:
        files, mine, ca = self.files, self.mine, self.authority.ca
        return {
            **super().env,
            "LIFTLOG_BROKERS": self.brokers,
            **{"LIFTLOG_HTTP_TLS_CERT": files.cert, "LIFTLOG_HTTP_TLS_KEY": files.key, "LIFTLOG_HTTP_TLS_CA": ca},
            **{"LIFTLOG_TLS_CERT": mine.cert, "LIFTLOG_TLS_KEY": mine.key, "LIFTLOG_TLS_CA": ca},
            "LIFTLOG_HTTP_TLS_CLIENT_CA": ca,
        }

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
    eventually(
        lambda: len(folder.json("stream", "describe", "orders")["partitions"][0]["isr"]) == 3, what="all in sync"
    )
    for number in range(3):
        log = (folder.path / "logs" / f"broker-{number}.log").read_text()
        assert "http.not_tls" not in log
        assert "http.handshake_failed" not in log
