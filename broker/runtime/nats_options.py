"""The `[nats]` settings as nats-py's connect options. Kept apart: it handles the secrets."""

from __future__ import annotations

import ssl
from typing import Any

from broker.runtime.settings import NatsConfig, Secret


def connect_options(config: NatsConfig) -> dict[str, Any]:
    """Keyword arguments for `nats.aio.client.Client.connect`."""
    options: dict[str, Any] = {
        "servers": list(config.urls),
        "name": "liftlog",
        "connect_timeout": max(1, round(config.connect_timeout_ms / 1000)),
    }
    if config.user:
        options |= {"user": config.user, "password": _plain(config.password)}
    if config.token:
        options["token"] = _plain(config.token)
    if config.creds:
        options["user_credentials"] = config.creds
    if config.nkey_seed:
        options["nkeys_seed_str"] = _plain(config.nkey_seed)
    if config.tls_ca or config.tls_cert:
        context = ssl.create_default_context(cafile=config.tls_ca or None)
        if config.tls_cert:
            context.load_cert_chain(config.tls_cert, config.tls_key or None)
        options["tls"] = context
    return options


def _plain(secret: Secret | None) -> str | None:
    return secret.value if secret is not None else None
