"""Goal: a broker that calls a NATS server and an issuer of JWTs, and believes neither, has both in `__audit`.

Method: a real nats-server, a server over TLS as the issuer, a broker; the audit is read over HTTP.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from broker.client import connect
from tests.support.certificates import Authority
from tests.support.processes import BrokerProcess, NatsServer, eventually
from tests.support.showing import showing, shown_with


def test_whom_a_broker_calls_and_does_not_believe_is_in_the_audit(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    theirs = other.issue("nats")
    server = NatsServer(
        tmp_path / "nats", config=f'tls {{ cert_file: "{theirs.cert}", key_file: "{theirs.key}" }}'
    ).start()
    with showing(shown_with("expired", ours, other)) as issuer:
        settings = {
            "LIFTLOG_NATS_TLS_CA": ours.ca,
            "LIFTLOG_JWT_ISSUER": "https://id.example",
            "LIFTLOG_JWT_AUDIENCE": "liftlog",
            "LIFTLOG_JWT_KEYS": f"https://127.0.0.1:{issuer}/keys",
            "LIFTLOG_JWT_TLS_CA": ours.ca,
        }
        broker = BrokerProcess(tmp_path / "broker", f"tls://127.0.0.1:{server.port}", env=settings)
        try:
            broker.start(wait=False)
            with connect(broker.address) as client:

                def found() -> dict[str, dict[str, Any]]:
                    values = [json.loads(value) for value in client.read("__audit").to_table()["value"].to_pylist()]
                    return {each["resource"]["port"]: each for each in values if each["operation"] == "handshake"}

                eventually(lambda: len(found()) == 2)
                told = found()
        finally:
            broker.stop()
            server.stop()
    assert {port: each["asked"]["certificate"] for port, each in told.items()} == {"nats": "foreign", "jwt": "expired"}
    for each in told.values():
        assert (each["resource"]["side"], each["result"], each["address"]) == ("called", "refused", "127.0.0.1")
    assert "certificate has expired" in broker.output()
    assert "unable to get local issuer certificate" in broker.output()
