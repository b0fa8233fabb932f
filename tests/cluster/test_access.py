"""Goal: with `auth.mode = enforce` somebody can really work, on one broker and on three; and a stranger cannot.

Method: `liftlog up` and the command line with token files, as the guide says it; three brokers that forward changes and
ask each other what they lead. A revoked token is refused by all of them.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import cycle, product
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest

from broker.api.errors import InvalidRequest, LiftlogError, Unauthenticated, Unauthorized
from broker.api.principals import Token, new_token
from broker.client import Client, connect
from tests.cluster.test_cli import Folder
from tests.support.certificates import Authority
from tests.support.clusters import RealCluster
from tests.support.processes import NatsServer, eventually, free_port

pytestmark = [pytest.mark.process, pytest.mark.slow]


@dataclass
class Guarded(Folder):
    """`token`: what the commands show; None: nothing."""

    count: int = 1
    token: Path | None = None

    @property
    def admin(self) -> Path:
        return self.path.parent / "admin.token"

    @property
    def brokers(self) -> str:
        return ",".join(f"127.0.0.1:{self.base + 1 + 10 * number}" for number in range(self.count))

    @property
    def env(self) -> dict[str, str]:
        found = {**super().env, "LIFTLOG_BROKERS": self.brokers, "LIFTLOG_AUTH_MODE": "enforce"}
        found["LIFTLOG_AUTH_ADMIN_TOKEN_FILE"] = str(self.admin)
        return found if self.token is None else {**found, "LIFTLOG_TOKEN_FILE": str(self.token)}

    def client(self, token: Path | None, brokers: str | None = None) -> Client:
        return connect(brokers or self.brokers, deadline_s=30.0, token_file=str(token) if token else None)


@pytest.fixture(params=[1, 3])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Guarded]:
    made = Guarded(tmp_path / "data", free_port(24), count=request.param)
    made.liftlog("auth", "init", str(made.admin))
    made.token = made.admin
    yield made
    made.liftlog("down", "--data", str(made.path), "--force")


def test_a_user_works_with_what_is_granted_and_nobody_else_does(folder: Guarded, tmp_path: Path) -> None:
    folder.liftlog(*folder.up_arguments("--brokers-count", str(folder.count), "--detach"))
    replicas = {"replication_factor": 3} if folder.count == 3 else {}
    mine = tmp_path / "ana.token"
    with folder.client(folder.admin) as admin:
        for name in ("orders", "other"):
            admin.create_stream(name, subject=f"{name}.>", partitions=4, **replicas)
        if folder.count == 3:
            eventually(lambda: admin.cluster().feature_level >= 6, what="the feature level")
    made = folder.json("auth", "token", "create", "user:ana", str(mine), "--ttl", "1h")
    for action, name in (
        ("stream:read", "orders"),
        ("stream:append", "orders"),
        ("stream:admin", "orders"),
        ("consumer:read", "ana*"),
        ("consumer:write", "ana*"),
    ):
        folder.liftlog("auth", "grant", "user:ana", action, name)
    folder.liftlog("auth", "test", "user:ana", "stream:read", "orders")
    folder.liftlog("auth", "test", "user:ana", "stream:read", "other", code=1)

    folder.token = mine
    assert folder.json("auth", "whoami")["principal"] == "user:ana"
    assert [each["name"] for each in folder.json("stream", "list")] == ["orders"]
    with folder.client(mine) as ana:
        for partition in range(4):
            with ana.producer("orders", partition=partition, deadline_s=60.0) as producer:
                for number in range(10):
                    producer.send(b"%d" % number).result(60)
        assert ana.read("orders").to_table().num_rows == 40
        ana.commit("ana-job", {"orders": dict.fromkeys(range(4), 5)})
        assert ana.lag("ana-job") == 20
        for address in folder.brokers.split(","):
            with folder.client(mine, address) as one:
                described = one.describe("orders")
                assert all(each.high_watermark == 10 for each in described.partitions), "brokers have asked each other"
        ana.trim("orders", before="latest")
        for call in (lambda: ana.describe("other"), ana.cluster, lambda: ana.delete_stream("other"), ana.tokens):
            with pytest.raises(Unauthorized):
                call()
    with folder.client(None) as nobody:
        with pytest.raises(Unauthorized):
            nobody.describe("orders")
        assert list(nobody.streams()) == []

    folder.token = folder.admin
    told = [each["auth_mode"] for each in folder.json("cluster", "status")["brokers"]]
    assert told == folder.count * ["enforce"]
    folder.liftlog("auth", "require")
    assert folder.json("cluster", "status")["auth_required"] is True
    folder.liftlog("auth", "token", "revoke", made["token"], "--yes")
    for address in folder.brokers.split(","):
        with folder.client(mine, address) as ana:
            eventually(lambda: is_refused(ana), what=f"{address} refuses")


@pytest.mark.parametrize("folder", [1], indirect=True)
def test_a_user_works_with_a_jwt_of_the_issuer(folder: Guarded, tmp_path: Path) -> None:
    jwts = pytest.importorskip("tests.unit.serving.test_jwts", reason="make install")
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwts.as_set(jwts.public(jwts.RSA)))
    of = {"ISSUER": jwts.GOOD["iss"], "AUDIENCE": jwts.GOOD["aud"], "KEYS": str(keys)}
    folder.more |= {f"LIFTLOG_JWT_{key}": value for key, value in of.items()}
    folder.liftlog(*folder.up_arguments("--detach"))
    for action in ("stream:create", "subject:capture"):
        folder.liftlog("auth", "grant", "user:ana", action, "orders")
    folder.token = written(tmp_path / "ana.token", jwts.signed(exp=time.time() + 600))
    said = folder.json("auth", "whoami")
    assert (said["principal"], said["how"]) == ("user:ana", "jwt")
    with folder.client(folder.token) as ana:
        ana.create_stream("orders")
        keys.write_bytes(jwts.as_set(jwts.public(jwts.OTHER)))
        eventually(lambda: is_refused(ana), what="it goes by the new keys")


def written(path: Path, token: Token | str) -> Path:
    path.write_text(token if isinstance(token, str) else token.text)
    path.chmod(0o600)
    return path


class Load:
    """Numbers to a stream, each acknowledged before the next ones are sent, until `stop`."""

    def __init__(self, brokers: list[str], **shows: str) -> None:
        self.acknowledged = 0
        self.brokers = brokers
        self.shows = shows
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self._run_with(self.brokers, self.shows)
        except BaseException as error:
            self._error = error

    def _run_with(self, brokers: list[str], shows: dict[str, str]) -> None:
        with (
            connect(brokers, **shows) as client,
            client.producer("s", deadline_s=120.0, linger_ms=1) as producer,
        ):
            while not self._is_over.is_set() and (brokers, shows) == (self.brokers, self.shows):
                sent = [producer.send(b"%d" % (self.acknowledged + number)) for number in range(20)]
                for each in sent:
                    each.result(120)
                self.acknowledged += len(sent)

    def more(self) -> None:
        """Wait until further records are acknowledged."""
        goal = self.acknowledged + 100
        eventually(lambda: self.acknowledged >= goal or self._error, timeout_s=150, what="records are acknowledged")
        assert self._error is None, self._error

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._error is None, self._error


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_cluster_goes_from_off_to_enforce_under_load_and_loses_nothing(tmp_path: Path) -> None:
    """Restart by restart, as the guide says it. Brokers of both modes forward and ask each other meanwhile."""
    admin = written(tmp_path / "admin.token", new_token())
    cluster = RealCluster(tmp_path, None)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()
        with cluster.client(deadline_s=60.0) as client:
            client.create_stream("s", partitions=3, replication_factor=3)
        load = Load(cluster.addresses)
        stack.callback(load.stop)
        load.more()

        def restart_all(mode: str) -> None:
            for broker, process in cluster.brokers.items():
                process.stop()
                process.env |= {"LIFTLOG_AUTH_MODE": mode, "LIFTLOG_AUTH_ADMIN_TOKEN_FILE": str(admin)}
                process.start(wait=False)
                cluster.wait_ready(broker)
                for partition in range(3):
                    cluster.in_sync("s", 3, partition)
                load.more()
                for address in cluster.addresses if mode == "enforce" else ():
                    with connect([address], deadline_s=60.0, **load.shows) as client:
                        ends = [each.high_watermark for each in client.describe("s").partitions]
                        assert None not in ends, "brokers of both modes ask each other"

        restart_all("permissive")
        with connect(cluster.addresses, deadline_s=60.0, token_file=str(admin)) as client:
            eventually(lambda: client.cluster().feature_level >= 6, what="the feature level")
            token = client.create_token("svc:load", ttl_s=3600)
            for action, name in (("stream:append", "s"), ("stream:read", "s")):
                client.grant("svc:load", action, name)
        load.shows = {"token_file": str(written(tmp_path / "load.token", token))}
        load.more()
        restart_all("enforce")
        load.more()
        load.stop()
        with connect(cluster.addresses, deadline_s=60.0, **load.shows) as client:
            found = sorted(int(value) for value in client.read("s").to_table()["value"].to_pylist())
        assert found == list(range(load.acknowledged))
        with connect(cluster.addresses, deadline_s=60.0) as nobody, pytest.raises(Unauthorized):
            nobody.describe("s")
        opened, process = next(iter(cluster.brokers.items()))
        address, others = cluster.addresses[0], cluster.addresses[1:]
        for is_required in (False, True):
            if is_required:
                process.stop()
                process.env["LIFTLOG_AUTH_MODE"] = "enforce"
                process.start(wait=False)
                cluster.wait_ready(opened)
                with connect(others, deadline_s=60.0, token_file=str(admin)) as client:
                    eventually(lambda: is_required_now(client), what="every broker has said that it enforces")
            process.stop()
            process.env["LIFTLOG_AUTH_MODE"] = "off"
            process.start(wait=False)
            cluster.wait_ready(opened)
            with connect(others, deadline_s=60.0, token_file=str(admin)) as client:
                eventually(lambda: modes_of(client)[opened] == "off", what="it has said its mode")
                if is_required:
                    assert not client.ready().warnings
                else:
                    eventually(lambda: client.ready().warnings, what="it is warned of")
            with connect([address], deadline_s=60.0) as nobody:
                if is_required:
                    with pytest.raises(Unauthorized):
                        nobody.describe("s")
                else:
                    nobody.describe("s")


NO_RESPONDERS = 503
"""As NATS says at once that nobody subscribes: the old leader does no longer, and the new one not yet."""


class NatsLoad(Load):
    """Numbers to `n.x` over NATS with TLS, each acked before the next one is sent, repeated under their ids until then.

    Attributes:
        longest_s: The longest that one waited for its ack.
        told: Codes of the errors that it was told.
        silent: The tries of one that somebody took and nobody answered, the most.
    """

    def __init__(self, url: str, ca: str) -> None:
        self._url, self._ca = url.replace("nats://", "tls://"), ca
        self.longest_s, self.told, self.silent = 0.0, set[int](), 0
        super().__init__([])

    def _run_with(self, brokers: list[str], shows: dict[str, str]) -> None:
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        client = await nats.connect(self._url, tls=ssl.create_default_context(cafile=self._ca))
        while not self._is_over.is_set():
            begun_s, silent = time.monotonic(), 0
            while (answer := await self._answer(client, b"%d" % self.acknowledged)) is None or "error" in answer:
                assert time.monotonic() < begun_s + 120, f"{self.acknowledged} is not acked"
                if answer is None:
                    silent += 1
                else:
                    self.told.add(answer["error"]["err_code"])
                await asyncio.sleep(0.05)
            self.silent = max(self.silent, silent)
            self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
            self.acknowledged += 1
        await client.close()

    async def _answer(self, client: Any, value: bytes) -> dict[str, Any] | None:
        try:
            answer = await client.request("n.x", value, timeout=10.0, headers={"Nats-Msg-Id": value.decode()})
        except nats.errors.TimeoutError:
            return None
        except nats.errors.NoRespondersError:
            return {"error": {"err_code": NO_RESPONDERS}}
        said: dict[str, Any] = json.loads(answer.data)
        return said


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_cluster_goes_from_plain_text_to_mtls_in_three_restarts_and_loses_nothing(tmp_path: Path) -> None:
    """As the guide says it: all take both, all dial TLS, all require it and enforce. A producer over HTTP moves
    to TLS and a certificate that says who it is; another one publishes over NATS, to which brokers come to speak TLS.
    """
    admin, authority = written(tmp_path / "admin.token", new_token()), Authority(tmp_path / "ca")
    files = authority.issue("nats")
    its_tls = f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}" }}\nallow_non_tls: true'
    mine = authority.issue("load", "load.example", uris=["liftlog:svc/load"])
    laptop = authority.issue("laptop", "laptop.example")  # it names nobody: the admin's token says who asks
    with ExitStack() as stack:
        server = NatsServer(tmp_path / "nats", config=its_tls).start()
        stack.callback(server.stop)
        cluster = RealCluster(tmp_path, server)
        stack.callback(cluster.stop)
        cluster.start()
        with cluster.client(deadline_s=60.0) as client:
            client.create_stream("s", partitions=3, replication_factor=3)
            client.create_stream("n", subject="n.>", partitions=1, replication_factor=3)
        load, published = Load(cluster.addresses), NatsLoad(server.url, authority.ca)
        for each in (load, published):
            stack.callback(each.stop)
        waits: list[tuple[str, str, float, int]] = []

        def restart_all(step: str, mode: str) -> None:
            for broker, process in cluster.brokers.items():
                published.longest_s, published.silent = 0.0, 0
                settings = tls_of(authority, broker, step)
                settings |= {"auth.mode": mode, "auth.admin_token_file": str(admin), "nats.tls_ca": authority.ca}
                settings["nats.urls"] = server.url.replace("nats://", "tls://")
                process.stop()
                process.env |= as_env(settings)
                process.tls = authority.client_context(laptop) if step == "required" else None
                process.start(wait=False)
                cluster.wait_ready(broker)
                for place in (("s", 3, 0), ("s", 3, 1), ("s", 3, 2), ("n", 3, 0)):
                    cluster.in_sync(*place)
                load.more()
                published.more()
                waits.append((step, broker, published.longest_s, published.silent))

        restart_all("accept", "permissive")
        with connect(cluster.addresses, deadline_s=60.0, token_file=str(admin)) as client:
            eventually(lambda: client.cluster().feature_level >= 6, what="the feature level")
            for action in ("stream:append", "stream:read"):
                client.grant("svc:load", action, "*")
        restart_all("dial", "permissive")
        load.shows = {"tls_ca": authority.ca, "tls_cert": mine.cert, "tls_key": mine.key}
        load.brokers = [f"https://{address}" for address in cluster.addresses]
        load.more()
        for process in cluster.brokers.values():
            process.tls = authority.client_context(laptop)
        restart_all("required", "enforce")
        load.more()
        published.more()
        for each in (load, published):
            each.stop()
        with connect(load.brokers, deadline_s=60.0, **load.shows) as client:
            assert client.whoami().principal == "svc:load"
            found = sorted(int(value) for value in client.read("s").to_table()["value"].to_pylist())
            assert found == list(range(load.acknowledged))
            stored = [int(value) for value in client.read("n").to_table()["value"].to_pylist()]
            assert stored == list(range(published.acknowledged)), "once, and in the order in which they were acked"
        assert published.told <= {NO_RESPONDERS, 10008, 10009}, "not now, and another one leads: hand-overs"
        assert all(silent <= 1 for *_, silent in waits), "at most the one that was under way as a broker stopped"
        print(f"longest waits for an ack over NATS, and tries without an answer: {waits}")
        for process in cluster.brokers.values():
            said = process.output().replace("no TLS with it: Connection reset by peer", "it stopped amid a handshake")
            for line in ("replica.not_let_in", "http.handshake_failed", "no TLS with it"):
                assert line not in said, line
            assert said.count("tls.plain_taken setting=http.tls value=accept") == 1
            assert said.count("tls.plain_taken setting=cluster.tls value=dial") == 1
        for address in cluster.addresses:
            for brokers, shown, says in (
                (address, {}, "this port speaks TLS"),
                (f"https://{address}", {"tls_ca": authority.ca}, "wants one"),
            ):
                with connect(brokers, deadline_s=5.0, **shown) as nobody, pytest.raises(LiftlogError, match=says):
                    nobody.streams()


def tls_of(authority: Authority, broker: str, step: str) -> dict[str, str]:
    """The settings of a broker at one step from plain text to mTLS."""
    shown = authority.issue(broker, uris=[f"liftlog:broker/{broker}"])
    more = {"http.tls_client_ca": authority.ca, "cluster.tls_names": "required"}
    return {
        **authority.settings(shown),
        **authority.cluster_settings(shown),
        **more,
        "http.tls": step,
        "cluster.tls": step,
    }


def as_env(settings: dict[str, str]) -> dict[str, str]:
    return {f"LIFTLOG_{key.upper().replace('.', '_')}": value for key, value in settings.items()}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_same_steps_lead_back_under_load_though_brokers_are_killed(tmp_path: Path) -> None:
    """From mTLS to plain text, as the guide says it, with kills in place of stops. Each broker first comes back with
    the certificate of another one, does not start, and is put right. Strangers say something at each port all the time.
    """
    authority = Authority(tmp_path / "ca")
    mine = authority.issue("load", "load.example")
    with ExitStack() as stack:
        cluster = RealCluster(tmp_path, None)
        stack.callback(cluster.stop)
        for broker, process in cluster.brokers.items():
            process.env |= as_env(tls_of(authority, broker, "required"))
            process.tls = authority.client_context(mine)
        cluster.start()
        shows = {"tls_ca": authority.ca, "tls_cert": mine.cert, "tls_key": mine.key}
        https = [f"https://{address}" for address in cluster.addresses]
        with connect(https, deadline_s=60.0, **shows) as client:
            client.create_stream("s", partitions=3, replication_factor=3)
        load = Load(https, **shows)
        stack.callback(load.stop)
        load.more()
        stack.callback(
            strangers([process.port + number for process in cluster.brokers.values() for number in range(3)])
        )
        for step in ("dial", "accept", "none"):
            for broker, process in cluster.brokers.items():
                process.kill9()
                for name in as_env(tls_of(authority, broker, step)):
                    process.env.pop(name)
                if step != "none":
                    process.env |= as_env(tls_of(authority, broker, step))
                    another = authority.issue("another", uris=["liftlog:broker/another"])
                    right = process.env
                    process.env = {**right, **as_env(authority.cluster_settings(another))}
                    process.start(wait=False)
                    assert process.process is not None
                    assert process.process.popen.wait(60) == 1
                    assert f"is the certificate of another, and not of {broker}" in process.output()
                    process.env = right
                process.tls = None
                process.start(wait=False)
                cluster.wait_ready(broker)
                for partition in range(3):
                    cluster.in_sync("s", 3, partition)
                load.more()
            if step == "dial":
                load.shows, load.brokers = {}, cluster.addresses
                load.more()
        load.stop()
        with connect(cluster.addresses, deadline_s=60.0) as client:
            found = sorted(int(value) for value in client.read("s").to_table()["value"].to_pylist())
        assert found == list(range(load.acknowledged))


def strangers(ports: list[int]) -> Callable[[], None]:
    """Connections that say a little at each of these, some of which stay. Returns what ends them."""
    is_over, held = threading.Event(), deque[socket.socket](maxlen=60)
    words = (
        *(b"", b"G", b"\x16", b"\x16\x03\x01\xff\xff", b"\x15\x03\x01\0\2\2\x28"),
        b"\x16\x03\x01GET / HTTP/1.1\r\n\r\n",
        b"GET /v1/streams HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    )

    def speak() -> None:
        for port, said in cycle(product(ports, words)):
            if is_over.wait(0.03):
                return
            with suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), 2))
                held[-1].sendall(said)

    thread = threading.Thread(target=speak)
    thread.start()

    def end() -> None:
        is_over.set()
        thread.join()
        for each in held:
            each.close()

    return end


def modes_of(client: Client) -> dict[str, str]:
    return {each.id: each.auth_mode for each in client.cluster().brokers}


def is_required_now(client: Client) -> bool:
    try:
        client.require_auth()
    except InvalidRequest:
        return False
    return True


def is_refused(client: Client) -> bool:
    try:
        client.describe("orders")
    except Unauthenticated:
        return True
    except LiftlogError:
        return False
    return False
