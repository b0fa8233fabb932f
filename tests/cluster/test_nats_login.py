"""The broker logs in wherever a stock client does: TLS with certificates of both sides, password, token, nkey, JWT."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
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


def tls(folder: Path, *, first: bool = False) -> Login:
    """Both sides show a certificate. `first`: before the server says anything."""
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
        f"verify: true, handshake_first: {str(first).lower()} }}",
        broker={
            "LIFTLOG_NATS_TLS_CA": paths["ca"],
            "LIFTLOG_NATS_TLS_CERT": paths["client"],
            "LIFTLOG_NATS_TLS_KEY": paths["client-key"],
            "LIFTLOG_NATS_TLS_FIRST": str(first).lower(),
        },
        client={"tls": context, "tls_handshake_first": first},
        scheme="tls",
    )


def key_of(kind: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), kind))


def nkey() -> Login:
    pair = key_of(nkeys.PREFIX_BYTE_USER)
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


def signed(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, kind: str, **claims: Any) -> str:
    """A JWT as NATS reads it: signed by an nkey."""
    body = {
        "jti": kind,
        "iat": 1_700_000_000,
        "iss": issuer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "name": kind,
        "nats": {"type": kind, "version": 2, **claims},
    }
    parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, body]
    text = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    return (text + b"." + base64.urlsafe_b64encode(issuer.sign(text)).rstrip(b"=")).decode()


def creds(folder: Path) -> Login:
    """Decentralized: an operator vouches for an account, which vouches for the user of the .creds file."""
    kinds = (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER)
    operator, account, person = (key_of(kind) for kind in kinds)
    endless = dict.fromkeys(("subs", "data", "payload"), -1)
    limits = {**endless, **dict.fromkeys(("conn", "leaf", "imports", "exports"), -1), "wildcards": True}
    path = folder / "user.creds"
    blocks = (("NATS USER JWT", signed(account, person, "user", **endless)), ("USER NKEY SEED", person.seed.decode()))
    path.write_text("".join(f"-----BEGIN {name}-----\n{text}\n------END {name}------\n\n" for name, text in blocks))
    return Login(
        server=f"operator: {signed(operator, operator, 'operator')}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public_key.decode()}: {signed(operator, account, 'account', limits=limits)} }}",
        broker={"LIFTLOG_NATS_CREDS": str(path)},
        client={"user_credentials": str(path)},
    )


LOGINS: dict[str, Callable[[Path], Login]] = {
    "tls": tls,
    "tls-first": partial(tls, first=True),
    "user": lambda _: user(),
    "token": lambda _: token(),
    "nkey": lambda _: nkey(),
    "creds": creds,
}


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
    seed = key_of(nkeys.PREFIX_BYTE_USER).seed.decode()
    for secret in (PASSWORD, seed, login.broker.get("LIFTLOG_NATS_TOKEN", seed)):
        assert secret not in broker.output()
