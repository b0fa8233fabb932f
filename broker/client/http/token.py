"""The bearer token of a client: read from a file, shown to brokers, and to nobody else.

    TokenFile(path) ─► header_for(address) ─► Authorization, if the address is over TLS or loopback

W1  A token goes to no address without TLS, but to this machine's own: whoever can read packets could use it. One of a
    profile does not even go there, if it is for brokers with TLS (`profiles.P3`).
W2  A file that every user of the machine can read is refused (`token_files`).
W3  The file is read again when it has changed, so a token can be replaced while its client runs. One that cannot be
    read any more leaves the last one in use, which is logged. So does one that somebody has written to in the last
    `SETTLED_S`: half a JWT looks like one, and a call that shows it is refused.
W5  A call that is refused while the file has another token by now is made once more with that, if it is idempotent: a
    long poll may outlive a token that was renewed in time.
W4  No error, log line, repr or pickle has the token, nor does a traceback with all locals.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Final

from broker.api.errors import InvalidRequest, InvalidSetting
from broker.api.http import is_loopback
from broker.api.token_files import bearer_in
from broker.client.http.address import Address

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
SETTLED_S: Final = 1.0
KEY: Final = "token_file"


class _Shown(str):
    """The value of a header, which does not show itself to whoever prints variables (W4)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<a token>"


class TokenFile:
    """See the module.

    Raises:
        InvalidSetting: the file cannot be read, holds no token, or is open to others.
    """

    def __init__(self, path: str, *, over_tls: bool = False) -> None:
        self.path = path
        self._over_tls = over_tls
        self._looked_s = time.monotonic()
        self._seen = _seen(path)
        self._text = bearer_in(KEY, path)
        self._unread = ""
        """Why the file cannot be used as it is now; empty: it can."""

    def __repr__(self) -> str:
        return f"TokenFile({self.path!r})"

    def header_for(self, address: Address) -> dict[str, str]:
        """What a request to this address carries.

        Raises:
            InvalidRequest: W1.
        """
        if not address.is_tls and (self._over_tls or not is_loopback(address.host)):
            why = ", and its profile does not name that address" if is_loopback(address.host) else ""
            raise InvalidRequest(
                f"{address}: the token of {self.path!r} is not sent there without TLS{why}: give https://host:port",
                address=str(address),
                key=KEY,
            )
        self._look()
        return {"Authorization": _Shown(f"Bearer {self._text}")}

    def __str__(self) -> str:
        """As it is named where a broker has refused it."""
        unread = (
            f"; that file cannot be used now, so an earlier token was shown: {self._unread}" if self._unread else ""
        )
        return f"the token of {self.path!r}: it is unknown, has expired or was revoked{unread}"

    def is_renewed(self, shown: Mapping[str, str]) -> bool:
        """Whether the file has another token by now than these headers (W5). Waits for one that is just written."""
        if (seen := _seen(self.path)) != self._seen and (left_s := _settles_in_s(seen)) > 0:
            time.sleep(left_s)
        self._look(at_once=True)
        return shown.get("Authorization") != f"Bearer {self._text}"

    def _look(self, *, at_once: bool = False) -> None:
        """W3."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S and not at_once:
            return
        self._looked_s = now_s
        try:
            seen = _seen(self.path)
            if seen != self._seen and _settles_in_s(seen) <= 0:
                text = bearer_in(KEY, self.path)
                if _seen(self.path) == seen:
                    self._text, self._seen, self._unread = text, seen, ""
        except (OSError, InvalidSetting) as error:
            if str(error) != self._unread:
                log.warning("client.token_not_read error=%s", error)
            self._unread = str(error)


def _settles_in_s(seen: tuple[int, int, int, int]) -> float:
    """How long until nobody has written to a file for so long. Not positive: it is so; or its clock is another one."""
    age_s = time.time() - seen[0] / 1e9
    return SETTLED_S - age_s if age_s >= 0 else 0.0


def _seen(path: str) -> tuple[int, int, int, int]:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return (0, 0, 0, 0)
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size
