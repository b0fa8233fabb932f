"""`liftlog secret`: the file by which the brokers of a cluster know each other, and master keys."""

from __future__ import annotations

import base64
import secrets
from typing import Annotated

from broker.cli.arguments import Argument
from broker.cli.output import note
from broker.cli.private_files import write_new

SECRET_BYTES = 32


def new(file: Annotated[str, Argument(metavar="FILE", help="Where to write it; it must not exist.")]) -> None:
    """Write a new secret to a file that only its owner can read.

    Copy the file to every broker of the cluster, and name it there: raft.secret_file = FILE.
    """
    write_secret(file)
    note(f"{file}: copy it to every broker of the cluster, and set raft.secret_file there")


def write_secret(path: str) -> None:
    """A file with a new secret. Raises InvalidRequest: it exists, or cannot be written."""
    write_new(path, secrets.token_hex(SECRET_BYTES), is_there="it may be the secret of a cluster, so name another file")


def master_key(file: Annotated[str, Argument(metavar="FILE", help="Where to write it; it must not exist.")]) -> None:
    """Write a new master key to a file that only its owner can read.

    Name the file at a broker: encryption.key_file = FILE. Keep a copy in another place: without it nobody reads what
    the broker has encrypted.
    """
    write_master_key(file)
    note(f"{file}: set encryption.key_file there, and keep a copy in another place than the data folder")


def write_master_key(path: str) -> None:
    """A file with a new master key. Raises InvalidRequest: it exists, or cannot be written."""
    key = base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
    write_new(path, key, is_there="it may be the master key of records, so name another file")
