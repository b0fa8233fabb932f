"""Which master keys the encrypted logs of a data folder need, open or not. An operator asks before a former one goes.

    streams/<name>/<incarnation>/<number>/          a log
    streams/<name>/<incarnation>/<number>/<name>/   what is staged beside it
    streams/<name>/<incarnation>/<number>.aside/    what was moved aside

I1  A log is counted for each master key that one of its two files of keys names: it needs both as long as they differ.
I2  A log that is opened is wrapped by the present master key (`keys.V3`). `wrap_anew` does that for those that nobody
    opens. It changes no other file, and nothing where a file of keys cannot be unwrapped, or the keys are not those of
    the log (`proof.py`): then its own may still be brought back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from broker.api.errors import LiftlogError
from broker.storage.disk import Disk
from broker.storage.encrypted.keyfile import has_files, masters_of
from broker.storage.encrypted.keys import Keyring
from broker.storage.encrypted.vault import Vault
from broker.storage.segments.checkpoint import read_identity


def encrypted_folders(disk: Disk, root: str) -> Iterator[str]:
    """The folders of encrypted logs below `root`, the folder `streams`. OSError passes through."""
    for stream in _entries(disk, root):
        for incarnation in _entries(disk, f"{root}/{stream}"):
            for number in _entries(disk, f"{root}/{stream}/{incarnation}"):
                folder = f"{root}/{stream}/{incarnation}/{number}"
                for beside in ("", *(f"/{name}" for name in _entries(disk, folder) if "." not in name)):
                    if has_files(disk, folder + beside):
                        yield folder + beside


def count_masters(disk: Disk, root: str) -> Counter[str]:
    """How many logs need each master key, by its id (I1). OSError passes through."""
    found: Counter[str] = Counter()
    for folder in encrypted_folders(disk, root):
        found.update(masters_of(disk, folder))
    return found


def wrap_anew(disk: Disk, folder: str, keyring: Keyring) -> str:
    """Have a log need the present master key alone (I2). Returns why it needs another one still; else empty."""
    try:
        if masters_of(disk, folder) <= {keyring.current}:
            return ""
        Vault.open(disk, folder, read_identity(disk, folder), keyring, is_empty=False)
        left = masters_of(disk, folder) - {keyring.current}
    except (LiftlogError, OSError) as error:
        return str(error)
    return f"its files of keys could not all be written or unwrapped: {', '.join(sorted(left))}" if left else ""


def _entries(disk: Disk, path: str) -> list[str]:
    try:
        return sorted(disk.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
