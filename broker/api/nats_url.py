"""Addresses of NATS servers: what is one, and how it is shown.

A URL may hold a password. People write those as they are, not as URLs want them: `p@ss`, `p/ss`, `p#ss`, with a comma.
So a parser cannot say where the password ends, and nothing is cut out of such a text.

S1  Shown are scheme, host and port, taken from behind the last `@`, if they look like that. Anything else is `***`.
S2  A URL of which a parser and a person could think differently is no address.
S3  A list is split at commas. A part that may be the beginning of a password is not shown.

Every place that shows an address of a NATS server does it by this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import SplitResult, urlsplit

SCHEMES: Final = ("nats", "tls", "ws", "wss")
HIDDEN: Final = "***"
WANTED: Final = (
    "must be like nats://host:4222 (or tls://, ws://, wss://); in a password write @ as %40, / as %2F, : as %3A,"
    " , as %2C, # as %23, ? as %3F"
)
_PLACE: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?(?=/?$)")
_CREDENTIALS: Final = re.compile(r"(?<=://)\S+@")


def split_url(url: str) -> SplitResult:
    """The parts of a URL.

    Raises:
        ValueError: it is no address of a NATS server (S2). The text shows nothing of it.
    """
    try:
        parts = urlsplit(url)
        is_sound = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ValueError(WANTED) from None
    behind = url.partition("://")[2].removeprefix(parts.netloc)
    if not is_sound or "@" in behind or re.search(r"[\s,]", parts.netloc):
        raise ValueError(WANTED)
    return parts


def bare(parts: SplitResult) -> str:
    """The URL without credentials, to connect to."""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def shown_url(url: str) -> str:
    """S1."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    place = _PLACE.match(rest.rpartition("@")[2])
    return (f"{scheme}://" if scheme in SCHEMES else "") + (place.group() if place else HIDDEN)


def shown_urls(urls: Iterable[str]) -> list[str]:
    """The parts of a list as they may be shown (S3)."""
    parts = list(urls)
    if not any("@" in part for part in parts):
        return [part[:200] for part in parts]
    last = max(number for number, part in enumerate(parts) if "@" in part)
    is_whole = all("@" not in part or "://" in part for part in parts)
    return [
        shown_url(part) if "@" in part or is_whole or number > last else HIDDEN for number, part in enumerate(parts)
    ]


def without_credentials(text: str) -> str:
    """A text of any kind, without what stands in its URLs before an `@`."""
    return _CREDENTIALS.sub("", text) if "@" in text else text
