"""Checks of `liftlog doctor` on others: the port, a running broker, NATS servers, and their clocks.

A broker tells its time in the HTTP `Date`, to the second; NATS does not tell any. A NATS server greets everyone
with its limits before anybody logs in, so no credentials are needed to learn them.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any, Final

from broker import __version__
from broker.api.errors import InvalidRequest
from broker.api.nats_url import split_url
from broker.api.plain import parse_json
from broker.cli.doctor.checks import OK, SKIPPED, WARNING, WRONG, Check
from broker.cli.local.nats_server import greeting
from broker.cli.local.readiness import HTTPS, get
from broker.cli.output import bytes_text
from broker.client.http.tls import TlsFiles, why_refused
from broker.config.settings import HttpConfig

SKEW_MAX_S: Final = 2.0
_ADVICE: Final = {
    "auth": "docs/guides/security.md says how all brokers get to enforce, and stay there",
    "nats": "docs/guides/operations.md, Rights on the NATS server, says which ones it needs",
    "keys": "docs/guides/security.md, Keys that are lost, says what to do",
}
"""By the key of a broker's warning."""
_AT_ANOTHER_TIME: Final = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and _HAS_EXPIRED of OpenSSL: the certificate is good at another time."""


def files_of(given: TlsFiles, config: HttpConfig) -> TlsFiles:
    """What a broker asks others with, where nothing else is given for clients."""
    cert, key = (config.tls_cert, config.tls_key) if given.cert is None else (given.cert, given.key)
    return replace(given, ca=given.ca or config.tls_ca, cert=cert, key=key)


def check_broker(address: str, *, in_use: bool, source: str = "", tls: TlsFiles | None = None) -> Iterator[Check]:
    """The HTTP port: free, or ours, ready and with our time.

    Args:
        address: host:port, or https://host:port.
        tls: As `readiness.get` takes it.
        in_use: Some process has the data folder open, so a broker should answer.
        source: The variable that sends all other commands there: somebody must answer. Empty: it is the broker's own.
    """
    from_it = f" ({source})" if source else ""
    begun = time.time()
    try:
        answer, body = get(address, "/readyz", tls=tls)
    except (OSError, http.client.HTTPException, InvalidRequest) as error:
        if isinstance(error, ConnectionRefusedError) and not source:
            yield from _silent(address, in_use=in_use)
            return
        advice = "another program may use the port: look with ss -ltnp, or set http.port"
        advice = (
            f"start that broker, or set {source}: every command but `up` and `down` goes there" if source else advice
        )
        if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _AT_ANOTHER_TIME:
            advice = "renew it (files that change are taken without a restart), or set the clock that is wrong"
        elif isinstance(error, ssl.SSLError | InvalidRequest):
            advice = "name the CA of its certificate with LIFTLOG_TLS_CA, and its address as https:// if it has one"
        found = f"{address}{from_it}: {_text(error)}"
        yield Check("broker", WRONG, found, advice)
        return
    ended = time.time()
    values = _json(body)
    if isinstance(values, dict) and values.get("reason") in ("unauthenticated", "unauthorized"):
        found = f"{address}{from_it} does not tell this caller whether it is ready: {values['reason']}"
        yield Check("broker", WARNING, found, "name a token: LIFTLOG_TOKEN_FILE, or --token-file before the command")
        return
    if answer.status not in (200, 503) or not isinstance(values, dict) or "ready" not in values:
        advice = f"set {source or 'http.port'}, or stop that program (ss -ltnp names it)"
        found = f"{address}{from_it} answers, but not as a broker"
        yield Check("broker", WRONG, found, advice)
        return
    if values["ready"]:
        yield Check("broker", OK, f"{address}{from_it} is ready")
        warnings = values.get("warnings")
        for key, value in warnings.items() if isinstance(warnings, dict) else ():
            advice = _ADVICE.get(str(key), "docs/guides/operations.md says what to do about each")
            yield Check(str(key), WARNING, f"{address}{from_it}: {value}", advice)
    else:
        told = values.get("missing")
        reasons = told.items() if isinstance(told, dict) else ()
        missing = ", ".join(f"{key}: {value}" for key, value in reasons)
        advice = "docs/guides/operations.md says what to do about each"
        yield Check("broker", WRONG, f"{address}{from_it} is not ready: {missing or 'no reason'}", advice)
    yield from _version(address, tls)
    yield from _clock(answer.getheader("Date"), begun, ended)


def check_nats(
    urls: Sequence[str], *, record_bytes_max: int, source: str = "", is_unused: bool = False
) -> Iterator[Check]:
    """Each NATS server: reachable, speaks NATS, has headers, takes records as large as a stream does.

    Args:
        record_bytes_max: The limit of new streams, as configured.
        source: The variable that sends `liftlog publish` there. Empty: the broker captures from there.
        is_unused: It is the default of a broker that was not configured, and another server is named: nobody may want
            one here.
    """
    key = source or "nats.urls"
    for url in urls:
        try:
            parts = split_url(url if "//" in url else f"nats://{url}")
            host, port = parts.hostname or "", parts.port or 4222
        except ValueError as error:
            yield Check("nats", WRONG, f"{key} is no address of a NATS server", f"{key} {error}")
            continue
        shown = f"{host}:{port}" + (f" ({source})" if source else "")
        if parts.scheme in ("ws", "wss"):
            yield Check("nats", SKIPPED, f"{shown} speaks WebSocket: not checked")
            continue
        try:
            info = greeting(host, port)
        except (OSError, UnicodeError) as error:
            if is_unused:
                found = f"{shown}, the default of nats.urls: {_text(error)}"
                advice = "if a broker is to run here, set nats.urls (LIFTLOG_NATS_URLS) to the server that you use"
                yield Check("nats", WARNING, found, advice)
                continue
            advice = "start the server (`liftlog up` brings one), or set nats.urls: until then nothing is captured"
            advice = f"start the server, or set {source}: `liftlog publish` goes there" if source else advice
            yield Check("nats", WRONG, f"{shown}: {_text(error)}", advice)
            continue
        if info is None:
            advice = f"set {key} to the clients' port of a NATS server"
            yield Check("nats", WRONG, f"{shown} answers, but not as a NATS server", advice)
            continue
        if parts.scheme == "tls" and not (info.get("tls_required") or info.get("tls_available")):
            found = f"{shown} does not offer TLS although the URL says tls://: nobody logs in there"
            advice = f"switch TLS on there (or nats.tls_first here, if it has handshake_first), or correct {key}"
            yield Check("nats", WRONG, found, advice)
        yield _nats(shown, info, record_bytes_max)


def _text(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and (refused := why_refused(error, is_connecting=True)):
        return refused
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _nats(shown: str, info: dict[str, Any], record_bytes_max: int) -> Check:
    payload_max = info.get("max_payload")
    if not isinstance(payload_max, int):
        advice = "look at what listens there: a NATS server tells its max_payload as a whole number"
        return Check("nats", WRONG, f"{shown} says max_payload {payload_max!r:.100}", advice)
    values = {"version": info.get("version"), "max_payload": payload_max}
    found = f"{shown}: version {info.get('version')}, max_payload {bytes_text(payload_max)}"
    if not info.get("headers"):
        advice = "use nats-server 2.2 or later, with headers on: keys and acks need them"
        return Check("nats", WRONG, f"{found}, no headers", advice, values)
    if payload_max < record_bytes_max:
        advice = (
            f"records of up to record_bytes_max ({bytes_text(record_bytes_max)}) cannot be published over NATS:"
            " raise max_payload there, or live with it"
        )
        return Check("nats", WARNING, found, advice, values)
    return Check("nats", OK, found, values=values)


def _silent(address: str, *, in_use: bool) -> Iterator[Check]:
    address = address.removeprefix(HTTPS)
    host, port = address.rpartition(":")[0].strip("[]"), int(address.rpartition(":")[2])
    if in_use:
        found = f"{host}:{port}: nobody listens, although a process has the data folder open"
        advice = "it is starting, or listens elsewhere: look at its log, or name its address with --brokers"
        yield Check("broker", WARNING, found, advice)
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            advice = "set http.host to an address of this machine and http.port to a free port that this user may open"
            yield Check("port", WRONG, f"{host}:{port}: {error.strerror}", advice)
            return
    yield Check("port", OK, f"{host}:{port} is free")


def _version(address: str, tls: TlsFiles | None) -> Iterator[Check]:
    try:
        values = _json(get(address, "/v1/cluster", tls=tls)[1])
    except (OSError, http.client.HTTPException, InvalidRequest):
        return
    version = values.get("version") if isinstance(values, dict) else None
    if version == __version__:
        yield Check("version", OK, f"broker and this command are {version}")
    elif version is not None:
        found = f"the broker is {version}, this command {__version__}"
        yield Check("version", WARNING, found, "restart the broker with the installed release")


def _clock(date: str | None, begun_s: float, ended_s: float) -> Iterator[Check]:
    """The broker said its time at some moment between the two: a slow answer is not a wrong clock."""
    try:
        told = parsedate_to_datetime(date or "").timestamp() + 0.5  # it is cut to the second
    except ValueError:
        return
    skew_s = told - min(max(told, begun_s), ended_s)
    if abs(skew_s) > SKEW_MAX_S:
        advice = "set both clocks by NTP: timestamps, retention and times in commands go by the broker's"
        found = f"the broker's is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} ours"
        yield Check("clock", WRONG, found, advice, {"skew_s": round(skew_s, 1)})
    else:
        found = "the broker's agrees with ours (NATS does not tell its time)"
        yield Check("clock", OK, found, values={"skew_s": round(skew_s, 1)})


def _json(data: bytes) -> Any:
    try:
        return parse_json(data)
    except ValueError:
        return None
