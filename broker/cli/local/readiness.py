"""Waiting until what was started answers, and saying why when it does not."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from broker.api.errors import BY_REASON, DeadlineExceeded, InvalidRequest, LiftlogError, Unavailable
from broker.api.nats_url import split_url
from broker.api.plain import parse_json
from broker.cli.local.processes import Process
from broker.cli.output import note
from broker.client.http.address import parse_address
from broker.client.http.tls import TlsFiles, client_context, files_of_environment
from broker.client.http.token import TokenFile

HTTPS: Final = "https://"
PROBE_INTERVAL_S: Final = 0.05
PROBE_TIMEOUT_S: Final = 2.0
LOG_LINES_SHOWN: Final = 20
LOG_BYTES_READ: Final = 16 << 10
BODY_BYTES_READ: Final = 64 << 10

Probe = Callable[[], str | None]
"""None: it answers; else what is missing."""


def wait(what: str, probe: Probe, processes: Sequence[Process], timeout_s: float) -> None:
    """Wait until the probe finds nothing missing, while all processes live.

    Raises:
        LiftlogError: a process ended; of the type that its log names, where it does.
        DeadlineExceeded: the time is up; the text says what was missing last.
    """
    deadline = time.monotonic() + timeout_s
    with _progress(f"{what} starts"):
        while True:
            missing = probe()
            for process in processes:  # looked at after the probe: another's answer must not count for a dead one
                if process.has_ended():
                    raise _ended(process)
            if missing is None:
                return
            if time.monotonic() > deadline:
                if processes:
                    _show_log(processes[-1])
                raise DeadlineExceeded(f"{what} is not ready after {timeout_s:g} s: {missing}", timeout_s=timeout_s)
            time.sleep(PROBE_INTERVAL_S)


def get(
    address: str, path: str, *, bytes_max: int = BODY_BYTES_READ, tls: TlsFiles | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    """One GET: the answer and so many bytes of its body.

    Args:
        address: host:port, or https://host:port.
        tls: Files for that, and of the token; None: those of the environment, for clients, else for brokers.
    Raises:
        OSError, HTTPException: there is no answer. InvalidRequest: a file of TLS cannot be used.
    """
    host_port, timeout_s = address.removeprefix(HTTPS), PROBE_TIMEOUT_S
    files = tls or _files()
    shown = (
        {}
        if files.token is None
        else TokenFile(files.token, over_tls=files.token_over_tls).header_for(parse_address(address))
    )
    connection = http.client.HTTPConnection(host_port, timeout=timeout_s)
    if host_port != address:
        context = client_context(files)
        connection = http.client.HTTPSConnection(host_port, timeout=timeout_s, context=context)
    try:
        connection.request("GET", path, headers=shown)
        answer = connection.getresponse()
        return answer, answer.read(bytes_max)
    finally:
        connection.close()


def _files() -> TlsFiles:
    env, own = (
        files_of_environment(),
        {name: os.environ.get(f"LIFTLOG_HTTP_TLS_{name.upper()}") for name in ("ca", "cert", "key")},
    )
    if env.token is None:
        env = replace(env, token=os.environ.get("LIFTLOG_AUTH_ADMIN_TOKEN_FILE") or None)
    if env.cert is None:
        env = replace(env, cert=own["cert"] or None, key=own["key"] or None)
    return env if env.ca is not None else replace(env, ca=own["ca"] or None)


def broker_missing(address: str) -> str | None:
    """Ask a broker, as `get` has its address, what is missing until it is ready; a `Probe` with an address.

    One whose disk is full is up: it has to run for somebody to make room.
    """
    try:
        answer, body = get(address, "/readyz")
    except (OSError, http.client.HTTPException, InvalidRequest) as error:
        return f"{address}: {error}"
    if answer.status == 200 or _lacks(body) == {"disk"}:
        return None
    text = body.decode(errors="replace")
    with contextlib.suppress(ValueError):
        text = json.dumps(parse_json(text))
    return f"{address} answers {answer.status}: {text}"


def _lacks(body: bytes) -> set[str]:
    """What a broker says that it waits for."""
    try:
        return set(parse_json(body)["missing"])
    except (ValueError, KeyError, TypeError):
        return set()


def check_reachable(urls: str) -> None:
    """Raise Unavailable unless something listens at one of these NATS URLs (separated by commas)."""
    failures = []
    for url in urls.split(","):
        parts = split_url(url.strip())
        try:
            socket.create_connection((parts.hostname or "", parts.port or 4222), timeout=PROBE_TIMEOUT_S).close()
            return
        except OSError as error:
            failures.append(f"{parts.hostname}:{parts.port or 4222}: {error.strerror or error}")
    raise Unavailable(f"no NATS server answers at {', '.join(failures)}")


@contextlib.contextmanager
def _progress(text: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    from broker.cli.output import console

    with console(stderr=True).status(text):
        yield


def _ended(process: Process) -> LiftlogError:
    """The error that a process ended with, if its log names one; else the log's last lines are shown."""
    lines = _log_lines(process)
    for line in reversed(lines):
        named = re.fullmatch(r"error\[([a-z_]+)\]: (.*)", line)
        if named and named[1] in BY_REASON:
            return BY_REASON[named[1]](f"{process.name}: {named[2]}", process=process.name)
    _show_log(process)
    return LiftlogError(
        f"{process.name} {process.ending()} while starting; its log: {process.log}", process=process.name
    )


def _show_log(process: Process) -> None:
    note(f"--- {process.log} ---")
    for line in _log_lines(process):
        note(line)
    note("---")


def _log_lines(process: Process) -> list[str]:
    """The last lines that the process wrote."""
    with open(process.log, "rb") as log:
        log.seek(max(process.log_position, os.path.getsize(process.log) - LOG_BYTES_READ))
        return log.read().decode(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
