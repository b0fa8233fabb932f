"""The `[nats]` settings as nats-py's connect options. Kept apart: it handles the secrets.

Files that the settings name are looked at here, before nats-py sees them. It would find a fault only when a server asks
for the file, and not well: without the file's name, by an error that ends the connecting for good, or, for a creds file
without credentials, by reading its end for ever.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import nkeys

from broker.api.errors import InvalidSetting
from broker.config.settings import NatsConfig, Secret

CREDS_MARKS = (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")


def connect_options(config: NatsConfig) -> dict[str, Any]:
    """Keyword arguments for `nats.aio.client.Client.connect`.

    Raises:
        OSError: what a setting names cannot be used now; the text names the setting.
    """
    try:
        return checked_options(config)
    except InvalidSetting as error:
        raise OSError(error.message) from error


def checked_options(config: NatsConfig) -> dict[str, Any]:
    """As `connect_options`.

    Raises:
        InvalidSetting: a file cannot be read or holds something else, or a seed is none.
    """
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
        _check_creds(config.creds)
        options["user_credentials"] = config.creds
    if config.nkey_seed:
        _check_seed("nats.nkey_seed", config.nkey_seed.value.encode())
        options["nkeys_seed_str"] = _plain(config.nkey_seed)
    if config.tls_ca or config.tls_cert or config.tls_first:
        options["tls"] = _tls(config)
        options["tls_handshake_first"] = config.tls_first
    return options


def _tls(config: NatsConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.tls_ca or None)
    except OSError as error:
        raise _unusable("nats.tls_ca", config.tls_ca, error) from error
    if config.tls_cert:
        for key, path in (("nats.tls_cert", config.tls_cert), ("nats.tls_key", config.tls_key)):
            _read(key, path or "")
        try:
            context.load_cert_chain(config.tls_cert, config.tls_key or None)
        except OSError as error:
            raise _unusable("nats.tls_cert", config.tls_cert, error) from error
    return context


def _check_creds(path: str) -> None:
    content = _read("nats.creds", path)
    for mark in CREDS_MARKS:
        if mark not in content:
            raise _unusable("nats.creds", path, f"not a .creds file: no line {mark.decode()!r}")


def _check_seed(key: str, seed: bytes) -> None:
    try:
        nkeys.from_seed(bytearray(seed)).wipe()
    except (nkeys.NkeysError, ValueError) as error:
        raise InvalidSetting(f"{key}: not the seed of an nkey: {error}", key=key, value="***") from error


def _read(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unusable(key, path, error) from error


def _unusable(key: str, path: str | None, why: OSError | str) -> InvalidSetting:
    if isinstance(why, OSError):
        why = why.strerror or str(why)
    return InvalidSetting(f"{key} = {path!r}: {why}", key=key, value=path)


def _plain(secret: Secret | None) -> str | None:
    return secret.value if secret is not None else None
