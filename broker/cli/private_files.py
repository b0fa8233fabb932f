"""Files that only their owner can read, and that are never replaced: a secret, a token."""

from __future__ import annotations

import os
import tempfile

from broker.api.errors import InvalidRequest
from broker.storage.disk import OsDisk


def write_new(path: str, line: str, *, is_there: str = "name another file") -> None:
    """A file with a line, durable; whole or not at all, whenever this is killed.

    Args:
        is_there: What the error says of one that exists.
    Raises:
        InvalidRequest: it exists, or cannot be written.
    """
    folder = os.path.dirname(path) or "."
    try:
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".private-") as handle:  # mode 0600
            handle.write(line + "\n")
            handle.flush()
            os.fsync(handle.fileno())
            os.link(handle.name, path)
        OsDisk().sync_dir(folder)
    except FileExistsError:
        raise InvalidRequest(f"{path} exists: {is_there}") from None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from error
