"""`liftlog secret`: the file by which the brokers of a cluster know each other."""

from __future__ import annotations

import os
import secrets
import tempfile
from typing import Annotated

from broker.api.errors import InvalidRequest
from broker.cli.arguments import Argument
from broker.cli.output import note
from broker.storage.disk import OsDisk

SECRET_BYTES = 32


def new(file: Annotated[str, Argument(metavar="FILE", help="Where to write it; it must not exist.")]) -> None:
    """Write a new secret to a file that only its owner can read.

    Copy the file to every broker of the cluster, and name it there: raft.secret_file = FILE.
    """
    write_new(file)
    note(f"{file}: copy it to every broker of the cluster, and set raft.secret_file there")


def write_new(path: str) -> None:
    """A file with a new secret, durable; whole or not at all, whenever this is killed.

    Raises:
        InvalidRequest: it exists, or cannot be written.
    """
    folder = os.path.dirname(path) or "."
    try:
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".secret-") as handle:  # mode 0600
            handle.write(secrets.token_hex(SECRET_BYTES) + "\n")
            handle.flush()
            os.fsync(handle.fileno())
            os.link(handle.name, path)
        OsDisk().sync_dir(folder)
    except FileExistsError:
        raise InvalidRequest(f"{path} exists, and may be the secret of a cluster: name another file") from None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from error
