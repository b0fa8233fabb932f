"""`tls://` means TLS. nats-py by itself sends the password in plain text if the server does not ask for TLS.

    INFO ─► must it be TLS? ──no──► as the server says
                │ yes
                ├─ required, or at least available ─► handshake, and then the login
                └─ neither ─► an error before anything is sent

Private to nats-py, hence the pin `>=2.16,<2.17` and tests/unit/client/test_nats_tls.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nats.aio.client import Client


def insist_on_tls(client: Client) -> Client:
    """Have a client that was not connected yet log in over TLS alone, where its URL or its options ask for TLS."""
    process_info = client._process_info

    async def checked(info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and not info.get("tls_required") and _must_be_tls(client):
            if not info.get("tls_available"):
                from nats.errors import Error

                raise Error("the server does not offer TLS, and tls:// or a setting for TLS asks for it")
            info["tls_required"] = True  # nats-py looks at the same object next
        await process_info(info, initial_connection)

    client._process_info = checked  # type: ignore[method-assign]
    return client


def _must_be_tls(client: Client) -> bool:
    server = client._current_server
    scheme = server.uri.scheme if server is not None else ""
    is_done = bool(client.options.get("tls_handshake_first"))
    return not is_done and scheme not in ("ws", "wss") and (scheme == "tls" or "tls" in client.options)
