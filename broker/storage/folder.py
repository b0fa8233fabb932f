"""The data folder of one broker: who owns it, and that only one process uses it.

    <path>/broker.json     format version, cluster id, broker id
    <path>/lock            flock'ed while a broker runs; holds its process id
    <path>/streams/<stream>/<incarnation>/<number>/     the partitions; `partition_folder` alone makes these paths

The kernel drops the lock with the process, however it ends: nothing stale is left to clear.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import uuid
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from broker.api.errors import (
    CorruptLog,
    DiskFull,
    FolderInUse,
    FolderNotAllowed,
    StorageFailed,
    UnknownFormatVersion,
    WrongFolder,
)
from broker.api.plain import parse_json
from broker.storage.disk import OsDisk, storage_error

FORMAT_VERSION: Final = 1
BROKER_FILE: Final = "broker.json"
LOCK_FILE: Final = "lock"
STREAMS_FOLDER: Final = "streams"
GROUP_FILES: Final = ("raft.json", "raft.log")
"""The folder of a broker in a cluster has them."""
BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"
_PART: Final = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")


class DataFolder:
    """An open data folder. A context manager; `close` gives the lock back.

    Attributes:
        path: Absolute.
        broker_id, cluster_id: The broker and the cluster that own it.
    """

    def __init__(self, path: str, *, broker_id: str, cluster_id: str, lock_fd: int) -> None:
        self.path = path
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self._lock_fd = lock_fd
        self._boot_id: str | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, broker_id: str, cluster_id: str | None = None) -> DataFolder:
        """Lock the folder; make it if it is missing or empty of liftlog's files.

        Args:
            path: The folder; those above it are made too.
            broker_id: The broker that must own it.
            cluster_id: The cluster that it must belong to; None: any, and a new folder founds a new one.
        Raises:
            FolderInUse: another process has it open; `pid` says which, if known.
            FolderNotAllowed: no permission, or a read-only file system.
            WrongFolder: no folder, or that of another broker or cluster, or streams without a `broker.json`, or one
                that holds brokers' folders: an empty broker beside them would look as if all records were lost.
            UnknownFormatVersion: a later release wrote it.
            CorruptLog: `broker.json` cannot be read.
            StorageFailed, DiskFull: the disk refuses.
        """
        path = os.path.abspath(path)
        if not os.path.exists(f"{path}/{BROKER_FILE}"):
            _check_not_above(path)  # before a lock file is made there
        try:
            disk = OsDisk()
            disk.makedirs(path)
            lock_fd = _lock(path)
        except PermissionError as error:
            raise _not_allowed(path, error) from error
        except (NotADirectoryError, FileExistsError) as error:
            raise WrongFolder(f"data folder {path}: {error.filename} is not a folder", path=path) from error
        except OSError as error:
            raise _other(path, error) from error
        try:
            found = _read_owner(path) or _found(disk, path, broker_id, cluster_id or uuid.uuid4().hex)
            for name, expected in (("broker_id", broker_id), ("cluster_id", cluster_id)):
                if expected is not None and found[name] != expected:
                    raise WrongFolder(
                        f"data folder {path} belongs to {name} {found[name]!r}, not {expected!r}",
                        path=path,
                        field=name,
                        found=found[name],
                        expected=expected,
                    )
            return cls(path, broker_id=broker_id, cluster_id=found["cluster_id"], lock_fd=lock_fd)
        except BaseException as error:
            os.close(lock_fd)
            if isinstance(error, PermissionError):
                raise _not_allowed(path, error) from error
            if isinstance(error, OSError):
                raise _other(path, error) from error
            raise

    def __enter__(self) -> DataFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back. May be called twice."""
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.close(fd)

    def boot_id(self) -> str:
        """The name of this run of the machine; empty where the system does not say."""
        if self._boot_id is None:  # it is asked for each partition
            try:
                with open(BOOT_ID_PATH, encoding="ascii") as file:
                    self._boot_id = file.read().strip()
            except OSError:
                return ""
        return self._boot_id


def partition_folder(root: str, stream: str, incarnation: str, number: int | None = None) -> str:
    """The folder of a partition, or of all of an incarnation, below `root`, the folder `streams`.

    Raises:
        OSError: a name that is more than one part of a path. The catalog refuses those (`metadata/shapes.py`); one
            that came into it before it did leads nowhere.
    """
    for part in (stream, incarnation):
        if not _PART.fullmatch(part):
            raise OSError(errno.EINVAL, "the name leaves the data folder", part[:100])
    return f"{root}/{stream}/{incarnation}" + ("" if number is None else f"/{int(number)}")


def brokers_in(path: str | os.PathLike[str]) -> list[str]:
    """Names of the folders right below `path` that are brokers' data folders, sorted; unreadable ones are none."""
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return []
    return [name for name in names if os.path.exists(f"{os.fspath(path)}/{name}/{BROKER_FILE}")]


def _check_not_above(path: str) -> None:
    """Raise WrongFolder if the path is one level above the data folders of brokers."""
    below = brokers_in(path)
    if below:
        raise WrongFolder(
            f"data folder {path} is not a broker's folder, it holds the folders of brokers: {', '.join(below)};"
            f" set data_dir to {path}/{below[0]}, or start what `liftlog up` made there: liftlog up --data {path}",
            path=path,
            found=below,
        )


def _lock(path: str) -> int:
    fd = os.open(f"{path}/{LOCK_FILE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise FolderInUse(
            f"data folder {path} is in use by process {pid or 'unknown'}",
            path=path,
            pid=int(pid) if pid.isdigit() else None,
        ) from None
    except OSError:
        os.close(fd)
        raise
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def _read_owner(path: str) -> dict[str, Any] | None:
    name = f"{path}/{BROKER_FILE}"
    try:
        with open(name, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        if os.path.isdir(f"{path}/{STREAMS_FOLDER}"):
            raise WrongFolder(
                f"data folder {path} holds streams but no {BROKER_FILE}, so their broker is not known", path=path
            ) from None
        return None
    try:
        values: dict[str, Any] = parse_json(data)
        check_format(path, values["format_version"])
        return {"broker_id": str(values["broker_id"]), "cluster_id": str(values["cluster_id"])}
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptLog(f"{name} is damaged: {error}", path=name) from error


def check_format(path: str, version: object) -> None:
    """Raises UnknownFormatVersion unless it is the format version of the data folders that this release reads."""
    if version != FORMAT_VERSION:
        raise UnknownFormatVersion(
            f"data folder {path} has format version {version}, this release reads {FORMAT_VERSION}",
            path=path,
            version=version,
        )


def _found(disk: OsDisk, path: str, broker_id: str, cluster_id: str) -> dict[str, Any]:
    values = {"format_version": FORMAT_VERSION, "cluster_id": cluster_id, "broker_id": broker_id}
    disk.replace_file(f"{path}/{BROKER_FILE}", json.dumps(values, indent=1).encode() + b"\n")
    return values


def _not_allowed(path: str, error: OSError) -> FolderNotAllowed:
    return FolderNotAllowed(f"data folder {path}: no permission for {error.filename or path}", path=path)


def _other(path: str, error: OSError) -> FolderNotAllowed | DiskFull | StorageFailed:
    if error.errno == errno.EROFS:
        return FolderNotAllowed(f"data folder {path}: the file system is read-only", path=path)
    return storage_error(error, f"data folder {path}")
