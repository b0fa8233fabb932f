"""Files with a bearer token: a client's, and the one of a broker's admin.

F1  A file that every user of the machine can read is refused, and so is one that is no regular file, as with keys of
    TLS (`tls_files`).
F2  No error has what is in the file.
"""

from __future__ import annotations

from broker.api.principals import Token, is_jwt, token_of
from broker.api.tls_files import check_private, read, unusable


def bearer_in(key: str, path: str) -> str:
    """What the bearer shows whose file this is: a token, or a JWT. Raises as `token_in`."""
    text = _private(key, path)
    if token_of(text) is None and not is_jwt(text):
        raise unusable(
            key, path, "holds no token, which is a line as `liftlog auth token create` writes it: llg_..., nor a JWT"
        )
    return text


def token_in(key: str, path: str) -> Token:
    """The token of a file. `key`: the name of the setting.

    Raises:
        InvalidSetting: the file cannot be read, is open to others, or holds no token.
    """
    token = token_of(_private(key, path))
    if token is None:
        raise unusable(key, path, "holds no token, which is a line as `liftlog auth token create` writes it: llg_...")
    return token


def _private(key: str, path: str) -> str:
    content = read(key, path)
    check_private(key, path)
    return content.decode("ascii", "replace").strip()
