"""`liftlog doctor` says how long the certificates of a broker are good for, of HTTP and of the cluster, each by itself.

Method: certificates of a CA of the test that end so many days from the time that doctor takes for now.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
import trustme
from click.testing import CliRunner

from broker.cli.doctor import command, machine
from broker.cli.doctor.checks import OK, WARNING, WRONG
from broker.cli.doctor.network import check_broker
from broker.cli.main import app
from broker.client.http.tls import TlsFiles

COMMAND: click.Command = app
AUTHORITY = trustme.CA()
WHOSE = {"http": "that of the HTTP port is good until", "cluster": "that for other brokers is good until"}


def files(folder: Path, section: str, ends: datetime) -> dict[str, str]:
    """The settings of a section with a certificate that ends then."""
    issued = AUTHORITY.issue_cert("127.0.0.1", not_before=ends - timedelta(days=365), not_after=ends)
    paths = {name: folder / f"{section}-{name}.pem" for name in ("tls_cert", "tls_key", "tls_ca")}
    paths["tls_key"].write_bytes(issued.private_key_pem.bytes())
    paths["tls_key"].chmod(0o600)
    paths["tls_cert"].write_bytes(issued.cert_chain_pems[0].bytes())
    paths["tls_ca"].write_bytes(AUTHORITY.cert_pem.bytes())
    return {f"{section}.{name}": str(path) for name, path in paths.items()}


def found(folder: Path, settings: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Its checks, by name."""
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    # nobody is there to be asked: neither broker nor NATS server
    asked = ["--brokers", "127.0.0.1:1", "--set", "intake.enabled=false", "--data", str(folder / "data")]
    done = CliRunner().invoke(COMMAND, ["doctor", "--json", *asked, *sets])
    named: dict[str, list[dict[str, Any]]] = {}
    for check in json.loads(done.stdout)["checks"]:
        named.setdefault(check["name"], []).append(check)
    return named


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """The time that doctor's line goes by."""
    now = datetime.now(UTC).replace(microsecond=0)
    monkeypatch.setattr(command, "time", type("At", (), {"time": staticmethod(now.timestamp)}))
    return now


@pytest.mark.parametrize("section", WHOSE)
@pytest.mark.parametrize(("days", "status"), [(15, OK), (13, WARNING)])
def test_one_that_ends_within_two_weeks_is_warned_of(
    tmp_path: Path, now: datetime, section: str, days: int, status: str
) -> None:
    other = next(each for each in WHOSE if each != section)
    of = {section: now + timedelta(days=days), other: now + timedelta(days=100)}
    checks = found(tmp_path, {k: v for each, ends in of.items() for k, v in files(tmp_path, each, ends).items()})
    assert [check["status"] for check in checks["configuration"]] == [OK]
    by_whose = {
        each: check for each, says in WHOSE.items() for check in checks["certificate"] if says in check["found"]
    }
    assert len(by_whose) == len(checks["certificate"]) == 2
    assert by_whose[other]["status"] == OK
    check = by_whose[section]
    assert check["status"] == status
    assert check["found"].endswith(f"{of[section].isoformat()}: {days} days")
    assert check["advice"] == ("renew it: files that change are taken without a restart" if status == WARNING else "")
    assert (check["values"]["expires"], check["values"]["left_s"]) == (of[section].isoformat(), days * machine.DAY_S)


@pytest.mark.parametrize("section", WHOSE)
def test_one_that_has_expired_is_wrong(tmp_path: Path, section: str) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    settings = files(tmp_path, section, ends)
    checks = found(tmp_path, settings)
    (check,) = checks["configuration"]
    assert check["status"] == WRONG
    assert f"{section}.tls_cert" in check["found"]
    assert f"has expired at {ends.isoformat()}" in check["found"]
    assert check["advice"]


@pytest.mark.parametrize(
    ("days", "says", "advice"),
    [(-1, "expired", "renew it"), (500, "not yet valid", "renew it"), (100, "", "name the CA of its certificate")],
)
def test_what_to_do_about_a_brokers_certificate_that_is_refused(
    tmp_path: Path, days: int, says: str, advice: str
) -> None:
    """Where it is good at another time, its CA is none of the trouble."""
    own = files(tmp_path, "http", datetime.now(UTC) + timedelta(days=days))
    ca = tmp_path / "other.pem"
    ca.write_bytes((AUTHORITY if says else trustme.CA()).cert_pem.bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own["http.tls_cert"], own["http.tls_key"])
    with socket.create_server(("127.0.0.1", 0)) as port:
        meets = threading.Thread(target=refused_by_one, args=(context, port))
        meets.start()
        address = f"https://127.0.0.1:{port.getsockname()[1]}"
        (check,) = check_broker(address, in_use=False, source="LIFTLOG_BROKERS", tls=TlsFiles(ca=str(ca)))
        meets.join()
    assert check.status == WRONG
    assert says in check.found
    assert check.advice.startswith(advice)


def refused_by_one(context: ssl.SSLContext, port: socket.socket) -> None:
    connection, _ = port.accept()
    with connection, suppress(OSError):
        context.wrap_socket(connection, server_side=True)


def test_the_line_is_exact_at_its_limit() -> None:
    now_s = float(int(time.time()))  # a datetime has whole microseconds
    for left_s, status in ((machine.EXPIRES_SOON_S, OK), (machine.EXPIRES_SOON_S - 1, WARNING)):
        (check,) = machine.check_certificate("of x", datetime.fromtimestamp(now_s + left_s, UTC), now_s)
        assert check.status == status
