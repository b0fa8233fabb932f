"""The broker logs in wherever a stock client does: TLS with certificates of both sides, password, token, nkey."""

from __future__ import annotations

import asyncio
import base64
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import nkeys
import pytest
import trustme

from broker.client import connect
from tests.support.processes import BrokerProcess, NatsServer

PASSWORD = "correct horse battery staple"


@dataclass
class Login:
    """One way to log in.

    Attributes:
        server: Lines of nats-server's configuration.
        broker: The broker's settings, as environment.
        client: A stock client's options.
    """

    server: str
    broker: dict[str, str]
    client: dict[str, Any] = field(default_factory=dict)
    scheme: str = "nats"


def tls(folder: Path) -> Login:
    """Both sides show a certificate."""
    authority = trustme.CA()
    paths = {name: str(folder / f"{name}.pem") for name in ("ca", "server", "server-key", "client", "client-key")}
    authority.cert_pem.write_to_path(paths["ca"])
    for name in ("server", "client"):
        issued = authority.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(paths[f"{name}-key"])
        issued.cert_chain_pems[0].write_to_path(paths[name])
    context = ssl.create_default_context(cafile=paths["ca"])
    context.load_cert_chain(paths["client"], paths["client-key"])
    return Login(
        server=f'tls {{ cert_file: "{paths["server"]}", key_file: "{paths["server-key"]}", ca_file: "{paths["ca"]}", '
        f"verify: true }}",
        broker={
            "LIFTLOG_NATS_TLS_CA": paths["ca"],
            "LIFTLOG_NATS_TLS_CERT": paths["client"],
            "LIFTLOG_NATS_TLS_KEY": paths["client-key"],
        },
        client={"tls": context},
        scheme="tls",
    )


def nkey() -> Login:
    pair = nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))
    seed = pair.seed.decode()
    return Login(
        server=f"authorization {{ users: [ {{ nkey: {pair.public_key.decode()} }} ] }}",
        broker={"LIFTLOG_NATS_NKEY_SEED": seed},
        client={"nkeys_seed_str": seed},
    )


def user() -> Login:
    return Login(
        server=f'authorization {{ user: loader, password: "{PASSWORD}" }}',
        broker={"LIFTLOG_NATS_USER": "loader", "LIFTLOG_NATS_PASSWORD": PASSWORD},
        client={"user": "loader", "password": PASSWORD},
    )


def token() -> Login:
    text = base64.b64encode(bytes(range(24))).decode()
    return Login(
        server=f'authorization {{ token: "{text}" }}', broker={"LIFTLOG_NATS_TOKEN": text}, client={"token": text}
    )


LOGINS = {"tls": tls, "user": lambda _: user(), "token": lambda _: token(), "nkey": lambda _: nkey()}


@pytest.mark.parametrize("way", LOGINS)
async def test_messages_are_stored_and_acked_whatever_the_login(way: str, tmp_path: Path) -> None:
    login = LOGINS[way](tmp_path)
    server = NatsServer(tmp_path / "nats", config=login.server).start()
    url = f"{login.scheme}://127.0.0.1:{server.port}"
    broker = BrokerProcess(tmp_path / "broker", url, env=login.broker)
    try:
        broker.start()
        broker.request("POST", "/v1/streams", {"name": "s", "subject": "s.>"})
        publisher = await nats.connect(url, **login.client)
        jetstream = publisher.jetstream(timeout=60)
        values = [b"%d-" % i + bytes(i % 251 for i in range(5000)) for i in range(300)]
        acks = await asyncio.gather(*(jetstream.publish("s.a", value) for value in values))
        await publisher.close()
        assert sorted(ack.seq for ack in acks) == list(range(1, 301))
        with connect(broker.address) as client:
            assert sorted(client.read("s").to_table()["value"].to_pylist()) == sorted(values)
    finally:
        broker.stop()
        server.stop()
    for secret in (PASSWORD, *(v for k, v in login.broker.items() if k.endswith(("TOKEN", "SEED")))):
        assert secret not in broker.output()
