"""Addresses of brokers: text to `Address`. Pure.

Accepted for one broker, all meaning the HTTP port:

    host            the default port, 9293
    host:port       [::1]:9293 for IPv6; ::1 alone is an IPv6 host
    http://host:port
    https://host:port    the same port, over TLS

Several are separated by commas, or given as a list: all with https, or none. An error names the text that is wrong,
except where it may hold a password.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from broker.api.errors import InvalidRequest
from broker.api.http import DEFAULT_PORT, host_port

Addresses = str | Iterable[str]


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A broker's HTTP endpoint.

    Attributes:
        host: Name or IP address, IPv6 without brackets.
        port: 1 to 65535.
        is_tls: It is spoken to over TLS alone.
    """

    host: str
    port: int = DEFAULT_PORT
    is_tls: bool = False

    @property
    def host_port(self) -> str:
        """Without the scheme."""
        return host_port(self.host, self.port)

    def __str__(self) -> str:
        return f"https://{self.host_port}" if self.is_tls else self.host_port


def parse_addresses(addresses: Addresses) -> tuple[Address, ...]:
    """Read one or several broker addresses; repeated ones count once.

    Args:
        addresses: `"host:port"`, `"host1:port,host2:port"`, or several such texts.
    Returns:
        At least one address, in the order given.
    Raises:
        InvalidRequest: none is given, one is malformed, or some are `https://` and others not.
    """
    try:
        texts = [addresses] if isinstance(addresses, str) else list(addresses)
    except TypeError:
        texts = [addresses]  # type: ignore[list-item]
    for text in texts:
        if not isinstance(text, str):
            raise InvalidRequest(f"broker address {text!r}: must be text such as host:port, not {type(text).__name__}")
    found = [parse_address(part) for text in texts for part in text.split(",") if part.strip()]
    if not found:
        raise InvalidRequest("no broker address given; expected host:port, or several separated by commas")
    if len({address.is_tls for address in found}) > 1:
        raise InvalidRequest(
            f"broker addresses {', '.join(map(str, found))}: some are https and others not; give all as https://host:port"
        )
    return tuple(dict.fromkeys(found))


def parse_address(text: str) -> Address:
    """Read the address of one broker. Raises as `parse_addresses`."""
    text = text.strip()
    if "@" in text:
        raise InvalidRequest("a broker address must not hold a user name or a password")
    scheme, separator, rest = text.partition("://")
    if not separator:
        rest = text
    elif scheme.lower() not in ("http", "https"):
        raise _malformed(text, f"scheme {scheme!r} is neither http nor https")
    if rest.count(":") > 1 and not rest.startswith("["):
        rest = f"[{rest.rstrip('/')}]"  # a bare IPv6 host
    try:
        parts: SplitResult = urlsplit(f"//{rest}")
        port = parts.port
    except ValueError as error:
        raise _malformed(text, str(error)) from error
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise _malformed(text, "only a host and a port may be given")
    host = parts.hostname or ""
    if not host or any(c.isspace() for c in host):
        raise _malformed(text, "it has no host")
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise _malformed(text, "the host is no name and no IP address") from error
    if port == 0 or rest.endswith(":"):
        raise _malformed(text, "the port must be from 1 to 65535")
    return Address(host, DEFAULT_PORT if port is None else port, scheme.lower() == "https" and bool(separator))


def _malformed(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"broker address {text!r}: {why}; expected host:port, http://host:port or https://host:port", address=text
    )
