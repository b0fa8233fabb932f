"""The environment of a client: where brokers and the NATS server are, files of TLS, a profile, if nobody says it.

The Python client, the command line and Spark read the same variables. They do so when they are asked, not when they are
imported.
"""

from __future__ import annotations

import os
from typing import Final

BROKERS_VARIABLE: Final = "LIFTLOG_BROKERS"
NATS_VARIABLE: Final = "LIFTLOG_NATS_URL"
TOKEN_VARIABLE: Final = "LIFTLOG_TOKEN_FILE"
PROFILE_VARIABLE: Final = "LIFTLOG_PROFILE"
TLS_VARIABLES: Final = ("LIFTLOG_TLS_CA", "LIFTLOG_TLS_CERT", "LIFTLOG_TLS_KEY")


def brokers() -> str | None:
    """HTTP addresses of brokers, separated by commas."""
    return os.environ.get(BROKERS_VARIABLE) or None


def nats_url(default: str = "nats://127.0.0.1:4222") -> str:
    """NATS servers, separated by commas."""
    return os.environ.get(NATS_VARIABLE) or default


def tls_ca() -> str | None:
    """File of the CAs that brokers' certificates have to come from; None: those of the system."""
    return os.environ.get("LIFTLOG_TLS_CA") or None


def tls_cert() -> str | None:
    """File of the certificate that brokers are shown."""
    return os.environ.get("LIFTLOG_TLS_CERT") or None


def tls_key() -> str | None:
    """File of its key."""
    return os.environ.get("LIFTLOG_TLS_KEY") or None


def token_file() -> str | None:
    """File of the token that brokers are shown."""
    return os.environ.get(TOKEN_VARIABLE) or None


def profile() -> str | None:
    """Name of the profile that is used (`client.http.profiles`)."""
    return os.environ.get(PROFILE_VARIABLE) or None


def config_home() -> str:
    """Folder of the user's configuration files, as the XDG Base Directory Specification has it."""
    named = os.environ.get("XDG_CONFIG_HOME", "")
    return named if os.path.isabs(named) else os.path.expanduser("~/.config")
