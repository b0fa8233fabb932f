"""`tls://` means TLS: to a real nats-server that requires it, offers it, or does not know it; and to one that lies."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import pytest
import trustme

from broker.api.errors import Unavailable
from broker.client.nats_connection import NatsConnection, close
from tests.support.processes import NatsServer

PASSWORD = "not for the wire"
LOGIN = {"user": "loader", "password": PASSWORD}
pytestmark = pytest.mark.process


def server(folder: Path, lines: str) -> tuple[NatsServer, ssl.SSLContext]:
    """A nats-server with a login and a certificate, and who trusts it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    key, cert = folder / "key.pem", folder / "cert.pem"
    issued.private_key_pem.write_to_path(str(key))
    issued.cert_chain_pems[0].write_to_path(str(cert))
    trusts = ssl.create_default_context()
    authority.configure_trust(trusts)
    paths = f'cert_file: "{cert}", key_file: "{key}"'
    login = f'authorization {{ user: loader, password: "{PASSWORD}" }}'
    return NatsServer(folder / "nats", config=f"{login}\n{lines.format(paths=paths)}").start(), trusts


@pytest.mark.parametrize("lines", ["tls {{ {paths} }}", "tls {{ {paths} }}\nallow_non_tls: true"])
async def test_where_tls_is_required_or_offered_the_login_goes_over_it(lines: str, tmp_path: Path) -> None:
    nats, trusts = server(tmp_path, lines)
    try:
        for scheme, options in (("tls", {"tls": trusts}), ("nats", {"tls": trusts})):
            client = await NatsConnection([f"{scheme}://127.0.0.1:{nats.port}"]).open({**LOGIN, **options})
            writer = client._transport._io_writer  # type: ignore[union-attr]
            assert writer.get_extra_info("ssl_object") is not None
            await client.flush()
            await close(client)
    finally:
        nats.stop()


async def test_a_server_without_tls_is_not_logged_in_to(tmp_path: Path) -> None:
    nats, trusts = server(tmp_path, "")
    try:
        for scheme, options in (("tls", {}), ("tls", {"tls": trusts}), ("nats", {"tls": trusts})):
            with pytest.raises(Unavailable, match="does not offer TLS"):
                await NatsConnection([f"{scheme}://127.0.0.1:{nats.port}"]).open({**LOGIN, **options})
        client = await NatsConnection([f"nats://127.0.0.1:{nats.port}"]).open(LOGIN)
        await close(client)
    finally:
        nats.stop()


async def test_nothing_is_sent_to_a_server_that_offers_no_tls() -> None:
    seen: list[bytes] = []
    greeting = {"version": "2.11.0", "headers": True, "max_payload": 1 << 20, "auth_required": True}

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(greeting).encode() + b"\r\n")
        seen.append(await reader.read(1000))
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match="does not offer TLS"):
            await NatsConnection([f"tls://127.0.0.1:{port}"]).open(LOGIN)
    assert seen == [b""]
