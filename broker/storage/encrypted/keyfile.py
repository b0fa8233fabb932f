"""The file `keys` of a log: its keys, wrapped. JSON with a CRC, as `checkpoint`.

    {"format_version":1,"keys":[{"number":1,"master":"89ab...","wrapped":"base64"}]} 0a1b2c3d

Without it nothing of the log can be read. So it is there twice, as `keys` and `keys.copy`, one written after the other.

Q1  It is on disk before the first record is. A log with records and without it is not opened.
Q2  Where one of both is damaged, missing or cannot be read, the other counts, and is written over it.
Q3  No whole file is written over by another key. Where both are whole and of different keys, somebody has put one back
    from elsewhere: nothing is opened until one of them is gone. One that this process cannot unwrap stays as it is.
Q4  Whatever is wrong with both files is WrongKeys, also where they cannot be read: they may be brought back. So nobody
    takes the log for lost because of them.
Q5  Nothing is written before it is known that the keys are this log's (`proof.py`).
Q6  What goes of them while the log is open is written anew with its checkpoint. Its memory is the last place that has
    the key, if both are gone.
Q7  One thread at a time reads and writes those of a folder. Two would write one temporary file at once, and rename what
    the other one has half written. And whoever had read the files of a log that was moved away could write them over
    those of the one that was made in its place, whose records nothing would open again.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from broker.api.errors import KeyMissing, WrongKeys
from broker.api.validation import build
from broker.storage.disk import NO_DESCRIPTORS, Disk
from broker.storage.encrypted.message import KEY_BYTES
from broker.storage.segments.checkpoint import LogIdentity, is_marked_encrypted, names_a_key, open_json, seal_json

if TYPE_CHECKING:
    from broker.storage.encrypted.keys import Keyring

KEYS_FILE: Final = "keys"
KEYS_COPY: Final = "keys.copy"
_LOCKS: Final = tuple(threading.Lock() for _ in range(64))
"""Q7: a folder has one of them. Innermost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedKey:
    """A log's key as it is stored."""

    number: int
    master: str
    wrapped: str


def has_files(disk: Disk, folder: str) -> bool:
    """Whether one of both is there."""
    return any(disk.exists(f"{folder}/{name}") for name in (KEYS_FILE, KEYS_COPY))


def has_keys(disk: Disk, folder: str) -> bool:
    """Whether the records of a log are encrypted, by its folder. One that has lost its keys says so all the same, and
    so does its checkpoint alone. OSError passes through."""
    return has_files(disk, folder) or is_marked_encrypted(disk, folder) or names_a_key(disk, folder)


def load_keys(
    disk: Disk,
    folder: str,
    identity: LogIdentity,
    keyring: Keyring,
    *,
    is_empty: bool,
    prove: Callable[[dict[int, bytes]], None] = lambda keys: None,
) -> dict[int, bytes]:
    """The keys of a log by their numbers; the greatest encrypts. One is made for a log that has no record yet.

    Args:
        is_empty: It has none, and never had.
        prove: Raises WrongKeys where these are not the keys of this log (Q5).
    Raises:
        KeyMissing: this process lacks the master key.
        WrongKeys: both files are damaged, missing beside records, or cannot be read (Q4); or they are another log's; or
            both are whole, and of different keys.
        OSError: the disk refuses.
    """
    with _lock_of(folder):
        return _load(disk, folder, identity, keyring, is_empty, prove)


def _lock_of(folder: str) -> threading.Lock:
    return _LOCKS[zlib.crc32(folder.encode()) % len(_LOCKS)]


def _load(
    disk: Disk,
    folder: str,
    identity: LogIdentity,
    keyring: Keyring,
    is_empty: bool,
    prove: Callable[[dict[int, bytes]], None],
) -> dict[int, bytes]:
    path = f"{folder}/{KEYS_FILE}"
    whole: dict[str, tuple[WrappedKey, ...]] = {}
    opened: dict[str, dict[int, bytes]] = {}
    trouble: list[KeyMissing] = []
    for name in (KEYS_FILE, KEYS_COPY):
        where = f"{folder}/{name}"
        try:
            if (found := _read(disk, where)) is not None:
                whole[name] = found
                opened[name] = _unwrapped(found, identity, keyring, where)
        except KeyMissing as error:
            trouble.append(error)
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                raise
            trouble.append(WrongKeys(f"{where} cannot be read: {error.strerror or error}", path=where))
    if not opened:
        if trouble:
            raise next((each for each in trouble if not isinstance(each, WrongKeys)), trouble[0])
        if has_files(disk, folder):
            raise WrongKeys(f"{path} is damaged, and so is its copy: nothing of this log can be read", path=path)
        if not is_empty:
            raise WrongKeys(f"{path} is missing, and so is its copy: nothing of this log can be read", path=path)
        made = {1: keyring.random(KEY_BYTES)}
        _write(disk, folder, _wrapped(made, identity, keyring))
        return made
    keys, *others = opened.values()
    if any(each != keys for each in others):
        raise WrongKeys(
            f"{path} and {KEYS_COPY} beside it are of different keys, and nothing says which is this log's: take the"
            " one away that was put there",
            path=path,
        )
    prove(keys)
    if opened.keys() == whole.keys():  # Q3
        used = next(iter(whole.values()))
        with suppress(OSError):  # a full disk: at the next open
            if any(each.master != keyring.current for found in whole.values() for each in found):
                _write(disk, folder, _wrapped(keys, identity, keyring))
            elif len(whole) < 2 or any(found != used for found in whole.values()):
                _write(disk, folder, used)
    return keys


def keep_keys(disk: Disk, folder: str, keys: dict[int, bytes], identity: LogIdentity, keyring: Keyring) -> None:
    """Write what is missing, damaged or not readable of the files of a log that is open (Q6), and nothing else (Q3).

    Raises:
        OSError, LiftlogError: the disk refuses; or they are whole, and of a later release.
    """
    with _lock_of(folder):
        _keep(disk, folder, keys, identity, keyring)


def _keep(disk: Disk, folder: str, keys: dict[int, bytes], identity: LogIdentity, keyring: Keyring) -> None:
    found = {path: _readable(disk, path) for path in (f"{folder}/{KEYS_FILE}", f"{folder}/{KEYS_COPY}")}
    whole = [each for each in found.values() if each is not None]
    if len(whole) == len(found):
        return
    if any(_unwrapped(each, identity, keyring, folder) != keys for each in whole):
        return  # somebody has put it there: the next open tells
    data = _sealed(whole[0] if whole else _wrapped(keys, identity, keyring))
    for path, each in found.items():
        if each is None:
            disk.replace_file(path, data)


def masters_of(disk: Disk, folder: str) -> set[str]:
    """The ids of the master keys that the files of a log name. OSError passes through."""
    files = [_read(disk, f"{folder}/{name}") or () for name in (KEYS_FILE, KEYS_COPY)]
    return {each.master for found in files for each in found}


def _wrapped(keys: dict[int, bytes], identity: LogIdentity, keyring: Keyring) -> tuple[WrappedKey, ...]:
    found = []
    for number, key in sorted(keys.items()):
        master, wrapped = keyring.wrap(key, number, identity)
        found.append(WrappedKey(number=number, master=master, wrapped=wrapped))
    return tuple(found)


def _unwrapped(keys: tuple[WrappedKey, ...], identity: LogIdentity, keyring: Keyring, where: str) -> dict[int, bytes]:
    return {key.number: keyring.unwrap(key.master, key.wrapped, key.number, identity, where=where) for key in keys}


def _sealed(keys: tuple[WrappedKey, ...]) -> bytes:
    return seal_json({"keys": [asdict(key) for key in keys]})


def _write(disk: Disk, folder: str, keys: tuple[WrappedKey, ...]) -> None:
    data = _sealed(keys)
    for name in (KEYS_FILE, KEYS_COPY):
        disk.replace_file(f"{folder}/{name}", data)


def _readable(disk: Disk, path: str) -> tuple[WrappedKey, ...] | None:
    """As `_read`; None also where the disk does not read it."""
    try:
        return _read(disk, path)
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise
        return None


def _read(disk: Disk, path: str) -> tuple[WrappedKey, ...] | None:
    """None: it is missing, or damaged."""
    try:
        values = open_json(disk.read_file(path), where=path)
    except FileNotFoundError:
        return None
    if values is None or not isinstance(keys := values.get("keys"), list):
        return None
    try:
        found = tuple(build(WrappedKey, key) for key in keys)
    except ValueError:
        return None
    numbers = [key.number for key in found]
    is_whole = bool(numbers) and len(set(numbers)) == len(numbers) and all(0 < each < 1 << 32 for each in numbers)
    return found if is_whole else None
