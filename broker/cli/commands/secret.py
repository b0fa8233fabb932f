"""`liftlog secret`: the file by which the brokers of a cluster know each other."""

from __future__ import annotations

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
