"""Goal: of a NATS server, or an issuer of JWTs, whose certificate is not believed the audit and the log say what is
wrong with it, and of others nothing.

Method: real servers over TLS that show such certificates; the fetch of keys and the driver of the intake as they are.
What the audit makes of it: tests/unit/serving/test_audit_handshakes.py; in a broker: tests/cluster/test_called.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("jwt", reason="make install")

from broker.api.certificate_faults import EARLY, EXPIRED, FOREIGN, MALFORMED, MISNAMED, Unbelieved
from broker.config.configuration import load
from broker.config.jwks import RETRY_S, Jwks
from broker.config.settings import JwtConfig
from broker.intake.driver import IntakeDriver
from broker.intake.jetstream import jetstream_on
from broker.node.partitions.sync import SyncPool
from tests.support.certificates import Authority
from tests.support.processes import eventually, free_port
from tests.support.showing import Shown, showing, shown_with

SAID = {
    EXPIRED: "certificate has expired",
    EARLY: "certificate is not yet valid",
    FOREIGN: "unable to get local issuer certificate",
    MISNAMED: "IP address mismatch, certificate is not valid for '127.0.0.1'",
    MALFORMED: "the certificate cannot be read",
}
INFO = b'INFO {"server_id":"S","tls_required":true,"max_payload":1048576}\r\n'
WAYS = {"tls": INFO, "nats": INFO, "tls-first": b"", "wss": b""}


class Told(list[tuple[str, Unbelieved]]):
    def tell(self, address: str, found: Unbelieved) -> None:
        self.append((address, found))

    def faults(self) -> set[tuple[str, str, bool]]:
        return {(address, found.fault, found.is_called) for address, found in self}


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def pool() -> Iterator[SyncPool]:
    pool = SyncPool(1)
    yield pool
    pool.close()


def shown(fault: str, ours: Authority) -> Shown:
    return shown_with(fault, ours, Authority(ours.folder.parent / "other"))


def jwt_config(port: int, ca: str) -> JwtConfig:
    of = {"issuer": "https://id.example", "audience": "liftlog", "keys": f"https://127.0.0.1:{port}/keys", "tls_ca": ca}
    return load(None, {}, {f"jwt.{key}": value for key, value in of.items()}).jwt


@pytest.mark.parametrize("fault", SAID)
def test_an_issuer_that_is_not_believed_is_told_of(
    fault: str, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """V5."""
    told = Told()
    with showing(shown(fault, ours)) as port:
        made = Jwks(jwt_config(port, ours.ca), tell=told.tell)
        assert [made._step(), made._step()] == [RETRY_S, RETRY_S]
    assert [(address, found.fault, found.is_called) for address, found in told] == [("127.0.0.1", fault, True)] * 2
    assert SAID[fault] in told[0][1].why
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("jwt.keys_refused")
    assert SAID[fault] in line


@pytest.mark.parametrize("way", WAYS)
def test_a_nats_server_that_is_not_believed_is_told_of(
    way: str, ours: Authority, pool: SyncPool, caplog: pytest.LogCaptureFixture
) -> None:
    """I5."""
    for fault in SAID if way == "tls" else (EXPIRED, MALFORMED):
        told = Told()
        caplog.clear()
        with showing(shown(fault, ours), WAYS[way]) as port:
            scheme = "tls" if way == "tls-first" else way
            given = {"nats.urls": [f"{scheme}://127.0.0.1:{port}"], "nats.tls_ca": ours.ca}
            driver = IntakeDriver(load(None, {}, given | {"nats.tls_first": way == "tls-first"}), pool, tell=told.tell)
            driver.start()
            eventually(lambda told=told: told)
            assert SAID[fault] in driver.state
            driver.stop(5.0)
        assert told.faults() == {("127.0.0.1", fault, True)}
        lines = [text for record in caplog.records if "nats_error" in (text := record.getMessage())]
        assert len(lines) == 1, "once, not at each try"
        assert SAID[fault] in lines[0]


@pytest.mark.parametrize("way", WAYS)
async def test_the_look_for_jetstream_tells_of_a_server_that_is_not_believed(way: str, ours: Authority) -> None:
    for fault in SAID if way == "tls" else (EXPIRED, MALFORMED):
        told = Told()
        with showing(shown(fault, ours), WAYS[way]) as port:
            scheme = "tls" if way == "tls-first" else way
            given = {"nats.urls": [f"{scheme}://127.0.0.1:{port}"], "nats.tls_ca": ours.ca}
            config = load(None, {}, given | {"nats.tls_first": way == "tls-first"})
            assert await jetstream_on(config, "s", told.tell) == []
        assert told.faults() == {("127.0.0.1", fault, True)}


async def test_of_what_fails_otherwise_the_look_for_jetstream_tells_nothing(ours: Authority) -> None:
    told = Told()
    with showing(shown("", ours), b"no TLS\r\n") as plain:
        for port in (free_port(), plain):
            config = load(None, {}, {"nats.urls": [f"tls://127.0.0.1:{port}"], "nats.tls_ca": ours.ca})
            assert await jetstream_on(config, "s", told.tell) == []
    assert told == []


def test_of_what_fails_otherwise_nothing_is_told(ours: Authority, pool: SyncPool) -> None:
    """U9. One that is gone, one that speaks no TLS, one that is believed and then ends it."""
    told = Told()
    with showing(shown("", ours), b"no TLS\r\n") as plain, showing(shown("", ours)) as good:
        for port in (free_port(), plain, good):
            assert Jwks(jwt_config(port, ours.ca), tell=told.tell)._step() == RETRY_S
            given = {"nats.urls": [f"tls://127.0.0.1:{port}"], "nats.tls_ca": ours.ca, "nats.tls_first": port == good}
            driver = IntakeDriver(load(None, {}, given), pool, tell=told.tell)
            driver.start()
            eventually(lambda driver=driver: driver.counts["nats_errors"])
            driver.stop(5.0)
    assert told == []
