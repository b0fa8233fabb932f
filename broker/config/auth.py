"""What the configuration says of who may do what, for the gate of the HTTP port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.principals import Token
from broker.api.token_files import token_in
from broker.config.jwks import Jwks, jwks_of
from broker.config.settings import AuthConfig, Config

if TYPE_CHECKING:
    from broker.serving.http.access import AuthRules


def auth_rules_of(config: AuthConfig, secret: str | None = None, jwks: Jwks | None = None) -> AuthRules:
    """The rules.

    Args:
        secret: Of the cluster; None: this broker is alone.
        jwks: Of who issues JWTs; None: none is believed.
    Raises:
        InvalidSetting: as `admin_token_of`.
    """
    from broker.serving.http.access import AuthRules, peer_key  # commands that check the file need no server

    token = admin_token_of(config)
    return AuthRules(
        mode=config.mode,
        admins=frozenset(config.admins),
        admin_token=None if token is None else (token.id, token.sha256),
        peer_key=None if secret is None else peer_key(secret.encode()),
        jwt=None if jwks is None else jwks.rules,
    )


def check_auth_files(config: Config) -> None:
    """Whether a broker could start with them. Raises InvalidSetting."""
    admin_token_of(config.auth)
    jwks_of(config.jwt)


def admin_token_of(config: AuthConfig) -> Token | None:
    """The admin's token; None: there is none. Raises InvalidSetting: its file cannot be used."""
    return None if config.admin_token_file is None else token_in("auth.admin_token_file", config.admin_token_file)
